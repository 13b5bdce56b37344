from __future__ import annotations

from typing import Any

import pytest

from autotune.cli.plan_words import plan_lines
from autotune.study.deadline import Due
from autotune.study.job import Job
from autotune.study.outlook import outlook
from autotune.study.schedule import schedule
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
            "and needs 36, as many as come in 14 s"
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


def test_what_is_held_out_is_said_with_its_engines() -> None:
    short = [
        {"limit": "ttft_p95", "requests": 16, "needed": 72},
        {"limit": "itl_max", "requests": 16, "needed": None},
    ]
    held = {"share": "20%", "requests": 16, "duration_s": 0.8, "engine_starts": 4}
    held["too_few_requests_for"] = short
    lines = plan_lines({**outlook(job_of(trials=12)), "engine_starts": 16, "holdout": held})
    assert [line for line in lines if "held out" in line] == [
        "held out: the last 20 % of the window, 16 requests in 1 s, to confirm the winner on",
        "held out, ttft_p95 has no upper bound: it counts 16 requests there and needs 72",
        "engines: 12 start, one for each trial; up to 4 more for what is held out",
    ]


def test_a_simulation_starts_none() -> None:
    plan = {**outlook(job_of()), "simulated": "cpu"}
    assert [line for line in plan_lines(plan) if line.startswith("engines")] == []


def test_a_window_that_is_too_short_for_any_verdict_is_said_first() -> None:
    _, second, *_ = plan_lines({**outlook(job_of()), "requests": 1})
    assert second.startswith("Too short to tell candidates apart: the window has 1 request, ")


def timed(job: Job, due: Due | None = None, *, start_s: float | None = 10.0) -> list[str]:
    plan = {**outlook(job), "time": schedule(job, due, start_s=start_s).to_json(1_800_000_000.0)}
    known = plan_lines(outlook(job))
    return [line for line in plan_lines(plan) if line not in known]


def test_what_the_time_goes_to_is_said() -> None:
    parts, phases, end = timed(job_of(trials=12))
    assert parts == (
        "a trial may take: engine start 10 s, warm-up 5 s, replay 4 s, stop 15 s; of the search "
        "39 s in all, a restart 39 s"
    )
    assert phases == (
        "time by phase, if all take so long: calibrate 2 min, baseline 39 s, search 6 min, "
        "confirm 78 s"
    )
    assert end.endswith("after 10 min")
    assert "engine start 5 min (not known yet)" in timed(job_of(), start_s=None)[0]


def test_what_there_is_time_for_is_said() -> None:
    *_, deadline, fits = timed(job_of(trials=12), Due(500.0, "--timeout 500s"))
    assert deadline.endswith(", in 8 min (--timeout 500s)")
    assert fits == (
        "there is time for about 10 of 12 trials; the search ends early, so that what it found "
        "is confirmed"
    )
    *_, spare = timed(job_of(trials=12), Due(1000.0, "--timeout 1000s"))
    assert spare.endswith("7 min are left: --trials 22 would use it")
