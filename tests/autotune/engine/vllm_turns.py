"""Schedules of vLLM's own scheduler objects, without an engine; run as a program of its own.

    python -m tests.autotune.engine.vllm_turns > turns.json

For each of ``ENGINES`` what vLLM says of it, and for each seed what is planned in each turn.
"""

from __future__ import annotations

import json
import os
from collections import deque
from typing import Any

from tests.autotune.engine.tiny import ENGINE_ARGS, ENVIRONMENT

os.environ |= {**ENVIRONMENT, "VLLM_LOGGING_LEVEL": "ERROR"}

import torch
from vllm import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from autotune.engine.vllm_engine import build_config, describe_config
from tests.autotune.engine.turns import (
    BLOCK_SIZE,
    ENGINES,
    SEEDS,
    Arrival,
    Engine,
    arrivals,
    blocks,
    play,
)


class Theirs:
    """A ``Side`` that is vLLM's, whose model writes the same token for ever."""

    def __init__(self, config: Any, engine: Engine, seed: int) -> None:
        kind = AsyncScheduler if engine.asynchronous else Scheduler
        config.cache_config.num_gpu_blocks = blocks(seed)
        layers = FullAttentionSpec(
            block_size=BLOCK_SIZE, num_kv_heads=1, head_size=1, dtype=torch.float32
        )
        self._scheduler = kind(
            config,
            KVCacheConfig(
                num_blocks=blocks(seed),
                kv_cache_tensors=[],
                kv_cache_groups=[KVCacheGroupSpec(["layer"], layers)],
            ),
            StructuredOutputManager(config),
            BLOCK_SIZE,
            hash_block_size=BLOCK_SIZE,
            log_stats=False,
        )
        hasher = get_request_block_hasher(BLOCK_SIZE, sha256) if engine.caching else None
        self._requests = [_request(*each, hasher) for each in enumerate(arrivals(seed))]
        self._flying: deque[tuple[Any, ModelRunnerOutput]] = deque()

    @property
    def left(self) -> bool:
        return bool(self._scheduler.has_unfinished_requests())

    def arrive(self, number: int) -> None:
        self._scheduler.add_request(self._requests[number])

    def plan(self) -> dict[int, int]:
        step = self._scheduler.schedule()
        names = list(step.num_scheduled_tokens)
        if names:
            chunks = [self._scheduler.requests[name].is_prefill_chunk for name in names]
            output = ModelRunnerOutput(
                req_ids=names,
                req_id_to_index={name: place for place, name in enumerate(names)},
                sampled_token_ids=[[] if chunk else [7] for chunk in chunks],
            )
            self._flying.append((step, output))
        return {int(name): tokens for name, tokens in step.num_scheduled_tokens.items()}

    def deliver(self) -> None:
        self._scheduler.update_from_output(*self._flying.popleft())


def _request(number: int, arrival: Arrival, hasher: Any) -> Request:
    own = [100 + (number * 37 + place) % 3000 for place in range(arrival.prompt - arrival.alike)]
    return Request(
        request_id=str(number),
        prompt_token_ids=[arrival.family + 5] * arrival.alike + own,
        sampling_params=SamplingParams(
            max_tokens=arrival.output, min_tokens=arrival.output, ignore_eos=True
        ),
        pooling_params=None,
        arrival_time=float(number),
        priority=arrival.priority,
        block_hasher=hasher,
    )


def main() -> list[dict[str, Any]]:
    init_none_hash(sha256)
    found = []
    for engine in ENGINES:
        config = build_config({**ENGINE_ARGS, **engine.arguments})
        # On a CPU vLLM takes it back; its scheduler does not ask where it runs.
        config.scheduler_config.async_scheduling = engine.asynchronous
        depth = 2 if engine.asynchronous else 1
        turns = [
            play(Theirs(config, engine, seed), arrivals(seed), in_flight=depth) for seed in SEEDS
        ]
        found.append({"info": describe_config(config).to_json(), "turns": turns})
    return found


if __name__ == "__main__":
    print(json.dumps(main()))  # noqa: T201
