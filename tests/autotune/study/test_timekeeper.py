from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.candidates.lattice import SEQS, TOKENS, Lattice
from autotune.errors import UsageError
from autotune.study.deadline import Deadline
from autotune.study.eta import START_S, STOP_S
from autotune.study.held import STARTS
from autotune.study.plan import CONFIRM_TRIALS, Plan, Step, confirm_trials, finished_trials
from autotune.study.runner import SPELL_S
from autotune.study.stage import Stage
from autotune.study.timekeeper import BETWEEN_S, Timekeeper, check_enough, least_s
from storage.records import TrialRecord
from tests.autotune.study.records import limits, record
from tests.autotune.study.scripted import BASELINE, ScriptedEngines, job_of
from tests.autotune.study.standings import Told

WINDOW_S = job_of().trace.duration_s
LATTICE = Lattice({TOKENS: (256, 512, 1024, 2048), SEQS: (16, 32, 64)})


@dataclass(slots=True)
class Clock:
    """Shows what a test sets."""

    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


def timings(start_s: float, replay_s: float = WINDOW_S) -> dict[str, float | None]:
    return {"start_s": start_s, "warmup_s": 2.0, "replay_s": replay_s, "stop_s": 1.0}


def keeper(
    clock: Clock, total_s: float = 1000.0, *, start_s: float | None = None, **changes: Any
) -> Timekeeper:
    deadline = Deadline(total_s, total_s, "--timeout", clock)
    return Timekeeper(deadline, job_of(**changes), Stage(ScriptedEngines()), start_s=start_s)


def test_nobody_waits_for_what_nobody_knows() -> None:
    """The first engine is started though its start is not known; what follows counts on more."""
    timekeeper = keeper(Clock())
    first = timekeeper.trial_s(Step("baseline", BASELINE), [])
    assert first == pytest.approx(3 * WINDOW_S + STOP_S, abs=5.0)
    assert timekeeper.allowance([]).restart_s == pytest.approx(first + START_S)
    assert keeper(Clock(), start_s=7.0).allowance([]).seconds["start"] == 7.0


def test_a_live_trial_may_have_an_engine_to_start() -> None:
    rows = [record(0, timings=timings(20.0))]
    timekeeper = keeper(Clock())
    live = Step("search", None, fidelity="live")
    assert timekeeper.trial_s(live, rows) > 20.0
    stage = Stage(ScriptedEngines())
    job = job_of(live=True)
    deadline = Deadline(1000.0, 1000.0, "--timeout", Clock())
    on_it = Timekeeper(deadline, job, stage)
    stage.start(job.envelope(BASELINE), Path("engine.log"))
    assert on_it.trial_s(live, rows) < 20.0


def test_the_start_of_an_engine_that_was_calibrated_counts(tmp_path: Path) -> None:
    """No trial has it among its times that shares that engine."""
    stage, job = Stage(ScriptedEngines()), job_of(live=True)
    timekeeper = Timekeeper(Deadline(1000.0, 1000.0, "--timeout", Clock()), job, stage)
    rows = [record(0, timings={**timings(0.0), "start_s": None})]
    assert timekeeper.allowance(rows).seconds["start"] == START_S
    stage.start(job.envelope(BASELINE), tmp_path / "engine.log")
    assert timekeeper.allowance(rows).seconds["start"] == 1.0


def test_a_repetition_waits_for_the_spell_to_end() -> None:
    hit = [record(0, state="invalid", failure_class="slow_spell", timings=timings(20.0))]
    timekeeper = keeper(Clock())
    again = Step("baseline", BASELINE, replicate_of=0)
    other = Step("search", limits(512))
    assert timekeeper.trial_s(again, hit) - timekeeper.trial_s(other, hit) == SPELL_S


def test_what_no_time_names_is_learned() -> None:
    clock = Clock()
    timekeeper = keeper(clock)
    assert timekeeper.between_s("search") == BETWEEN_S
    row = record(0, timings={**timings(20.0), "turnaround_s": 999.0})
    clock.now_s = 20.0 + 2.0 + WINDOW_S + 1.0 + 8.0
    timekeeper.ended(row)
    assert timekeeper.between_s("search") == pytest.approx(8.0 * 1.25)
    assert timekeeper.between_s("confirm") == pytest.approx(8.0 * 1.25)
    clock.now_s += 100.0
    timekeeper.ended(record(1, state="failed"))
    assert timekeeper.between_s("search") == pytest.approx(8.0 * 1.25), "a failure has no times"
    clock.now_s += 27.0 + 2.0
    timekeeper.ended(record(2, phase="confirm", timings=timings(20.0, 4.0)))
    assert timekeeper.between_s("confirm") == pytest.approx(2.0 * 1.25), "it needs no forecasts"
    assert timekeeper.between_s("search") == pytest.approx(8.0 * 1.25)


