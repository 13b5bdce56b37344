from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from autotune.traffic.capture import recorder as module
from autotune.traffic.capture.finishing import Finisher
from autotune.traffic.capture.part import Header, Opener, open_part
from autotune.traffic.capture.record import Record
from autotune.traffic.capture.recorder import MAX_HELD_BYTES, Recorder, Rotation
from autotune.traffic.capture.sighting import Sighting
from autotune.traffic.trace import load_trace
from tests.autotune.traffic.capture.disks import FullDisk
from tests.autotune.traffic.capture.seen import sighting

START_S = 1_700_000_000.0


class Rig:
    """A recorder whose clock and disk the test moves; ``read`` may be held back."""

    def __init__(
        self,
        folder: Path,
        *,
        rotation: Rotation | None = None,
        opener: Opener = open_part,
        read: Callable[[Sighting], Sequence[Record]] | None = None,
    ) -> None:
        self.now_s = START_S
        self.said: list[str] = []
        self.recorder = Recorder(
            folder,
            Header(by="proxy", block_size=16),
            read=self.one if read is None else read,
            rotation=Rotation() if rotation is None else rotation,
            finisher=Finisher(),
            opener=opener,
            clock=lambda: self.now_s,
            say=self.said.append,
        )

    def one(self, seen: Sighting) -> list[Record]:
        return [record(seen.arrival_s - START_S)]

    def write(self, *items: Sighting | Record) -> None:
        """Have the writer do a round in this thread, for tests that need to know when."""
        for item in items:
            self.recorder.put(item)
        self.recorder._turn(self.recorder._next_batch())


def record(at_s: float = 0.0, **more: Any) -> Record:
    return Record(
        **{
            "arrival_s": START_S + at_s,
            "ending": "completed",
            "prompt_tokens": 20,
            "output_tokens": 3,
            "token_ids": (1, 2),
            **more,
        }
    )


def closed(rig: Rig) -> list[Path]:
    rig.recorder.start()
    return rig.recorder.close()


