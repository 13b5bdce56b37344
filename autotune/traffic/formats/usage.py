"""Counts of tokens in Langfuse's spellings.

``usageDetails`` has a count for each kind of token. Its kinds may be parts of ``input`` and
``output`` or stand beside them, as integrations differ: what agrees with ``total`` is right, and
where there is none they stand beside, which is how Langfuse itself adds them up.
"""

from __future__ import annotations

from dataclasses import dataclass

from autotune.traffic.formats.documents import Row
from autotune.traffic.formats.fields import first_of, object_of, optional_count

_PROMPT = ("input", "prompt_tokens", "promptTokens", "input_tokens", "inputTokens", "prompt")
_OUTPUT = (
    "output", "completion_tokens", "completionTokens", "output_tokens", "outputTokens",
    "completion",
)  # fmt: skip
_PROMPT_OF_ROW = ("promptTokens", "prompt_tokens", "inputUsage", "input_usage", "inputTokens")
_OUTPUT_OF_ROW = (
    "completionTokens", "completion_tokens", "outputUsage", "output_usage", "outputTokens",
)  # fmt: skip
_DETAILS = ("usageDetails", "usage_details", "usage", "providedUsageDetails",
            "provided_usage_details")  # fmt: skip
_TOTAL = ("total", "total_tokens", "totalTokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of one request; cached ones are part of the prompt, None if unknown."""

    prompt: int
    output: int
    cached: int | None


def tokens_of(row: Row) -> Usage:
    """Return the tokens of an observation, 0 where it has none.

    Raises:
        BadLine: a count is none.
    """
    details = object_of(first_of(row, *_DETAILS)[1])
    prompt, output = optional_count(details, *_PROMPT), optional_count(details, *_OUTPUT)
    more_prompt = _sum(details, "input", {*_PROMPT})
    more_output = _sum(details, "output", {*_OUTPUT})
    cached = _cached(details)
    if prompt is None and output is None and not more_prompt + more_output:
        return Usage(
            prompt=optional_count(row, *_PROMPT_OF_ROW) or 0,
            output=optional_count(row, *_OUTPUT_OF_ROW) or 0,
            cached=cached,
        )
    total = optional_count(details, *_TOTAL)
    if total is not None and total == (prompt or 0) + (output or 0):
        more_prompt = more_output = 0
    return Usage(
        prompt=(prompt or 0) + more_prompt, output=(output or 0) + more_output, cached=cached
    )


def _sum(details: Row, kind: str, plain: set[str]) -> int:
    """Add up the kinds of prompt or output tokens that have names of their own."""
    names = [
        name
        for name in details
        if name not in plain and (name.startswith(f"{kind}_") or name.endswith(f"_{kind}_tokens"))
    ]
    return sum(optional_count(details, name) or 0 for name in names)


def _cached(details: Row) -> int | None:
    names = [name for name in details if "cached" in name or "cache_read" in name]
    counts = [optional_count(details, name) for name in names]
    known = [each for each in counts if each is not None]
    return sum(known) if known else None
