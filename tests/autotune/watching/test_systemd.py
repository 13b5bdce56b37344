from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from autotune.watching.listener import Ending
from autotune.watching.progress import StudyProgress
from autotune.watching.systemd import STARTING_US, STOPPING_US, ServiceManager
from tests.autotune.study.records import record, study_record
from tests.autotune.watching.builders import Clock, progress_on

pytestmark = pytest.mark.wire

STOPPING = ["STOPPING=1", f"EXTEND_TIMEOUT_USEC={STOPPING_US}"]


class Listening:
    """The service manager's end: what has come since it was last looked at."""

    def __init__(self, address: str | bytes) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.bind(address)

    def lines(self) -> list[str]:
        found: list[str] = []
        while True:
            try:
                found += self._socket.recv(4096).decode().splitlines()
            except BlockingIOError:
                return found

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[Listening]:
    heard = Listening(str(tmp_path / "notify"))
    yield heard
    heard.close()


def manager(
    tmp_path: Path, progress: StudyProgress, clock: Clock, *, watchdog_s: float | None = None
) -> ServiceManager:
    return ServiceManager(str(tmp_path / "notify"), progress, watchdog_s=watchdog_s, clock=clock)


def test_ready_comes_when_the_study_is_open(tmp_path: Path, listening: Listening) -> None:
    clock = Clock()
    progress = progress_on(clock)
    service = manager(tmp_path, progress, clock)
    service.changed()
    assert listening.lines() == [
        "STATUS=preparing; 0 of 8 trials done", f"EXTEND_TIMEOUT_USEC={STARTING_US}",
    ]  # fmt: skip
    progress.opened(study_record(trials=8), [])
    service.changed()
    assert listening.lines() == ["READY=1", "STATUS=preparing; 0 of 8 trials done"]
    service.changed()
    assert "READY=1" not in listening.lines()
    service.close()


def test_the_watchdog_hears_of_what_makes_progress_and_not_too_often(
    tmp_path: Path, listening: Listening
) -> None:
    clock = Clock()
    progress = progress_on(clock)
    service = manager(tmp_path, progress, clock, watchdog_s=40.0)
    progress.opened(study_record(trials=8), [])
    progress.begun(record(0, phase="baseline"), 1, 8)
    service.changed()
    assert listening.lines()[-1] == "WATCHDOG=1"
    pings = 0
    for _ in range(100):
        clock.now_s += 0.5
        service.alive()
        pings += listening.lines().count("WATCHDOG=1")
    assert pings == 5
    service.close()


def test_without_a_sign_of_life_nothing_is_sent(tmp_path: Path, listening: Listening) -> None:
    clock = Clock()
    service = manager(tmp_path, progress_on(clock), clock, watchdog_s=1.0)
    clock.now_s += 3600.0
    service.say("a line says nothing of progress")
    assert listening.lines() == []
    service.close()


def test_a_signal_is_told_as_it_comes_and_the_end_with_its_code(
    tmp_path: Path, listening: Listening
) -> None:
    clock = Clock()
    progress = progress_on(clock)
    service = manager(tmp_path, progress, clock)
    progress.opened(study_record(trials=8), [])
    service.changed()
    listening.lines()
    service.stopping()
    assert listening.lines() == STOPPING
    progress.ended(Ending("interrupted", 143, "SIGTERM"))
    service.changed()
    assert listening.lines() == [
        *STOPPING, "STATUS=interrupted with exit code 143; 0 of 8 trials done",
    ]  # fmt: skip
    service.close()


def test_a_manager_that_does_not_read_holds_nobody_up(
    tmp_path: Path, listening: Listening
) -> None:
    clock = Clock()
    service = manager(tmp_path, progress_on(clock), clock)
    for _ in range(5000):
        service.stopping()
    assert set(listening.lines()) == set(STOPPING)
    service.close()


def test_one_that_is_gone_is_a_fault_to_be_said(tmp_path: Path) -> None:
    clock = Clock()
    service = manager(tmp_path, progress_on(clock), clock)
    with pytest.raises(FileNotFoundError):
        service.changed()
    service.close()


def test_its_address_may_be_abstract() -> None:
    name = f"autotune-test-{os.getpid()}"
    listening = Listening(b"\0" + name.encode())
    service = ServiceManager.of({"NOTIFY_SOCKET": f"@{name}"}, progress_on(Clock()))
    assert service is not None
    service.stopping()
    assert listening.lines() == STOPPING
    service.close()
    listening.close()


@pytest.mark.parametrize("address", ["", "@", "/", "relative", "vsock:2:1"])
def test_what_is_no_address_is_no_manager(address: str) -> None:
    assert ServiceManager.of({"NOTIFY_SOCKET": address}, progress_on(Clock())) is None


@pytest.mark.parametrize(
    ("environ", "pings"),
    [
        ({"WATCHDOG_USEC": "4000000"}, True),
        ({"WATCHDOG_USEC": "4000000", "WATCHDOG_PID": str(os.getpid())}, True),
        ({"WATCHDOG_USEC": "4000000", "WATCHDOG_PID": "1"}, False),
        ({"WATCHDOG_USEC": "0"}, False),
        ({"WATCHDOG_USEC": "soon"}, False),
        ({}, False),
    ],
)
def test_pings_are_for_whoever_is_waited_for(
    tmp_path: Path, listening: Listening, environ: Mapping[str, str], pings: bool
) -> None:
    address = {"NOTIFY_SOCKET": str(tmp_path / "notify")}
    service = ServiceManager.of({**environ, **address}, progress_on(Clock()))
    assert service is not None
    service.alive()
    assert ("WATCHDOG=1" in listening.lines()) is pings
    service.close()
