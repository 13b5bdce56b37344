"""Live limits schedule as a restart does, step by step, on vLLM's own engine in one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autotune.candidates.lattice import SEQS, TOKENS
from autotune.engine.live import LIVE_LIMITS
from tests.autotune.engine.tiny import ENVIRONMENT

pytestmark = pytest.mark.engine

LIMITS = ((64, 2, 0), (512, 12, 100))
COMMON = 256


@pytest.fixture(scope="module")
def schedules() -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.autotune.engine.in_process"]
    done = subprocess.run(
        [*command, *(",".join(map(str, each)) for each in LIMITS)],
        cwd=Path(__file__).parents[3],
        env={**os.environ, **ENVIRONMENT},
        capture_output=True,
        check=False,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    result: dict[str, Any] = json.loads(done.stdout)
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