def test_what_is_put_is_written_and_finished(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.recorder.start()
    for number in range(5):
        rig.recorder.put(sighting(arrival_s=START_S + number))
    (path,) = rig.recorder.close()
    assert path.name == "capture-20231114T221320Z.jsonl"
    assert load_trace(path).meta.requests == 5
    assert rig.recorder.counts == module.Counts(recorded=5)
    assert rig.said == []


def test_nothing_recorded_leaves_nothing(tmp_path: Path) -> None:
    assert closed(Rig(tmp_path)) == []
    assert list(tmp_path.iterdir()) == []


def test_a_full_queue_loses_requests_and_says_how_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_WAITING", 4)
    rig = Rig(tmp_path)
    assert rig.recorder.take(100)
    for number in range(10):
        rig.now_s += 1
        rig.recorder.put(sighting(held_bytes=10, arrival_s=START_S + number))
    assert rig.recorder.counts.lost == 6
    # What was refused holds no memory.
    assert rig.recorder.held_bytes == 40
    (path,) = closed(rig)
    trace = load_trace(path)
    (gap,) = trace.meta.gaps
    assert (gap.start_ms, gap.end_ms, gap.requests) == (5000.0, 10_000.0, 6)
    assert gap.reason == "the queue was full"
    assert trace.meta.requests == 4
    assert trace.notes.unrecorded == 6
    assert rig.said == ["requests pass unrecorded: the queue was full"]
    assert rig.recorder.held_bytes == 0


def test_put_never_waits_for_a_writer_that_is_stuck(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_WAITING", 2)
    reading, go_on = threading.Event(), threading.Event()

    def stuck(_seen: Sighting) -> list[Record]:
        reading.set()
        assert go_on.wait(30)
        return [record()]

    rig = Rig(tmp_path, read=stuck)
    rig.recorder.start()
    rig.recorder.put(sighting())
    assert reading.wait(30)
    for _ in range(50):
        rig.recorder.put(sighting())
    go_on.set()
    rig.recorder.close()
    assert rig.recorder.counts.recorded + rig.recorder.counts.lost == 51
    assert rig.recorder.counts.lost >= 45


def test_memory_is_bounded(tmp_path: Path) -> None:
    recorder = Rig(tmp_path).recorder
    assert recorder.take(MAX_HELD_BYTES)
    assert not recorder.take(1)
    recorder.give(10)
    assert recorder.take(10)


def test_a_full_disk_is_a_gap_and_recording_goes_on(tmp_path: Path) -> None:
    disk = FullDisk()
    rig = Rig(tmp_path, opener=disk.opened)
    rig.write(record(0.0))
    disk.room_bytes = 30
    rig.now_s += 10
    rig.write(record(10.0))
    rig.now_s += 5
    rig.write(record(15.0), record(15.5))
    assert rig.said == [
        "requests pass unrecorded: the file could not be written (No space left on device)"
    ]
    disk.room_bytes = None
    rig.now_s += 5
    rig.write(record(20.0))
    (path,) = closed(rig)
    trace = load_trace(path)
    assert [each.timestamp_ms for each in trace.requests] == [0.0, 20_000.0]
    (gap,) = trace.meta.gaps
    assert (gap.start_ms, gap.end_ms, gap.requests) == (10_000.0, 15_000.0, 3)
    assert rig.recorder.counts == module.Counts(recorded=2, lost=3)


def test_a_gap_that_lasts_is_said_again_after_a_while(tmp_path: Path) -> None:
    disk = FullDisk()
    disk.room_bytes = 0
    rig = Rig(tmp_path, opener=disk.opened)
    for _ in range(3):
        rig.write(record())
        rig.now_s += 40
    assert len(rig.said) == 2
    assert closed(rig) == []


def test_a_reader_that_fails_is_a_gap_without_what_it_read(tmp_path: Path) -> None:
    def fails(_seen: Sighting) -> list[Record]:
        raise ValueError("the secret of the body")

    rig = Rig(tmp_path, read=fails)
    rig.write(sighting(held_bytes=5), record())
    (path,) = closed(rig)
    assert load_trace(path).meta.gaps[0].reason == "a request could not be read (ValueError)"
    assert rig.said == ["requests pass unrecorded: a request could not be read (ValueError)"]


def test_a_writer_that_fails_goes_on(tmp_path: Path) -> None:
    def fails(path: Path) -> Any:
        if not opened:
            opened.append(path)
            raise KeyError(path)
        return open_part(path)

    opened: list[Path] = []
    rig = Rig(tmp_path, opener=fails)
    rig.write(record(), record(1.0))
    rig.write(record(2.0))
    (path,) = closed(rig)
    assert load_trace(path).meta.gaps[0].reason == "the writer failed (KeyError)"
    assert rig.recorder.counts == module.Counts(recorded=1, lost=2)


def test_files_rotate_by_time_and_take_latecomers(tmp_path: Path) -> None:
    rig = Rig(tmp_path, rotation=Rotation(every_s=600))
    rig.write(record(0.0))
    rig.now_s += 601
    rig.write(record(599.0))
    # It came before the first file ended, and took a while.
    rig.now_s += 30
    rig.write(record(605.0), record(598.0))
    assert len(list(tmp_path.glob("*.part"))) == 2
    rig.now_s += 31
    rig.write()
    (first,) = tmp_path.glob("*.jsonl")
    assert load_trace(first).meta.requests == 3
    # Whoever is later still is written where there is room.
    rig.write(record(1.0))
    second = closed(rig)[1]
    assert load_trace(second).meta.requests == 2
    assert second.name == "capture-20231114T222351Z.jsonl"


def test_files_rotate_by_size(tmp_path: Path) -> None:
    rig = Rig(tmp_path, rotation=Rotation(size_bytes=500))
    for number in range(12):
        rig.write(record(float(number)))
        rig.now_s += 1
    assert len(closed(rig)) >= 2
    assert sum(load_trace(path).meta.requests for path in tmp_path.glob("*.jsonl")) == 12


def test_what_was_in_a_file_that_somebody_removed_is_a_gap(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.write(record(0), record(1, ending="failed"))
    (part,) = tmp_path.glob("*.part")
    part.unlink()
    rig.write(record(2))
    assert rig.said == ["requests pass unrecorded: the file that they were in was removed"]
    assert rig.recorder.counts == module.Counts(recorded=1, lost=2)
    (path,) = closed(rig)
    trace = load_trace(path)
    assert (trace.meta.requests, trace.notes.unrecorded) == (1, 2)


def test_a_folder_that_is_gone_loses_requests_until_it_is_back(tmp_path: Path) -> None:
    folder = tmp_path / "captures"
    folder.mkdir()
    rig = Rig(folder)
    rig.write(record(0))
    shutil.rmtree(folder)
    rig.write(record(1))
    assert rig.recorder.counts == module.Counts(lost=2)
    folder.mkdir()
    rig.write(record(2))
    (path,) = closed(rig)
    assert load_trace(path).notes.unrecorded == 2


def test_names_that_are_taken_are_not_taken_twice(tmp_path: Path) -> None:
    (tmp_path / "capture-20231114T221320Z.jsonl").write_text("")
    rig = Rig(tmp_path)
    rig.write(record())
    assert [path.name for path in closed(rig)] == ["capture-20231114T221320Z-2.jsonl"]


def test_what_cannot_be_finished_is_said(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.write(record())
    (tmp_path / "capture-20231114T221320Z.jsonl").mkdir()
    closed(rig)
    assert rig.said[0].startswith("capture-20231114T221320Z.part stays unfinished: ")


def test_endings_are_counted(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.write(record(ending="cancelled"), record(ending="failed"), record())
    closed(rig)
    assert rig.recorder.counts == module.Counts(recorded=3, cancelled=1, failed=1)
