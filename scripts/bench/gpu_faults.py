"""Faults on a GPU, provoked for real: how each is classed, and what is given back after it.

On one GPU, in order of value: EngineCore killed in a replay, and stopped (a stopped process is one
that hangs); another process that takes all memory that is left before a replay of full steps, of
an engine whose torch keeps no memory for later, and a start beside it; a clean stop; ``autotune
tune`` while another process takes memory after its first engine, and while one holds most of it
from the beginning; engines that want too much by themselves. With ``--tensor-parallel 2``: live
limits, a replay, a clean stop, one worker killed.

After each fault: seconds until it was noticed and all processes of the engine had been ended, and
from then until the GPUs had their memory back; the processes that were left; and whether the next
engine answered. What there is no time for within ``--seconds`` is left out and named; ``--parts``
chooses what is run, in its order.

    scripts/bench/gpu_faults OUT.json --model M [--engine-arg key=value]... [--seconds 540]
        [--tensor-parallel 2] [--oom-run-kv-gib 123] [--dry] [--parts core_killed,stopped]
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from gpu_faults_holder import Holder, named
from gpu_faults_parts import (
    NEEDED_S,
    UNCACHED,
    core_of,
    full_steps,
    parsed,
    tune_command,
    uncached,
    worker_of,
)

from autotune.candidates.lattice import SEQS, TOKENS
from autotune.candidates.live import THRESHOLD
from autotune.demo import resolve_model, resolve_trace
from autotune.engine.ground import FLOOR_BYTES, TOLERANCE
from autotune.engine.processes import Process
from autotune.engine.protocol import EngineInfo, ReplayPlan, ReplayResult, TrialFailed
from autotune.engine.supervisor import Started, Supervisor, Watchdogs
from autotune.errors import EnvironmentFault
from autotune.hardware.gpu_memory import GpuMemory
from autotune.settings import parse_engine_args
from autotune.traffic.model import Trace
from autotune.traffic.trace import load_trace

ROOT = Path(__file__).resolve().parents[2]
DEMO_ARGS = (
    "load_format=dummy",
    "enforce_eager=true",
    "max_model_len=8192",
    "kv_cache_memory_bytes=67108864",
)
WATCHDOGS = Watchdogs(start_s=300.0, silence_s=15.0, settle_s=10.0)
GIB = 2**30
BACK_WITHIN_S = 30.0
HELD_AFTER_START_BYTES = 2 * GIB
HELD_SHARE = 0.9
SERVES = "init engine (profile"
"""What vLLM writes when an engine has all its memory."""

_POLL_S = 0.05


class Engines(Protocol):
    """What is needed of a supervisor."""

    def start(self, engine_args: Mapping[str, Any], log_path: Path) -> Started: ...

    def replay(
        self, trace: Trace, plan: ReplayPlan, on_progress: Callable[[Mapping[str, Any]], None]
    ) -> ReplayResult: ...

    def limit(self, limits: Mapping[str, int]) -> None: ...

    def stop(self) -> float: ...

    def kill(self) -> None: ...

    def running(self) -> frozenset[Process]: ...


class Bench:
    """One supervisor under all faults; writes what it has after each.

    Args:
        engine_args: of every engine.
        engines: a supervisor that has described them.
        gpu: their memory.
        folder: for logs.
        write: is given all rows after each.
        seconds: after which nothing begins.
        hold: starts a holder.
    """

    def __init__(
        self,
        engine_args: Mapping[str, Any],
        engines: Engines,
        gpu: GpuMemory,
        folder: Path,
        *,
        write: Callable[[Sequence[Mapping[str, Any]]], None],
        seconds: float,
        hold: Callable[[], AbstractContextManager[Holder]] = Holder,
    ) -> None:
        self.engine_args = dict(engine_args)
        self.folder = folder
        self.gpu = gpu
        self.rows: list[dict[str, Any]] = []
        self._engines = engines
        self._write = write
        self._ends = time.monotonic() + seconds
        self._hold = hold
        self._trace = load_trace(resolve_trace("demo:mixed")).window(0.0, 4.0)
        self._started: Started | None = None
        self._base_bytes: Mapping[str, int] | None = None
        self._injected_at: list[float] = []
        self._count = 0

    @property
    def left_s(self) -> float:
        return self._ends - time.monotonic()

    def run(self, parts: Sequence[tuple[Callable[[], None], float]]) -> None:
        """Run parts, each as long as there is time for it; a last engine ends the last fault."""
        for part, needed_s in parts:
            if self.left_s < needed_s:
                self.add({"case": part.__name__, "skipped": f"{self.left_s:.0f} s were left"})
                continue
            try:
                part()
            except (TrialFailed, EnvironmentFault, RuntimeError) as error:
                # What should have worked did not; the other parts may.
                self._engines.kill()
                self._started = None
                self.add({"case": part.__name__, "broke": f"{type(error).__name__}: {error}"})
        self._engines.kill()

    def add(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        self.tell()

    def tell(self) -> None:
        self._write(self.rows)
        print(json.dumps(self.rows[-1]), file=sys.stderr, flush=True)

    # Engines.

    def engine(self) -> Started:
        """Return a running engine; one started now has to answer, and ends the fault before."""
        if self._started is not None:
            return self._started
        self._started = started = self.start({})
        answered = self.replay(self._trace)
        if self.rows:
            self.rows[-1]["next"] = {
                "start_s": started.start_s,
                "ground": started.ground.to_json(),
                "answered": answered,
            }
            self.tell()
        return started

    def start(self, changes: Mapping[str, Any], engines: Engines | None = None) -> Started:
        self._count += 1
        log = self.folder / f"{self._count}.log"
        chosen = self._engines if engines is None else engines
        started = chosen.start({**self.engine_args, **changes}, log)
        if self._base_bytes is None:
            self._base_bytes = started.ground.gpu_memory_bytes
        return started

    def _start_s(self, changes: Mapping[str, Any], engines: Engines | None = None) -> float:
        return self.start(changes, engines).start_s

    def replay(
        self,
        trace: Trace,
        on_progress: Callable[[Mapping[str, Any]], None] = lambda _: None,
        warmup_requests: int = 8,
        engines: Engines | None = None,
    ) -> int:
        """Return how many requests were answered."""
        self._count += 1
        plan = ReplayPlan(seed=1, salt=str(self._count), warmup_requests=warmup_requests)
        chosen = self._engines if engines is None else engines
        result = chosen.replay(trace, plan, on_progress)
        return int((~result.samples.failed).sum())

    def fails(self, case: str, act: Callable[[], object]) -> dict[str, Any]:
        """Do what should fail; return how it did, or what it returned if it did not."""
        self._injected_at.clear()
        begun = time.monotonic()
        row: dict[str, Any] = {"case": case, "class": None, "evidence": None}
        try:
            row["survived"] = act()
        except TrialFailed as failed:
            row |= {"class": failed.failure.failure_class, "evidence": failed.failure.evidence}
        except EnvironmentFault as fault:
            row |= {"exit_code": fault.exit_code, "evidence": fault.message}
        row["noticed_s"] = round(time.monotonic() - [*self._injected_at, begun][0], 2)
        return row

    def given_back(self, engines: Engines | None = None) -> dict[str, Any]:
        """Wait until the GPUs have their memory back; return the seconds, None if they do not."""
        begun = time.monotonic()
        self._started = None
        while not (back := self._is_back()) and time.monotonic() - begun < BACK_WITHIN_S:
            time.sleep(_POLL_S)
        return {
            "memory_back_s": round(time.monotonic() - begun, 2) if back else None,
            "gpu_memory_bytes": self.gpu.used_bytes(),
            "gpu_memory_before_bytes": dict(self._base_bytes or {}),
            "processes": len(
                self._engine_processes(self._engines if engines is None else engines)
            ),
        }

    def _engine_processes(self, engines: Engines) -> list[Process]:
        """Return what runs beside a host, which outlives a clean stop, and its tracker."""
        running = engines.running()
        hosts = {each.pid for each in running if each.parent == os.getpid()}
        return [e for e in running if e.pid not in hosts and not (e.deaf and e.parent in hosts)]

    def _is_back(self) -> bool:
        base = self._base_bytes or {}
        return all(
            used <= base.get(uuid, 0) + max(TOLERANCE * base.get(uuid, 0), FLOOR_BYTES)
            for uuid, used in self.gpu.used_bytes().items()
        )

    def _signal(
        self, find: Callable[..., Process | None], signum: signal.Signals
    ) -> Callable[[Mapping[str, Any]], None]:
        """Return what signals a process once tokens of the measured replay come."""

        def look(body: Mapping[str, Any]) -> None:
            if self._injected_at or body["stage"] != "replay" or not body["tokens"]:
                return
            victim = find(self._engines.running(), ours=os.getpid())
            if victim is not None:
                victim.signal(signum)
                self._injected_at.append(time.monotonic())

        return look

    def _signalled(
        self, case: str, find: Callable[..., Process | None], signum: signal.Signals
    ) -> None:
        self.engine()
        on_progress = self._signal(find, signum)
        row = self.fails(case, lambda: self.replay(self._trace, on_progress))
        self._engines.kill()
        self.add({**row, **self.given_back()})

    # The parts, on one GPU.

    def core_killed(self) -> None:
        self._signalled("core_killed", core_of, signal.SIGKILL)

    def core_hangs(self) -> None:
        self._signalled("core_hangs", core_of, signal.SIGSTOP)

    def memory_taken_before_a_replay(self, open_engines: Callable[[], Any]) -> None:
        """Leave no memory to an engine of a run of its own, which asks for each activation anew.

        With torch's cache it would not need any: that keeps what the profiling at its start used.
        """
        with uncached(), open_engines() as engines:
            info = self.start(UNCACHED, engines).info
            with self._holding() as (holder, held):
                held["held_bytes"] = holder.take("rest")
                row = self.fails("memory_taken_before_a_replay", lambda: self._fill(info, engines))
                engines.kill()
                beside = self.fails(
                    "start_beside_holder_after_our_engine", lambda: self._refused(engines)
                )
            self.add({**row, "changes": UNCACHED, "holder": held, **self.given_back(engines)})
        self.add({**beside, "holder": held, "named": named(beside["evidence"], held)})

    def _fill(self, info: EngineInfo, engines: Engines | None = None) -> int:
        return self.replay(full_steps(info), warmup_requests=0, engines=engines)

    def _refused(self, engines: Engines) -> str:
        self.start(UNCACHED, engines)
        engines.kill()
        return "an engine came up"

    @contextmanager
    def _holding(self) -> Iterator[tuple[Holder, dict[str, Any]]]:
        """Start a holder; yield it, and what is known of it.

        The driver may have other numbers for processes than we: the new one on the GPU is its.
        """
        before = {each.pid for each in self.gpu.holders()}
        with self._hold() as holder:
            pids = [each.pid for each in self.gpu.holders() if each.pid not in before]
            yield holder, {"pid": holder.pid, "driver_pids": pids, "held_bytes": 0}

    def stopped(self) -> None:
        self.engine()
        row = {"case": "stopped", "stop_s": round(self._engines.stop(), 2)}
        self.add({**row, **self.given_back()})
        self._engines.kill()

    def wants_too_much(self) -> None:
        total = max(self.gpu.total_bytes().values(), default=0)
        for case, changes in (
            ("cache_larger_than_the_gpu", {"kv_cache_memory_bytes": total}),
            (
                "no_room_beside_the_weights",
                {"gpu_memory_utilization": 0.05, "kv_cache_memory_bytes": None},
            ),
        ):
            row = self.fails(case, partial(self._start_s, changes))
            self._engines.kill()
            self.add({**row, "changes": changes, **self.given_back()})

    def runs_out_by_itself(self, kv_bytes: int) -> None:
        """Run full steps with a cache that leaves them little room."""
        changes = {"kv_cache_memory_bytes": kv_bytes}
        row = self.fails("runs_out_by_itself", lambda: self._fill(self.start(changes).info))
        self._engines.kill()
        self.add({**row, "changes": changes, **self.given_back()})

    def starts_beside_a_holder(self, open_engines: Callable[[], Any]) -> None:
        """Start engines of a run of its own while another process has most of the memory."""
        with self._holding() as (holder, held):
            total = max(self.gpu.total_bytes().values(), default=0)
            held["held_bytes"] = holder.take(str(int(HELD_SHARE * total)))
            with open_engines() as engines:
                row = self.fails("start_beside_holder", partial(self._start_s, {}, engines))
            self.add({**row, "holder": held, "named": named(row["evidence"], held)})
            row = self.tune("tune_beside_holder", ("--trials", "1"))
            self.add({**row, "holder": held, "named": named(row["stderr"], held)})

    def memory_taken_between_engines(self) -> None:
        """Have another process take memory while the first engine of a study runs."""
        with self._holding() as (holder, held):

            def served(log: Path) -> bool:
                if SERVES in log.read_text(errors="replace"):
                    held["held_bytes"] = holder.take(str(HELD_AFTER_START_BYTES))
                return bool(held["held_bytes"])

            row = self.tune("memory_taken_between_engines", ("--trials", "2"), served)
        self.add({**row, "holder": held, "named": named(row["stderr"], held)})

    def tune(
        self, name: str, options: Sequence[str], look: Callable[[Path], bool] | None = None
    ) -> dict[str, Any]:
        """Run the real command; return its exit code and the end of what it said."""
        folder = self.folder / name
        folder.mkdir()
        begun = time.monotonic()
        command = tune_command(self.engine_args, folder, options)
        with (folder / "stderr").open("wb") as said:
            process = subprocess.Popen(command, cwd=ROOT, stdout=said, stderr=said)
            while process.poll() is None and self.left_s > 0:
                if look is not None and (logs := sorted(folder.glob("logs/*/trial-0000.log"))):
                    look = None if look(logs[0]) else look
                time.sleep(_POLL_S)
            if late := process.poll() is None:
                process.terminate()
            process.wait()
        stderr = (folder / "stderr").read_text(errors="replace").splitlines()[-12:]
        return {
            "case": name,
            "exit_code": None if late else process.returncode,
            "stderr": "\n".join(stderr),
            "seconds": round(time.monotonic() - begun, 1),
        }

    # The parts on several GPUs.

    def live_limits(self) -> None:
        info = self.engine().info
        limits = {
            TOKENS: int(info.resolved[TOKENS]) // 2,
            SEQS: int(info.resolved[SEQS]) // 2,
            THRESHOLD: 0,
        }
        row: dict[str, Any] = {"case": "live_limits", "obstacle": info.live_obstacle}
        if info.live_obstacle is None:
            self._engines.limit(limits)
            self._count += 1
            plan = ReplayPlan(seed=1, salt=str(self._count), warmup_requests=0)
            result = self._engines.replay(full_steps(info), plan, lambda _: None)
            steps = result.steps.prefill_tokens + result.steps.decode_requests
            row |= {
                "limits": limits,
                "answered": int((~result.samples.failed).sum()),
                "largest_step": int(steps.max()),
            }
        self.add({**row, "gpu_memory_bytes": self.gpu.used_bytes()})

    def worker_killed(self) -> None:
        self._signalled("worker_killed", worker_of, signal.SIGKILL)


def parts_of(
    bench: Bench, names: Sequence[str], kv_gib: float | None, open_engines: Callable[[], Any]
) -> list[tuple[Callable[[], None], float]]:
    """Return the parts of these names, with the seconds that each takes about."""

    def memory_taken_before_a_replay() -> None:
        bench.memory_taken_before_a_replay(open_engines)

    def beside_a_holder() -> None:
        bench.starts_beside_a_holder(open_engines)

    def runs_out_by_itself() -> None:
        bench.runs_out_by_itself(int((kv_gib or 0.0) * GIB))

    every = (
        bench.core_killed,
        bench.core_hangs,
        memory_taken_before_a_replay,
        bench.stopped,
        bench.memory_taken_between_engines,
        beside_a_holder,
        runs_out_by_itself,
        bench.wants_too_much,
        bench.live_limits,
        bench.worker_killed,
    )
    parts = {part.__name__: part for part in every}
    return [(parts[name], NEEDED_S[name]) for name in names]


def main() -> None:
    given = parsed()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    begun = time.monotonic()
    engine_args = {
        "model": str(resolve_model(given.model)),
        **parse_engine_args(given.engine_arg or DEMO_ARGS),
    }
    if given.tensor_parallel > 1:
        engine_args["tensor_parallel_size"] = given.tensor_parallel
    folder = Path(tempfile.mkdtemp(prefix="gpu-faults-"))

    def open_engines() -> Supervisor:
        engines = Supervisor(log_folder=folder, watchdogs=WATCHDOGS)
        engines.describe(engine_args)
        return engines

    with open_engines() as supervisor:
        info = supervisor.describe(engine_args).info
        result: dict[str, Any] = {
            "device": info.device,
            "gpus": list(info.device_uuids),
            "vllm_version": info.vllm_version,
            "engine_args": engine_args,
        }

        def write(rows: Sequence[Mapping[str, Any]]) -> None:
            seconds = round(time.monotonic() - begun, 1)
            text = json.dumps({**result, "seconds": seconds, "cases": rows}, indent=1)
            given.output.write_text(text + "\n", encoding="utf-8")

        gpu = GpuMemory(info.device_uuids)
        seconds = given.seconds - (time.monotonic() - begun)
        bench = Bench(engine_args, supervisor, gpu, folder, write=write, seconds=seconds)
        bench.run(parts_of(bench, given.parts, given.oom_run_kv_gib, open_engines))


if __name__ == "__main__":
    main()
