"""Which steps a calibration sweep measures, the most telling first."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from autotune.candidates.lattice import half_octaves

DECODE_PROMPT = 32
"""Tokens of each prompt of the decode ladder."""
DECODE_STEPS = 8
"""Steps that each batch of the ladder, and each batch of a KV probe, decodes."""

_LEAST_PAIR_STEP = 64
_MOST_PAIRED = 16384
_LONGEST_PROBE = 32768
_SMALL = (8, 16, 32, 64)
_BATCHES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
_KV_PROBES = ((32, 1024), (8, 2048))
_BLOCK = 16


@dataclass(frozen=True, slots=True)
class ContextProbe:
    """One prompt, computed in chunks of ``chunk_tokens``: each sees a longer context."""

    chunk_tokens: int
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class KvProbe:
    """A steady batch whose requests have long contexts."""

    requests: int
    context_tokens: int


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """What to run, field by field in this order until the time is up.

    The whole takes about 40 s on an H200 with a model of 8B. What comes first tells most: where
    the time ends early, what was measured by then is still a calibration.

    Attributes:
        coarse: prompts of one token of output, in the order of the run, repeats among them.
        decodes: batch sizes, descending: the largest is started at once, of prompts of
            ``DECODE_PROMPT`` tokens, and after ``DECODE_STEPS`` steps of each size requests end.
        contexts: prompts in chunks.
        kv: steady batches of ``DECODE_STEPS`` steps.
        fine: as ``coarse``, sizes M and M + 1 next to each other.
    """

    coarse: tuple[int, ...]
    decodes: tuple[int, ...]
    contexts: tuple[ContextProbe, ...]
    kv: tuple[KvProbe, ...]
    fine: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(
            coarse=tuple(data["coarse"]),
            decodes=tuple(data["decodes"]),
            contexts=tuple(ContextProbe(**each) for each in data["contexts"]),
            kv=tuple(KvProbe(**each) for each in data["kv"]),
            fine=tuple(data["fine"]),
        )


def sweep_plan(
    *,
    max_tokens: int,
    max_seqs: int,
    max_model_len: int,
    capture_sizes: Sequence[int],
    kv_cache_tokens: int,
    tile: int,
    seed: int = 0,
) -> SweepPlan:
    """Return the sweep for an engine with these limits.

    Sizes come in rounds, each in an order of its own, so that a slow spell of the host blurs many
    points a little and looks like no edge. A step is of one prompt, so none is larger than the
    longest prompt.

    Args:
        max_tokens: the most tokens of a step.
        max_seqs: the most requests at once.
        max_model_len: the most tokens of a request, its output included.
        capture_sizes: token counts for which there are CUDA graphs.
        kv_cache_tokens: tokens that the KV cache holds.
        tile: the quantum of the step budgets that will be tried.
        seed: of the orders.
    """
    longest = max(1, min(max_model_len - 1, kv_cache_tokens - 2 * _BLOCK))
    top = min(max_tokens, longest)
    limit = max(capture_sizes, default=0)
    rng = random.Random(seed)  # noqa: S311
    sizes = {top, *_SMALL, *half_octaves(tile, tile, top)}
    edge: tuple[int, ...] = (limit, limit + 1) if 0 < limit < top else ()
    coarse = [edge] if edge else []
    coarse += [(size,) for size in sorted(sizes.difference(edge)) if size <= top]
    fine = _pairs(top, tile=tile, capture_sizes=capture_sizes)
    low = [pair for pair in fine if pair[1] <= 2048]
    high = [pair for pair in fine if pair[1] > 2048]
    return SweepPlan(
        coarse=_in_rounds(coarse, rng),
        decodes=_batches(max_seqs, max_model_len, kv_cache_tokens),
        contexts=_context_probes(top, longest, limit),
        kv=tuple(
            KvProbe(requests, context)
            for requests, context in _KV_PROBES
            if requests <= max_seqs
            and requests * (context + 2 * _BLOCK) <= kv_cache_tokens
            and context + DECODE_STEPS < max_model_len
        ),
        fine=_in_rounds(low, rng) + _in_rounds(high, rng),
    )


def _pairs(top: int, *, tile: int, capture_sizes: Sequence[int]) -> list[tuple[int, ...]]:
    """Return (M, M + 1) at multiples of powers of two and of the tile, and at captured sizes."""
    sizes = {size for size in capture_sizes if size in _SMALL} | {max(capture_sizes, default=0)}
    octave = _LEAST_PAIR_STEP
    while octave < min(top, _MOST_PAIRED):
        step = max(_LEAST_PAIR_STEP, octave // (8 if octave < 4096 else 4))
        tiles = tile * -(-step // tile)
        for quantum in (step, tiles):
            first = -(-octave // quantum) * quantum
            sizes.update(range(first, min(2 * octave, top), quantum))
        octave *= 2
    return [(size, size + 1) for size in sorted(sizes) if 0 < size < top]


def _repeats(size: int) -> int:
    return 5 if size <= 2048 else 3 if size <= _MOST_PAIRED else 2


def _in_rounds(groups: Iterable[tuple[int, ...]], rng: random.Random) -> tuple[int, ...]:
    """Return all sizes once, in any order with groups together, then again those to repeat."""
    left = [(group, _repeats(group[0])) for group in groups]
    order: list[int] = []
    while left:
        rng.shuffle(left)
        for group, _ in left:
            order.extend(rng.sample(group, len(group)))
        left = [(group, count - 1) for group, count in left if count > 1]
    return tuple(order)


def _batches(max_seqs: int, max_model_len: int, kv_cache_tokens: int) -> tuple[int, ...]:
    sizes = sorted({*(size for size in _BATCHES if size < max_seqs), max_seqs}, reverse=True)
    tokens = DECODE_PROMPT + DECODE_STEPS * len(sizes) + _BLOCK
    room = kv_cache_tokens // tokens if tokens <= max_model_len else 0
    return tuple(size for size in sizes if size <= room)


def _context_probes(top: int, longest: int, limit: int) -> tuple[ContextProbe, ...]:
    chunks = {limit if 64 <= limit <= 1024 else 512, 2048, 8192}
    probes = [
        ContextProbe(chunk, min(8 * chunk, _LONGEST_PROBE, longest) // chunk * chunk)
        for chunk in sorted(chunks)
        if chunk <= top and 3 * chunk <= longest
    ]
    return tuple(probes + probes[:2])
