"""Live limits schedule as a restart does, step by step, on vLLM's own engine in one process.

And the simulation schedules as all of them do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autotune.candidates.lattice import SEQS, TOKENS
from autotune.candidates.live import LIVE_LIMITS
from autotune.forecast.simulation import EngineShape, Simulated, Traffic, simulate
from autotune.traffic.model import Trace, TraceRequest
from tests.autotune.engine.child import told_by
from tests.autotune.forecast.clock import a_second_each

pytestmark = pytest.mark.engine

LIMITS = ((64, 2, 0), (512, 12, 100))
COMMON = 256


@pytest.fixture(scope="module")
def schedules() -> dict[str, Any]:
    limits = (",".join(map(str, each)) for each in LIMITS)
    result: dict[str, Any] = told_by("-m", "tests.autotune.engine.in_process", *limits)
    return result


def test_this_vllm_lets_limits_change(schedules: dict[str, Any]) -> None:
    assert schedules["obstacle"] is None


@pytest.mark.parametrize("number", range(len(LIMITS)))
def test_live_limits_schedule_as_a_restart_does(schedules: dict[str, Any], number: int) -> None:
    live, restart = schedules["live"][number], schedules["restart"][number]
    assert live["shares"] == restart["shares"]
    assert live == restart
    limits = dict(zip(LIVE_LIMITS, LIMITS[number], strict=True))
    tokens = np.add(live["prefill_tokens"], live["decode_requests"])
    assert tokens.max() == limits[TOKENS]
    assert max(live["running"]) <= limits[SEQS]


def test_the_pairs_cover_what_schedules_can_do(schedules: dict[str, Any]) -> None:
    narrow, preempting = schedules["restart"]
    assert max(narrow["running"]) == LIMITS[0][1]
    assert max(narrow["waiting"]) > 20
    assert sum(preempting["preemptions"]) > 0
    assert len(narrow["requests"]) != len(preempting["requests"])


def test_limits_change_only_when_drained_and_within_the_start(schedules: dict[str, Any]) -> None:
    unfinished, beyond, too_many = schedules["refused"]
    assert unfinished == "limits change between replays only, and requests are unfinished"
    assert beyond == "4096 tokens a step, of at most 512"
    assert too_many == "64 sequences, of at most 12"


def test_rows_agree_with_the_shares_of_the_requests(schedules: dict[str, Any]) -> None:
    """Contexts, pairs and counts, worked out anew from who computed how many tokens."""
    run = schedules["live"][0]
    computed: defaultdict[str, int] = defaultdict(int)
    for _, name, tokens in run["shares"]:
        computed[name] += tokens
    rows = enumerate(schedules["traffic"])
    prompts, outputs = {}, {}
    for number, (_, prompt, output) in rows:
        prompts[f"r{number}"], outputs[f"r{number}"] = prompt + COMMON, output
    # What a request did not compute came from the prefix cache.
    context = {name: prompts[name] + outputs[name] - 1 - computed[name] for name in prompts}
    assert sum(context.values()) > 0
    steps = len(run["requests"])
    expected = {name: np.zeros(steps, dtype=int) for name in run if name not in _NOT_FROM_SHARES}
    for step, name, tokens in run["shares"]:
        before = context[name]
        context[name] += tokens
        expected["requests"][step] += 1
        expected["context_tokens"][step] += context[name]
        if before < prompts[name]:
            expected["prefill_tokens"][step] += tokens
            expected["prefill_pairs"][step] += sum(range(before + 1, before + tokens + 1))
        else:
            expected["decode_requests"][step] += 1
            expected["decode_kv_tokens"][step] += context[name]
    for name, values in expected.items():
        assert run[name] == values.tolist(), name


_NOT_FROM_SHARES = ("shares", "arrivals", "ordered", "running", "waiting", "preemptions")


def test_arrivals_are_noted_by_step(schedules: dict[str, Any]) -> None:
    run = schedules["live"][0]
    first_share = {name: step for step, name, _ in reversed(run["shares"])}
    assert run["arrivals"].keys() == first_share.keys()
    assert all(step <= first_share[name] for name, step in run["arrivals"].items())
    assert run["ordered"]


BLOCK = 32
"""Prompt tokens of a hash id."""
COMPARED = (
    *("prefill_tokens", "decode_requests", "requests", "running", "waiting", "preemptions"),
    *("context_tokens", "decode_kv_tokens", "prefill_pairs"),
)


def simulated(
    schedules: Mapping[str, Any],
    run: Mapping[str, Any],
    limits: Sequence[int],
    **shape: bool,
) -> Simulated:
    """Simulate a run whose steps take a second each: who came by step n comes just before it."""
    rows = []
    for number, (_, prompt, output) in enumerate(schedules["traffic"]):
        own = [1000 * (number + 1) + place for place in range(-(-prompt // BLOCK))]
        rows.append(
            TraceRequest(
                timestamp_ms=max(0.0, run["arrivals"][f"r{number}"] - 0.5) * 1e3,
                input_length=COMMON + prompt,
                output_length=output,
                hash_ids=(*[number % 3] * (COMMON // BLOCK), *own),
                priority=schedules["priorities"][number],
            )
        )
    trace = Trace.build(rows, block_size=BLOCK, prefixes_known=True, source="made up")
    engine = EngineShape(
        kv_blocks=schedules["kv_blocks"], block_size=schedules["block_size"], **shape
    )
    candidate = dict(zip(LIVE_LIMITS, limits, strict=True))
    return simulate(Traffic.of(trace, engine), a_second_each(), engine, candidate)


@pytest.mark.parametrize("number", range(len(LIMITS)))
def test_the_simulation_schedules_as_the_engine_does(
    schedules: dict[str, Any], number: int
) -> None:
    """With preemptions in one of them, and what the prefix cache has in both."""
    run = schedules["restart"][number]
    steps = simulated(schedules, run, LIMITS[number], caching=True).steps
    assert {name: getattr(steps, name).tolist() for name in COMPARED} == {
        name: run[name] for name in COMPARED
    }


def test_the_simulation_goes_by_priority_and_without_prefixes(schedules: dict[str, Any]) -> None:
    run = schedules["otherwise"]
    assert sum(run["preemptions"]) > 0
    done = simulated(schedules, run, LIMITS[-1], caching=False, priority=True)
    assert {name: getattr(done.steps, name).tolist() for name in COMPARED} == {
        name: run[name] for name in COMPARED
    }
    assert done.samples.cached_tokens.sum() == 0
    assert not done.samples.failed.any()


_BOTH = """
import hashlib, json, sys
from autotune.forecast.compiled import COMPILED
from autotune.forecast.simulation import EngineShape, Traffic, simulate
from autotune.traffic.synth import synthesize
from tests.autotune.forecast.clock import a_second_each
trace = synthesize("mixed", rate=20, duration_s=10, seed=3, prefix_sharing=0.5)
times = a_second_each(kv_token_s=1e-7, pair_s=1e-9, host_s=0.1, request_s=1e-3)
candidate = {"max_num_batched_tokens": 2048, "max_num_seqs": 64}
digest = hashlib.sha256()
for caching, in_flight in ((True, 1), (False, 2)):
    shape = EngineShape(kv_blocks=3000, caching=caching, in_flight=in_flight, priority=True)
    done = simulate(Traffic.of(trace, shape), times, shape, candidate)
    for array in (*done.samples.to_arrays().values(), *done.steps.to_arrays().values()):
        digest.update(array.tobytes())
    assert done.steps.preemptions.sum() > 0
print(json.dumps([COMPILED, digest.hexdigest()]))
"""


def test_compiled_and_plain_simulate_the_same_to_the_last_bit(tmp_path: Path) -> None:
    found = []
    for switch in ("1", "0"):
        environ = {"AUTOTUNE_COMPILE": switch, "NUMBA_CACHE_DIR": str(tmp_path)}
        found.append(told_by("-c", _BOTH, environ=environ))
    (compiled, fast), (plain, slow) = found
    assert compiled
    assert not plain
    assert fast == slow
    assert [each.name.partition("-")[0] for each in tmp_path.iterdir()] == ["compiled"]
