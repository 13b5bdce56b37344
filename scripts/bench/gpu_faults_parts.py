"""What ``gpu_faults`` needs beside its bench: options, victims, traffic, and the real command."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from autotune.engine.processes import Process
from autotune.engine.protocol import EngineInfo
from autotune.traffic.model import Trace, TraceRequest

STEP_TOKENS = 8192
FULL_STEPS = 12
_BLOCK_TOKENS = 512

NEEDED_S: Mapping[str, float] = {
    "core_killed": 60.0,
    "core_hangs": 70.0,
    "memory_taken_before_a_replay": 100.0,
    "stopped": 50.0,
    "memory_taken_between_engines": 100.0,
    "beside_a_holder": 130.0,
    "runs_out_by_itself": 60.0,
    "wants_too_much": 110.0,
    "live_limits": 60.0,
    "worker_killed": 100.0,
}
"""What each part takes about."""

UNCACHED: Mapping[str, Any] = {"kv_cache_memory_bytes": 8 * 2**30, "enforce_eager": True}
"""Graphs cannot be captured without torch's cache, and its profiling has no figures then."""

_CACHE_VARIABLE = "PYTORCH_NO_CUDA_MEMORY_CACHING"


def names_of(*, dry: bool, several: bool, by_itself: bool) -> list[str]:
    """Return the parts that are run unless others are asked for, in order of value."""
    if dry:
        return ["core_killed", "core_hangs"]
    if several:
        return ["live_limits", "stopped", "worker_killed"]
    return [
        *("core_killed", "core_hangs", "memory_taken_before_a_replay", "stopped"),
        *("memory_taken_between_engines", "beside_a_holder"),
        *(["runs_out_by_itself"] if by_itself else []),
        *("wants_too_much", "stopped"),
    ]


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("output", type=Path)
    parser.add_argument("--model", default="demo:tiny-llama")
    parser.add_argument("--engine-arg", action="append", default=[])
    parser.add_argument("--seconds", type=float, default=540.0, help="nothing begins after them")
    parser.add_argument("--tensor-parallel", type=int, default=1)
    parser.add_argument("--oom-run-kv-gib", type=float, help="a cache that leaves no room to run")
    parser.add_argument("--dry", action="store_true", help="only what needs no GPU")
    parser.add_argument("--parts", type=lambda text: text.split(","), help="names, in order")
    given = parser.parse_args(arguments)
    known = names_of(
        dry=given.dry,
        several=given.tensor_parallel > 1,
        by_itself=given.oom_run_kv_gib is not None,
    )
    if unknown := set(given.parts or ()) - set(known):
        parser.error(f"no part here is {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    given.parts = given.parts or known
    return given


@contextmanager
def uncached() -> Iterator[None]:
    """Have hosts that are started meanwhile, and their engines, give all memory back at once."""
    before = os.environ.get(_CACHE_VARIABLE)
    os.environ[_CACHE_VARIABLE] = "1"
    try:
        yield
    finally:
        del os.environ[_CACHE_VARIABLE]
        if before is not None:
            os.environ[_CACHE_VARIABLE] = before


def core_of(running: frozenset[Process], *, ours: int) -> Process | None:
    """Return EngineCore, which is the host's child that is no resource tracker."""
    hosts = {each.pid for each in running if each.parent == ours}
    found = sorted(each for each in running if each.parent in hosts and not each.deaf)
    return found[0] if found else None


def worker_of(running: frozenset[Process], *, ours: int) -> Process | None:
    """Return the last worker, None where EngineCore does all work itself."""
    core = core_of(running, ours=ours)
    found = sorted(each for each in running if core and each.parent == core.pid and not each.deaf)
    return found[-1] if found else None


def full_steps(info: EngineInfo) -> Trace:
    """Prompts of a whole step each, all at once."""
    length = min(STEP_TOKENS, info.max_model_len - 8)
    blocks = -(-length // _BLOCK_TOKENS)
    requests = [
        TraceRequest(0.0, length, 4, tuple(range(n * blocks, (n + 1) * blocks)))
        for n in range(FULL_STEPS)
    ]
    return Trace.build(
        requests, block_size=_BLOCK_TOKENS, prefixes_known=True, source="full steps"
    )


def tune_command(
    engine_args: Mapping[str, Any], folder: Path, options: Sequence[str]
) -> list[str]:
    given = {name: value for name, value in engine_args.items() if name != "model"}
    command = (
        f"-m autotune tune --trace demo:mixed --window 0:4 --warmup-s 1 --fidelity restart "
        f"--no-calibrate --settle-timeout-s 10 --study-name faults "
        f"--storage sqlite:///{folder}/faults.db --log-folder {folder}/logs"
    )
    return [
        sys.executable,
        *command.split(),
        *("--model", engine_args["model"]),
        *options,
        *(f"--engine-arg={name}={json.dumps(value)}" for name, value in given.items()),
    ]
