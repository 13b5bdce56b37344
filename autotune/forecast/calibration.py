"""What a sweep says of an engine: step times, edges, and the prices of context."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np

from autotune.forecast.edges import Edge, find_edges, find_quantum
from autotune.forecast.fitting import common_slope, robust_sigma
from autotune.forecast.grid import DECODE_STEPS, KvProbe, SweepPlan
from objectives.arrays import F8, I8, Bools
from objectives.steps import Steps


@dataclass(frozen=True, slots=True)
class Point:
    """Steps that compute ``tokens`` of one prompt from its start.

    ``spread_ms`` is the standard deviation of normal repeats with the same median deviation.
    """

    tokens: int
    median_ms: float
    spread_ms: float
    repeats: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Steps that decode one token for each of ``requests``, of short contexts.

    ``kv_tokens`` is the mean length of all their contexts together.
    """

    requests: int
    kv_tokens: float
    median_ms: float
    spread_ms: float
    repeats: int


@dataclass(frozen=True, slots=True)
class Calibration:
    """The step times of one engine with one step in flight.

    Attributes:
        points: by tokens.
        batches: by requests.
        edges: where one more token makes a step dearer, by tokens.
        quantum: the tokens at whose multiples edges repeat, None where none stands out.
        capture_sizes: token counts with a CUDA graph, ascending; none on a CPU.
        kv_token_ns: what a token of context adds to a step that decodes its request, None where
            no batch was measured at a longer context.
        pair_ns: what an attention pair adds to a prefill step, None where no prompt was measured
            in chunks.
        best_flops_per_s: the highest rate at which useful work was done, None where nobody
            counted it.
    """

    points: tuple[Point, ...]
    batches: tuple[Batch, ...]
    edges: tuple[Edge, ...]
    quantum: int | None
    capture_sizes: tuple[int, ...]
    kv_token_ns: float | None
    pair_ns: float | None
    best_flops_per_s: float | None

    @property
    def capture_limit(self) -> int | None:
        """The most tokens of a step that runs as a CUDA graph."""
        return max(self.capture_sizes, default=None)

    @classmethod
    def measured(
        cls,
        steps: Steps,
        *,
        plan: SweepPlan,
        capture_sizes: Sequence[int],
        flops_of: Callable[[Steps], F8] | None = None,
    ) -> Self:
        """Read a sweep, whole or cut short.

        Steps that mix prefill and decode, or the prefill of several requests, are left out, and
        so are batches that nobody planned, as they come about where requests are preempted.

        Args:
            steps: of the sweep, with one step in flight.
            plan: what was to be measured.
            capture_sizes: token counts for which there are CUDA graphs.
            flops_of: the useful work of each step.
        """
        steps = steps.select(steps.done_s > steps.begun_s)
        limit = max(capture_sizes, default=None)
        times_ms = _times_ms(steps)
        alone = steps.select(_alone(steps))
        ladder = _of_ladder(steps, plan)
        probed = [_of_probe(steps, probe) for probe in plan.kv]
        decodes = steps.select(np.logical_or.reduce([ladder, *probed]))
        fresh = alone.select(alone.prefill_pairs == _fresh_pairs(alone.prefill_tokens))
        repeats = {
            int(size): _times_ms(fresh)[fresh.prefill_tokens == size]
            for size in np.unique(fresh.prefill_tokens)
        }
        edges = find_edges(repeats, capture_limit=limit)
        return cls(
            points=tuple(Point(size, *_summary(times)) for size, times in repeats.items()),
            batches=_batches(steps.select(ladder)),
            edges=edges,
            quantum=find_quantum(edges, list(repeats)),
            capture_sizes=tuple(sorted(capture_sizes)),
            kv_token_ns=_price_ns(decodes, decodes.decode_requests, decodes.decode_kv_tokens),
            pair_ns=_price_ns(alone, alone.prefill_tokens, alone.prefill_pairs),
            best_flops_per_s=None
            if flops_of is None or not len(steps)
            else _best_rate(steps, flops_of(steps) / times_ms * 1e3),
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(
            **{
                **data,
                "points": tuple(Point(**each) for each in data["points"]),
                "batches": tuple(Batch(**each) for each in data["batches"]),
                "edges": tuple(Edge(**each) for each in data["edges"]),
                "capture_sizes": tuple(data["capture_sizes"]),
            }
        )


def has_all(steps: Steps, plan: SweepPlan) -> bool:
    """Whether every prompt, batch and probe of a plan was measured as planned."""
    steps = steps.select(steps.done_s > steps.begun_s)
    fresh = _alone(steps) & (steps.prefill_pairs == _fresh_pairs(steps.prefill_tokens))
    sizes = steps.decode_requests[_of_ladder(steps, plan)]
    repeats = [np.count_nonzero(sizes == size) for size in plan.decodes]
    repeats += [np.count_nonzero(_of_probe(steps, probe)) for probe in plan.kv]
    prompts = set(steps.prefill_tokens[fresh].tolist())
    return prompts.issuperset(plan.coarse + plan.fine) and all(
        count >= DECODE_STEPS for count in repeats
    )


def _of_ladder(steps: Steps, plan: SweepPlan) -> Bools:
    """Return which steps decode a batch of the ladder, with short contexts."""
    planned = _decodes(steps) & np.isin(steps.decode_requests, plan.decodes)
    return np.asarray(planned & (_mean_context(steps) <= plan.longest_short))


def _of_probe(steps: Steps, probe: KvProbe) -> Bools:
    """Return which steps decode all of a batch with long contexts."""
    whole = _decodes(steps) & (steps.decode_requests == probe.requests)
    return np.asarray(whole & (_mean_context(steps) >= probe.context_tokens))


def _decodes(steps: Steps) -> Bools:
    return np.asarray((steps.prefill_tokens == 0) & (steps.decode_requests > 0))


def _mean_context(steps: Steps) -> F8:
    return np.asarray(steps.decode_kv_tokens / np.maximum(steps.decode_requests, 1))


def _times_ms(steps: Steps) -> F8:
    return (steps.done_s - steps.begun_s) * 1e3


def _fresh_pairs(tokens: I8) -> I8:
    return tokens * (tokens + 1) // 2


def _alone(steps: Steps) -> Bools:
    alone = (steps.decode_requests == 0) & (steps.requests == 1)
    return np.asarray(alone & (steps.prefill_tokens > 0))


def _summary(times_ms: F8) -> tuple[float, float, int]:
    return float(np.median(times_ms)), robust_sigma(times_ms), times_ms.size


def _batches(decodes: Steps) -> tuple[Batch, ...]:
    batches = []
    for size in np.unique(decodes.decode_requests):
        own = decodes.select(decodes.decode_requests == size)
        kv_tokens = float(np.mean(own.decode_kv_tokens))
        batches.append(Batch(int(size), kv_tokens, *_summary(_times_ms(own))))
    return tuple(batches)


def _price_ns(steps: Steps, sizes: I8, contexts: I8) -> float | None:
    """Return what one more of ``contexts`` costs in steps of equal ``sizes``."""
    if not len(steps):
        return None
    slope = common_slope(sizes, contexts.astype(np.float64), _times_ms(steps))
    return None if slope is None else slope * 1e6


def _best_rate(steps: Steps, rates: F8) -> float:
    """Return the highest median rate of equal steps: one stamp that came early makes no record."""
    work = np.column_stack([steps.prefill_tokens, steps.prefill_pairs, steps.decode_requests])
    _, kinds, counts = np.unique(work, axis=0, return_inverse=True, return_counts=True)
    kinds = kinds.reshape(-1)
    repeated = np.flatnonzero(counts >= min(3, counts.max()))
    return max(float(np.median(rates[kinds == kind])) for kind in repeated)
