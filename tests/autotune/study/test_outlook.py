from __future__ import annotations

import json
from dataclasses import replace

import pytest

from autotune.candidates.lattice import SEQS, TOKENS
from autotune.study.job import Job
from autotune.study.outlook import outlook
from autotune.traffic.fit import fitted
from autotune.traffic.holdout import Holdout
from autotune.traffic.model import Trace, TraceRequest
from tests.autotune.study.scripted import BASELINE, job_of, small_trace


def test_the_plan_of_a_job() -> None:
    plan = outlook(job_of(budget="ttft_p95:300 tpot_p99:16", classes="short:0-500 long:500-"))
    assert json.loads(json.dumps(plan, allow_nan=False)) == plan
    assert plan["requests"] == 80
    assert plan["classes"] == "short:0-500 long:500-"
    assert plan["budget"] == "ttft_p95:300 tpot_p99:16"
    assert plan["baseline"] == BASELINE
    assert plan["starts"] == [{TOKENS: 512, SEQS: 64}, {TOKENS: 128, SEQS: 64}]
    assert plan["ladders"][SEQS] == [8, 16, 24, 32, 48, 64]
    assert plan["cells"] == 48
    assert (plan["trials"], plan["live"], plan["engine_starts"]) == (8, False, 8)
    assert plan["longest_request"] == 1004
    assert (plan["too_long"], plan["too_long_requests"]) == ("error", 0)


def wider(job: Job) -> Job:
    """The same, with ladders that go beyond the baseline."""
    ladders = {**job.lattice.ladders, TOKENS: (2048, 4096)}
    return replace(job, lattice=replace(job.lattice, ladders=ladders))


@pytest.mark.parametrize(
    ("live", "trials", "calibrate", "starts"),
    [
        (True, 12, True, 9),
        (True, 12, False, 8),
        (True, 6, True, 5),
        (False, 12, True, 13),
        (False, 12, False, 12),
        (False, 5, True, 5),
    ],
)
def test_every_engine_counts(live: bool, trials: int, calibrate: bool, starts: int) -> None:
    """Calibration, baseline and live trials, as far as there are any, each start their own."""
    job = replace(job_of(trials=trials, calibrate=calibrate), live=live)
    plan = outlook(wider(job))
    assert (plan["live"], plan["engine_starts"]) == (live, starts)
    lives = {12: 5, 6: 3}[trials] if live else 0
    assert plan["live_trials"] == lives
    shared = outlook(job)
    assert (shared["engine_starts"], shared["live_trials"]) == (trials - lives, lives)


def test_where_limits_cannot_be_changed_nothing_is_calibrated() -> None:
    job = wider(job_of(trials=12))
    held = replace(job, info=replace(job.info, live_obstacle="scheduler_cls is given"))
    assert [outlook(each)["engine_starts"] for each in (job, held)] == [13, 12]


def test_the_time_is_that_of_windows_and_warm_ups() -> None:
    job = job_of(trials=3)
    window_s = job.trace.duration_s
    for warmup_s, trial_s in ((0.0, window_s), (1.5, 2 * window_s + 1.5), (99.0, 3 * window_s)):
        settings = job.settings.model_copy(update={"warmup_s": warmup_s})
        hours = outlook(replace(job, settings=settings))["replay_hours_at_least"]
        assert 3 * trial_s - 0.5 < 3600 * hours <= 3 * trial_s


def test_a_window_too_short_for_a_bound_is_named() -> None:
    plan = outlook(job_of(budget="ttft_p95:300 ttft_p95:0.9x tpot_p99:16 tpot_p99:1x itl_max:99"))
    assert plan["too_few_requests_for"] == [
        {"limit": "tpot_p99", "requests": 80, "needed": 368},
        {"limit": "itl_max", "requests": 80, "needed": None},
    ]


def test_a_limit_on_a_class_counts_its_requests_alone() -> None:
    budget = "ttft_p90@short:300 ttft_p90@long:900"
    plan = outlook(job_of(budget=budget, classes="short:0-500 long:500-"))
    assert plan["too_few_requests_for"] == [
        {"limit": "ttft_p90@long", "requests": 10, "needed": 36}
    ]


def test_replies_of_one_token_have_no_time_between_tokens() -> None:
    requests = [TraceRequest(50.0 * i, 100, 1 + i % 2, (i,)) for i in range(100)]
    trace = Trace.build(requests, block_size=512, prefixes_known=True, source="short replies")
    job = replace(job_of(budget="ttft_p95:300 tpot_p95:16 itl_p90:9"), trace=trace)
    assert outlook(job)["too_few_requests_for"] == [
        {"limit": "tpot_p95", "requests": 50, "needed": 72}
    ]


def test_what_is_held_out_has_figures_of_its_own() -> None:
    job = job_of(budget="ttft_p95:300 itl_max:99", holdout="25%", warmup_s=0.0)
    assert outlook(job)["holdout"] is None
    first, held = Holdout("25%").split(small_trace())
    whole, plan = outlook(job), outlook(replace(job, trace=first, held=held))
    assert plan["holdout"] == {
        "share": "25%",
        "requests": 20,
        "duration_s": 1.0,
        "too_few_requests_for": [
            {"limit": "ttft_p95", "requests": 20, "needed": 72},
            {"limit": "itl_max", "requests": 20, "needed": None},
        ],
        "engine_starts": 4,
    }
    assert plan["engine_starts"] == whole["engine_starts"] + 4
    hours = (8 * first.duration_s + 4 * held.duration_s) / 3600
    assert plan["replay_hours_at_least"] == pytest.approx(hours, abs=1e-4)


def test_no_budget_and_no_classes_are_said_in_words() -> None:
    plan = outlook(job_of(budget=""))
    assert (plan["budget"], plan["classes"]) == ("none", "one")


def test_requests_that_are_too_long_are_counted() -> None:
    job = replace(job_of(too_long="skip"), trace=fitted(small_trace(), 900, "skip"))
    plan = outlook(job)
    assert (plan["too_long"], plan["too_long_requests"], plan["requests"]) == ("skip", 10, 70)
    assert plan["notes"] == ["Requests longer than max_model_len 900, left out: 10."]
