"""Whether the bench of nights draws what it says, and counts right."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest

from tests.autotune.study.records import record
from tests.bench_scripts import imported


@pytest.fixture
def night(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    for modules in imported(monkeypatch, ["night"]):
        yield modules["night"]


def test_runs_are_of_all_lengths_and_the_same_for_a_seed(night: ModuleType) -> None:
    runs = night.drawn(1, 20)
    assert runs == night.drawn(1, 20) != night.drawn(2, 20)
    lengths = [run.deadline_s for run in runs]
    assert lengths == sorted(lengths)
    assert (lengths[0], lengths[-1]) == (1200, 36000)
    low, high = night.WINDOWS
    assert all(low <= run.deadline_s / run.window_s <= high + 0.1 for run in runs)
    assert {run.fidelity for run in runs} == {"auto", "restart"}
    assert {run.holdout for run in runs} == {None, "20%"}


def test_times_are_added_by_part(night: ModuleType) -> None:
    timed = {"start_s": 2.0, "warmup_s": None, "replay_s": 3.0, "turnaround_s": 99.0}
    rows = [record(0, timings=timed), record(1), record(2, timings={**timed, "stop_s": 1.0})]
    assert night.spent_s(rows) == {"start_s": 4.0, "warmup_s": 0, "replay_s": 6.0, "stop_s": 1.0}
