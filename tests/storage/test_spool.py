from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.errors import StorageUnavailable
from storage.keeping import Keeper
from storage.records import StudyRecord, TrialFailure
from storage.repository import Repository, open_repository
from storage.spool import Spool, Spooled
from storage.writing import Ending
from tests.storage.contract import DONE, begin
from tests.storage.events import events_of

pytestmark = pytest.mark.usefixtures("prepared")

MEASURED: dict[str, Any] = {
    "state": "complete",
    "outcome": DONE,
    "metrics": {"ttft_p95": 812.5, "itl_p99": None},
    "engine": {"kv_cache_tokens": 1024},
    "samples": {"sent_s": np.arange(3.0), "gaps_ms": np.array([1.0, np.nan])},
}


class Desk:
    """A study with one running trial, its keeper and all that is said."""

    def __init__(self, repository: Repository, folder: Path, name: str = "night") -> None:
        self.repository = repository
        self.study: StudyRecord = repository.open_study(name, fingerprint={}, spec={})
        self.said: list[str] = []
        self.folder = folder
        self.keeper = Keeper(repository, self.study.id, folder, self.said.append)

    def begin(self, number: int = 0) -> None:
        begin(self.repository, self.study.id, number)
        self.row = self.repository.trial(self.study.id, number)

    def spooled(self, **changes: Any) -> Path:
        """Leave a file as a controller does that is killed before the database has it."""
        ending = Ending.of(**{**MEASURED, **changes})
        made = Spooled.of(self.study, self.row, ending, finished_at="2026-11-02T03:00:00+00:00")
        return Spool(self.folder).keep(made)

    @property
    def files(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())


@pytest.fixture
def desk(repository: Repository, tmp_path: Path) -> Desk:
    desk = Desk(repository, tmp_path / "logs")
    desk.begin()
    return desk


def break_writing(monkeypatch: pytest.MonkeyPatch, path_part: str, number: int) -> None:
    real = os.open

    def refusing(path: Any, flags: int, mode: int = 0o777) -> int:
        if path_part in str(path):
            raise OSError(number, os.strerror(number))
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", refusing)


@settings(max_examples=30)
@given(
    st.dictionaries(st.text(max_size=8), st.binary(max_size=64), max_size=4),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20),
)
def test_a_file_holds_what_was_put_in(samples: dict[str, bytes], name: str) -> None:
    ending = Ending({"state": "complete", "metrics": None}, samples)
    spooled = Spooled((name, "then"), 7, {"replicate_of": None}, ending, "now")
    assert Spooled.from_bytes(spooled.to_bytes()) == spooled


def test_no_part_of_a_file_is_taken_for_the_whole(desk: Desk) -> None:
    data = desk.spooled().read_bytes()
    for size in range(0, len(data), 7):
        with pytest.raises(ValueError, match=r"."):
            Spooled.from_bytes(data[:size])
    with pytest.raises(ValueError, match="digest"):
        Spooled.from_bytes(data[:-1] + bytes([data[-1] ^ 1]))


def test_what_is_stored_leaves_no_file(desk: Desk) -> None:
    desk.keeper.prepare()
    desk.keeper.finish(desk.row, **MEASURED)
    assert desk.files == []
    assert desk.repository.trial(desk.study.id, 0).state == "complete"
    assert desk.said == []


def test_what_a_killed_controller_measured_is_stored_once(desk: Desk, url: str) -> None:
    path = desk.spooled()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert desk.keeper.store_waiting() == (0,)
    row = desk.repository.trial(desk.study.id, 0)
    assert (row.state, row.outcome, row.told) == ("complete", DONE, False)
    assert row.finished_at == "2026-11-02T03:00:00+00:00"
    assert row.metrics == MEASURED["metrics"]
    assert list(desk.repository.samples(desk.study.id, 0)) == ["gaps_ms", "sent_s"]
    assert desk.files == []
    assert events_of(url, desk.study.id)[-1] == ("stored_late", {"number": 0})
    assert len(desk.said) == 1
    assert "trial 0 had measured by 2026-11-02T03:00:00 UTC" in desk.said[0]
    desk.spooled()
    before = desk.repository.trial(desk.study.id, 0)
    assert desk.keeper.store_waiting() == ()
    assert desk.repository.trial(desk.study.id, 0) == before
    assert desk.files == []


def test_a_failure_waits_as_well(desk: Desk) -> None:
    failure = TrialFailure("oom_run", "CUDA out of memory")
    desk.spooled(state="infeasible", failure=failure, metrics=None, engine=None, samples=None)
    assert desk.keeper.store_waiting() == (0,)
    row = desk.repository.trial(desk.study.id, 0)
    assert (row.failure_class, row.failure_evidence) == ("oom_run", "CUDA out of memory")


