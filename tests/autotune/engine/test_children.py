from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from multiprocessing.process import BaseProcess

import pytest

from autotune.engine import children as children_module
from autotune.engine.children import Children

CONTEXT = multiprocessing.get_context("fork")


def started(name: str, target: Callable[[], object] = signal.pause) -> BaseProcess:
    process = CONTEXT.Process(target=target, name=name)
    process.start()
    return process


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_how_processes_ended_is_said_and_who_runs_is_not_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(children_module, "_ENDING_S", 0.0)
    children = Children()
    with children.noticed():
        core, idle = started("EngineCore"), started("Idle")
    assert children.endings() == []
    os.kill(core.pid or 0, signal.SIGKILL)
    core.join()
    assert children.endings() == ["EngineCore ended by SIGKILL"]
    # The next engine is another.
    idle.terminate()
    idle.join()
    read_end, write_end = os.pipe()
    with children.noticed():
        started("EngineCore", lambda: sys.exit(len(os.read(read_end, 1))))
    os.write(write_end, b"1")
    os.close(read_end)
    os.close(write_end)
    monkeypatch.setattr(children_module, "_ENDING_S", 60.0)
    assert children.endings() == ["EngineCore ended with status 1"]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_process_that_its_maker_has_forgotten_is_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(children_module, "_LOOK_EVERY_S", 0.001)
    children = Children()
    with pytest.raises(RuntimeError, match="refused"), children.noticed():
        core = started("EngineCore")
        while core not in children._seen:
            pass
        os.kill(core.pid or 0, signal.SIGKILL)
        core.join()
        raise RuntimeError("refused")
    assert children.endings() == ["EngineCore ended by SIGKILL"]


def test_a_signal_without_a_name_has_its_number() -> None:
    children = Children()
    with children.noticed():
        core = started("EngineCore")
    os.kill(core.pid or 0, signal.SIGRTMIN + 1)
    assert children.endings() == [f"EngineCore ended by signal {signal.SIGRTMIN + 1}"]
