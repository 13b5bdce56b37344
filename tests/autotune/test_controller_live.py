"""Studies whose search changes limits on a running engine."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from autotune.candidates.lattice import TOKENS, Candidate, cell_key, integer
from autotune.candidates.live import THRESHOLD
from autotune.engine.protocol import Failure, FailureClass, TrialFailed
from autotune.errors import TooManyFailures
from autotune.study.judgement import Judgement
from autotune.study.plan import engine_starts
from autotune.study.runner import SPELL_S
from objectives.steps import Steps
from storage.records import TrialRecord
from tests.autotune.study.scripted import (
    BASELINE,
    ScriptedEngines,
    Speed,
    clear_knee,
    job_of,
    opened,
)
from tests.autotune.study.test_runner import quiet, slow_throughout, spell
from tests.autotune.test_controller import FINISHED, Stopped, measured

pytestmark = pytest.mark.study

TRIALS = 8
LIVE = ("sentinel", "starts", "search")


@dataclass(frozen=True, slots=True)
class Course:
    """A study that ran: what it stored, what it asked for, and what came of it."""

    rows: tuple[TrialRecord, ...]
    engines: ScriptedEngines
    judgement: Judgement
    told: tuple[Any, ...]
    said: list[str]

    def of(self, *phases: str) -> list[TrialRecord]:
        return [row for row in self.rows if row.phase in phases]


def run(folder: Path, engines: ScriptedEngines, **changes: Any) -> Course:
    job = job_of(**{"live": True, "trials": TRIALS, **changes})
    with opened(folder, job, engines) as running:
        judgement = running.controller.run()
        assert judgement is not None
        told = tuple(running.optuna_study.get_trials(deepcopy=False))
        return Course(running.rows(), engines, judgement, told, running.watcher.said)


def cuts_short(candidate: Candidate) -> Speed:
    """As ``clear_knee``, and much too slow with large steps; the baseline as well."""
    speed = clear_knee(candidate)
    return Speed(speed.ttft_ms, speed.tpot_ms + (20 if integer(candidate[TOKENS]) > 700 else 0))


@pytest.fixture(scope="module")
def uncut(tmp_path_factory: pytest.TempPathFactory) -> Course:
    """A study whose replays all last to their end."""
    return run(tmp_path_factory.mktemp("whole"), ScriptedEngines())


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> Course:
    """A study whose replays may be cut short after a quarter of the window."""
    engines = ScriptedEngines(cuts_short, cut_s=1.0)
    return run(tmp_path_factory.mktemp("cut"), engines, budget="ttft_p95:300 tpot_p95:0.4x")


def test_the_search_is_live_and_the_verdict_is_not(uncut: Course) -> None:
    phases = ["baseline", "sentinel", *["starts"] * 2, *["search"] * 2, *["confirm"] * 2]
    assert [row.phase for row in uncut.rows] == phases
    assert all((row.fidelity == "live") == (row.phase in LIVE) for row in uncut.rows)
    assert all(row.state == "complete" and row.told for row in uncut.rows)
    chosen = uncut.judgement.chosen
    assert chosen is not None
    assert not chosen.live
    assert uncut.judgement.unconfirmed is None
    winner, baseline = uncut.of("confirm")
    assert (winner.candidate, baseline.candidate) == (chosen.candidate, BASELINE)


def test_live_trials_share_the_engine_of_the_baseline(uncut: Course) -> None:
    """It has the largest limits of the ladders here."""
    engines = uncut.engines
    winner = uncut.of("confirm")[0].candidate
    assert engines.started == [{"model": "tiny", **each} for each in (BASELINE, winner, BASELINE)]
    assert len(engines.started) == engine_starts(TRIALS, live=True)
    assert engines.limits == [{**row.candidate, THRESHOLD: 0} for row in uncut.of(*LIVE)]
    assert not engines.alive


def test_the_log_of_a_live_trial_is_that_of_its_engine(uncut: Course) -> None:
    names = [Path(row.log_path or "").name for row in uncut.rows]
    assert names == ["trial-0000.log"] * 6 + ["trial-0006.log", "trial-0007.log"]
    assert [log.name for log in uncut.engines.logs] == sorted(set(names))


def test_a_live_trial_takes_neither_start_nor_stop(uncut: Course) -> None:
    timings = [row.timings or {} for row in uncut.rows]
    starts = [each["start_s"] for each in timings]
    assert starts == [1.0, None, None, None, None, None, 1.0, 1.0]
    assert [each["stop_s"] for each in timings[:6]] == [None] * 6
    assert timings[0]["turnaround_s"] is None
    assert {each["turnaround_s"] for each in timings[1:]} == {0.5}


def test_only_a_search_may_be_cut_short(cut: Course) -> None:
    """By limits in ms, relative ones as the baseline made them."""
    baseline = cut.rows[0].metrics
    assert baseline is not None
    assert baseline["tpot_p95"] is not None
    budget = f"ttft_p95:300 tpot_p95:{0.4 * baseline['tpot_p95']!r}"
    for row, plan in zip(cut.rows, cut.engines.plans, strict=True):
        searched = row.phase in ("starts", "search")
        assert plan.budget == (budget if searched else "")
        assert (row.state == "infeasible") <= searched
    # The baseline is as slow whenever it is measured.
    assert [row.state for row in cut.rows if row.candidate == BASELINE] == ["complete"] * 3


def test_what_is_stored_of_a_replay_that_was_cut_short(cut: Course) -> None:
    lost = [row for row in cut.rows if row.state == "infeasible"]
    assert lost
    for row in lost:
        assert row.engine is not None
        found = row.engine["censored"]
        assert (found["at_s"], found["sent"]) == (1.0, 21)
        assert found["bound_ms"] > found["limit_ms"]
        assert found["bound_ms"] == found["bounds"][found["limit"]]
        assert (row.metrics, row.failure_class, row.told) == (None, None, True)
        assert row.outcome is not None
        assert row.outcome.constraints[found["limit"]] > 1 - 21 / 80
        told = cut.told[row.number]
        assert told.state.name == "COMPLETE"
        assert all(map(math.isfinite, told.values))
    judged = {cell_key(cell.candidate) for cell in cut.judgement.cells}
    assert judged.isdisjoint(cell_key(row.candidate) for row in lost)
    assert len(cut.rows) == TRIALS


def spelled(*slow: int, seed: int = 0) -> Callable[[Candidate, int], Steps]:
    """Steps of replays, those with these numbers hit by a slow spell."""
    return lambda _, number: spell(number + seed) if number in slow else quiet(number + seed)


def told_of(rows: Sequence[TrialRecord]) -> list[tuple[str, str | None]]:
    return [(row.state, row.failure_class) for row in rows]


def test_a_replay_that_a_slow_spell_has_hit_is_repeated(tmp_path: Path) -> None:
    """Once if the spell is over by then, and not again if it is the candidate's own pace."""
    course = run(tmp_path, ScriptedEngines(steps=spelled(2, 3, 4)), trials=6)
    slow, own_pace, hit, again = course.rows[2:6]
    assert told_of([slow, own_pace]) == [("invalid", "slow_spell"), ("complete", None)]
    assert told_of([hit, again]) == [("invalid", "slow_spell"), ("complete", None)]
    assert (own_pace.candidate, again.candidate) == (slow.candidate, hit.candidate)
    assert (again.fidelity, again.replicate_of) == ("live", 4)
    assert hit.outcome is not None
    assert hit.outcome.state == "fail"
    # On the engine that runs: nothing is wrong with it.
    assert len(course.engines.started) == engine_starts(6, live=True)
    assert sum(row.state in FINISHED for row in course.rows) == 6


