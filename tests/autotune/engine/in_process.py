"""Schedules of vLLM's engine inside this process, step by step; run as a program of its own.

    python -m tests.autotune.engine.in_process LIMITS... > schedules.json

Each of LIMITS is ``tokens,sequences,threshold``; the last are the largest. An engine is started
with those, which replays as it is, and is then given each in turn while it lives; one is started
with each of the others, and one by priority and without prefix caching with the last. Requests
arrive by step index, so that all see the same traffic whatever a step takes. The KV cache has the
same size everywhere, small enough for preemptions.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from tests.autotune.engine.tiny import ENGINE_ARGS, ENVIRONMENT, KV_BYTES_PER_TOKEN

os.environ |= {**ENVIRONMENT, "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR"}

import numpy as np
from vllm import SamplingParams
from vllm.inputs import tokens_input
from vllm.v1.engine.llm_engine import LLMEngine

from autotune.candidates.live import LIVE_LIMITS
from autotune.engine.scheduler import obstacle, set_limits
from autotune.engine.vllm_engine import build_config, watch
from objectives.steps import COLUMNS

SMALL = {
    "max_model_len": 4096,
    # One block is kept free by vLLM.
    "kv_cache_memory_bytes": (4096 + 128) * KV_BYTES_PER_TOKEN,
    "enable_prefix_caching": True,
}
OTHERWISE: dict[str, Any] = {"scheduling_policy": "priority", "enable_prefix_caching": False}
REQUESTS = 40
SEED = 7
COMMON = 256
"""Tokens with which a prompt begins, before its own length."""


def traffic() -> list[tuple[int, int, int]]:
    """Return arrival step, prompt length without its beginning, and output length of each."""
    rng = np.random.default_rng(SEED)
    arrivals = np.cumsum(rng.integers(0, 6, REQUESTS))
    prompts = np.where(rng.random(REQUESTS) < 0.3, 900, 60) + rng.integers(0, 120, REQUESTS)
    outputs = rng.integers(1, 24, REQUESTS)
    rows = zip(arrivals.tolist(), prompts.tolist(), outputs.tolist(), strict=True)
    return [(arrival, prompt, output) for arrival, prompt, output in rows]


def priority(number: int) -> int:
    """Return the priority that a request has where priorities count."""
    return number * 5 % 7 % 3


@contextmanager
def engine(**arguments: Any) -> Iterator[LLMEngine]:
    config = build_config({**ENGINE_ARGS, **SMALL, **arguments})
    watch(config)
    built = LLMEngine.from_vllm_config(config)
    try:
        yield built
    finally:
        built.engine_core.shutdown()


def replay(llm: LLMEngine, *, by_priority: bool = False) -> dict[str, Any]:
    """Replay the traffic; return who computed how many tokens in each step, and the totals."""
    core = llm.engine_core.engine_core
    core.autotune_take()
    core.autotune_record(True, True)
    assert llm.reset_prefix_cache()
    recorder = core.scheduler.recorder
    waiting = list(enumerate(traffic()))
    while waiting or llm.has_unfinished_requests():
        while waiting and (
            waiting[0][1][0] <= recorder.steps or not llm.has_unfinished_requests()
        ):
            number, (_, prompt, output) = waiting.pop(0)
            params = SamplingParams(
                max_tokens=output, min_tokens=output, ignore_eos=True, detokenize=False
            )
            # Prompts begin alike in threes, so that the prefix cache has something to find.
            ids = [number % 3 + 5] * COMMON + [(number * 31 + i) % 500 + 5 for i in range(prompt)]
            urgency = priority(number) if by_priority else 0
            llm.add_request(f"r{number}", tokens_input(ids), params, priority=urgency)
        llm.step()
    taken = core.autotune_take()
    rows = np.frombuffer(taken["rows"]).reshape(-1, len(COLUMNS))
    counts = {
        name: rows[:, COLUMNS.index(name)].astype(int).tolist()
        for name in COLUMNS
        if not name.endswith("_s") and name != "kv_usage"
    }
    shares = [(step, name.partition("-")[0], tokens) for step, name, tokens in taken["shares"]]
    stamps = rows[:, [COLUMNS.index(n) for n in ("begun_s", "planned_s", "done_s")]]
    arrivals = {name.partition("-")[0]: step for name, step in taken["arrivals"]}
    ordered = bool((np.diff(stamps, axis=1) >= 0).all())
    return {"shares": shares, "arrivals": arrivals, "ordered": ordered, **counts}


def refusals(llm: LLMEngine, limits: Mapping[str, int]) -> list[str]:
    """Return the words with which limits are refused while a request runs, and if too large."""
    scheduler = llm.engine_core.engine_core.scheduler
    params = SamplingParams(max_tokens=1, detokenize=False)
    llm.add_request("unfinished", tokens_input([5] * 8), params)
    words = []
    tokens, seqs = LIVE_LIMITS[:2]
    for wrong in (limits, {**limits, tokens: 4096}, {**limits, seqs: 64}):
        try:
            set_limits(scheduler, wrong)
        except (RuntimeError, ValueError) as error:
            words.append(str(error))
        while llm.has_unfinished_requests():
            llm.step()
    return words


def main(limits: Sequence[Mapping[str, int]]) -> dict[str, Any]:
    *smaller, largest = limits
    result: dict[str, Any] = {"traffic": traffic(), "live": [], "restart": []}
    result["priorities"] = [priority(number) for number in range(REQUESTS)]
    with engine(**largest) as llm:
        scheduler = llm.engine_core.engine_core.scheduler
        config = scheduler.kv_cache_config
        result["kv_blocks"], result["block_size"] = config.num_blocks, scheduler.block_size
        result["obstacle"] = obstacle(scheduler)
        as_started = replay(llm)
        for each in limits:
            assert set_limits(scheduler, each) == dict(each)
            result["live"].append(replay(llm))
        result["refused"] = refusals(llm, limits[0])
    for each in smaller:
        with engine(**each) as llm:
            result["restart"].append(replay(llm))
    result["restart"].append(as_started)
    with engine(**largest, **OTHERWISE) as llm:
        result["otherwise"] = replay(llm, by_priority=True)
    return result


if __name__ == "__main__":
    given = [dict(zip(LIVE_LIMITS, map(int, a.split(",")), strict=True)) for a in sys.argv[1:]]
    print(json.dumps(main(given)))  # noqa: T201
