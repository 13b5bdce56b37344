from __future__ import annotations

from pathlib import Path

import pytest

from autotune.study.doctor import machine
from autotune.study.doctor.clocks import gather_clock
from autotune.study.doctor.machine import Subject, examine
from autotune.study.doctor.results import Result
from storage.repository import open_repository


@pytest.fixture(autouse=True)
def nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "gather_clock", lambda: gather_clock(lambda _: None))
    monkeypatch.setattr(machine, "socket_results", lambda: [Result("loopback", "ok", "fine")])


def found(url: str, study: str | None, folder: Path) -> dict[str, Result]:
    subject = Subject(url, study, folder / "logs", {"PATH": "/bin", "HOME": str(folder)})
    return {each.name: each for each in examine(subject)}


def test_all_is_looked_at_and_nothing_is_left(tmp_path: Path) -> None:
    results = found(f"sqlite:///{tmp_path / 'new.db'}", None, tmp_path)
    expected = (
        "python", "packages", "vllm", "driver", "cpu", "memory", "shm", "disk of database",
        "disk of logs", "database", "leases", "leftovers", "clock", "time zone", "PATH", "HOME",
        "variables", "hub", "loopback",
    )  # fmt: skip
    assert set(expected) <= set(results)
    assert list(tmp_path.iterdir()) == []


def test_a_named_study_is_looked_up(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'study.db'}"
    with open_repository(url) as repository:
        repository.open_study("night", fingerprint={}, spec={})
    assert "'night' is running, with 0 trials" in found(url, "night", tmp_path)["study"].words
    assert found(url, "nigth", tmp_path)["study"].state == "fail"


def test_a_url_that_is_none_fails_one_check_and_not_the_others(tmp_path: Path) -> None:
    results = found("mysql://me:hunter2@db/x", None, tmp_path)
    assert results["database"].state == "fail"
    assert results["python"].state == "ok"
