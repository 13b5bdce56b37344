"""Faults injected into real engines: how each is classed, and what ground the next one gets.

For each phase of a trial an engine process or the host is killed or stopped (a stopped process is
one that hangs), or the arguments are refused. Written are the class of the failure, the line of
evidence, the seconds until it was noticed, and whether the next engine started on clean ground
and answered.

    scripts/bench/faults OUT.json
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.demo import resolve_model, resolve_trace
from autotune.engine.protocol import ReplayPlan, TrialFailed
from autotune.engine.supervisor import Supervisor, Watchdogs
from autotune.traffic.trace import load_trace

ENGINE_ARGS = {
    "model": str(resolve_model("demo:tiny-llama")),
    "load_format": "dummy",
    "enforce_eager": True,
    "max_model_len": 8192,
    "kv_cache_memory_bytes": 64 * 2**20,
}
WATCHDOGS = Watchdogs(start_s=90.0, silence_s=10.0, settle_s=20.0)
CORE, WORKER, HOST = "VLLM::EngineCor", "VLLM::Worker", "host"
KILL, STOP = signal.SIGKILL, signal.SIGSTOP


@dataclass(frozen=True)
class Fault:
    """What is done to whom and when, or the arguments that are refused."""

    phase: str
    victim: str
    signum: signal.Signals | None = None
    engine_args: Mapping[str, Any] | None = None

    @property
    def text(self) -> str:
        if self.signum is None:
            return f"{self.victim}"
        return f"{self.victim} {'killed' if self.signum == KILL else 'hangs'}"


FAULTS = (
    Fault(
        "start",
        "refused argument",
        engine_args={"max_num_batched_tokens": 64, "max_num_seqs": 128},
    ),
    Fault("start", "no room for the KV cache", engine_args={"kv_cache_memory_bytes": 2**20}),
    Fault("start", CORE, KILL),
    Fault("start", CORE, STOP),
    Fault("start", WORKER, KILL),
    Fault("start", HOST, KILL),
    Fault("warmup", CORE, KILL),
    Fault("warmup", WORKER, STOP),
    Fault("replay", CORE, KILL),
    Fault("replay", CORE, STOP),
    Fault("replay", WORKER, KILL),
    Fault("replay", WORKER, STOP),
    Fault("replay", HOST, KILL),
    Fault("replay", HOST, STOP),
    Fault("stop", CORE, KILL),
    Fault("stop", CORE, STOP),
    Fault("stop", HOST, KILL),
)


class Bench:
    """One supervisor under all faults."""

    def __init__(self, supervisor: Supervisor, logs: Path) -> None:
        self._supervisor = supervisor
        self._logs = logs
        self._trace = load_trace(resolve_trace("demo:mixed")).window(0.0, 4.0)
        self._running = False
        self._injected_s = 0.0
        self._number = 0

    def run(self, fault: Fault) -> dict[str, Any]:
        """Inject one fault; return what was made of it, and of the engine after it."""
        if self._running == (fault.phase == "start"):
            self._restart(stop=self._running, start=not self._running)
        self._injected_s = 0.0
        begun = time.monotonic()
        try:
            self._act(fault)
            outcome = {"class": None, "evidence": ""}
        except TrialFailed as failed:
            failure = failed.failure
            outcome = {"class": failure.failure_class, "evidence": failure.evidence}
        noticed_s = time.monotonic() - (self._injected_s or begun)
        self._supervisor.kill()
        self._running = False
        self._restart(stop=False, start=True)
        return {
            "phase": fault.phase,
            "fault": fault.text,
            **outcome,
            "noticed_s": round(noticed_s, 1),
            "next": {"ground": self._ground, "answered": self._replay(lambda _: None)},
        }

    def _restart(self, *, stop: bool, start: bool) -> None:
        if stop:
            self._supervisor.stop()
        if start:
            self._ground = self._start({}).to_json()
        self._running = start

    def _start(self, engine_args: Mapping[str, Any]) -> Any:
        self._number += 1
        log = self._logs / f"{self._number}.log"
        return self._supervisor.start({**ENGINE_ARGS, **engine_args}, log).ground

    def _act(self, fault: Fault) -> None:
        if fault.engine_args is not None:
            self._start(fault.engine_args)
        elif fault.phase == "start":
            threading.Thread(target=self._when_seen, args=(fault,), daemon=True).start()
            self._start({})
        elif fault.phase == "stop":
            self._inject(fault)
            self._supervisor.stop()
        else:
            self._replay(lambda body: self._when_reached(fault, body))

    def _replay(self, on_progress: Callable[[Mapping[str, Any]], None]) -> int:
        plan = ReplayPlan(seed=1, salt=str(self._number), warmup_requests=12)
        result = self._supervisor.replay(self._trace, plan, on_progress)
        return int((~result.samples.failed).sum())

    def _when_seen(self, fault: Fault) -> None:
        while not self._inject(fault):
            time.sleep(0.02)

    def _when_reached(self, fault: Fault, body: Mapping[str, Any]) -> None:
        if body["stage"] == fault.phase and not self._injected_s:
            self._inject(fault)

    def _inject(self, fault: Fault) -> bool:
        """Signal the victim if it runs; a host counts as seen when its engine does."""
        seen = {each.name: each for each in self._supervisor.running()}
        if CORE not in seen or (fault.victim == WORKER and WORKER not in seen):
            return False
        host = seen[CORE].parent
        pid = host if fault.victim == HOST else seen[fault.victim].pid
        if pid is None or fault.signum is None:
            return False
        os.kill(pid, fault.signum)
        self._injected_s = time.monotonic()
        return True


def run_all(output: Path) -> None:
    """Inject all faults, and write the rows so far after each."""
    logs = Path(tempfile.mkdtemp(prefix="faults-"))
    rows = []
    with Supervisor(log_folder=logs, watchdogs=WATCHDOGS) as supervisor:
        supervisor.describe(ENGINE_ARGS)
        bench = Bench(supervisor, logs)
        for fault in FAULTS:
            rows.append(bench.run(fault))
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
            output.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
