"""Plans of studies in which limits can be changed on a running engine."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.candidates.lattice import SEQS, TOKENS, Candidate, Lattice, integer
from autotune.study.plan import (
    CONFIRM_FROM,
    SENTINEL_EVERY,
    Plan,
    Step,
    confirm_trials,
    engine_starts,
    finished_trials,
    live_given_up,
    live_to_come,
)
from storage.records import FinishedState, TrialRecord
from tests.autotune.study.records import limits, record
from tests.autotune.study.standings import Told
from tests.autotune.study.test_plan import STARTS, STATES

LATTICE = Lattice({TOKENS: (512, 1024, 1536, 2048), SEQS: (8, 16, 24, 32, 48, 64)})
BASELINE = limits(2048)
A, B, C = limits(512, 64), limits(1024, 64), limits(1536, 64)
SIGNS = {"baseline": "R", "sentinel": "s", "starts": "l", "search": "l"}


def plan_of(trials: int, *, finalists: Sequence[Candidate] = (A, B, C), live: bool = True) -> Plan:
    return Plan(trials, BASELINE, (), LATTICE, Told(able=finalists), live)


def added(rows: Sequence[TrialRecord], step: Step, state: FinishedState) -> list[TrialRecord]:
    """The rows with the step's trial at their end, as the controller would store it."""
    candidate = step.candidate
    if candidate is None:
        untested = plan_of(99).untested(rows)
        candidate = next(c for c in [A, B, C, *reversed(LATTICE.cells())] if untested(c))
    changes = {"replicate_of": step.replicate_of, "fidelity": step.fidelity}
    return [*rows, record(len(rows), candidate, phase=step.phase, state=state, **changes)]


def drive(
    plan: Plan,
    outcomes: Sequence[FinishedState] = ("complete",),
    *,
    rows: Sequence[TrialRecord] = (),
    steps: int = 200,
) -> list[TrialRecord]:
    done = list(rows)
    while len(done) < steps and (step := plan.next_step(done)) is not None:
        done = added(done, step, outcomes[len(done) % len(outcomes)])
    return done


def shape(rows: Sequence[TrialRecord]) -> str:
    """R baseline, s sentinel, l live, and confirmations by whom they are of: A, B, C or 0."""
    names = {512: "A", 1024: "B", 1536: "C", 2048: "0"}
    return "".join(SIGNS.get(row.phase) or names[int(row.candidate[TOKENS])] for row in rows)


def test_caps_above_the_peak_are_alike_on_one_engine_whatever_graphs_it_has() -> None:
    engine = {"load": {"peak_running": 20, "steps": 5}, "capture_sizes": [1, 2, 4, 128]}
    rows = [record(0, BASELINE, phase="baseline", engine=engine)]
    caps = [integer(cell[SEQS]) for cell in LATTICE.cells() if cell[TOKENS] == 2048]
    by_restart = [cap for cap in caps if plan_of(12, live=False).untested(rows)(limits(2048, cap))]
    assert by_restart == [8, 16, 24, 32, 48]
    assert [c for c in caps if plan_of(12).untested(rows)(limits(2048, c))] == [8, 16]


@pytest.mark.parametrize(
    ("trials", "expected"),
    [
        (6, "RsllA0"),
        (11, "RsllllllsA0"),
        (12, "RsllllA0BA0B"),
        (24, "RsllllllsllllllsllA0BA0B"),
    ],
)
def test_the_course_of_a_study(trials: int, expected: str) -> None:
    rows = drive(plan_of(trials))
    assert shape(rows) == expected
    live = {"sentinel", "starts", "search"}
    assert all((row.fidelity == "live") == (row.phase in live) for row in rows)


@pytest.mark.parametrize("trials", [1, 3, 5])
def test_short_studies_restart_for_each_trial(trials: int) -> None:
    rows = drive(plan_of(trials))
    assert [row.phase for row in rows] == ["baseline", *["search"] * (trials - 1)]
    assert {row.fidelity for row in rows} == {"restart"}


def test_where_nothing_can_be_changed_live_every_trial_is_a_restart() -> None:
    plan = Plan(12, BASELINE, (), LATTICE, Told(best=A))
    rows = drive(plan)
    assert {row.fidelity for row in rows} == {"restart"}
    assert [row.phase for row in rows] == ["baseline", *["search"] * 9, "confirm", "confirm"]


