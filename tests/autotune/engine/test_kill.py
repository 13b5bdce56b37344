"""SIGKILL of the controller, while a real engine starts and while it works."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.autotune.engine.survival import (
    end,
    group_survivors,
    members_of,
    orphaned_shared_memory,
    script,
    shared_memory_of,
)
from tests.autotune.engine.tiny import ENGINE_ARGS, ENVIRONMENT

pytestmark = [pytest.mark.engine, pytest.mark.timeout(240)]

TIMEOUT_S = 20.0
ROOT = Path(__file__).resolve().parents[3]

# Says the pid of the host and the folder of the run, and then each report of a replay that would
# take minutes.
CONTROLLER = """
import json, sys
from pathlib import Path
from autotune.engine.protocol import ReplayPlan
from autotune.engine.supervisor import Supervisor
from autotune.traffic.model import Trace, TraceRequest

folder = Path(sys.argv[1])
rows = [TraceRequest(0.0, 64, 8000, (row,)) for row in range(4)]
trace = Trace.build(rows, block_size=512, prefixes_known=True, source="endless")
with Supervisor(log_folder=folder) as supervisor:
    supervisor.validate({})
    print(supervisor._process.pid, flush=True)
    print(supervisor._folder.path, flush=True)
    supervisor.start(json.loads(sys.argv[2]), folder / "trial.log")
    plan = ReplayPlan(seed=1, salt="s", warmup_requests=0)
    supervisor.replay(trace, plan, lambda report: print(report["tokens"], flush=True))
"""


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        script(CONTROLLER, tmp_path, json.dumps(dict(ENGINE_ARGS))),
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **ENVIRONMENT, "PYTHONPATH": str(ROOT)},
    )
    yield process
    end(process)


def read_folder(controller: subprocess.Popen[str]) -> Path:
    assert controller.stdout is not None
    return Path(controller.stdout.readline().strip())


def is_gone(folder: Path) -> bool:
    """Whether the janitor has removed the folder of a run, with its sockets, within its time."""
    deadline_s = time.monotonic() + TIMEOUT_S
    while folder.exists() and time.monotonic() < deadline_s:
        time.sleep(0.05)
    return not folder.exists()


def read_number(controller: subprocess.Popen[str]) -> int:
    assert controller.stdout is not None
    return int(controller.stdout.readline())


def names(processes: list[psutil.Process]) -> str:
    found: list[str] = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            found += process.cmdline()
    return " ".join(found)


def test_nothing_outlives_a_controller_that_is_killed_during_a_replay(
    controller: subprocess.Popen[str],
) -> None:
    host, folder = read_number(controller), read_folder(controller)
    while read_number(controller) == 0:
        pass
    processes = members_of(host)
    segments = shared_memory_of(processes)
    assert "EngineCore" in names(processes)
    assert len(processes) >= 3
    assert segments
    assert any(path.is_socket() for path in folder.iterdir())
    # A stopped process heeds no signal but one, and has no thread that watches its parent.
    core = next(each for each in processes if "EngineCore" in each.name())
    core.suspend()
    end(controller)
    assert group_survivors(host, timeout_s=TIMEOUT_S) == []
    assert is_gone(folder)
    assert [segment for segment in segments if segment.exists()] == []


def spawned(host: int, _log: Path) -> bool:
    """EngineCore exists, and has not yet shaken hands with its front end."""
    return "spawn_main" in names(members_of(host))


def loading(_host: int, log: Path) -> bool:
    """From its first line on EngineCore takes no more than a note of SIGTERM."""
    return log.exists() and "(EngineCore pid=" in log.read_text(errors="replace")


@pytest.mark.parametrize("reached", [spawned, loading])
def test_nothing_outlives_a_controller_that_is_killed_during_a_start(
    controller: subprocess.Popen[str], tmp_path: Path, reached: Callable[[int, Path], bool]
) -> None:
    host, folder = read_number(controller), read_folder(controller)
    orphaned = orphaned_shared_memory()
    deadline_s = time.monotonic() + 120.0
    while not reached(host, tmp_path / "trial.log"):
        assert time.monotonic() < deadline_s
        assert controller.poll() is None
        time.sleep(0.05)
    end(controller)
    assert group_survivors(host, timeout_s=TIMEOUT_S) == []
    assert is_gone(folder)
    assert orphaned_shared_memory() <= orphaned
