from __future__ import annotations

import pytest

from autotune.traffic.formats.documents import Row
from autotune.traffic.formats.usage import tokens_of


@pytest.mark.parametrize(
    ("row", "tokens"),
    [
        ({"usage": {"input": 100, "output": 10, "total": 110, "unit": "TOKENS"}}, (100, 10, None)),
        ({"usageDetails": {"input": 100, "output": 10}}, (100, 10, None)),
        (
            {"usage_details": {"input": 80, "input_cached": 20, "output": 10, "total": 110}},
            (100, 10, 20),
        ),
        # Parts of the input, not beside it: the total tells.
        (
            {"usage_details": {"input": 100, "input_cached": 20, "output": 10, "total": 110}},
            (100, 10, 20),
        ),
        (
            {"usageDetails": {"input": 5, "cache_read_input_tokens": 95, "output": 10}},
            (100, 10, 95),
        ),
        ({"usageDetails": {"input": 1, "output": 4, "output_reasoning_tokens": 6}}, (1, 10, None)),
        ({"usageDetails": {"prompt_tokens": 9, "completion_tokens": 8}}, (9, 8, None)),
        ({"usage": '{"input": 9, "output": 8}'}, (9, 8, None)),
        ({"promptTokens": 9, "completionTokens": 8}, (9, 8, None)),
        ({"usageDetails": {}, "inputUsage": 9, "outputUsage": 8}, (9, 8, None)),
        ({}, (0, 0, None)),
    ],
)  # fmt: skip
def test_every_spelling_is_read(row: Row, tokens: tuple[int, int, int | None]) -> None:
    found = tokens_of(row)
    assert (found.prompt, found.output, found.cached) == tokens
