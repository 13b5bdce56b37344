from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from autotune import lease as leases
from autotune.engine.run_folder import PREFIX
from autotune.lease import device_lock, lease, study_lock
from autotune.study.doctor.holders import lease_results, leftover_results


@pytest.fixture(autouse=True)
def own_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "LOCKS", tmp_path)


def test_who_holds_a_study_or_a_gpu_is_named_and_no_lock_is_taken(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'study.db'}"
    with lease(study_lock(url, "night"), "it"), lease(device_lock("GPU-1"), "it"):
        found = list(lease_results(url, ["night", "other"], ["GPU-1", "GPU-2"]))
    assert [each.state for each in found] == ["warn", "warn"]
    assert f"study 'night' is in use by process {os.getpid()}" in found[0].words
    assert "GPU GPU-1 is in use" in found[1].words
    (free,) = lease_results(url, ["night"], ["GPU-1"])
    assert free.state == "ok"


def test_without_a_list_of_locks_nobody_is_accused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'study.db'}"
    (found,) = lease_results(url, ["night"], [], locks=tmp_path / "none")
    assert (found.state, "unknown" in found.words) == ("warn", True)


def test_what_a_killed_run_left_is_told_and_stays(tmp_path: Path) -> None:
    assert [each.state for each in leftover_results(tmp_path)] == ["ok"]
    folder = tmp_path / f"{PREFIX}abc"
    folder.mkdir()
    place = f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} " + str(
        Path("/proc/self/ns/pid").readlink()
    )
    record = {
        "version": 1, "place": place, "controller": {"pid": os.getpid(), "started": 0},
        "janitor": None, "processes": [], "segments": [],
    }  # fmt: skip
    (folder / "processes.json").write_text(json.dumps(record))
    (found,) = leftover_results(tmp_path)
    assert (found.state, str(folder) in found.words) == ("warn", True)
    assert folder.is_dir()
