"""A study with a deadline on engines whose time passes on paper, or is cut short by it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from autotune import tuning
from autotune.errors import UsageError
from autotune.settings import TuneSettings
from autotune.simulated.engines import SimulatedEngines
from autotune.study.deadline import GRACE_S, ClockWatch
from autotune.study.ending import ending_of
from autotune.study.session import open_supervisor
from storage.events import read_events
from storage.records import StudyRecord, TrialRecord
from storage.repository import open_repository
from tests.autotune.study.scripted import Notes, small_trace

pytestmark = pytest.mark.study

WINDOW_S = small_trace().duration_s
START_S = 20.0
NAME = "night"


class Told(Notes):
    """A watcher that is also told of the study."""

    def opened(self, study: StudyRecord, _trials: Sequence[TrialRecord]) -> None:
        self.said.append(f"opened {study.name}")


class Night:
    """Runs the same study with one deadline after the other.

    ``slow`` is by how much longer a replay takes from its n-th on, in seconds.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self._monkeypatch = monkeypatch
        self.url = f"sqlite:///{folder / 'study.db'}"
        self.slow: Mapping[int, float] = {}
        self.clock_s = 0.0
        self.said: list[str] = []
        (folder / "small.jsonl").write_bytes(b"".join(small_trace().lines()))

    def run(self, timeout: str, **changes: Any) -> tuple[StudyRecord, tuple[TrialRecord, ...]]:
        settings = TuneSettings(
            **{
                "model": "sim:cpu-tiny-llama",
                "engine": "sim:cpu-tiny-llama",
                "trace": str(self._folder / "small.jsonl"),
                "budget": "ttft_p95:900 tpot_p95:90",
                "trials": 60,
                "classes": "",
                "fidelity": "restart",
                "calibrate": False,
                "timeout": timeout,
                "storage": self.url,
                "study_name": NAME,
                "log_folder": self._folder / "logs",
                **changes,
            }
        )
        kept: list[SimulatedEngines] = []

        def slowed(settings: TuneSettings, name: str) -> Any:
            engines = open_supervisor(settings, name)
            assert isinstance(engines, SimulatedEngines)
            kept.append(engines)
            whole, replays = engines.replay, iter(range(1000))

            def replay(*arguments: Any) -> Any:
                replayed = whole(*arguments)
                engines.wait(self.slow.get(next(replays), 0.0))
                return replayed

            self._monkeypatch.setattr(engines, "replay", replay)
            return engines

        self._monkeypatch.setattr(tuning, "open_supervisor", slowed)
        watcher = Told()
        try:
            tuning.run_study(settings, watcher, environ={})
        finally:
            self.said = watcher.said
            self.clock_s = kept[-1].clock()
        with open_repository(self.url, create=False) as repository:
            study = repository.study(NAME)
            return study, repository.trials(study.id)


@pytest.fixture
def night(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Night:
    return Night(tmp_path, monkeypatch)


def test_a_study_ends_in_time_and_goes_on_with_more(night: Night) -> None:
    study, rows = night.run("2m")
    assert night.clock_s <= 120.0
    assert "ends after 120 s of simulated time (--timeout 2m)" in night.said
    assert rows[0].phase == "baseline"
    assert [row.phase for row in rows][-1] == "confirm"
    assert study.state == "finished"
    assert ending_of(study)["ended_by"] == "deadline"
    assert any("there is no time for another trial" in each for each in night.said)
    _, more = night.run("5m")
    assert night.clock_s <= 300.0
    assert len(more) > len(rows)
    assert more[: len(rows)] == rows


def test_what_is_held_out_keeps_its_time(night: Night, tmp_path: Path) -> None:
    """Also where one of its replays takes longer than any before: then the rest is left out."""
    study, rows = night.run("6m", holdout="20%")
    assert night.clock_s <= 360.0
    held = [len(each["replays"]) for each in study.spec["holdout"]["results"]]
    assert sum(held) in (2, 4)
    assert ending_of(study)["left_out"]["holdout_replays"] == 0
    night.url = f"sqlite:///{tmp_path / 'again.db'}"
    night.slow = {len(rows) + 1: 10_000.0}
    study, again = night.run("6m", holdout="20%")
    assert night.clock_s <= 360.0 + GRACE_S + 2.0
    assert [row.candidate for row in again] == [row.candidate for row in rows]
    assert ending_of(study)["ended_by"] == "deadline"
    assert ending_of(study)["left_out"]["holdout_replays"] == sum(held) - 1
    assert night.said[-1].startswith("left out, as there is no time")


def test_what_takes_longer_than_ever_is_cut_and_does_not_count(night: Night) -> None:
    night.slow = {3: 10_000.0}
    study, rows = night.run("10m")
    assert rows[3].state == "interrupted"
    assert len(rows) == 4
    assert night.clock_s <= 600.0 + GRACE_S + 2.0
    cut = [each for each in night.said if each.startswith("this trial does not count")]
    assert cut == [
        f"this trial does not count: cut short {GRACE_S:.0f} s after the deadline, --timeout 10m"
    ]
    assert study.state == "finished"


def test_a_time_in_which_nothing_fits_is_refused(night: Night) -> None:
    with pytest.raises(UsageError, match="too short to measure anything"):
        night.run("5s")
    night.run("2m")
    with pytest.raises(UsageError, match="too short to measure anything"):
        night.run("5s")


def test_a_jump_of_the_time_of_day_is_said_and_stored(
    night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    jumps = iter([None, -3600.0])
    monkeypatch.setattr(ClockWatch, "jump_s", lambda _self: next(jumps, None))
    study, rows = night.run("2m")
    assert len(rows) > 1
    said = "the time of day has jumped by -3600 s; no time here is counted by it"
    assert night.said.count(said) == 1
    events = [each for each in read_events(night.url, study.id) if each.kind == "clock_jump"]
    assert [each.detail for each in events] == [{"seconds": -3600.0}]
