from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.cli.plan_words import plan_lines
from autotune.study.outlook import outlook
from tests.autotune.study.scripted import job_of


def test_a_plan_in_sentences() -> None:
    budget = "ttft_p95:300 ttft_p90@long:900 itl_max:99"
    job = job_of(budget=budget, classes="short:0-500 long:500-", knobs={"max_num_seqs": [64]})
    assert plan_lines(outlook(job)) == [
        "window: 80 requests in 4 s; the longest has 1004 tokens of 8192 allowed",
        "classes: short:0-500 long:500-",
        "budget: ttft_p95:300 ttft_p90@long:900 itl_max:99",
        (
            "ttft_p90@long can be met but not called kept: it counts 10 requests of the window "
            "and needs 36"
        ),
        "itl_max can be met but never called kept: no window bounds a maximum",
        "baseline: 2048/64",
        "starts: 512/64, 128/64",
        "max_num_batched_tokens, 8 values: 128, 256, 384, 512, 768, 1024, 1536, 2048",
        "max_num_seqs, 1 value: 64",
        "candidates: 8; trials: 8, repeats among them",
        "time: at least 39 s; engine starts and stops come on top",
        "vLLM 0.32.0 on scripted",
    ]


@pytest.mark.parametrize(
    ("trials", "line"),
    [
        (
            12,
            (
                "engines: 7 trials start one, the first and those that decide; 5 change the "
                "limits of one that runs"
            ),
        ),
        (
            5,
            "engines: each trial starts one, as so few trials leave none to confirm others by",
        ),
    ],
)
def test_how_many_engines_start_where_limits_can_change(trials: int, line: str) -> None:
    assert line in plan_lines(outlook(replace(job_of(trials=trials), live=True)))
