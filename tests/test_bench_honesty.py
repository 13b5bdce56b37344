"""What the bench of verdicts makes of its figures, and whether its studies are what it says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.bench_scripts import imported

MODULES = ("honesty", "honesty_studies", "search_methods", "search_truth")


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ModuleType]]:
    yield from imported(monkeypatch, MODULES)


def row(kind: str, **said: Any) -> dict[str, Any]:
    return {
        "kind": kind,
        "verdict": "keep_default",
        "winner": "512/64",
        "found": True,
        "baseline_regret": 0.0,
        "regret": 0.0,
        "probability": 0.92,
        "expected_cost": 0.01,
        "regret_bound": 0.02,
        "set_regret": 0.0,
        **said,
    }


def workload(scripts: dict[str, ModuleType], values: list[list[float]]) -> Any:
    """Return a workload whose first cells have these values, and whose others have the last."""
    studies = scripts["honesty_studies"]
    filled = values + [values[-1]] * (len(studies.CELLS) - len(values))
    budget = studies.parse_budget("ttft_p95:200 itl_p99:60")
    return studies.judged(None, None, np.log(np.array(filled)), budget)


def test_shares_have_intervals_that_stay_within_0_and_1(scripts: dict[str, ModuleType]) -> None:
    wilson = scripts["honesty"].wilson
    # Wilson (1927), as most tables have it for 9 of 10.
    assert wilson(9, 10) == pytest.approx(
        {"share": 0.9, "low": 0.5958, "high": 0.9821, "count": 10}, abs=1e-4
    )
    assert wilson(10, 10)["high"] == 1.0
    assert wilson(0, 10)["low"] == 0.0
    assert wilson(0, 0) == {"share": None, "low": None, "high": None, "count": 0}


def test_each_bin_has_the_studies_of_its_probability(scripts: dict[str, ModuleType]) -> None:
    script = scripts["honesty"]
    rows = [
        row("default_best", probability=0.0, regret=0.5),
        row("default_best", probability=0.9, regret=0.02),
        row("better_cell", probability=0.94),
        row("better_cell", probability=1.0),
    ]
    found = {(each["low"], each["high"]): each for each in script.reliability(rows)}
    assert [each["as_good_as_best"]["count"] for each in found.values()] == [1, 0, 0, 0, 0, 2, 1]
    high = found[0.9, 0.95]
    assert high["stated"] == pytest.approx(0.92)
    assert high["as_good_as_best"]["share"] == 1.0
    assert high["best"]["share"] == 0.5
    assert found[0.3, 0.5]["stated"] is None


def test_a_verdict_without_a_winner_is_not_found_and_states_nothing(
    scripts: dict[str, ModuleType],
) -> None:
    none = {"winner": None, "found": False, "verdict": "nothing_feasible"}
    rows = [
        row("default_best"),
        row("default_best", verdict="knee", baseline_regret=0.02, set_regret=0.02, regret=0.03),
        row("better_cell", verdict="knee", set_regret=0.1, regret=0.2),
        {"kind": "better_cell", "baseline_regret": 0.4, **none},
    ]
    found = scripts["honesty"].summary(rows)
    assert found["keep_default_share"]["share"] == 0.5
    assert found["keep_default_of_best_share"]["share"] == 1.0
    assert found["found_share"]["share"] == 0.5
    assert found["false_gain_share"]["share"] == 0.5
    assert found["set_covers_share"]["share"] == pytest.approx(1 / 3)
    assert found["set_covers_as_good_share"]["share"] == pytest.approx(2 / 3)
    assert found["verdicts"]["better_cell"] == {"knee": 1, "nothing_feasible": 1}


def test_a_better_cell_is_lower_in_one_value_and_worse_in_none(
    scripts: dict[str, ModuleType],
) -> None:
    studies = scripts["honesty_studies"]
    base = [180.0, 20.0, 50.0, 0.4]
    cells = [
        base,
        [150.0, 20.0, 50.0, 0.4],
        [150.0, 30.0, 50.0, 0.4],
        [150.0, 20.0, 51.0, 0.4],
        [150.0, 20.0, 50.0, 0.39],
        [160.0, 20.0, 50.0, 0.5],
        [180.0, 20.0, 40.0, 0.4],
        [250.0, 20.0, 90.0, 0.3],
    ]
    own = workload(scripts, cells)
    # The third is worse in what neither has a limit nor is scored.
    assert np.flatnonzero(studies.better_than(own, 0)).tolist() == [1, 2, 6]
    known = studies.Known(0, "better_cell", own, 0, studies.better_than(own, 0))
    assert [known.found(each) for each in (0, 1, 2, 6, 7)] == [False, True, True, True, False]
    assert known.room == pytest.approx(np.log(200 / 180))


def test_a_default_that_is_best_is_so_with_limits_a_little_looser(
    scripts: dict[str, ModuleType],
) -> None:
    studies = scripts["honesty_studies"]
    base, worse = [180.0, 20.0, 50.0, 0.4], [250.0, 20.0, 90.0, 0.3]
    nearly = [205.0, 20.0, 25.0, 0.4]
    beyond = [300.0, 20.0, 25.0, 0.4]
    close = [181.0, 20.0, 50.0, 0.4]
    tight = [195.0, 20.0, 44.0, 0.4]
    assert studies.baselines(workload(scripts, [base, close, worse]), "default_best") == [0, 1]
    assert studies.baselines(workload(scripts, [base, beyond, worse]), "default_best") == [0]
    assert studies.baselines(workload(scripts, [base, nearly, worse]), "default_best") == []
    assert studies.baselines(workload(scripts, [tight, worse]), "default_best") == []
    assert studies.baselines(workload(scripts, [worse]), "better_cell") == []


@pytest.mark.study
def test_a_study_follows_from_its_seed_and_begins_with_its_baseline(
    scripts: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script, studies, methods = (
        scripts[name] for name in ("honesty", "honesty_studies", "search_methods")
    )
    own = methods.BASELINE
    monkeypatch.setattr(studies, "AZURE", tmp_path / "none.csv")
    monkeypatch.setattr(studies, "REQUESTS", (8, 12))
    monkeypatch.setattr(studies, "TRUTH_REPLAYS", 1)
    monkeypatch.setattr(studies, "TRIALS", 2)
    known, again = (studies.drawn(3, "better_cell") for _ in range(2))
    assert known.baseline == again.baseline
    assert known.workload.budget == again.workload.budget
    assert known.better.any()
    search = known.tuned()
    first = search.rows[0].candidate
    assert first == studies.CELLS[known.baseline]
    said = script.verdict(known, search.judge())
    assert said["winner"] is None or said["regret"] >= 0
    assert own is methods.BASELINE
