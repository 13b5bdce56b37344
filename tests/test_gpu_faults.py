"""The bench of failures on a GPU, with everything but a GPU."""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from autotune.engine.ground import Ground
from autotune.engine.protocol import Failure, TrialFailed
from autotune.errors import EnvironmentFault
from autotune.hardware.gpu_memory import GpuMemory, Holder
from tests.autotune.study.scripted import INFO

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts" / "bench"
GIB = 2**30
TORCH = """
class AcceleratorError(RuntimeError): pass
uint8 = None
free = 5 * 2**30 + 2**20
def empty(size, *, dtype, device):
    global free
    if size > free: raise AcceleratorError('CUDA error: out of memory')
    free -= size
"""


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """Import modules of the folder as the script does."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(SCRIPTS))
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if name.startswith("gpu_faults"):
            del sys.modules[name]


@pytest.fixture
def script(load: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    script = load("gpu_faults")
    monkeypatch.setattr(script, "BACK_WITHIN_S", 0.0)
    return script


@dataclass(frozen=True, order=True)
class Process:
    pid: int
    parent: int
    deaf: bool = False
    signals: list[signal.Signals] = field(default_factory=list, compare=False)

    def signal(self, signum: signal.Signals) -> None:
        self.signals.append(signum)


HOST = Process(10, os.getpid())
TRACKER = Process(11, 10, deaf=True)
CORE = Process(12, 10)
WORKERS = (Process(13, 12), Process(14, 12))


class Gpu(GpuMemory):
    """One GPU of 100 GiB with 1 GiB in use, and 91 GiB while somebody else is there."""

    def __init__(self) -> None:
        super().__init__(())
        self.pids: list[int] = []

    def used_bytes(self) -> dict[str, int]:
        return {"GPU-1": (1 + 90 * bool(self.pids)) * GIB}

    def total_bytes(self) -> dict[str, int]:
        return {"GPU-1": 100 * GIB}

    def holders(self) -> list[Holder]:
        return [Holder(pid, None) for pid in self.pids]


class Engines:
    """Engines of one core; what was signalled, or has no memory, fails."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.processes: frozenset[Process] = frozenset()
        self.limits: list[Mapping[str, int]] = []
        self.started: list[tuple[Mapping[str, Any], str | None]] = []
        self.obstacle: str | None = None

    def __enter__(self) -> Engines:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self, engine_args: Mapping[str, Any], _log: Path) -> Any:
        self.started.append((engine_args, os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING")))
        if self.gpu.pids:
            raise EnvironmentFault("no engine can be started: process 4711 with 90.00 GiB")
        self.processes = frozenset([HOST, TRACKER, CORE, *WORKERS])
        ground = Ground(0, 0, 0, 0, 0, self.gpu.used_bytes())
        return SimpleNamespace(info=INFO, start_s=2.0, ground=ground)

    def replay(
        self, _trace: object, _plan: object, on_progress: Callable[[Mapping[str, Any]], None]
    ) -> Any:
        for stage, tokens in (("warmup", 3), ("replay", 0), ("replay", 1), ("replay", 9)):
            on_progress({"stage": stage, "tokens": tokens})
        if self.gpu.pids:
            raise TrialFailed(Failure("oom_run", "CUDA out of memory."))
        hit = [each.signals.pop() for each in (CORE, *WORKERS) if each.signals]
        if hit:
            raise TrialFailed(
                Failure("hang" if hit == [signal.SIGSTOP] else "engine_dead", "gone")
            )
        return SimpleNamespace(
            samples=SimpleNamespace(failed=np.zeros(5, dtype=np.bool_)),
            steps=SimpleNamespace(
                prefill_tokens=np.array([500, 1000]),
                decode_requests=np.array([10, 24]),
            ),
        )

    def limit(self, limits: Mapping[str, int]) -> None:
        self.limits.append(limits)

    def stop(self) -> float:
        self.processes = frozenset([HOST, TRACKER])
        return 4.0

    def kill(self) -> None:
        self.processes = frozenset()

    def running(self) -> frozenset[Process]:
        return self.processes


@dataclass(slots=True)
class Given:
    """A bench, and what it wrote last."""

    bench: Any
    engines: Engines
    gpu: Gpu
    written: list[list[dict[str, Any]]] = field(default_factory=list)

    @property
    def cases(self) -> dict[str, dict[str, Any]]:
        return {row["case"]: row for row in self.written[-1]}


@pytest.fixture
def given(script: ModuleType, tmp_path: Path) -> Given:
    gpu = Gpu()
    engines = Engines(gpu)

    @contextmanager
    def hold() -> Iterator[Any]:
        gpu.pids.append(4711)
        yield SimpleNamespace(pid=22, take=lambda wanted: 7 if wanted == "rest" else int(wanted))
        gpu.pids.clear()

    written: list[list[dict[str, Any]]] = []

    def write(rows: Sequence[Mapping[str, Any]]) -> None:
        written.append(json.loads(json.dumps(rows)))

    engine_args = {"model": "m", "enforce_eager": True}
    bench = script.Bench(
        engine_args, engines, gpu, tmp_path, write=write, seconds=100.0, hold=hold
    )
    return Given(bench, engines, gpu, written)


def test_signals_reach_their_victim_once_tokens_come(given: Given) -> None:
    bench = given.bench
    bench.run([(bench.core_killed, 0.0), (bench.core_hangs, 0.0), (bench.worker_killed, 0.0)])
    cases = given.cases
    assert [case["class"] for case in cases.values()] == ["engine_dead", "hang", "engine_dead"]
    assert cases["core_killed"]["memory_back_s"] == 0.0
    assert cases["core_killed"]["processes"] == 0
    assert cases["core_killed"]["next"]["answered"] == 5
    assert cases["core_hangs"]["next"]["ground"]["gpu_memory_bytes"] == {"GPU-1": GIB}
    assert "next" not in cases["worker_killed"]


def test_another_process_takes_what_an_engine_without_cache_needs(given: Given) -> None:
    own = Engines(given.gpu)
    given.bench.memory_taken_before_a_replay(lambda: own)
    given.bench.run([(given.bench.stopped, 0.0)])
    failed, refused, stopped = given.written[-1]
    assert (failed["class"], failed["evidence"]) == ("oom_run", "CUDA out of memory.")
    assert failed["holder"] == {"pid": 22, "driver_pids": [4711], "held_bytes": 7}
    assert (failed["processes"], failed["memory_back_s"]) == (0, 0.0)
    assert (refused["exit_code"], refused["named"]) == (4, True)
    assert (stopped["stop_s"], stopped["processes"], stopped["memory_back_s"]) == (4.0, 0, 0.0)
    changes = {"kv_cache_memory_bytes": 8 * GIB, "enforce_eager": True}
    assert failed["changes"] == changes
    assert own.started == [({"model": "m", **changes}, "1")] * 2
    assert given.engines.started == [({"model": "m", "enforce_eager": True}, None)]


def test_the_environment_is_as_it_was_after_an_engine_without_cache(
    load: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "PYTORCH_NO_CUDA_MEMORY_CACHING"
    monkeypatch.setenv(name, "0")
    with load("gpu_faults_parts").uncached():
        assert os.environ[name] == "1"
    assert os.environ[name] == "0"


def test_engines_and_the_command_start_beside_a_holder(
    given: Given, script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "import sys; print('error: process 4711, with 90 GiB', file=sys.stderr); sys.exit(4)"
    monkeypatch.setattr(script, "tune_command", lambda *_: [sys.executable, "-c", code])
    given.bench.starts_beside_a_holder(lambda: given.engines)
    start, tune = given.written[-1]
    assert start["holder"]["held_bytes"] == 90 * GIB
    assert (start["exit_code"], start["named"]) == (4, True)
    assert (tune["exit_code"], tune["named"]) == (4, True)
    assert tune["stderr"] == "error: process 4711, with 90 GiB"


def test_memory_is_taken_once_the_first_engine_serves(
    given: Given, script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        "import pathlib, sys; folder = pathlib.Path(sys.argv[1], 'logs', 'x'); "
        "folder.mkdir(parents=True); "
        "(folder / 'trial-0000.log').write_text('init engine (profile, ...) took 1 s'); input()"
    )
    monkeypatch.setattr(
        script, "tune_command", lambda _args, folder, _: [sys.executable, "-c", code, str(folder)]
    )
    reading, writing = os.pipe()
    popen = script.subprocess.Popen
    monkeypatch.setattr(
        script.subprocess, "Popen", lambda *a, **named: popen(*a, stdin=reading, **named)
    )

    def hold() -> Any:
        @contextmanager
        def held() -> Iterator[Any]:
            yield SimpleNamespace(
                pid=22, take=lambda wanted: os.write(writing, b"\n") * int(wanted)
            )

        return held()

    given.bench._hold = hold
    given.bench.memory_taken_between_engines()
    os.close(reading)
    os.close(writing)
    (row,) = given.written[-1]
    assert (row["exit_code"], row["named"]) == (0, False)
    assert row["holder"]["held_bytes"] == 2 * GIB


def test_live_limits_are_set_and_kept(given: Given) -> None:
    given.bench.run([(given.bench.live_limits, 0.0)])
    (row,) = given.written[-1]
    assert row["limits"] == given.engines.limits[0]
    assert (row["limits"]["max_num_batched_tokens"], row["largest_step"]) == (1024, 1024)
    assert row["answered"] == 5


def test_engines_that_want_too_much(given: Given) -> None:
    given.bench.wants_too_much()
    given.bench.runs_out_by_itself(GIB)
    assert [row["changes"].get("kv_cache_memory_bytes") for row in given.written[-1]] == [
        100 * GIB, None, GIB,
    ]  # fmt: skip
    assert all(row["class"] is None and row["survived"] for row in given.written[-1])


def test_what_has_no_time_or_breaks_is_told(given: Given) -> None:
    bench = given.bench
    given.gpu.pids.append(1)
    bench.run([(bench.stopped, 1e6), (bench.core_hangs, 0.0)])
    skipped, broke = given.written[-1]
    assert (skipped["case"], skipped["skipped"].endswith("s were left")) == ("stopped", True)
    assert broke["broke"].startswith("EnvironmentFault: no engine can be started")


@pytest.mark.parametrize(
    ("options", "names"),
    [("--dry", ["core_killed", "core_hangs"]),
     ("--tensor-parallel 2", ["live_limits", "stopped", "worker_killed"]),
     ("--parts stopped,core_hangs", ["stopped", "core_hangs"]),
     ("--oom-run-kv-gib 1.5 --parts runs_out_by_itself", ["runs_out_by_itself"])],
)  # fmt: skip
def test_what_is_run_in_which_order(
    given: Given, script: ModuleType, options: str, names: list[str]
) -> None:
    asked = script.parsed(["out.json", *options.split()])
    parts = script.parts_of(given.bench, asked.parts, None, lambda: given.engines)
    assert [part.__name__ for part, _ in parts] == names


def test_everything_is_run_unless_parts_are_chosen(given: Given, script: ModuleType) -> None:
    few = script.parsed(["out.json"]).parts
    most = script.parsed(["out.json", "--oom-run-kv-gib", "123"]).parts
    assert (few[0], few[-1], len(few)) == ("core_killed", "stopped", 8)
    assert [name for name in most if name not in few] == ["runs_out_by_itself"]
    parts = script.parts_of(given.bench, most[2:4], None, lambda: given.engines)
    given.bench.run([(part, 0.0) for part, _ in parts])
    assert list(given.cases) == [
        "memory_taken_before_a_replay", "start_beside_holder_after_our_engine", "stopped",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "options", ["--parts core_kiled", "--parts runs_out_by_itself", "--dry --parts stopped"]
)
def test_a_part_that_is_not_there_is_refused(
    script: ModuleType, capsys: pytest.CaptureFixture[str], options: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        script.parsed(["out.json", *options.split()])
    assert f"no part here is {options.rsplit(maxsplit=1)[-1]}; there are core_killed, " in (
        capsys.readouterr().err
    )


def test_victims_are_found_by_their_place(load: Callable[[str], ModuleType]) -> None:
    parts = load("gpu_faults_parts")
    everything = frozenset([HOST, TRACKER, CORE, *WORKERS])
    ours = os.getpid()
    assert parts.core_of(everything, ours=ours) == CORE
    assert parts.worker_of(everything, ours=ours) == WORKERS[1]
    assert parts.worker_of(frozenset([HOST, CORE]), ours=ours) is None
    assert parts.core_of(frozenset([HOST, TRACKER]), ours=ours) is None


def test_full_steps_have_prompts_of_one_step(load: Callable[[str], ModuleType]) -> None:
    requests = load("gpu_faults_parts").full_steps(INFO).requests
    assert {each.input_length for each in requests} == {8184}
    ids = [number for each in requests for number in each.hash_ids]
    assert len(set(ids)) == len(ids) == 16 * len(requests)


def test_the_command_gets_the_arguments_of_the_engines(
    load: Callable[[str], ModuleType], tmp_path: Path
) -> None:
    engine_args = {"model": "m", "enforce_eager": True, "cudagraph_capture_sizes": [1, 2]}
    command = load("gpu_faults_parts").tune_command(engine_args, tmp_path, ("--trials", "1"))
    assert command[:4] == [sys.executable, "-m", "autotune", "tune"]
    assert command[-6:] == [
        "--model", "m", "--trials", "1",
        "--engine-arg=enforce_eager=true", "--engine-arg=cudagraph_capture_sizes=[1, 2]",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "found"),
    [("process 22, process 5", True), ("(not ours is process 4711)", True),
     ("process 224", False), (None, False)],
)  # fmt: skip
def test_a_holder_is_named_by_one_of_its_numbers(
    load: Callable[[str], ModuleType], text: str | None, found: bool
) -> None:
    held = {"pid": 22, "driver_pids": [4711]}
    assert load("gpu_faults_holder").named(text, held) is found


def test_a_holder_takes_what_it_is_asked_for_and_then_the_rest(
    load: Callable[[str], ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").write_text(TORCH)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with load("gpu_faults_holder").Holder() as holder:
        assert holder.take(str(3 * GIB // 2)) == 3 * GIB // 2
        assert holder.take("rest") >= 5 * GIB - 2**20
        assert holder.take("rest") <= 5 * GIB + 2**20


def test_a_holder_without_a_gpu_is_no_holder(
    load: Callable[[str], ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").write_text("raise SystemExit(1)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(RuntimeError, match="has ended"):
        load("gpu_faults_holder").Holder()
