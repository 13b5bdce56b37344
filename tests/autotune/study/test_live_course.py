"""A whole study with live trials: the plan asks, a script measures, the verdict is judged."""

from __future__ import annotations

import pytest

from autotune.candidates.lattice import SEQS, TOKENS, Lattice
from autotune.study.judgement import Judgement, judge
from autotune.study.plan import Plan, Step
from autotune.study.standing import Judged
from tests.autotune.study.records import Measured
from tests.autotune.study.scripted import BASELINE, BUDGET, Speed, clear_knee

pytestmark = pytest.mark.study

LATTICE = Lattice({TOKENS: (256, 384, 512, 768, 1024, 1536, 2048), SEQS: (32, 48, 64)})
LIVE_IS_FASTER_BY = 0.94


class Course(Measured):
    """A study that follows its plan, on engines whose live trials flatter every candidate."""

    def judged(self) -> Judgement | None:
        return judge(
            self.trials,
            self.samples.__getitem__,
            budget=self.budget,
            classes=(),
            baseline=BASELINE,
        )

    def run(self, trials: int) -> Judgement:
        standing = Judged(lambda: self.trials, lambda _: self.judged(), BASELINE)
        plan = Plan(trials, BASELINE, (), LATTICE, standing, live=True)
        while (step := plan.next_step(self.trials)) is not None:
            self._measure(plan, step)
        judgement = self.judged()
        assert judgement is not None
        return judgement

    def _measure(self, plan: Plan, step: Step) -> None:
        candidate = step.candidate
        if candidate is None:
            candidate = next(filter(plan.untested(self.trials), LATTICE.cells()))
        speed = clear_knee(candidate)
        if step.fidelity == "live":
            speed = Speed(LIVE_IS_FASTER_BY * speed.ttft_ms, LIVE_IS_FASTER_BY * speed.tpot_ms)
        self.add(
            candidate,
            speed,
            phase=step.phase,
            fidelity=step.fidelity,
            replicate_of=step.replicate_of,
        )
        # Without steps nobody knows how many ran at once, so that no cells count as equal.
        self.trials[-1].engine["load"]["steps"] = 0  # type: ignore[index]


@pytest.mark.parametrize(("trials", "starts"), [(8, 3), (24, 7)])
def test_a_study_ends_with_a_winner_that_restarts_have_confirmed(trials: int, starts: int) -> None:
    course = Course(budget=BUDGET)
    found = course.run(trials)
    assert len(course.trials) == trials
    assert sum(row.fidelity == "restart" for row in course.trials) == starts
    assert found.chosen is not None
    assert not found.chosen.live
    assert (found.code, found.unconfirmed) == ("knee", None)
    assert {cell.fidelity for cell in found.cells} == {"restart", "live"}
    restarted = [row.candidate for row in course.trials if row.fidelity == "restart"]
    assert found.chosen.candidate in restarted[1:]


def test_that_live_trials_flatter_everybody_is_seen() -> None:
    course = Course(budget=BUDGET)
    found = course.run(24).steadiness
    differences = [each.differences["ttft_p95"] for each in found.faithfulness]
    assert len(differences) == 3
    for each in differences:
        assert each.change == pytest.approx(LIVE_IS_FASTER_BY - 1, abs=0.01)
        assert each.beyond_noise
    assert not any(trend.flagged for trend in found.drift.values())


def test_more_trials_go_on_from_where_it_stood() -> None:
    course = Course(budget=BUDGET)
    course.run(12)
    before = [row.number for row in course.trials]
    course.run(18)
    assert [row.number for row in course.trials][: len(before)] == before
    assert len(course.trials) == 18