def test_a_trial_marked_as_interrupted_is_none(desk: Desk) -> None:
    desk.spooled()
    desk.repository.interrupt_running(desk.study.id)
    desk.repository.mark_told(desk.study.id, 0)
    assert desk.keeper.store_waiting() == (0,)
    row = desk.repository.trial(desk.study.id, 0)
    assert (row.state, row.told) == ("complete", False)


def test_a_trial_that_a_restored_copy_lacks_is_there_again(
    desk: Desk, template: Path, tmp_path: Path
) -> None:
    desk.spooled()
    with open_repository(f"sqlite:///{tmp_path / 'copy.db'}") as copy:
        copy._clock = desk.repository._clock
        other = Desk(copy, desk.folder)
        created = {"created_at": desk.study.created_at}
        copy._opened[other.study.id] = desk.study
        with copy._writer.begin() as connection:
            connection.exec_driver_sql(
                "UPDATE autotune_study SET created_at = :created_at", created
            )
        assert other.keeper.store_waiting() == (0,)
        row = copy.trial(other.study.id, 0)
    assert row.state == "complete"
    assert row.candidate == desk.row.candidate
    assert row.started_at == desk.row.started_at


def test_another_trial_of_the_same_number_stays_as_it_is(desk: Desk) -> None:
    path = desk.spooled()
    data = path.read_bytes()
    other = Spooled.from_bytes(data)
    beginning = {**other.beginning, "started_at": "earlier"}
    path.write_bytes(
        Spooled(other.study, 0, beginning, other.ending, other.finished_at).to_bytes()
    )
    assert desk.keeper.store_waiting() == ()
    assert desk.files == ["trial-0000.spool.aside"]
    assert desk.repository.trial(desk.study.id, 0).state == "running"
    assert "Trial 0 in the database is another one" in desk.said[0]


def test_other_samples_are_not_written_over_stored_ones(desk: Desk) -> None:
    desk.keeper.finish(desk.row, **MEASURED)
    desk.spooled(samples={"sent_s": np.arange(4.0)})
    assert desk.keeper.store_waiting() == ()
    assert "complete already, with other samples" in desk.said[0]
    assert desk.files == ["trial-0000.spool.aside"]


def test_the_files_of_another_study_are_left_alone(desk: Desk) -> None:
    other = Desk(desk.repository, desk.folder, name="other")
    other.begin()
    other.spooled()
    assert desk.keeper.store_waiting() == ()
    desk.spooled()
    assert len(desk.files) == 2
    assert desk.keeper.store_waiting() == (0,)
    assert other.keeper.store_waiting() == (0,)
    assert desk.files == []


@pytest.mark.parametrize("content", [b"", b"half", b"[" * 100_000, b"\xff\n\n"])
def test_a_torn_file_is_set_aside_with_a_line(desk: Desk, content: bytes) -> None:
    desk.spooled().write_bytes(content)
    assert desk.keeper.store_waiting() == ()
    assert desk.files == ["trial-0000.spool.aside"]
    assert "is damaged" in desk.said[0]


def test_where_a_measurement_waits_is_said(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise StorageUnavailable("Cannot use it: database or disk is full.", full=True)

    monkeypatch.setattr(desk.repository, "store_ending", full)
    with pytest.raises(StorageUnavailable, match=r"is full, 0\.1 MiB are needed\.") as caught:
        desk.keeper.finish(desk.row, **MEASURED)
    assert "trial-0000.spool; the same command stores it" in caught.value.hint
    monkeypatch.undo()
    assert desk.keeper.store_waiting() == (0,)


def test_without_room_for_a_file_the_database_is_asked_first(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_writing(monkeypatch, "reserved.part", errno.ENOSPC)
    desk.keeper.finish(desk.row, **MEASURED)
    assert desk.repository.trial(desk.study.id, 0).state == "complete"
    assert "No space left on device, 0.1 MiB are needed and" in desk.said[0]


def test_without_room_for_what_it_measures_no_trial_begins(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(StorageUnavailable, match=r"on device, 16\.0 MiB are needed and") as caught:
        desk.keeper.prepare()
    assert caught.value.full


def test_room_is_reserved_and_given_back(desk: Desk) -> None:
    desk.keeper.prepare()
    assert (desk.folder / "reserved.part").stat().st_size == 16 * 2**20
    path = desk.spooled()
    assert desk.files == [path.name]
    assert path.stat().st_size < 10_000
    desk.keeper.prepare()
    Spool(desk.folder).release()
    Spool(desk.folder).release()
    assert desk.files == [path.name]
