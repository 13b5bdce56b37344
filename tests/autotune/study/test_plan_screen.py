"""What a plan makes of forecasts: whom they name, and when they expect nothing better."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.candidates.lattice import Candidate, cell_key
from autotune.study.plan import Plan, Step, finished_trials
from storage.records import FinishedState, TrialRecord
from tests.autotune.study.records import limits, record
from tests.autotune.study.test_plan import BASELINE, LATTICE, STARTS, STATES, drive, phases


@dataclass(slots=True)
class Forecast:
    """Names cells in this order, and is settled once so many trials have ended.

    ``silent`` says from how many on it has no say; ``asked`` whether each cell was allowed.
    """

    order: Sequence[Candidate] = ()
    settled_after: int = 1000
    silent_after: int = 1000
    asked: list[list[bool]] = field(default_factory=list)

    def pick(
        self, rows: Sequence[TrialRecord], allowed: Callable[[Candidate], bool]
    ) -> Candidate | None:
        self.asked.append([allowed(cell) for cell in LATTICE.cells()])
        if finished_trials(rows) >= self.silent_after:
            return None
        return next(filter(allowed, self.order), None)

    def settled(self, rows: Sequence[TrialRecord], _allowed: Callable[[Candidate], bool]) -> bool:
        return finished_trials(rows) >= self.settled_after


ORDER = [limits(512, 32), limits(1024, 16), limits(512, 16), limits(1024, 32)]


def plan_of(
    trials: int, forecast: Forecast | None, *, live: bool = False, finalist: bool = True
) -> Plan:
    best = limits(512, 32) if finalist else None
    return Plan(
        trials,
        BASELINE,
        STARTS,
        LATTICE,
        lambda: best,
        live=live,
        finalists=lambda: (best,) if best else (),
        screen=forecast,
    )


def test_forecasts_come_before_rules_of_thumb_and_the_sampler() -> None:
    rows = drive(plan_of(7, Forecast(ORDER)), ["complete"])
    assert phases(rows) == ["baseline", *["screen"] * 4, "confirm", "confirm"]
    assert [row.candidate for row in rows[1:5]] == ORDER


def test_where_forecasts_have_no_say_rules_of_thumb_and_the_sampler_go_on() -> None:
    rows = drive(plan_of(9, Forecast(ORDER, silent_after=2)), ["complete"])
    expected = ["baseline", "screen", *["starts"] * 2, *["search"] * 3, "confirm", "confirm"]
    # One rule of thumb names what forecasts had named before.
    assert phases(rows) == expected


def test_a_screened_trial_is_live_where_the_search_is() -> None:
    rows = [record(0, BASELINE, phase="baseline")]
    assert plan_of(9, Forecast(ORDER)).next_step(rows) == Step("screen", ORDER[0])
    live = plan_of(9, Forecast(ORDER), live=True)
    assert live.next_step(rows) == Step("sentinel", BASELINE, replicate_of=0, fidelity="live")
    rows.append(record(1, BASELINE, phase="sentinel", fidelity="live"))
    assert live.next_step(rows) == Step("screen", ORDER[0], fidelity="live")


def test_forecasts_are_not_asked_before_the_baseline() -> None:
    forecast = Forecast(ORDER, settled_after=0)
    assert plan_of(9, forecast).next_step([]) == Step("baseline", BASELINE)
    assert forecast.asked == []


def test_forecasts_may_name_only_what_was_not_tried() -> None:
    forecast = Forecast(ORDER)
    plan = plan_of(9, forecast)
    rows = drive(plan, ["complete", "failed", "infeasible"])
    tried = [cell_key(row.candidate) for row in rows if row.phase == "screen"]
    once = [cell_key(row.candidate) for row in rows if row.replicate_of is None]
    assert set(tried) <= set(map(cell_key, ORDER))
    assert len(once) == len(set(once))
    counts = [sum(allowed) for allowed in forecast.asked]
    assert counts[0] == len(LATTICE.cells()) - 1
    assert counts == sorted(counts, reverse=True)


@pytest.mark.parametrize("live", [False, True])
def test_a_settled_search_is_confirmed_and_ends_early(live: bool) -> None:
    plan = plan_of(9, Forecast(ORDER, settled_after=4), live=live)
    rows = drive_with_fidelity(plan)
    searched = ["sentinel", "screen", "screen"] if live else ["screen"] * 3
    assert phases(rows) == ["baseline", *searched, "confirm", "confirm"]
    assert {row.fidelity for row in rows[-2:]} == {"restart"}
    assert {cell_key(row.candidate) for row in rows[-2:]} == {
        cell_key(BASELINE),
        cell_key(limits(512, 32)),
    }
    assert plan.next_step(rows) is None
    assert finished_trials(rows) < 9


def test_a_settled_search_without_a_finalist_measures_the_baseline_again() -> None:
    plan = plan_of(9, Forecast(ORDER, settled_after=3), finalist=False)
    assert phases(drive(plan, ["complete"])) == ["baseline", "screen", "screen", "confirm"]


def test_what_confirmations_unsettle_is_searched_on() -> None:
    forecast = Forecast(ORDER, settled_after=3)
    plan = plan_of(9, forecast)
    rows = drive(plan, ["complete"])
    assert plan.settled(rows)
    unsettled = replace(plan, screen=Forecast(ORDER))
    assert unsettled.next_step(rows) == Step("screen", ORDER[2])
    assert not unsettled.settled(rows)


def test_without_forecasts_nothing_is_ever_settled() -> None:
    plan = plan_of(9, None)
    rows = drive(plan, ["complete"])
    assert not plan.settled(rows)
    assert finished_trials(rows) == 9


@given(
    trials=st.integers(1, 14),
    outcomes=st.lists(st.sampled_from(STATES), max_size=8),
    settled_after=st.integers(0, 14),
    silent_after=st.integers(0, 14),
    live=st.booleans(),
)
def test_a_study_with_forecasts_ends_and_follows_from_its_rows_alone(
    trials: int,
    outcomes: list[FinishedState],
    settled_after: int,
    silent_after: int,
    live: bool,
) -> None:
    def plan() -> Plan:
        return plan_of(trials, Forecast(ORDER, settled_after, silent_after), live=live)

    rows = drive_with_fidelity(plan(), ["complete", *outcomes])
    assert plan().next_step(rows) is None
    assert finished_trials(rows) <= trials
    for count in range(1, len(rows)):
        step = plan().next_step(rows[:count])
        assert step is not None
        assert (step.phase, step.fidelity) == (rows[count].phase, rows[count].fidelity)


def drive_with_fidelity(
    plan: Plan, outcomes: Sequence[FinishedState] = ("complete",)
) -> list[TrialRecord]:
    """Follow a plan to its end, with trials as live as it wants them."""
    rows: list[TrialRecord] = []
    while (step := plan.next_step(rows)) is not None:
        assert len(rows) < 200, "the study does not end"
        candidate = step.candidate
        if candidate is None:
            candidate = next(filter(plan.untested(rows), plan.lattice.cells()))
        rows.append(
            record(
                len(rows),
                candidate,
                phase=step.phase,
                state=outcomes[len(rows) % len(outcomes)],
                fidelity=step.fidelity,
                replicate_of=step.replicate_of,
            )
        )
    return rows
