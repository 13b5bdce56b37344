"""Logs that grow beyond their limit keep both ends."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from autotune.engine import log_cap
from autotune.engine.failures import read_tail
from autotune.engine.log_cap import CappedLogs, cut_middle
from autotune.engine.supervisor import open_log

LIMIT = 4096

FLOOD = """
import os, sys
for number in range(int(sys.argv[1])):
    os.write(1, b"%08d\\n" % number)
print("EngineCore died", flush=True)
"""


def test_a_short_log_stays_as_it_is(tmp_path: Path) -> None:
    log = tmp_path / "trial.log"
    log.write_bytes(b"x" * LIMIT)
    assert not cut_middle(log, LIMIT)
    assert log.read_bytes() == b"x" * LIMIT


def test_both_ends_are_kept_and_what_is_written_later_follows(tmp_path: Path) -> None:
    log = tmp_path / "trial.log"
    with open_log(log) as file:
        file.write(b"started\n" + b"." * 20_000 + b"\nthe end")
        file.flush()
        assert cut_middle(log, LIMIT)
        file.write(b", and more\n")
    text = log.read_bytes()
    assert len(text) < LIMIT
    assert text.startswith(b"started\n...")
    assert b"17968 bytes of this log were cut out here" in text
    assert text.endswith(b"...\nthe end, and more\n")
    assert not cut_middle(log, LIMIT)


def test_evidence_is_found_in_a_log_that_was_cut_since(tmp_path: Path) -> None:
    log = tmp_path / "trial.log"
    log.write_bytes(b"x" * 20_000 + b"\nOutOfMemoryError: CUDA out of memory\n")
    cut_middle(log, LIMIT)
    assert "OutOfMemoryError" in read_tail(log, after=19_000)


def test_only_logs_that_are_written_are_looked_at(tmp_path: Path) -> None:
    first, second, gone = (tmp_path / name for name in ("0.log", "1.log", "gone.log"))
    logs = CappedLogs(LIMIT)
    logs.watch(first, gone)
    first.write_bytes(bytes(2 * LIMIT))
    logs.watch(second)
    # The last look at the first.
    assert first.stat().st_size < LIMIT
    first.write_bytes(bytes(2 * LIMIT))
    second.write_bytes(bytes(2 * LIMIT))
    logs.stop()
    assert (first.stat().st_size, second.stat().st_size < LIMIT) == (2 * LIMIT, True)


def test_what_cannot_be_written_hurts_nobody(tmp_path: Path) -> None:
    logs = CappedLogs(LIMIT)
    logs.watch(tmp_path)
    logs.stop()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.wire
def test_a_flood_from_another_process_is_held_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_cap, "_EVERY_S", 0.005)
    log = tmp_path / "trial.log"
    logs = CappedLogs(64 * LIMIT)
    before = threading.active_count()
    with open_log(log) as file:
        logs.watch(log)
        logs.start()
        logs.start()
        assert threading.active_count() == before + 1
        flood = [sys.executable, "-S", "-c", FLOOD, "200000"]
        subprocess.run(flood, stdout=file, check=True)
    logs.stop()
    logs.stop()
    assert threading.active_count() == before
    assert log.stat().st_size <= 64 * LIMIT
    text = log.read_bytes()
    assert text.startswith(b"00000000\n00000001\n")
    assert text.endswith(b"00199999\nEngineCore died\n")
    assert b"\x00" not in text