def failed(failure_class: FailureClass) -> TrialFailed:
    return TrialFailed(Failure(failure_class, f"the line that shows {failure_class}"))


def test_what_goes_wrong_under_a_live_trial_is_for_a_restart_to_tell(tmp_path: Path) -> None:
    """Its engine has other limits than the candidate, and has served others before."""
    engines, faults = ScriptedEngines(), {3: failed("oom_run"), 6: failed("engine_dead")}

    def die(_: int) -> None:
        if fault := faults.get(len(engines.plans)):
            raise fault

    engines.on_replay = die
    course = run(tmp_path, engines, trials=8)
    memory, alone, other, dead, again = course.rows[2:7]
    assert told_of([memory, alone]) == [("failed", "oom_run"), ("complete", None)]
    assert told_of([other]) == [("complete", None)]
    assert told_of([dead, again]) == [("failed", "engine_dead"), ("complete", None)]
    fidelities = [row.fidelity for row in course.rows[2:7]]
    assert fidelities == ["live", "restart", "live", "live", "restart"]
    assert (alone.candidate, again.candidate) == (memory.candidate, dead.candidate)
    assert course.said == []


def test_a_knob_with_which_no_engine_starts_ends_no_other_live_trials(tmp_path: Path) -> None:
    """One value of three is refused, at every start."""

    def refused(args: Any) -> Failure | None:
        wrong = args["gpu_memory_utilization"] == 0.98
        return Failure("oom_start", "no memory is left") if wrong else None

    job = {
        "knobs": {"gpu_memory_utilization": [0.8, 0.9, 0.98]},
        "engine_args": {"gpu_memory_utilization": 0.9},
    }
    course = run(tmp_path, ScriptedEngines(refused=refused), trials=12, **job)
    wrong = [r for r in course.rows if r.candidate["gpu_memory_utilization"] == 0.98]
    assert {(row.fidelity, row.state) for row in wrong} <= {
        ("live", "failed"),
        ("restart", "infeasible"),
    }
    tried_live = [row.candidate for row in wrong if row.fidelity == "live"]
    assert tried_live
    right = [r for r in course.rows if r.candidate["gpu_memory_utilization"] != 0.98]
    assert {row.state for row in right} == {"complete"}
    after = [row for row in right if row.number > wrong[0].number and row.phase == "search"]
    assert any(row.fidelity == "live" for row in after)


