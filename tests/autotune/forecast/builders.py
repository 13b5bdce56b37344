"""Engines made of a formula, that run a sweep at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from autotune.forecast.grid import DECODE_STEPS, SweepPlan, sweep_plan
from objectives.steps import Steps

SHARED = Path(__file__).resolve().parents[3].parent / "shared" / "data"
CAPTURE_SIZES = (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16))


def h200_ms(tokens: int) -> float:
    """Like an 8B model: a CUDA graph up to 512 tokens, then launches, then the GPU's tiles."""
    if tokens <= 512:
        return 6.0 + 0.0125 * -(-tokens // 16) * 16
    return max(28.0, 9.0 + 0.0213 * -(-tokens // 128) * 128)


def smooth_ms(tokens: int) -> float:
    """Like a small model on a CPU."""
    return 3.0 + tokens / 8


@dataclass
class FakeEngine:
    """Collects steps, one at a time on its own clock.

    ``noise`` is the relative standard deviation of a step; ``slow`` the factor at a time.
    """

    step_ms: Callable[[int], float] = h200_ms
    noise: float = 0.01
    slow: Callable[[float], float] = lambda _: 1.0
    seed: int = 0
    kv_token_ns: float = 44.0
    pair_ns: float = 1.1
    round_trip_ms: float = 3.0
    clock_s: float = 0.0
    rows: list[list[float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng(self.seed)

    def step(self, *, prefill: int = 0, context: int = 0, decodes: int = 0, kv: int = 0) -> None:
        pairs = prefill * context + prefill * (prefill + 1) // 2
        work_ms = self.step_ms(prefill + decodes) + (self.kv_token_ns * kv) * 1e-6
        work_ms += self.pair_ns * pairs * 1e-6
        work_ms *= self.slow(self.clock_s) * float(np.exp(self._rng.normal(0, self.noise)))
        done_s = self.clock_s + work_ms / 1e3
        requests = decodes + (prefill > 0)
        contexts = context + prefill + kv
        planned = [self.clock_s, self.clock_s + 1e-4, done_s, prefill, decodes, requests]
        self.rows.append([*planned, requests, 0, 0.5, 0, contexts, kv, pairs])
        self.clock_s = done_s

    def prompt(self, tokens: int, *, chunk: int | None = None) -> None:
        for begin in range(0, tokens, chunk or tokens):
            self.step(prefill=min(chunk or tokens, tokens - begin), context=begin)
        self.clock_s += self.round_trip_ms / 1e3

    def batch(self, requests: int, context: int) -> None:
        for _ in range(DECODE_STEPS):
            context += 1
            self.step(decodes=requests, kv=requests * context)

    def sweep(self, plan: SweepPlan, *, until_s: float = np.inf) -> Steps:
        for tokens in plan.coarse:
            self.prompt(tokens)
        for number, requests in enumerate(plan.decodes):
            self.batch(requests, plan.decode_prompt + number * DECODE_STEPS)
        for probe in plan.contexts:
            self.prompt(probe.prompt_tokens, chunk=probe.chunk_tokens)
        for kv in plan.kv:
            for _ in range(kv.requests):
                self.prompt(kv.context_tokens)
            self.batch(kv.requests, kv.context_tokens)
        for tokens in plan.fine:
            self.prompt(tokens)
        steps = Steps.from_rows(np.array(self.rows))
        return steps.select(steps.done_s <= until_s)


def loaded(
    *,
    seconds: float = 15,
    noise: float = 0.02,
    seed: int = 0,
    budget: int = 2048,
    step_ms: Callable[[int], float] = h200_ms,
) -> Steps:
    """Steps of a load that comes and goes, one at a time; prompts fill up to ``budget`` tokens."""
    engine = FakeEngine(step_ms=step_ms, noise=noise, seed=seed)
    rng = np.random.default_rng(seed)
    while engine.clock_s < seconds:
        decodes = int(rng.integers(1, 80))
        kv = decodes * int(rng.integers(300, 900))
        prefill = budget - decodes if rng.uniform() < 0.2 else 0
        engine.step(prefill=prefill, context=2048 * int(rng.integers(4)), decodes=decodes, kv=kv)
    return Steps.from_rows(np.array(engine.rows))


def planned_ahead(steps: Steps, *, host_s: float, host_request_s: float) -> Steps:
    """Give steps the stamps of an engine that plans one ahead and hides the host's part."""
    alone_s = steps.done_s - steps.begun_s
    done_s = np.cumsum(alone_s - host_s - host_request_s * steps.requests)
    done_s += alone_s[0] - done_s[0]
    begun_s = np.concatenate([[0.0, 1e-4], done_s[:-2]])
    return replace(steps, begun_s=begun_s, planned_s=begun_s + 1e-4, done_s=done_s)


def plan(
    *,
    max_tokens: int = 16384,
    max_seqs: int = 256,
    max_model_len: int = 32768,
    capture_sizes: tuple[int, ...] = CAPTURE_SIZES,
    kv_cache_tokens: int = 800_000,
    tile: int = 128,
) -> SweepPlan:
    return sweep_plan(
        max_tokens=max_tokens,
        max_seqs=max_seqs,
        max_model_len=max_model_len,
        capture_sizes=capture_sizes,
        kv_cache_tokens=kv_cache_tokens,
        tile=tile,
    )


def recorded(name: str) -> Steps:
    """Return a replay that was recorded on an H200."""
    path = SHARED / "h200_llama8b_steps" / f"{name}.csv.gz"
    rows = np.loadtxt(path, delimiter=",", skiprows=1)
    begun, planned, done, prefill, decodes, requests, waiting, contexts, kv, pairs = rows.T
    unknown = np.zeros(len(rows))
    own = [begun, planned, done, prefill, decodes, requests, requests, waiting, unknown, unknown]
    steps = Steps.from_rows(np.column_stack([*own, contexts, kv, pairs]))
    return steps.select(steps.tokens > 0)


def slowed(steps: Steps, *, begin_s: float, end_s: float, factor: float) -> Steps:
    """Stretch the steps that begin between two times of work; all later ones come later."""
    worked_s = np.cumsum(steps.period_s) - steps.period_s
    hit = (worked_s >= begin_s) & (worked_s < end_s)
    later_s = np.cumsum(np.where(hit, factor - 1, 0.0) * steps.period_s)
    before_s = np.concatenate([[0.0], later_s[:-1]])
    return replace(
        steps,
        begun_s=steps.begun_s + before_s,
        planned_s=steps.planned_s + before_s,
        done_s=steps.done_s + later_s,
    )
