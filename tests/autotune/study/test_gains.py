from __future__ import annotations

import pytest

from autotune.study.gains import gains_of
from autotune.study.judgement import judge
from autotune.study.view import StudyView
from tests.autotune.study.records import Measured, limits, study_record
from tests.autotune.study.scripted import BASELINE, Speed

BUDGET = "ttft_p95:900 tpot_p95:90 itl_p99:300"


def view_of(measured: Measured) -> StudyView:
    study = study_record(budget=BUDGET)
    judgement = judge(
        measured.trials,
        measured.samples.__getitem__,
        budget=measured.budget,
        classes=(),
        baseline=BASELINE,
    )
    return StudyView(study, tuple(measured.trials), judgement)


def measured_pair(*, repeats: int) -> Measured:
    measured = Measured(budget=BUDGET)
    for seed in range(repeats):
        measured.add(BASELINE, Speed(ttft_ms=400, tpot_ms=40), phase="baseline", seed=seed)
        measured.add(limits(512), Speed(ttft_ms=200, tpot_ms=20), phase="confirm", seed=seed + 9)
    return measured


@pytest.mark.parametrize("repeats", [1, 3])
def test_each_metric_of_the_budget_has_a_gain_with_bounds_around_it(repeats: int) -> None:
    measured = measured_pair(repeats=repeats)
    view = view_of(measured)
    assert view.judgement is not None
    assert view.judgement.chosen is not None
    gains = gains_of(view, measured.samples.__getitem__)
    assert [each.name for each in gains][:3] == ["ttft_p95", "tpot_p95", "itl_p99"]
    for each in gains[:3]:
        assert each.change is not None
        assert each.low is not None
        assert each.high is not None
        assert each.winner == view.judgement.chosen.metrics[each.name]
        assert each.low <= each.change <= each.high
        assert each.change == pytest.approx(-0.5, abs=0.1)


def test_there_is_no_gain_where_there_is_nothing_to_compare() -> None:
    measured = Measured(budget=BUDGET)
    measured.add(BASELINE, Speed(ttft_ms=400, tpot_ms=40), phase="baseline")
    assert gains_of(view_of(measured), measured.samples.__getitem__) == []
    nothing = StudyView(study_record(), (), None)
    assert gains_of(nothing, measured.samples.__getitem__) == []
