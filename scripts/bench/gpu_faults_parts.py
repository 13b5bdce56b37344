"""What ``gpu_faults`` needs beside its bench: victims, traffic, and the real command."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from autotune.engine.processes import Process
from autotune.engine.protocol import EngineInfo
from autotune.traffic.model import Trace, TraceRequest

STEP_TOKENS = 8192
FULL_STEPS = 12
_BLOCK_TOKENS = 512


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
