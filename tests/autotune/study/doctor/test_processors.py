from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.study.doctor.processors import (
    Machine,
    gather_machine,
    machine_results,
    usable_cores,
)

GOOD = Machine(
    cores=16,
    allowed=16,
    quota_cores=None,
    load=0.5,
    available_bytes=64 * 2**30,
    limit_bytes=None,
    shm_free_bytes=16 * 2**30,
)


def test_a_machine_with_room_is_well() -> None:
    assert {each.state for each in machine_results(GOOD)} == {"ok"}


@pytest.mark.parametrize(
    ("changes", "name", "state"),
    [
        ({"quota_cores": 1.5}, "cpu", "warn"),
        ({"allowed": 2}, "cpu", "warn"),
        ({"load": 9.0}, "load", "warn"),
        ({"limit_bytes": 2**30}, "memory", "warn"),
        ({"available_bytes": None}, "memory", "warn"),
        ({"shm_free_bytes": 64 * 2**20}, "shm", "warn"),
        ({"shm_free_bytes": None}, "shm", "fail"),
    ],
)
def test_too_little_is_said_with_a_hint(changes: dict[str, Any], name: str, state: str) -> None:
    found = {each.name: each for each in machine_results(replace(GOOD, **changes))}
    assert found[name].state == state
    assert found[name].hint
    assert {each.state for each in found.values() if each.name != name} == {"ok"}


def write(root: Path, **files: str) -> None:
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("_DOT_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="ascii")


def test_the_tightest_control_group_counts(tmp_path: Path) -> None:
    write(
        tmp_path,
        proc__self__cgroup="0::/outer/inner\n",
        proc__loadavg="1.25 0 0 1/2 3\n",
        proc__meminfo="MemTotal: 9 kB\nMemAvailable: 2048 kB\n",
        sys__fs__cgroup__outer__cpu_DOT_max="150000 100000\n",
        sys__fs__cgroup__outer__inner__cpu_DOT_max="max 100000\n",
        sys__fs__cgroup__outer__memory_DOT_max="1048576\n",
        sys__fs__cgroup__outer__inner__memory_DOT_max="max\n",
    )
    found = gather_machine(tmp_path)
    assert (found.quota_cores, found.limit_bytes) == (1.5, 2**20)
    assert (found.load, found.available_bytes) == (1.25, 2**21)
    assert found.shm_free_bytes is None
    assert usable_cores(replace(found, allowed=8)) == 1.5


def test_the_first_version_of_control_groups_is_read_too(tmp_path: Path) -> None:
    write(
        tmp_path,
        sys__fs__cgroup__cpu__cpu_DOT_cfs_quota_us="200000\n",
        sys__fs__cgroup__cpu__cpu_DOT_cfs_period_us="100000\n",
        sys__fs__cgroup__memory__memory_DOT_limit_in_bytes=f"{2**63 - 4096}\n",
    )
    found = gather_machine(tmp_path)
    assert (found.quota_cores, found.limit_bytes) == (2.0, None)
