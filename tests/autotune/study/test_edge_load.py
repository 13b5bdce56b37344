from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.candidates.lattice import SEQS, TOKENS
from autotune.errors import UsageError
from autotune.settings import AUTO
from autotune.study.edge_load import LEAST, MOST, edge, known_load
from autotune.study.foresight import stored_traffic
from autotune.study.view import load_of, load_view
from autotune.traffic.load import Load
from storage.repository import open_repository
from tests.autotune.study.scripted import settings_of
from tests.autotune.study.simulated import run_simulated

FEW = {TOKENS: [256, 2048], SEQS: [128]}


def below(limit: float) -> Callable[[float], bool]:
    return lambda load: load <= limit


@settings(max_examples=50)
@given(st.floats(LEAST, MOST, exclude_max=True))
def test_the_edge_is_found_from_below(limit: float) -> None:
    found = edge(below(limit))
    assert found is not None
    assert 0.9 * limit < found <= limit
    assert float(f"{found:.2g}") == found


def test_where_there_is_no_edge() -> None:
    assert edge(below(MOST)) == MOST
    assert edge(below(LEAST * 0.99)) is None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"budget": ""}, "needs a budget in ms"),
        ({"budget": "ttft_p95:0.9x"}, "needs a budget in ms"),
        ({"budget": "ttft_p95:800", "trials": 5}, "needs step times"),
        ({"budget": "ttft_p95:800", "calibrate": False}, "needs step times"),
    ],
)
def test_what_cannot_have_an_edge_is_refused_at_once(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        known_load(settings_of(load=AUTO, **changes), None)


def test_a_given_load_is_left_alone() -> None:
    given = settings_of(load=1.4, budget="")
    assert known_load(given, None) is given


@pytest.mark.study
def test_a_study_at_the_edge_goes_on_at_its_load(tmp_path: Path) -> None:
    run_simulated(tmp_path, load=AUTO, knobs=FEW)
    with open_repository(f"sqlite:///{tmp_path / 'study.db'}", create=False) as repository:
        view = load_view(repository, None)
        load = load_of(view.study)
        assert load is not None
        assert load == Load.of(load.factor)
        assert view.study.fingerprint["load"] == load.factor
        assert stored_traffic(view).sha256 == view.study.fingerprint["trace"]
        for again in (AUTO, load.factor):
            run_simulated(tmp_path, load=again, knobs=FEW)
        assert load_of(repository.study(None)) == load
        assert len(repository.trials(view.study.id)) == len(view.trials)


@pytest.mark.study
def test_a_budget_that_no_load_keeps_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"breaks ttft_p95:1 even at 0\.125 times the traffic"):
        run_simulated(tmp_path, load=AUTO, budget="ttft_p95:1")
