"""What engine restarts leave behind: memory, processes, descriptors, shared memory, sockets.

Starts, replays four seconds of the demo trace and stops, again and again, with another pair of
limits each time. Before each start the run is surveyed twice: by the supervisor, whose word
decides whether the host is replaced, and by psutil, from outside.

    scripts/bench/restarts OUT.json [--restarts 30] [--model M] [--engine-arg key=value]...
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from autotune.demo import resolve_model, resolve_trace
from autotune.engine.protocol import ReplayPlan
from autotune.engine.supervisor import Supervisor
from autotune.settings import parse_engine_args
from autotune.traffic.trace import load_trace

DEMO_ARGS = (
    "load_format=dummy",
    "enforce_eager=true",
    "max_model_len=8192",
    "kv_cache_memory_bytes=67108864",
)
LIMITS = ((2048, 128), (512, 64), (1024, 32), (256, 8))


def outside_view() -> dict[str, int]:
    """Return what this process and all below it hold, as psutil and the file system say."""
    ours = psutil.Process()
    family = [ours, *ours.children(recursive=True)]
    segments = Path("/dev/shm").iterdir()  # noqa: S108 - where Linux keeps it.
    shared = sum(file.stat().st_size for file in segments if file.is_file())
    return {
        "processes": len(family),
        "family_rss_bytes": sum(each.memory_info().rss for each in family),
        "controller_descriptors": ours.num_fds(),
        "family_descriptors": sum(each.num_fds() for each in family),
        "dev_shm_bytes": shared,
        "unix_sockets": len(Path("/proc/net/unix").read_text().splitlines()),
        "tmp_entries": len(list(Path(tempfile.gettempdir()).iterdir())),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("output", type=Path)
    parser.add_argument("--restarts", type=int, default=30)
    parser.add_argument("--model", default="demo:tiny-llama")
    parser.add_argument("--engine-arg", action="append", default=[])
    given = parser.parse_args()
    pinned = parse_engine_args([*(given.engine_arg or DEMO_ARGS)])
    engine_args = {"model": str(resolve_model(given.model)), **pinned}
    window = load_trace(resolve_trace("demo:mixed")).window(0.0, 4.0)
    rows: list[dict[str, Any]] = []
    logs = Path(tempfile.mkdtemp())
    with Supervisor(log_folder=logs) as supervisor:
        described = supervisor.describe(engine_args)
        result: dict[str, Any] = {
            "model": given.model,
            "engine_args": pinned,
            "vllm_version": described.info.vllm_version,
            "device": described.info.device,
            "restarts": rows,
        }
        for number in range(given.restarts):
            before = outside_view()
            tokens, seqs = LIMITS[number % len(LIMITS)]
            limits = {"max_num_batched_tokens": tokens, "max_num_seqs": seqs}
            started = supervisor.start({**engine_args, **limits}, logs / f"{number}.log")
            begun = time.monotonic()
            plan = ReplayPlan(seed=1, salt=str(number), warmup_requests=4)
            supervisor.replay(window, plan, lambda _: None)
            replay_s = time.monotonic() - begun
            stop_s = supervisor.stop()
            seconds = {"start_s": started.start_s, "replay_s": replay_s, "stop_s": stop_s}
            rows.append(
                {**limits, **seconds, "ground": started.ground.to_json(), "outside": before}
            )
            write(given.output, result)
            print(number, json.dumps(rows[-1]), file=sys.stderr, flush=True)
        result["after_the_last_stop"] = outside_view()
    # The janitor is gone by now, the tracker of the host ends a moment after it.
    time.sleep(1.0)
    result["at_the_end"] = outside_view()
    write(given.output, result)


def write(path: Path, result: dict[str, Any]) -> None:
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
