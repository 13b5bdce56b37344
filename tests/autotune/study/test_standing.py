from __future__ import annotations

from collections.abc import Sequence

from autotune.study.judgement import Judgement, judge
from autotune.study.standing import Judged, Nobody
from storage.records import TrialRecord
from tests.autotune.study.records import Measured, limits
from tests.autotune.study.scripted import BASELINE, BUDGET, Speed


def test_a_study_is_judged_once_for_each_state_of_its_trials() -> None:
    study, judged = Measured(budget=BUDGET), list[int]()

    def counted(rows: Sequence[TrialRecord]) -> Judgement | None:
        judged.append(len(rows))
        return judge(
            rows, study.samples.__getitem__, budget=study.budget, classes=(), baseline=BASELINE
        )

    standing = Judged(lambda: study.trials, counted, BASELINE)
    assert (standing.finalist(), list(standing.finalists()), judged) == (None, [], [0])
    study.add(BASELINE, Speed(100, 10))
    assert standing.finalist() is None
    study.add(limits(512), Speed(80, 8))
    assert standing.finalist() == limits(512)
    assert standing.finalists() == [limits(512)]
    assert standing.rivals() == []
    assert standing.contested() == []
    assert judged == [0, 1, 2]


def test_nobody_is_in_question_while_a_study_is_only_asked_what_it_would_search() -> None:
    nobody = Nobody()
    assert nobody.finalist() is None
    assert [*nobody.finalists(), *nobody.rivals(), *nobody.contested()] == []
