from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.candidates.lattice import SEQS, TOKENS, Candidate, Lattice, cell_key
from autotune.candidates.starts import Start
from autotune.study.plan import (
    BASELINE_ATTEMPTS,
    Plan,
    Step,
    failures_in_a_row,
    finished_trials,
    observed,
    retry,
)
from storage.records import FinishedState, TrialRecord
from tests.autotune.study.records import limits, record
from tests.autotune.study.standings import Told

LATTICE = Lattice({TOKENS: (512, 1024, 2048), SEQS: (16, 32, 64)})
BASELINE = limits(2048)
STARTS = [Start(f"rule {n}", dict(limits(512, n))) for n in (16, 32, 64)]
STATES: tuple[FinishedState, ...] = (
    "complete", "infeasible", "failed", "invalid", "interrupted",
)  # fmt: skip


def plan_of(
    trials: int,
    *,
    starts: Sequence[Start] = (),
    finalist: Candidate | None = None,
    lattice: Lattice = LATTICE,
) -> Plan:
    return Plan(trials, BASELINE, starts, lattice, Told(best=finalist))


def rows_of(*trials: tuple[str, Candidate, FinishedState]) -> list[TrialRecord]:
    return [
        record(number, candidate, phase=phase, state=state)
        for number, (phase, candidate, state) in enumerate(trials)
    ]


def drive(plan: Plan, outcomes: Sequence[FinishedState], *, steps: int = 200) -> list[TrialRecord]:
    """Follow the plan as the controller does; ``outcomes`` repeat for ever."""
    rows: list[TrialRecord] = []
    while len(rows) < steps and (step := plan.next_step(rows)) is not None:
        candidate = step.candidate
        if candidate is None:
            candidate = next(filter(plan.untested(rows), plan.lattice.cells()))
        state = outcomes[len(rows) % len(outcomes)]
        rows.append(
            record(
                len(rows),
                candidate,
                phase=step.phase,
                state=state,
                replicate_of=step.replicate_of,
            )
        )
    return rows


def phases(rows: Sequence[TrialRecord]) -> list[str]:
    return [row.phase for row in rows]


def test_the_baseline_comes_first() -> None:
    assert plan_of(3).next_step([]) == Step("baseline", BASELINE)


def test_phases_come_in_order() -> None:
    rows = drive(plan_of(9, starts=STARTS, finalist=limits(512, 16)), ["complete"])
    expected = ["baseline", *["starts"] * 3, *["search"] * 3, "confirm", "confirm"]
    assert phases(rows) == expected


def test_confirmation_is_the_baseline_and_then_the_finalist() -> None:
    rows = drive(plan_of(6, finalist=limits(512, 32)), ["complete"])
    assert [row.candidate for row in rows[-2:]] == [BASELINE, limits(512, 32)]
    assert [row.replicate_of for row in rows[-2:]] == [0, 2]


@pytest.mark.parametrize("trials", [1, 2, 5])
def test_short_studies_confirm_nothing(trials: int) -> None:
    rows = drive(plan_of(trials, finalist=limits(512, 16)), ["complete"])
    assert phases(rows) == ["baseline", *["search"] * (trials - 1)]


def test_without_a_finalist_the_last_trial_searches() -> None:
    rows = drive(plan_of(6), ["complete"])
    assert phases(rows) == ["baseline", *["search"] * 3, "confirm", "search"]


@pytest.mark.parametrize(("trials", "begun"), [(2, 0), (3, 1), (6, 2), (9, 3), (11, 3)])
def test_starts_take_a_third_at_most(trials: int, begun: int) -> None:
    rows = drive(plan_of(trials, starts=STARTS), ["complete"])
    assert phases(rows).count("starts") == begun


def test_a_start_says_which_rule_it_follows() -> None:
    rows = rows_of(("baseline", BASELINE, "complete"))
    step = plan_of(6, starts=STARTS).next_step(rows)
    assert step == Step("starts", limits(512, 16), rule="rule 16")


def test_a_start_that_was_searched_already_is_passed_over() -> None:
    rows = rows_of(("baseline", BASELINE, "complete"), ("search", limits(512, 16), "complete"))
    step = plan_of(6, starts=STARTS).next_step(rows)
    assert step == Step("starts", limits(512, 32), rule="rule 32")


@pytest.mark.parametrize("state", ["failed", "invalid"])
def test_a_trial_without_a_result_is_tried_once_more_and_not_counted(
    state: FinishedState,
) -> None:
    rows = rows_of(("baseline", BASELINE, "complete"), ("search", limits(512), state))
    assert finished_trials(rows) == 1
    assert plan_of(3).next_step(rows) == Step("search", limits(512), replicate_of=1)
    rows += [record(2, limits(512), state=state, replicate_of=1)]
    assert plan_of(3).next_step(rows) == Step("search", None)


def test_interruptions_are_no_tries() -> None:
    rows = rows_of(("baseline", BASELINE, "complete"), ("search", limits(512), "interrupted"))
    again = Step("search", limits(512), replicate_of=1)
    later: list[FinishedState] = ["interrupted", "failed", "interrupted"]
    for number, state in enumerate(later, start=2):
        assert plan_of(3).next_step(rows) == again
        rows += [record(number, limits(512), state=state, replicate_of=1)]
    assert plan_of(3).next_step(rows) == again
    rows += [record(5, limits(512), state="invalid", replicate_of=1)]
    assert plan_of(3).next_step(rows) == Step("search", None)
    assert finished_trials(rows) == 1