def test_starts_are_live_and_sentinels_repeat_the_baseline() -> None:
    plan = Plan(12, BASELINE, STARTS, LATTICE, Told(), live=True)
    rows = drive(plan, steps=3)
    assert [(row.phase, row.fidelity, row.replicate_of) for row in rows] == [
        ("baseline", "restart", None), ("sentinel", "live", 0), ("starts", "live", None),
    ]  # fmt: skip
    assert plan.next_step(rows[:2]) == Step(
        "starts", STARTS[0].candidate, rule="rule 16", fidelity="live"
    )


def test_a_single_finalist_takes_turns_with_the_baseline() -> None:
    rows = drive(plan_of(12, finalists=[A]))
    assert shape(rows) == "RsllllA0A0ll"


def test_without_a_finalist_the_search_goes_on() -> None:
    assert shape(drive(plan_of(12, finalists=[]))) == "Rsllllllslll"


def test_confirmations_repeat_the_first_trial_of_their_candidate() -> None:
    rows = drive(plan_of(12))
    repeated = [(row.candidate, row.replicate_of) for row in rows if row.phase == "confirm"]
    assert repeated == 2 * [(A, 2), (BASELINE, 0), (B, 3)]


def test_who_has_begun_stays_though_a_restart_shows_it_worse() -> None:
    rows = drive(plan_of(12), steps=7)
    assert shape(rows[-1:]) == "A"
    turned = plan_of(12, finalists=[C, B, A])
    rows = drive(turned, rows=rows)
    assert shape(rows[6:]) == "A0CA0C"


def test_a_finalist_that_cannot_run_gives_way_to_the_next() -> None:
    rows = drive(plan_of(12), steps=6)
    step = plan_of(12).next_step(rows)
    assert step is not None
    rows = added(rows, step, "infeasible")
    assert shape(drive(plan_of(12), rows=rows)[6:]) == "AB0CB0"


def test_a_finalist_that_misses_the_budget_gives_way_before_the_baseline_is_repeated() -> None:
    left: list[Candidate] = [A, B, C]
    plan = Plan(7, BASELINE, (), LATTICE, Told(able=left), live=True)
    rows = drive(plan, steps=6)
    assert shape(rows) == "RslllA"
    left.remove(A)
    assert shape(drive(plan, rows=rows)) == "RslllAB"


def test_one_of_two_finalists_that_misses_the_budget_stays_in_the_round() -> None:
    left: list[Candidate] = [A, B, C]
    plan = Plan(12, BASELINE, (), LATTICE, Told(able=left), live=True)
    rows = drive(plan, steps=7)
    left.remove(A)
    assert shape(drive(plan, rows=rows)) == "RsllllA0BA0B"


def test_a_repeat_that_fails_twice_is_given_up() -> None:
    rows = drive(plan_of(12), steps=9)
    states: list[FinishedState] = ["failed", "invalid"]
    for state in states:
        step = plan_of(12).next_step(rows)
        assert step == Step("confirm", A, replicate_of=2)
        rows = added(rows, step, state)
    rest = shape(drive(plan_of(12), rows=rows)[11:])
    assert "A" not in rest
    assert len(rest) == 3


def test_a_study_that_goes_on_confirms_who_is_new() -> None:
    rows = drive(plan_of(12, finalists=[A, B]))
    rows = drive(plan_of(20, finalists=[C, A, B]), rows=rows)
    assert shape(rows[12:]) == "llC0C0sl"


def test_a_study_of_restarts_goes_on_live() -> None:
    rows = drive(plan_of(5))
    assert shape(drive(plan_of(12), rows=rows)[5:]) == "sA0BA0B"


def test_a_study_with_live_trials_goes_on_by_restarts() -> None:
    rows = drive(plan_of(12), steps=5)
    rows = drive(plan_of(12, live=False), rows=rows)
    assert {row.fidelity for row in rows[5:]} == {"restart"}
    assert shape(rows)[-2:] == "A0"


def test_what_failed_live_is_repeated_by_a_restart() -> None:
    rows = drive(plan_of(12), steps=2)
    rows = [*rows, record(2, A, state="failed", fidelity="live")]
    for plan in (plan_of(12), plan_of(12, live=False)):
        assert plan.next_step(rows) == Step("search", A, replicate_of=2)
    rows[-1] = record(2, A, state="invalid", fidelity="live")
    again = Step("search", A, replicate_of=2, fidelity="live")
    assert plan_of(12).next_step(rows) == again


