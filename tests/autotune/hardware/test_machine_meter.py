from __future__ import annotations

import os
from pathlib import Path

import pytest

from autotune.hardware.machine_meter import MACHINE_FIGURES, MachineMeter

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def write_stat(proc: Path, user: int, idle: int, stolen: int, waiting: int = 0) -> None:
    line = f"cpu  {user} 0 0 {idle} {waiting} 0 0 {stolen} {user} 0\ncpu0 1 2 3 4 5 6 7 8 9 10\n"
    (proc / "stat").write_text(line)


def write_process(proc: Path, pid: int, ticks: int, pages: int) -> None:
    (proc / str(pid)).mkdir(exist_ok=True)
    text = f"{pid} (a) b) R 1 1 1 0 -1 0 0 0 0 0 {ticks - 1} 1 0 0 20 0 1 0 99\n"
    (proc / str(pid) / "stat").write_text(text)
    (proc / str(pid) / "statm").write_text(f"999 {pages} 1 1 0 1 0\n")


def test_shares_are_of_the_time_since_the_last_reading(tmp_path: Path) -> None:
    meter = MachineMeter([7, 8], proc=tmp_path)
    write_stat(tmp_path, 1000, 1000, 0)
    write_process(tmp_path, 7, 100, 10)
    assert meter.read() == {"own_memory_bytes": 10 * PAGE_BYTES}
    write_stat(tmp_path, 1060, 1020, 10, waiting=10)
    write_process(tmp_path, 7, 125, 20)
    write_process(tmp_path, 8, 5000, 5)
    assert meter.read() == {
        "cpu_busy_ratio": pytest.approx(0.7),
        "cpu_stolen_ratio": pytest.approx(0.1),
        "own_cpu_ratio": pytest.approx(0.25),
        "own_memory_bytes": 25 * PAGE_BYTES,
    }


def test_no_time_has_no_shares(tmp_path: Path) -> None:
    meter = MachineMeter([], proc=tmp_path)
    write_stat(tmp_path, 1000, 1000, 0)
    assert meter.read() == meter.read() == {}


@pytest.mark.parametrize("text", ["", "intr 1 2 3\n", "cpu  1 2 3\n"])
def test_a_kernel_that_does_not_count_has_no_figures(tmp_path: Path, text: str) -> None:
    (tmp_path / "stat").write_text(text)
    meter = MachineMeter([7], proc=tmp_path)
    assert meter.read() == meter.read() == {}


def test_this_machine_has_all_of_them() -> None:
    meter = MachineMeter([os.getpid()])
    meter.read()
    # The kernel counts in ticks: work until one has passed.
    while "cpu_busy_ratio" not in (found := meter.read()):
        pass
    assert tuple(found) == MACHINE_FIGURES
    assert 0 <= found["cpu_busy_ratio"] <= 1
    assert found["own_memory_bytes"] > 10 * 2**20