def test_what_is_held_out_keeps_its_time() -> None:
    timekeeper = keeper(Clock(), start_s=10.0)
    job = job_of()
    held = Timekeeper(
        timekeeper.deadline, replace(job, held=job.trace), Stage(ScriptedEngines()), start_s=10.0
    )
    assert held.reserve_s([], 0) == pytest.approx(STARTS * held.held_s([]))
    assert timekeeper.reserve_s([], 0) == 0.0
    assert held.has_time_for_held([])


def test_the_search_keeps_half_of_the_time_or_the_least_is_confirmed() -> None:
    restart_s = keeper(Clock(), start_s=10.0).reserve_s([], 1)
    assert keeper(Clock(), 13 * restart_s, start_s=10.0).confirmations(6, 2, []) == 6
    assert keeper(Clock(), 11 * restart_s, start_s=10.0).confirmations(6, 2, []) == 2


@pytest.mark.parametrize(("trials", "engines"), [(1, 1), (5, 2), (12, 4)])
def test_the_least_that_a_new_study_takes(trials: int, engines: int) -> None:
    job = job_of(trials=trials, calibrate=False, warmup_s=0.0)
    assert least_s(job, start_s=10.0) == pytest.approx(engines * (10.0 + WINDOW_S))
    deadline = Deadline(20.0, 20.0, "--timeout 20s", Clock())
    check_enough(None, job, start_s=10.0)
    if engines > 1:
        with pytest.raises(UsageError, match="too short"):
            check_enough(deadline, job, start_s=10.0)


def drive(
    plan: Plan, clock: Clock, timekeeper: Timekeeper, seconds: Mapping[str, list[float]]
) -> list[tuple[Step, float, list[TrialRecord]]]:
    """Follow the plan; return each step with the moment and the rows before it."""
    rows: list[TrialRecord] = []
    begun = []
    while len(rows) < 60 and (step := plan.next_step(rows)) is not None:
        begun.append((step, clock.now_s, list(rows)))
        candidate = step.candidate
        if candidate is None:
            candidate = next(filter(plan.untested(rows), plan.lattice.cells()))
        at = len(rows)
        took = timings(
            seconds["start"][at % len(seconds["start"])],
            WINDOW_S + seconds["replay"][at % len(seconds["replay"])],
        )
        row = record(
            at,
            candidate,
            phase=step.phase,
            fidelity=step.fidelity,
            replicate_of=step.replicate_of,
            timings=took,
        )
        rows.append(row)
        clock.now_s += sum(value or 0.0 for value in took.values()) + 1.0
        timekeeper.ended(row)
    return begun


@settings(max_examples=50)
@given(
    total_s=st.floats(30, 3000),
    seconds=st.fixed_dictionaries(
        {
            "start": st.lists(st.floats(1, 120), min_size=1, max_size=6),
            "replay": st.lists(st.floats(0, 60), min_size=1, max_size=6),
        }
    ),
)
def test_nothing_begins_that_would_end_too_late(
    total_s: float, seconds: dict[str, list[float]]
) -> None:
    """By its own estimate; and what the search leaves is enough to confirm."""
    clock = Clock()
    timekeeper = keeper(clock, total_s, trials=24)
    best = limits(512, 16)
    plan = Plan(24, BASELINE, [], LATTICE, Told(best=best), timing=timekeeper)
    ended: list[TrialRecord] = []
    for step, now_s, rows in drive(plan, clock, timekeeper, seconds):
        left_s = total_s - now_s
        ended = rows
        again = Clock(now_s)
        fresh = keeper(again, total_s, trials=24)
        for row in rows:
            again.now_s += sum(value or 0.0 for value in (row.timings or {}).values()) + 1.0
            fresh.ended(row)
        needed_s = fresh.trial_s(step, rows) + fresh.between_s(step.phase)
        assert needed_s <= left_s
        if step.phase in ("search", "starts", "screen"):
            kept = fresh.reserve_s(rows, CONFIRM_TRIALS)
            assert needed_s + kept <= left_s
    assert finished_trials(ended) <= 24


def test_a_plan_without_time_confirms_and_ends() -> None:
    """Once the search has no time, who is best is confirmed; then the time is over."""
    clock = Clock()
    timekeeper = keeper(clock, 200.0, trials=24)
    plan = Plan(24, BASELINE, [], LATTICE, Told(best=limits(512, 16)), timing=timekeeper)
    begun = drive(plan, clock, timekeeper, {"start": [10.0], "replay": [0.0]})
    phases = [step.phase for step, _, _ in begun]
    assert phases[0] == "baseline"
    assert phases[-2:] == ["confirm", "confirm"]
    assert set(phases[1:-2]) == {"search"}
    assert 150.0 < clock.now_s <= 200.0
    last = [*begun[-1][2], record(99, limits(512, 16), phase="confirm")]
    assert plan.ended_by(last) == "deadline"
    assert plan.unconfirmed(last) == 0
    assert plan.unconfirmed(begun[-2][2]) == confirm_trials(24, live=False)
