from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from autotune.watching.listener import Ending
from autotune.watching.log_file import LogFile
from tests.autotune.watching.builders import Clock

STAMP = "2026-11-30T12:00:00.000Z"


def log_at(path: Path, said: list[str] | None = None, **changes: Any) -> LogFile:
    values: dict[str, Any] = {
        "study": "night",
        "log_format": "text",
        "rotate_bytes": 10_000,
        "keep": 3,
        "mask": lambda text: text.replace("s3cret", "***"),
        "complain": [].append if said is None else said.append,
        "now": Clock().now,
        **changes,
    }
    return LogFile(path, **values)


def test_text_has_time_level_and_trial(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "night.log"
    log = log_at(path)
    log.write("asking vLLM")
    log.write("two\nlines of s3cret \n\n", level="warning", trial=3)
    log.close()
    assert path.read_text("utf-8").splitlines() == [
        f"{STAMP} INFO    asking vLLM",
        f"{STAMP} WARNING trial 3: two",
        f"{STAMP} WARNING trial 3: lines of ***",
    ]
    assert path.stat().st_mode & 0o777 == 0o600


def test_json_has_the_same_keys_in_every_line(tmp_path: Path) -> None:
    path = tmp_path / "night.jsonl"
    log = log_at(path, log_format="json")
    log.write("größer", event="begun", trial=0)
    log.ended(Ending("interrupted", 143, "SIGTERM"))
    log.ended(Ending("failed", 4, "no disk", "make room"))
    log.close()
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert lines[0] == {
        "time": STAMP, "level": "info", "event": "begun", "study": "night", "trial": 0,
        "message": "größer",
    }  # fmt: skip
    assert [(each["level"], each["message"]) for each in lines[1:]] == [
        ("error", "interrupted, exit code 143: SIGTERM"),
        ("error", "failed, exit code 4: no disk"),
        ("error", "hint: make room"),
    ]
    assert all(list(each) == list(lines[0]) for each in lines)


def test_a_file_that_is_full_moves_on_and_the_oldest_goes(tmp_path: Path) -> None:
    path = tmp_path / "night.log"
    log = log_at(path, rotate_bytes=100, keep=2)
    for number in range(5):
        log.write(f"{number} " + "x" * 60)
    log.close()
    names = sorted(each.name for each in tmp_path.iterdir())
    assert names == ["night.log", "night.log.1", "night.log.2"]
    assert [path.with_name(name).read_text("utf-8")[33] for name in names] == ["4", "3", "2"]


def test_where_no_file_can_be_moved_it_grows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_path: Path, _target: Path) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "replace", refused)
    said: list[str] = []
    path = tmp_path / "night.log"
    log = log_at(path, said, rotate_bytes=10)
    log.write("one")
    log.write("two")
    log.close()
    assert len(path.read_text("utf-8").splitlines()) == 2
    assert said == []


def test_a_file_that_is_moved_away_is_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "night.log"
    log = log_at(path)
    log.write("one")
    path.rename(tmp_path / "by-logrotate")
    log.write("two")
    log.close()
    assert path.read_text("utf-8").endswith("two\n")
    assert (tmp_path / "by-logrotate").read_text("utf-8").endswith("one\n")


def test_a_full_disk_is_said_once_and_lines_after_it_are_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, said = tmp_path / "night.log", list[str]()
    log = log_at(path, said)
    log.write("one")
    real, room = os.write, [10]

    def full(descriptor: int, data: bytes) -> int:
        if not room:
            raise OSError(28, "No space left on device")
        return real(descriptor, data[: room.pop()])

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        log.write("lost")
        log.write("lost too")
    log.write("again")
    log.close()
    assert said == ["its log file cannot be written: No space left on device; the study goes on"]
    first, torn, last = path.read_text("utf-8").splitlines()
    assert first.endswith("one")
    assert torn == STAMP[:10]
    assert last == f"{STAMP} INFO    again"


@pytest.mark.parametrize("place", ["/dev/full", "."])
def test_a_place_that_takes_nothing_is_said_once(place: str) -> None:
    said: list[str] = []
    log = log_at(Path(place), said)
    log.write("one")
    log.write("two")
    log.close()
    assert len(said) == 1


def test_a_pipe_that_nobody_reads_does_not_hold_us_up(tmp_path: Path) -> None:
    pipe, said = tmp_path / "pipe", list[str]()
    os.mkfifo(pipe)
    log_at(pipe, said).write("one")
    assert len(said) == 1
