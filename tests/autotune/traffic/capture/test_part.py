from __future__ import annotations

import errno
import stat
from pathlib import Path

import pytest

from autotune.errors import TraceError
from autotune.traffic.capture.part import Appending, Header, Missed, PartFile, read_part
from autotune.traffic.capture.record import Record
from tests.autotune.traffic.capture.disks import FullDisk

HEADER = Header(by="proxy", block_size=16)
RECORD = Record(
    arrival_s=1.5,
    ending="cancelled",
    prompt_tokens=20,
    output_tokens=3,
    model="m",
    token_ids=(1, 2**63 - 1),
    output_estimated=True,
)
GAP = Missed(start_s=1.0, end_s=2.0, requests=3, reason="the queue was full")


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.part"
    file = PartFile(path, HEADER)
    file.append(RECORD.to_line())
    file.append(GAP.to_line())
    file.close()
    part = read_part(path)
    assert part is not None
    assert (part.header, part.records, part.gaps, part.torn) == (HEADER, [RECORD], [GAP], 0)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert file.size == path.stat().st_size


def test_unknown_values_are_not_written() -> None:
    line = Record(arrival_s=1.0, ending="failed").to_line()
    assert line == b'{"arrival_s":1.0,"ending":"failed"}\n'


def test_a_line_that_was_cut_off_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.part"
    file = PartFile(path, HEADER)
    file.append(RECORD.to_line())
    file.append(RECORD.to_line()[:-20])
    file.close()
    part = read_part(path)
    assert part is not None
    assert (part.records, part.torn) == ([RECORD], 1)


@pytest.mark.parametrize(
    "line",
    [
        '{"arrival_s": 1}', '{"gap": {}}', "[1]", "5", '{"more": 1}', "[" * 100_000, '{"gap": 5}',
        '{"arrival_s": "x", "ending": "failed"}', '{"arrival_s": 1e999, "ending": "failed"}',
        '{"arrival_s": 1, "ending": "failed", "prompt_tokens": -1}',
        '{"arrival_s": 1, "ending": "failed", "token_ids": ["a"]}',
        '{"arrival_s": 1, "ending": "failed", "text_ids": 5}',
    ],
)  # fmt: skip
def test_a_line_that_is_no_record_is_counted(tmp_path: Path, line: str) -> None:
    path = tmp_path / "a.part"
    file = PartFile(path, HEADER)
    file.append(line.encode() + b"\n\n")
    file.close()
    part = read_part(path)
    assert part is not None
    assert (part.records, part.gaps, part.torn) == ([], [], 1)


@pytest.mark.parametrize("text", ["", "\n", '{"recording": {"by"'])
def test_a_recording_that_never_began_is_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.part"
    path.write_text(text)
    assert read_part(path) is None


@pytest.mark.parametrize("first", ["\0" * 99, '{"recording": 5}', '{"recording": {"by": 1}}'])
def test_a_recording_whose_header_is_lost_is_kept_for_people(tmp_path: Path, first: str) -> None:
    path = tmp_path / "a.part"
    path.write_bytes(first.encode() + b"\n" + RECORD.to_line())
    with pytest.raises(TraceError, match=r"recorded"):
        read_part(path)


def test_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.part"
    path.write_text('{"recording": {"by": "proxy", "block_size": 16, "version": 9}}\n')
    with pytest.raises(TraceError, match="another version"):
        read_part(path)


@pytest.mark.parametrize("can_truncate", [True, False])
def test_a_full_disk_leaves_whole_lines(tmp_path: Path, can_truncate: bool) -> None:
    disk = FullDisk(can_truncate=can_truncate)

    def opener(path: Path) -> Appending:
        return disk.opened(path)

    path = tmp_path / "a.part"
    file = PartFile(path, HEADER, opener=opener)
    file.append(RECORD.to_line())
    disk.room_bytes = 30
    with pytest.raises(OSError, match="No space left") as caught:
        file.append(RECORD.to_line())
    assert caught.value.errno == errno.ENOSPC
    disk.room_bytes = None
    file.append(GAP.to_line())
    file.close()
    part = read_part(path)
    assert part is not None
    assert (part.records, part.gaps) == ([RECORD], [GAP])
    assert part.torn == (0 if can_truncate else 1)


def test_a_recording_that_cannot_begin_leaves_nothing(tmp_path: Path) -> None:
    disk = FullDisk()
    disk.room_bytes = 3
    with pytest.raises(OSError, match="No space left"):
        PartFile(tmp_path / "a.part", HEADER, opener=disk.opened)
    assert list(tmp_path.iterdir()) == []
