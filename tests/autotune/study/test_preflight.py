from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from autotune import lease as leases
from autotune.errors import EnvironmentFault, LeaseHeld
from autotune.lease import device_lock, lease, study_lock
from autotune.study.preflight import check_leases, check_room, check_weights, leases_elsewhere
from storage.leases import held_lease, study_resource
from storage.repository import open_repository
from tests.autotune.study.scripted import job_of, settings_of

OFFLINE = {"HF_HUB_OFFLINE": "1"}


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(leases, "LOCKS", tmp_path)
    return f"sqlite:///{tmp_path / 'study.db'}"


def test_nothing_is_made_where_nobody_holds_anything(tmp_path: Path, url: str) -> None:
    check_leases(url, "night", ["GPU-1"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("what", ["study", "gpu"])
def test_what_somebody_else_holds_is_named(url: str, what: str) -> None:
    lock = study_lock(url, "night") if what == "study" else device_lock("GPU-1")
    with lease(lock, what), pytest.raises(LeaseHeld, match="is in use by process"):
        check_leases(url, "night", ["GPU-1"])
    check_leases(url, "night", ["GPU-1"])


def test_a_lease_by_row_is_said(url: str) -> None:
    assert leases_elsewhere(url, "night") == []
    with open_repository(url) as repository:
        assert leases_elsewhere(url, "night") == []
        with held_lease(repository, study_resource("night"), "study 'night'"):
            (sentence,) = leases_elsewhere(url, "night")
            assert leases_elsewhere(url, "day") == []
        assert leases_elsewhere(url, "night") == []
    assert f"is leased by process {os.getpid()} on " in sentence


@pytest.mark.parametrize(
    ("free", "option"), [(10**12, None), (10**6, "--log-folder"), (10**8 + 1000, "--storage")]
)
def test_a_night_needs_room(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch, free: int, option: str | None
) -> None:
    found: Any = os.statvfs(tmp_path)

    class Space:
        f_bavail, f_frsize = free, 1

    monkeypatch.setattr(os, "statvfs", lambda _: Space if found else found)
    job = job_of(log_folder=tmp_path / "logs" / "deeper", trials=10_000)
    if option is None:
        check_room(job, url)
        return
    with pytest.raises(EnvironmentFault, match="free, and the study may take") as caught:
        check_room(job, url)
    assert option in caught.value.hint


def test_weights_that_nobody_may_fetch_have_to_be_here(tmp_path: Path) -> None:
    settings = settings_of(model="some/model")
    here = {**OFFLINE, "HF_HOME": str(tmp_path)}
    check_weights(settings, {})
    check_weights(settings_of(model=str(tmp_path)), here)
    check_weights(settings_of(model="some/model", engine_args={"load_format": "dummy"}), here)
    with pytest.raises(EnvironmentFault, match="holds no weights of some/model"):
        check_weights(settings, here)
    folder = tmp_path / "hub" / "models--some--model" / "snapshots" / "abc"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").touch()
    check_weights(settings, here)
