"""Faults of vLLM, injected into a study on real CPU engines."""

from __future__ import annotations

import signal
import time
from contextlib import suppress
from functools import partial

import psutil
from faults_ours import SQLITE, Fault, seen
from faulty import NAME, Seen, Study

CORE, WORKER = "VLLM::EngineCore", "VLLM::Worker"
HOST = "autotune.engine.host"


def hit(study: Study, *, victim: str, how: signal.Signals, phase: str, failure: str) -> Seen:
    """Kill or stop a process of the second engine; the study has to go on by itself."""
    run = study.begin(hold=f"{phase}:2" if phase == "start" else "warmup:2")
    run.reach()
    if phase == "start":
        run.go()
        process = _awaited(study, victim)
    else:
        process = _awaited(study, victim)
        run.go()
        run.reach("replay")
    process.send_signal(how)
    ended = run.end()
    found = {row.failure_class for row in study.rows()}
    problems = [] if failure in found else [f"no trial failed with {failure}, but with {found}"]
    return seen(ended, failure, code=0, problems=problems)


def _awaited(study: Study, victim: str) -> psutil.Process:
    while True:
        for each in study.processes():
            with suppress(psutil.NoSuchProcess):
                if each.name().startswith(victim) or (victim == HOST and HOST in each.cmdline()):
                    return each
        time.sleep(0.05)


def no_memory(study: Study) -> Seen:
    """A KV cache that is larger than the machine."""
    return _refused(study, kv_cache_memory_bytes=2**42)


def refused(study: Study) -> Seen:
    return _refused(study, max_num_batched_tokens=64, max_num_seqs=128)


def _refused(study: Study, **arguments: int) -> Seen:
    """Ask for what cannot be; nothing of it is in the way of the study that can."""
    engine_args = {**study.settings["engine_args"], **arguments}
    ended = study.run(engine_args=engine_args, study_name=f"{NAME}-refused")
    code = 4 if "kv_cache_memory_bytes" in arguments else 2
    return seen(ended, "error:", code=code)


def _fault(name: str, victim: str, how: signal.Signals, phase: str, failure: str) -> Fault:
    act = partial(hit, victim=victim, how=how, phase=phase, failure=failure)
    return Fault(name, act, SQLITE, real=True)


KILL, STOP = signal.SIGKILL, signal.SIGSTOP
ENGINE_FAULTS = (
    _fault("EngineCore killed at its start", CORE, KILL, "start", "unknown"),
    _fault("EngineCore killed in a replay", CORE, KILL, "replay", "engine_dead"),
    _fault("EngineCore hangs in a replay", CORE, STOP, "replay", "hang"),
    _fault("worker killed in a replay", WORKER, KILL, "replay", "engine_dead"),
    _fault("engine host killed in a replay", HOST, KILL, "replay", "engine_dead"),
    Fault("no memory for an engine", no_memory, SQLITE, real=True),
    Fault("engine argument refused", refused, SQLITE, real=True),
)
