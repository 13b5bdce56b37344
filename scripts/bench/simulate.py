"""How much faster than its own clock the scheduler is simulated, with numba and without.

Generated traffic of 20 requests/s with the lengths of chats as the Azure traces of 2023 have them,
with prefix caching and without, on an engine whose steps take about what those of an 8B model take
on an H200. Each is simulated a few times, each way in a process of its own; the best time counts,
since other work on the machine can only lengthen it. Compiling, or loading what was compiled
before, is timed apart, and so is what is done once for all candidates.

    scripts/bench/simulate [--json OUT.json] [--minutes 1,10,60] [--plain-minutes 1,10]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from autotune.forecast.compiled import COMPILED, SWITCH
from autotune.forecast.simulation import STEADY, EngineShape, Times, Traffic, simulate
from autotune.traffic.model import Trace
from autotune.traffic.scenarios import Lengths, Population, Scenario
from autotune.traffic.synth import synthesize

RATE = 20.0
CANDIDATE = {"max_num_batched_tokens": 2048, "max_num_seqs": 256}
KV_BLOCKS = 25_000
REPEATS = 3
_LENGTHS = Population(
    prompt=Lengths(median=900, sigma=0.9, minimum=16, maximum=8000),
    output=Lengths(median=140, sigma=0.8, minimum=4, maximum=1000),
)
CHATS = Scenario(name="chats", document_share=0.0, chat=_LENGTHS, document=_LENGTHS)


def times() -> Times:
    return Times(
        decode_s=6e-3 + 2e-5 * np.arange(257),
        mixed_s=6e-3 + 2e-5 * np.arange(2049),
        kv_token_s=1.5e-8,
        pair_s=1e-11,
        request_s=1e-6,
        host_s=1e-3,
        host_request_s=1e-6,
        between_s=0.0,
        between_request_s=0.0,
        jitter=STEADY,
    )


def measure(trace: Trace, *, caching: bool) -> dict[str, Any]:
    """Simulate a trace several times; return how fast at best, and what was simulated."""
    shape = EngineShape(kv_blocks=KV_BLOCKS, caching=caching, in_flight=2)
    begun_s = time.perf_counter()
    traffic = Traffic.of(trace, shape)
    prepared_s = time.perf_counter() - begun_s
    walls = []
    for _ in range(REPEATS):
        begun_s = time.perf_counter()
        done = simulate(traffic, times(), shape, CANDIDATE)
        walls.append(time.perf_counter() - begun_s)
    simulated_s = float(done.steps.done_s[-1])
    return {
        "prefix_caching": caching,
        "requests": len(trace.requests),
        "steps": len(done.steps),
        "running": float(done.steps.running.mean()),
        "simulated_s": simulated_s,
        "prepare_s": prepared_s,
        "wall_s": walls,
        "speed_ratio": simulated_s / min(walls),
    }


def in_this_process(minutes: Sequence[float]) -> dict[str, Any]:
    begun_s = time.perf_counter()
    measure(synthesize(CHATS, rate=RATE, duration_s=1.0), caching=True)
    first_s = time.perf_counter() - begun_s
    rows = []
    for each in minutes:
        trace = synthesize(CHATS, rate=RATE, duration_s=60 * each, prefix_sharing=0.5)
        rows += [{"minutes": each, **measure(trace, caching=caching)} for caching in (False, True)]
    return {"compiled": COMPILED, "first_s": first_s, "rows": rows}


def in_another(minutes: str, *, compiled: bool, cache: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, __file__, "--here", "--minutes", minutes],
        env={**os.environ, SWITCH: str(int(compiled)), "NUMBA_CACHE_DIR": cache},
        stdout=subprocess.PIPE,
        check=True,
    )
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def ratios(found: dict[str, Any]) -> dict[str, float]:
    """Return the lesser of both by minutes, prefix caching or not."""
    rows = found["rows"]
    return {
        f"{minutes:g}": min(each["speed_ratio"] for each in rows if each["minutes"] == minutes)
        for minutes in sorted({each["minutes"] for each in rows})
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="where the figures go; else they are printed")
    parser.add_argument("--minutes", default="1,10,60")
    parser.add_argument("--plain-minutes", default="1,10")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.here:
        print(json.dumps(in_this_process([float(each) for each in given.minutes.split(",")])))
        return
    with tempfile.TemporaryDirectory() as cache:
        fast = in_another(given.minutes, compiled=True, cache=cache)
        again = in_another("0.1", compiled=True, cache=cache)
    plain = in_another(given.plain_minutes, compiled=False, cache=cache)
    result = {
        "requests_per_s": RATE,
        "candidate": CANDIDATE,
        "speed_ratio": {
            "numba": ratios(fast) if fast["compiled"] else None,
            "plain": ratios(plain),
        },
        "compile_s": fast["first_s"],
        "load_s": again["first_s"],
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "numba": fast,
        "plain": plain,
    }
    text = json.dumps(result, indent=2)
    if given.json is None:
        print(text)
    else:
        given.json.write_text(f"{text}\n", encoding="utf-8")
        print(json.dumps({name: result[name] for name in ("speed_ratio", "compile_s", "load_s")}))


if __name__ == "__main__":
    main()
