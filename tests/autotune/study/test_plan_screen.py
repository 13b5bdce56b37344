"""What a plan makes of forecasts: whom they name, and when they expect nothing better."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.candidates.lattice import Candidate, cell_key
from autotune.study.plan import CONTESTED_REPEATS, Plan, Step, finished_trials, is_search
from storage.records import FinishedState, TrialRecord
from tests.autotune.study.records import limits, record
from tests.autotune.study.standings import Told
from tests.autotune.study.test_plan import BASELINE, LATTICE, STARTS, STATES, drive, phases


@dataclass(slots=True)
class Forecast:
    """Names cells in this order, and is settled once so many trials have ended.

    ``silent`` says from how many on it has no say, ``doubted`` how often the best is measured
    before it is no longer doubtful; ``asked`` whether each cell was allowed.
    """

    order: Sequence[Candidate] = ()
    settled_after: int = 1000
    silent_after: int = 1000
    doubted_below: int = 0
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

    def doubtful(self, rows: Sequence[TrialRecord], candidate: Candidate) -> bool:
        own = [row for row in rows if cell_key(row.candidate) == cell_key(candidate)]
        return finished_trials(own) < self.doubted_below


ORDER = [limits(512, 32), limits(1024, 16), limits(512, 16), limits(1024, 32)]


def plan_of(
    trials: int,
    forecast: Forecast | None,
    *,
    live: bool = False,
    finalist: bool = True,
    rivals: Sequence[Candidate] = (),
    contested: Sequence[Candidate] = (),
) -> Plan:
    best = limits(512, 32) if finalist else None
    return Plan(
        trials,
        BASELINE,
        STARTS,
        LATTICE,
        Told(best, (best,) if best else (), rivals, contested),
        live=live,
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


@pytest.mark.parametrize(("live", "trials"), [(False, 9), (True, 9), (True, 7)])
def test_who_else_may_be_best_is_confirmed_while_trials_are_left(live: bool, trials: int) -> None:
    rivals = [ORDER[1], ORDER[0], ORDER[2]]
    plan = plan_of(
        trials, Forecast(ORDER, settled_after=5 if live else 4), live=live, rivals=rivals
    )
    rows = drive_with_fidelity(plan)
    base = rows[0].candidate
    first = [ORDER[0], base] if live else [base, ORDER[0]]
    confirmed = [row for row in rows if row.phase == "confirm"]
    left = trials - 7 if live else 2
    assert [row.candidate for row in confirmed] == [*first, ORDER[1], ORDER[2]][: 2 + left]
    assert {row.fidelity for row in confirmed} == {"restart"}
    assert plan.next_step(rows) is None


def test_a_rival_is_confirmed_only_once_the_search_has_ended() -> None:
    rows = drive_with_fidelity(plan_of(9, Forecast(ORDER), live=True, rivals=ORDER[1:3]))
    assert [row.candidate for row in rows if row.phase == "confirm"] == [ORDER[0], BASELINE]


@pytest.mark.parametrize("live", [False, True])
def test_who_cannot_be_told_apart_is_measured_again_in_turn(live: bool) -> None:
    best = ORDER[0]
    plan = plan_of(
        11, Forecast(ORDER, settled_after=5 if live else 4), live=live, contested=[best, BASELINE]
    )
    rows = drive_with_fidelity(plan)
    assert finished_trials(rows) == 11
    again = [row for row in rows if row.phase == "confirm"]
    assert {row.fidelity for row in again} == {"restart"}
    counts = [
        sum(row.fidelity == "restart" and row.candidate == each for row in rows)
        for each in (best, BASELINE)
    ]
    assert abs(counts[0] - counts[1]) <= 1


def test_more_repeats_end_where_they_tell_nothing_any_more() -> None:
    contested = [ORDER[0], BASELINE]
    rows = drive_with_fidelity(plan_of(100, Forecast(ORDER, settled_after=4), contested=contested))
    counts = [sum(row.candidate == each for row in rows) for each in contested]
    assert counts == [CONTESTED_REPEATS, CONTESTED_REPEATS]


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize(("doubted_below", "again"), [(1, 0), (2, 1), (3, 2), (1000, 2)])
def test_what_luck_may_have_made_the_best_is_measured_again_before_the_end(
    live: bool, doubted_below: int, again: int
) -> None:
    forecast = Forecast(ORDER, settled_after=4, doubted_below=doubted_below)
    rows = drive_with_fidelity(plan_of(14, forecast, live=live))[: 6 + again]
    repeated = [row for row in rows if row.phase == "screen" and row.replicate_of is not None]
    first = next(row.number for row in rows if row.phase == "screen")
    assert [(row.candidate, row.replicate_of) for row in repeated] == [(ORDER[0], first)] * again
    assert {row.fidelity for row in repeated} <= {"live" if live else "restart"}
    assert phases(rows)[-2:] == ["confirm", "confirm"]


def test_what_only_a_restart_decides_is_repeated_by_one() -> None:
    rows = [
        record(0, BASELINE, phase="baseline"),
        record(1, BASELINE, phase="sentinel", fidelity="live"),
        record(2, ORDER[0], phase="screen", fidelity="live"),
        record(3, ORDER[0], phase="confirm"),
        record(4, BASELINE, phase="confirm"),
    ]
    plan = plan_of(9, Forecast(ORDER, settled_after=0, doubted_below=3), live=True)
    assert plan.next_step(rows) == Step("screen", ORDER[0], replicate_of=2, fidelity="restart")


def test_only_a_search_of_what_is_new_may_be_cut_short() -> None:
    rows = [record(0, BASELINE, phase="baseline"), record(1, ORDER[0], state="invalid")]
    for phase, searched in [
        ("screen", True),
        ("starts", True),
        ("search", True),
        ("confirm", False),
    ]:
        assert is_search(record(2, ORDER[0], phase=phase, state="interrupted"), rows) is searched
    rows.append(record(2, ORDER[0], phase="screen"))
    assert not is_search(record(3, ORDER[0], phase="screen", replicate_of=1), rows)


def test_an_interrupted_repeat_does_not_count_as_one() -> None:
    plan = plan_of(9, Forecast(ORDER, settled_after=2, doubted_below=1000))
    rows = drive(plan, ["complete"])[:3]
    rows.append(record(3, ORDER[0], phase="screen", state="interrupted", replicate_of=1))
    rows.append(record(4, ORDER[0], phase="screen", replicate_of=1))
    assert [row.replicate_of for row in rows] == [None, None, 1, 1, 1]
    step = plan.next_step(rows)
    assert step is not None
    assert step.phase == "confirm"


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
    after=st.tuples(st.integers(0, 14), st.integers(0, 14)),
    doubted_below=st.integers(0, 5),
    live=st.booleans(),
)
def test_a_study_with_forecasts_ends_and_follows_from_its_rows_alone(
    trials: int,
    outcomes: list[FinishedState],
    after: tuple[int, int],
    doubted_below: int,
    live: bool,
) -> None:
    def plan() -> Plan:
        forecast = Forecast(ORDER, *after, doubted_below)
        return plan_of(
            trials, forecast, live=live, rivals=ORDER[1:3], contested=[ORDER[1], BASELINE]
        )

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
