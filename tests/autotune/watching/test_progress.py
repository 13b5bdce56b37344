from __future__ import annotations

import json
import os
from dataclasses import replace

from autotune.watching.listener import Ending
from storage.records import TrialRecord
from tests.autotune.study.records import limits, record, study_record
from tests.autotune.watching.builders import Clock, progress_on

TIMINGS = {"start_s": 20.0, "warmup_s": 10.0, "replay_s": 60.0, "stop_s": 2.0}
BUDGET = "ttft_p95:500"


def measured(number: int, ttft_ms: float = 120.0, tokens: int = 512) -> TrialRecord:
    return record(
        number, limits(tokens), metrics={"ttft_p95": ttft_ms}, timings=TIMINGS, engine={}
    )


def test_before_anything_it_is_preparing() -> None:
    document = progress_on(Clock()).document()
    assert (document["state"], document["phase"]) == ("running", "preparing")
    assert document["pid"] == os.getpid()
    assert document["trials"] == {"finished": 0, "total": 8}
    assert document["started_at"] == "2026-11-30T12:00:00.000Z"
    assert json.loads(json.dumps(document, allow_nan=False)) == document


def test_a_trial_is_told_with_its_stage_and_how_long_all_takes() -> None:
    clock = Clock()
    progress = progress_on(clock)
    progress.opened(study_record(trials=8), [measured(0)])
    progress.begun(record(1, limits(256), phase="screen", fidelity="live"), 2, 8)
    progress.progress({"stage": "replay", "done": 3, "total": 9})
    document = progress.document()
    assert document["phase"] == "screen"
    assert document["trial"] == {
        "number": 1, "candidate": limits(256), "fidelity": "live", "replicate_of": None,
        "stage": "replay", "done": 3, "total": 9,
    }  # fmt: skip
    assert document["trials"] == {"finished": 1, "total": 8}
    assert progress.words() == "trial 1 screen: replay 3 of 9; 1 of 8 trials done"
    before = document["eta_s"]
    clock.now_s += 5.0
    assert progress.document()["eta_s"] == before - 5.0


def test_of_a_deadline_the_moment_is_told_and_nothing_takes_longer() -> None:
    progress = progress_on(Clock())
    progress.due(30.0)
    progress.opened(study_record(trials=8), [measured(0)])
    progress.begun(record(1), 2, 8)
    document = progress.document()
    assert document["deadline_at"] == "2026-11-30T12:00:30.000Z"
    assert document["eta_s"] == 30.0


def test_before_any_trial_was_timed_nobody_knows_how_long_all_takes() -> None:
    progress = progress_on(Clock())
    progress.opened(study_record(), [])
    progress.begun(record(0, phase="baseline"), 1, 8)
    assert progress.document()["eta_s"] is None


def test_what_is_no_trial_is_work() -> None:
    progress = progress_on(Clock())
    progress.progress({"stage": "calibrate", "done": 7, "total": 60, "sent": 7, "tokens": 1})
    document = progress.document()
    assert (document["phase"], document["trial"]) == ("calibrate", None)
    assert document["work"] == {"label": "", "stage": "calibrate", "done": 7, "total": 60}
    label = "held-out replay 1 of 4, 512/64"
    progress.progress({"stage": "start", "done": 0, "total": 0, "label": label})
    document = progress.document()
    assert document["phase"] == "holdout"
    assert document["work"] == {"label": label, "stage": "start", "done": 0, "total": None}
    assert progress.words() == f"{label}: start; 0 of 8 trials done"


def test_the_first_trial_that_keeps_the_budget_is_known() -> None:
    progress = progress_on(Clock())
    progress.opened(study_record(budget=BUDGET), [])
    slow, fast = measured(0, 700.0), measured(1, 300.0, 256)
    progress.finished(slow)
    assert progress.first_feasible is None
    progress.finished(fast)
    progress.finished(measured(2, 200.0, 1024))
    assert progress.first_feasible is fast


def test_a_study_that_goes_on_had_its_first_before() -> None:
    progress = progress_on(Clock())
    early = measured(0)
    progress.opened(study_record(budget=BUDGET), [early, replace(record(1), state="running")])
    progress.finished(measured(2))
    assert progress.first_feasible is early
    assert progress.finished_count == 2


def test_the_last_failure_is_told_without_secrets() -> None:
    progress = progress_on(Clock())
    progress.opened(study_record(), [])
    progress.finished(
        record(0, state="failed", failure_class="hang", failure_evidence="s3cret " + "x" * 900)
    )
    progress.finished(measured(1))
    failure = progress.document()["last_failure"]
    assert (failure["trial"], failure["class"]) == (0, "hang")
    assert failure["at"] == "2026-11-01T10:01:00+00:00"
    assert failure["evidence"].startswith("*** xx")
    assert len(failure["evidence"]) == 500


def test_an_end_has_a_code_and_a_reason() -> None:
    progress = progress_on(Clock())
    progress.opened(study_record(), [])
    progress.begun(record(0, phase="baseline"), 1, 8)
    progress.ended(Ending("interrupted", 143, "SIGTERM of s3cret"))
    document = progress.document()
    assert document["state"] == "interrupted"
    assert document["exit_code"] == 143
    assert document["reason"] == "SIGTERM of ***"
    assert document["trial"]["number"] == 0
    assert progress.has_ended
    assert progress.words() == "interrupted with exit code 143; 0 of 8 trials done"


def test_at_a_good_end_nothing_runs() -> None:
    progress = progress_on(Clock())
    progress.opened(study_record(), [])
    progress.begun(record(0, phase="baseline"), 1, 8)
    progress.ended(Ending("finished", 3))
    document = progress.document()
    assert (document["state"], document["exit_code"]) == ("finished", 3)
    assert document["trial"] is None