def test_a_candidate_that_fails_by_its_own_fault_is_not_repeated() -> None:
    rows = rows_of(("baseline", BASELINE, "complete"), ("search", limits(512), "infeasible"))
    assert finished_trials(rows) == 2
    assert plan_of(3).next_step(rows) == Step("search", None)


def test_a_failed_confirmation_still_repeats_the_first_trial() -> None:
    rows = rows_of(("baseline", BASELINE, "complete"))
    rows += [record(1, BASELINE, phase="confirm", state="failed", replicate_of=0)]
    assert retry(rows) == Step("confirm", BASELINE, replicate_of=0)


def test_a_trial_that_no_longer_counts_is_due_again_wherever_it_is() -> None:
    rows = rows_of(
        ("baseline", BASELINE, "complete"),
        ("search", limits(512), "invalid"),
        ("search", limits(1024), "complete"),
    )
    assert plan_of(9).next_step(rows) == Step("search", limits(512), replicate_of=1)
    rows += rows_of(("search", limits(512), "invalid"))
    assert retry(rows) is None


def test_a_baseline_that_no_longer_counts_comes_first() -> None:
    rows = rows_of(
        ("baseline", BASELINE, "invalid"),
        ("search", limits(512), "invalid"),
        ("search", limits(1024), "complete"),
    )
    assert plan_of(9).next_step(rows) == Step("baseline", BASELINE, replicate_of=0)


def test_the_baseline_is_due_until_it_has_a_result() -> None:
    rows = rows_of(("baseline", BASELINE, "failed"), ("baseline", BASELINE, "failed"))
    assert retry(rows) is None
    assert plan_of(3).next_step(rows) == Step("baseline", BASELINE)


def test_an_exhausted_lattice_ends_the_study() -> None:
    rows = drive(plan_of(100), ["complete"])
    assert phases(rows) == ["baseline", *["search"] * 8, "confirm"]
    assert len({cell_key(row.candidate) for row in rows}) == 9


def test_cells_equal_to_a_measured_one_are_closed() -> None:
    rows = [record(0, limits(512, 64), engine=LOAD)]
    allowed = plan_of(9).untested(rows)
    assert not allowed(limits(512, 64))
    assert not allowed(limits(512, 32))
    assert allowed(limits(512, 16))
    assert allowed(limits(1024, 64))


def test_a_log_without_steps_leaves_the_peak_unknown() -> None:
    empty = {"load": {"peak_running": 0, "steps": 0}, "capture_sizes": [1, 2]}
    (seen,) = observed([record(0, engine=empty)], live=False)
    assert seen.peak_running is None
    assert seen.graphs


LOAD = {"load": {"peak_running": 20, "steps": 5}, "capture_sizes": []}


def test_only_complete_trials_are_observed() -> None:
    rows = [record(0, engine=LOAD), record(1, state="invalid", engine=LOAD), record(2)]
    assert [each.peak_running for each in observed(rows, live=False)] == [20]


def test_more_trials_than_before_go_on() -> None:
    rows = drive(plan_of(4), ["complete"])
    assert plan_of(4).next_step(rows) is None
    assert plan_of(5).next_step(rows) == Step("search", None)


@given(
    trials=st.integers(1, 14),
    outcomes=st.lists(st.sampled_from(STATES), max_size=8),
    starts=st.integers(0, 3),
    finalist=st.none() | st.sampled_from(LATTICE.cells()[:8]),
)
def test_a_study_ends_and_never_exceeds_its_total(
    trials: int,
    outcomes: list[FinishedState],
    starts: int,
    finalist: Candidate | None,
) -> None:
    plan = plan_of(trials, starts=STARTS[:starts], finalist=finalist)
    # The controller gives up if the baseline has no result, so here it has one.
    rows = drive(plan, ["complete", *outcomes], steps=100)
    assert plan.next_step(rows) is None
    assert finished_trials(rows) <= trials
    for row in rows:
        again = [r for r in rows if (r.phase, r.candidate) == (row.phase, row.candidate)]
        tries = [r for r in again if r.state != "interrupted"]
        assert len(tries) <= 2


@given(st.lists(st.sampled_from(STATES), min_size=1, max_size=8))
def test_each_step_follows_from_the_rows_alone(outcomes: list[FinishedState]) -> None:
    plan = plan_of(8, starts=STARTS, finalist=limits(512, 16))
    rows = drive(plan, ["complete", *outcomes], steps=60)
    for count in range(1, len(rows)):
        step = plan_of(8, starts=STARTS, finalist=limits(512, 16)).next_step(rows[:count])
        assert step is not None
        assert step.phase == rows[count].phase


def test_failures_in_a_row() -> None:
    failed = [
        record(n, state="failed", failure_class=each)
        for n, each in enumerate(["hang", "engine_dead", "engine_dead"])
    ]
    assert failures_in_a_row([]) == (None, 0)
    assert failures_in_a_row(failed) == ("engine_dead", 2)
    assert failures_in_a_row([*failed, record(3)]) == (None, 0)


@pytest.mark.parametrize(
    ("failure_class", "attempts"), [("slow_spell", BASELINE_ATTEMPTS), ("client_bound", 2)]
)
def test_a_baseline_that_spells_have_hit_is_tried_more_often(
    failure_class: str, attempts: int
) -> None:
    plan = plan_of(9)
    rows: list[TrialRecord] = []
    while (step := plan.next_step(rows)) is not None and step.phase == "baseline":
        row = record(len(rows), BASELINE, phase="baseline", state="invalid")
        rows.append(replace(row, failure_class=failure_class))
        if retry(rows) is None:
            break
    assert len(rows) == attempts
