from __future__ import annotations

from typing import Any

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
        "starts, where the search has no forecasts: 512/64, 128/64",
        "max_num_batched_tokens, 8 values: 128, 256, 384, 512, 768, 1024, 1536, 2048",
        "max_num_seqs, 1 value: 64",
        "candidates: 8; trials: 8 at most, repeats among them",
        "engines: 8 start, one for each trial",
        (
            "time: about 71 s of warm-up and replays, less where some are cut short; engine "
            "starts and stops come on top"
        ),
        "vLLM 0.32.0 on scripted",
    ]


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {},
            (
                "engines: 9 start in all, from the calibration to the trials that decide; 5 "
                "trials change the limits of one that runs"
            ),
        ),
        (
            {"restarted_knobs": ["block_size", "dtype"]},
            (
                "engines: at least 9 start in all, from the calibration to the trials that "
                "decide, and one for each trial that changes block_size or dtype; 5 trials "
                "change the limits of one that runs"
            ),
        ),
        (
            {"live_trials": 0, "engine_starts": 13},
            "engines: 13 start, one for each trial, and one for the calibration",
        ),
    ],
)
def test_how_many_engines_start(changes: dict[str, Any], line: str) -> None:
    plan = {**outlook(job_of(trials=12)), "live_trials": 5, "engine_starts": 9, **changes}
    assert line in plan_lines(plan)


def test_a_simulation_starts_none() -> None:
    plan = {**outlook(job_of()), "simulated": "cpu"}
    assert [line for line in plan_lines(plan) if line.startswith("engines")] == []
