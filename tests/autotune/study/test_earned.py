from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.engine.protocol import Failure
from autotune.study.earned import Earned, earn, engine_json
from autotune.study.outcomes import Yardstick
from autotune.study.runner import Result, Runner
from autotune.study.stage import Stage
from objectives.censoring import Censored
from storage.codec import decode, encode
from storage.records import TrialRecord
from tests.autotune.study.records import Measured, limits, record
from tests.autotune.study.scripted import (
    BASELINE,
    BUDGET,
    ScriptedEngines,
    Speed,
    clear_knee,
    job_of,
)

JOB = job_of(live=True, classes="short:0-500 long:500-")
YARDSTICK = Yardstick.of(JOB)
SMALL = limits(512, 16)
SLOW = Speed(100, 40)
SPELL = Failure("slow_spell", "from 1.0 to 4.0 s")


def before() -> list[TrialRecord]:
    """The baseline, measured."""
    study = Measured(budget=BUDGET, classes="short:0-500 long:500-")
    study.add(BASELINE, clear_knee(BASELINE), phase="baseline")
    return study.trials


def ran(speed: Speed, *, cut_s: float | None = None, spell: Failure | None = None) -> Result:
    engines = ScriptedEngines(lambda _: speed, cut_s=cut_s)
    runner = Runner(JOB, engines, Stage(engines), lambda _: None)
    result = runner.run(SMALL, "live", salt="s", log_path=Path("log"), budget=JOB.budget)
    return replace(result, spell=spell)


def earned(result: Result, earlier: Sequence[TrialRecord] | None = None) -> Earned:
    row = record(1, SMALL, fidelity="live", state="complete")
    return earn(YARDSTICK, result, row, before() if earlier is None else earlier)


def cut_of(result: Result) -> Censored:
    assert result.replayed.censored is not None
    return result.replayed.censored


def test_a_whole_replay_counts_with_all_that_was_measured() -> None:
    found = earned(ran(Speed(100, 10)))
    assert (found.state, found.failure) == ("complete", None)
    assert found.outcome.state == "complete"
    assert found.outcome.constraints["tpot_p95"] < 0
    assert found.metrics is not None
    assert found.metrics["tpot_p95@long"] == pytest.approx(10, rel=0.05)
    assert found.metrics["ttft_p95"] is not None
    assert found.intervals is not None
    low, high = found.intervals["ttft_p95"]
    assert low < found.metrics["ttft_p95"] < high
    assert found.diagnosis is not None
    assert found.engine["requests"] == 80
    assert found.engine["failed_requests"] == 0
    assert found.engine["send_lag_p99_ms"] == 0
    assert "censored" not in found.engine


def test_a_replay_with_a_slow_spell_is_kept_and_does_not_count() -> None:
    found = earned(ran(Speed(100, 10), spell=SPELL))
    assert found.state == "invalid"
    assert found.failure is not None
    assert found.failure.failure_class == "slow_spell"
    assert found.failure.evidence == "from 1.0 to 4.0 s"
    assert (found.outcome.state, found.outcome.values) == ("fail", None)
    assert found.metrics is not None


def test_of_two_faults_the_slow_spell_is_named() -> None:
    late = Speed(100, 10, send_lag_s=0.2)
    for spell, named in ((None, "client_bound"), (SPELL, "slow_spell")):
        failure = earned(ran(late, spell=spell)).failure
        assert failure is not None
        assert failure.failure_class == named


def test_a_replay_that_was_cut_short_has_bounds_and_no_metrics() -> None:
    result = ran(SLOW, cut_s=1.0)
    found = earned(result)
    assert (found.state, found.failure) == ("infeasible", None)
    assert (found.metrics, found.intervals, found.diagnosis) == (None, None, None)
    cut = found.engine["censored"]
    assert cut.keys() == {
        "limit", "limit_ms", "bound_ms", "at_s", "sent", "ended", "requests", "classes", "bounds",
    }  # fmt: skip
    assert (cut["limit"], cut["limit_ms"], cut["at_s"]) == ("tpot_p95", 16.0, 1.0)
    assert (cut["sent"], cut["ended"], cut["requests"]) == (21, 16, 80)
    assert cut["classes"] == "short:0-500 long:500-"
    assert cut["bounds"]["tpot_p95"] == cut["bound_ms"] > 16
    assert cut["bounds"]["tpot_p95@long"] > 16
    assert cut_of(result).sent_share == pytest.approx(21 / 80)


def test_sooner_is_worse() -> None:
    """Optuna ranks what is infeasible by its constraints."""
    told = [earned(ran(SLOW, cut_s=cut_s)).outcome for cut_s in (1.0, 3.0)]
    assert [each.state for each in told] == ["complete", "complete"]
    sooner, later = (each.constraints["tpot_p95"] for each in told)
    assert sooner > later > 0
    assert [each.constraints["ttft_p95"] for each in told] == [0.0, 0.0]
    assert told[0].values == told[1].values
    assert told[0].values is not None
    assert told[0].values[0] >= 3000.0


@pytest.mark.parametrize(
    ("speed", "spell", "named"),
    [(SLOW, SPELL, "slow_spell"), (replace(SLOW, send_lag_s=0.2), None, "client_bound")],
)
def test_a_cut_that_cannot_be_trusted_does_not_count(
    speed: Speed, spell: Failure | None, named: str
) -> None:
    found = earned(ran(speed, cut_s=2.0, spell=spell))
    assert (found.state, found.outcome.state) == ("invalid", "fail")
    assert found.failure is not None
    assert found.failure.failure_class == named
    # What is late by this budget may count by another.
    assert ("censored" in found.engine) is (spell is None)


def test_a_bound_that_failures_made_infinite_can_be_stored() -> None:
    found = earned(ran(replace(SLOW, failed=10), cut_s=2.0))
    cut = found.engine["censored"]
    assert (cut["limit"], cut["bound_ms"]) == ("ttft_p95", None)
    assert decode(encode(dict(found.engine), name="engine")) == found.engine


def test_what_is_stored_of_the_engine() -> None:
    stored: dict[str, Any] = engine_json(ran(Speed(100, 10)))
    assert json.loads(json.dumps(stored, allow_nan=False)) == decode(encode(stored, name="engine"))
    assert stored["load"]["peak_running"] == 16
    assert stored["warmup"] == {"requests": 20, "passes": 1, "drift": 0.0, "seconds": 0.5}
    assert stored["device"] == "scripted"
    assert stored["live_obstacle"] is None
    assert stored["errors"] == []
    assert {"ground", "hardware", "kv_cache_tokens", "capture_sizes", "work"} <= stored.keys()