@pytest.mark.parametrize("before", [[], ["invalid"]], ids=["at once", "after a spell"])
def test_a_restart_is_due_once_to_what_failed_live(before: list[FinishedState]) -> None:
    rows = drive(plan_of(12), steps=2)
    for state in (*before, "failed"):
        rows = [*rows, record(len(rows), A, state=state, fidelity="live", replicate_of=2)]
    restart = Step("search", A, replicate_of=2)
    assert plan_of(12).next_step(rows) == restart
    rows = [*rows, record(len(rows), A, state="interrupted", replicate_of=2)]
    assert plan_of(12).next_step(rows) == restart
    for state in ("failed", "invalid"):
        missed = record(len(rows), A, state=state, replicate_of=2)
        assert plan_of(12).next_step([*rows, missed]) == Step("search", None, fidelity="live")


def test_live_trials_that_fail_one_after_the_other_end_the_live_search() -> None:
    rows = drive(plan_of(12), steps=2)
    for number, candidate in ((2, A), (4, B)):
        rows = [
            *rows,
            record(number, candidate, state="failed", fidelity="live"),
            record(number + 1, candidate, replicate_of=number),
        ]
        assert live_given_up(rows) is (number == 4)
    step = plan_of(12).next_step(rows)
    assert step is not None
    assert step.fidelity == "restart"


def test_a_sentinel_that_fails_is_tried_once_more() -> None:
    rows = drive(plan_of(12), steps=1)
    for _ in range(2):
        step = plan_of(12).next_step(rows)
        assert step is not None
        assert step.phase == "sentinel"
        rows = added(rows, step, "invalid")
    assert plan_of(12).next_step(rows) == Step("search", None, fidelity="live")


def test_a_live_measurement_of_the_baseline_is_no_baseline() -> None:
    rows = [record(0, state="invalid"), record(1, fidelity="live", phase="sentinel")]
    rows += [record(2, state="invalid")]
    assert plan_of(12).next_step(rows) == Step("baseline", BASELINE)


@pytest.mark.parametrize("trials", [1, 5, 6, 11, 12, 24])
def test_starts_of_engines_are_counted_beforehand(trials: int) -> None:
    restarts = sum(row.fidelity == "restart" for row in drive(plan_of(trials)))
    assert restarts == engine_starts(trials, live=True)
    assert engine_starts(trials, live=False) == trials


@pytest.mark.parametrize("trials", [5, 6, 12, 24])
def test_live_trials_to_come_are_counted_beforehand(trials: int) -> None:
    rows = drive(plan_of(trials))
    for done in range(trials):
        behind = [row.fidelity for row in rows[done + 1 :]]
        assert live_to_come(rows[:done], trials, live=True) == behind.count("live")
        assert live_to_come(rows[:done], trials, live=False) == 0


def test_what_is_kept_for_confirmation() -> None:
    kept = [confirm_trials(n, live=True) for n in (5, CONFIRM_FROM, 11, 12, 24)]
    assert kept == [0, 2, 2, 6, 6]
    assert [confirm_trials(n, live=False) for n in (5, 6, 24)] == [0, 2, 2]


@given(
    trials=st.integers(1, 26),
    outcomes=st.lists(st.sampled_from(STATES), max_size=9),
    finalists=st.lists(st.sampled_from(LATTICE.cells()[:9]), max_size=4, unique_by=str),
)
def test_a_study_ends_within_its_total_and_follows_from_its_rows(
    trials: int, outcomes: list[FinishedState], finalists: list[Candidate]
) -> None:
    plan = plan_of(trials, finalists=finalists)
    rows = drive(plan, ["complete", *outcomes], steps=10 * trials + 1)
    assert plan.next_step(rows) is None
    assert finished_trials(rows) <= trials
    for count in range(1, len(rows)):
        step = plan_of(trials, finalists=finalists).next_step(rows[:count])
        assert step is not None
        assert (step.phase, step.fidelity) == (rows[count].phase, rows[count].fidelity)
    live = sum(r.phase == "search" and r.state in ("complete", "infeasible") for r in rows)
    sentinels = sum(r.phase == "sentinel" and r.state == "complete" for r in rows)
    assert sentinels <= 1 + live // SENTINEL_EVERY