def test_limits_that_are_never_taken_end_the_study(tmp_path: Path) -> None:
    faults = {("limit", number): failed("hang") for number in range(9)}
    with pytest.raises(TooManyFailures, match="failed with hang"):
        run(tmp_path, ScriptedEngines(faults=faults), max_failures_in_a_row=2)


def test_without_an_engine_for_live_trials_the_rest_restarts(tmp_path: Path) -> None:
    course = run(tmp_path, ScriptedEngines(obstacle="another scheduler"), trials=6)
    (said,) = course.said
    assert said.startswith("every trial restarts an engine from now on: ")
    assert said.endswith(": limits cannot be changed: another scheduler")
    assert told_of(course.rows[1:3]) == [("failed", "unknown")] * 2
    assert [row.fidelity for row in course.rows] == ["restart", "live", "live", *["restart"] * 5]
    phases = ["baseline", *["sentinel"] * 2, "starts", "starts", "search", "confirm", "confirm"]
    assert [row.phase for row in course.rows] == phases
    assert course.engines.limits == []
    assert course.judgement.chosen is not None


def test_a_resumed_live_study_measures_the_same(tmp_path: Path, uncut: Course) -> None:
    engines = ScriptedEngines()

    def stop(_: int) -> None:
        if len(engines.plans) == 4:
            raise Stopped

    engines.on_replay = stop
    with pytest.raises(Stopped):
        run(tmp_path, engines)
    engines.kill()
    resumed = run(tmp_path, engines)
    assert resumed.rows[3].state == "interrupted"
    assert measured(resumed.rows) == measured(uncut.rows)
    # One more than without: the engine that was running is gone.
    assert len(engines.started) == engine_starts(TRIALS, live=True) + 1
    assert engines.started[1] == {"model": "tiny", **BASELINE}


def test_a_resumed_study_knows_the_pace_from_before(tmp_path: Path) -> None:
    """A host that is slow from then on shows against the replays of the database alone."""
    engines = ScriptedEngines(
        steps=lambda _, number: slow_throughout(number) if number == 4 else quiet(number)
    )

    def stop(_: int) -> None:
        if len(engines.plans) == 4:
            raise Stopped

    engines.on_replay = stop
    with pytest.raises(Stopped):
        run(tmp_path, engines)
    engines.kill()
    resumed = run(tmp_path, engines)
    assert resumed.rows[3].state == "interrupted"
    assert told_of(resumed.rows[4:5]) == [("invalid", "slow_spell")]


@pytest.mark.parametrize("cut_s", [None, 1.0], ids=["whole", "cut short"])
def test_a_resumed_study_knows_the_slow_spell_from_before(
    tmp_path: Path, cut_s: float | None
) -> None:
    """The repetition waits for the rest of the minute, and tells the candidate's own pace."""
    engines = ScriptedEngines(cuts_short, steps=spelled(3, 4, 5), cut_s=cut_s)
    job = job_of(live=True, trials=TRIALS, budget="ttft_p95:300 tpot_p95:0.4x")

    def stop(_: int) -> None:
        if len(engines.plans) == 5:
            raise Stopped

    engines.on_replay = stop
    with opened(tmp_path, job, engines) as running, pytest.raises(Stopped):
        running.controller.run()
    with opened(tmp_path, job, engines) as running:
        hit = running.rows()[3]
    engines.kill()
    engines.pauses.clear()
    assert told_of([hit]) == [("invalid", "slow_spell")]
    assert (hit.metrics is None) == (cut_s is not None)
    ended_at = datetime.fromisoformat(hit.finished_at or "")
    later = ended_at + timedelta(seconds=25)
    with opened(tmp_path, job, engines, now=lambda: later) as running:
        running.controller.run()
        rows = running.rows()
    assert rows[4].state == "interrupted"
    assert rows[5].candidate == hit.candidate
    assert rows[5].state in FINISHED
    assert 0 < engines.pauses[0] <= SPELL_S - 25
