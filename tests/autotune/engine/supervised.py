"""Supervisors of hosts that play a script, of which nothing is left."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from autotune.engine.supervisor import Supervisor, Watchdogs
from autotune.traffic.model import Trace, TraceRequest

HOST = Path(__file__).with_name("scripted_host.py")
PATIENT = Watchdogs(start_s=30.0, silence_s=30.0)

Script = Mapping[str, Any]
Open = Callable[..., Supervisor]


@contextmanager
def supervisors(folder: Path) -> Iterator[Open]:
    """Open supervisors of scripted hosts; at the end none of their processes may be left."""
    opened: list[Supervisor] = []
    before = set(psutil.Process().children(recursive=True))

    def opener(script: Script, watchdogs: Watchdogs = PATIENT, **more: Any) -> Supervisor:
        command = [sys.executable, str(HOST), json.dumps(script)]
        logs = folder / "logs"
        opened.append(
            Supervisor(log_folder=logs, watchdogs=watchdogs, command=command, runs=folder, **more)
        )
        return opened[-1]

    yield opener
    for supervisor in opened:
        supervisor.kill()
        supervisor.close()
    assert list(folder.glob("vllm-autotune-run-*")) == []
    left = set(psutil.Process().children(recursive=True)) - before
    assert not left


def trace() -> Trace:
    rows = [TraceRequest(0.0, 100, 5, (7,)), TraceRequest(250.0, 600, 9, (7, 8), priority=2)]
    return Trace.build(rows, block_size=512, prefixes_known=True, source="test")
