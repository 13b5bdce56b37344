"""Which steps a calibration sweep measures, the most telling first."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from autotune.candidates.lattice import half_octaves

DECODE_PROMPT = 32
"""Tokens of each prompt of the decode ladder, where the step budget has room for all at once."""
DECODE_STEPS = 8
"""Steps that each batch of the ladder, and each batch of a KV probe, decodes."""

_LEAST_PAIR_STEP = 64
_MOST_PAIRED = 16384
_LONGEST_PROBE = 32768
_SMALL = (8, 16, 32, 64)
_BATCHES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
_KV_PROBES = ((32, 1024), (8, 2048), (16, 4096))
"""Requests and context of each. The last is there for large machines: what an H200 takes to read
32,000 tokens for a model of 8B is within the noise of its steps."""
_LONGEST_WAIT = 512
"""Steps that a batch may take to be whole."""
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

    def traffic(self, max_tokens: int) -> list[tuple[int, int]]:
        """Return prompt and output length of each request, all of which start together.

        Who is prefilled first decodes until the last one is. Only then does the batch decode as a
        whole: for ``DECODE_STEPS`` steps, after which all end in the same one.

        Args:
            max_tokens: the most tokens of a step; no less than there are requests.
        """
        at = _prefilled_at(self.context_tokens, self.requests, max_tokens)
        return [(self.context_tokens, at[-1] - own + 1 + DECODE_STEPS) for own in at]


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """What to run, field by field in this order until the time is up.

    The whole takes about 45 s on an H200 with a model of 8B. What comes first tells most: where
    the time ends early, what was measured by then is still a calibration.

    Attributes:
        coarse: prompts of one token of output, in the order of the run, repeats among them.
        decodes: batch sizes, descending: the largest is started at once, of prompts of
            ``decode_prompt`` tokens, and after ``DECODE_STEPS`` steps of each size requests end.
        contexts: prompts in chunks.
        kv: steady batches of ``DECODE_STEPS`` steps.
        fine: as ``coarse``, sizes M and M + 1 next to each other.
        decode_prompt: so short that one step computes the prompts of the whole ladder.
    """

    coarse: tuple[int, ...]
    decodes: tuple[int, ...]
    contexts: tuple[ContextProbe, ...]
    kv: tuple[KvProbe, ...]
    fine: tuple[int, ...]
    decode_prompt: int = DECODE_PROMPT

    @property
    def longest_short(self) -> int:
        """The longest context of a request of the decode ladder."""
        return self.decode_prompt + DECODE_STEPS * len(self.decodes)

    def ladder_traffic(self) -> list[tuple[int, int]]:
        """Return prompt and output length of each request of the decode ladder."""
        outputs: list[int] = []
        for turn, size in enumerate(reversed(self.decodes)):
            # The smallest batch lasts longest.
            steps = DECODE_STEPS * (len(self.decodes) - turn)
            outputs += [steps + 1] * (size - len(outputs))
        return [(self.decode_prompt, count) for count in outputs]

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
            decode_prompt=data["decode_prompt"],
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
        max_seqs: the most requests at once, ``max_tokens`` at most.
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
    decodes = _batches(min(max_seqs, max_tokens), max_model_len, kv_cache_tokens)
    return SweepPlan(
        coarse=_in_rounds(coarse, rng),
        decodes=decodes,
        contexts=_context_probes(top, longest, limit),
        kv=tuple(
            probe
            for probe in itertools.starmap(KvProbe, _KV_PROBES)
            if probe.requests <= min(max_seqs, max_tokens)
            and _has_room(probe, max_tokens, max_model_len, kv_cache_tokens)
        ),
        fine=_in_rounds(low, rng) + _in_rounds(high, rng),
        decode_prompt=min(DECODE_PROMPT, max_tokens // max(decodes, default=1)),
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


def _has_room(probe: KvProbe, max_tokens: int, max_model_len: int, kv_cache_tokens: int) -> bool:
    """Whether the batch fits and is steady soon, before contexts have grown by half."""
    outputs = max(outputs for _, outputs in probe.traffic(max_tokens))
    return (
        outputs <= min(probe.context_tokens // 2, _LONGEST_WAIT)
        and probe.context_tokens + outputs <= max_model_len
        and probe.requests * (probe.context_tokens + outputs + _BLOCK) <= kv_cache_tokens
    )


def _prefilled_at(prompt: int, requests: int, max_tokens: int) -> list[int]:
    """Return in which step each of equal prompts is done, where all wait from the start.

    As vLLM plans steps: who decodes is served first, one token each, and what is left of the
    budget goes to the prompts in their order.
    """
    at: list[int] = []
    step, left = 0, prompt
    while len(at) < requests:
        done, room = 0, max_tokens - len(at)
        while room and len(at) + done < requests:
            taken = min(room, left)
            room, left = room - taken, left - taken
            if not left:
                done, left = done + 1, prompt
        at += [step] * done
        step += 1
    return at


def _context_probes(top: int, longest: int, limit: int) -> tuple[ContextProbe, ...]:
    chunks = {limit if 64 <= limit <= 1024 else 512, 2048, 8192}
    probes = [
        ContextProbe(chunk, min(8 * chunk, _LONGEST_PROBE, longest) // chunk * chunk)
        for chunk in sorted(chunks)
        if chunk <= top and 3 * chunk <= longest
    ]
    return tuple(probes + probes[:2])
