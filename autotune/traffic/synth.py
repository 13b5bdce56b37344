"""Synthetic traffic, the same bytes for the same arguments everywhere.

All randomness is hashed from the seed, see ``autotune.traffic.hashing``. Every quantity has
a stream of its own: another rate or burstiness keeps the lengths, another length the times.
"""

from __future__ import annotations

import math
from enum import IntEnum
from statistics import NormalDist

import numpy as np

from autotune.errors import UsageError
from autotune.traffic.hashing import key, uniforms
from autotune.traffic.model import MAX_TOKENS, YEAR_MS, Trace, TraceRequest, blocks_of
from autotune.traffic.scenarios import Lengths, Population, Scenario, scenario_named
from objectives.arrays import F8, I8, Bools

DEFAULT_BLOCK_SIZE = 16
SHARED_PREFIXES = 4
_MOST_REQUESTS = 5_000_000
_MOST_BLOCKS = 50_000_000
_BOUNDS = {
    "rate": (1e-6, 1e6),
    "duration": (1e-3, YEAR_MS / 1e3),
    # Gaps of a smaller shape are nearly all zero: the first that counts may never come.
    "burstiness": (0.01, 1e6),
}
_HELP = "`autotune trace synth --help` shows what it takes"
_NORMAL = NormalDist()


class _Stream(IntEnum):
    KIND = 1
    PROMPT = 2
    OUTPUT = 3
    SHARING = 4
    PREFIX = 5
    ARRIVAL = 6


def synthesize(
    scenario: str | Scenario,
    *,
    rate: float,
    duration_s: float,
    seed: int = 0,
    burstiness: float = 1.0,
    prefix_sharing: float = 0.0,
    block_size: int = DEFAULT_BLOCK_SIZE,
) -> Trace:
    """Make traffic: arrivals from 0 to before ``duration_s``, the first at 0.

    Args:
        scenario: a scenario or the name of one.
        rate: requests per second, from 1e-6 to 1e6.
        duration_s: length of the traffic, from 1 ms to a year.
        seed: any integer.
        burstiness: shape of the Gamma distribution of gaps, as ``vllm bench serve`` has it:
            1 is a Poisson process, less is burstier, more is more even; 0.01 to 1e6.
        prefix_sharing: share of requests that begin with one of four shared prefixes, which
            are half as long as the median prompt of their kind.
        block_size: prompt tokens that one hash id stands for.

    Raises:
        UsageError: an argument is out of range, or these are more than 5 million requests
            or more than 50 million blocks.
    """
    chosen = scenario_named(scenario) if isinstance(scenario, str) else scenario
    _check(rate, duration_s, burstiness, prefix_sharing, block_size)
    arrivals_ms = _arrivals_ms(rate, duration_s, burstiness=burstiness, seed=seed)
    count = arrivals_ms.size
    documents = _draws(seed, _Stream.KIND, count) < chosen.document_share
    prompts = _lengths(
        _draws(seed, _Stream.PROMPT, count),
        documents,
        chat=chosen.chat.prompt,
        document=chosen.document.prompt,
    )
    generated = _lengths(
        _draws(seed, _Stream.OUTPUT, count),
        documents,
        chat=chosen.chat.output,
        document=chosen.document.output,
    )
    hash_ids = _hash_ids(
        chosen, documents, prompts, prefix_sharing=prefix_sharing, block_size=block_size, seed=seed
    )
    return Trace.build(
        (
            TraceRequest(float(arrivals_ms[i]), int(prompts[i]), int(generated[i]), hash_ids[i])
            for i in range(count)
        ),
        block_size=block_size,
        prefixes_known=True,
        source=(
            f"synth {chosen.name} rate={rate:g} duration={duration_s:g} seed={seed} "
            f"burstiness={burstiness:g} prefix_sharing={prefix_sharing:g}"
        ),
    )


def _check(
    rate: float, duration_s: float, burstiness: float, prefix_sharing: float, block_size: int
) -> None:
    for name, value in (("rate", rate), ("duration", duration_s), ("burstiness", burstiness)):
        low, high = _BOUNDS[name]
        if not low <= value <= high:
            raise UsageError(
                f"the {name} is {value:g}; it must be from {low:g} to {high:g}", hint=_HELP
            )
    if not 0 <= prefix_sharing <= 1:
        raise UsageError(
            f"the share of shared prefixes is {prefix_sharing:g}, not 0 to 1", hint=_HELP
        )
    if not 1 <= block_size <= MAX_TOKENS:
        raise UsageError(
            f"the block size is {block_size}; it must be from 1 to {MAX_TOKENS}", hint=_HELP
        )
    if rate * duration_s > _MOST_REQUESTS:
        raise UsageError(
            f"{rate:g} requests/s for {duration_s:g} s are more than 5 million",
            hint="lower the rate or the duration",
        )


def _draws(seed: int, stream: int, count: int, *path: int) -> F8:
    return uniforms(key(seed, stream, *path), np.arange(count, dtype=np.uint64))


def _arrivals_ms(rate: float, duration_s: float, *, burstiness: float, seed: int) -> F8:
    """Return arrivals in ms, rounded to µs: finer digits could differ between C libraries."""
    count = math.ceil(rate * duration_s) + 16
    while True:
        gaps_s = _gamma(count, shape=burstiness, seed=seed) / (rate * burstiness)
        arrivals_s = np.concatenate([[0.0], np.cumsum(gaps_s)])
        if arrivals_s[-1] >= duration_s:
            arrivals_ms = np.round(arrivals_s * 1e3, 3)
            return arrivals_ms[arrivals_ms < duration_s * 1e3]
        count *= 2


def _gamma(count: int, *, shape: float, seed: int) -> F8:
    """Return Gamma(shape, 1) variates by the rejection method of Marsaglia and Tsang (2000).

    Below shape 1 a variate of shape + 1 is multiplied by ``u ** (1 / shape)``, as they say.
    Attempt ``k`` of variate ``i`` uses element ``i`` of the streams of attempt ``k``.
    """
    raised = shape if shape >= 1 else shape + 1
    d = raised - 1 / 3
    c = 1 / math.sqrt(9 * d)
    variates = np.zeros(count)
    pending = np.arange(count)
    attempt = 0
    while pending.size:
        at = pending.astype(np.uint64)
        x = _normals(uniforms(key(seed, _Stream.ARRIVAL, attempt, 0), at))
        u = uniforms(key(seed, _Stream.ARRIVAL, attempt, 1), at)
        v = np.maximum(1 + c * x, 0) ** 3
        with np.errstate(divide="ignore"):
            accepted = np.log(u) < x**2 / 2 + d - d * v + d * np.log(v)
        variates[pending[accepted]] = d * v[accepted]
        pending = pending[~accepted]
        attempt += 1
    if shape < 1:
        variates *= _draws(seed, _Stream.ARRIVAL, count) ** (1 / shape)
    return variates


def _normals(u: F8) -> F8:
    return np.array([_NORMAL.inv_cdf(value) for value in u.tolist()])


def _lengths(u: F8, documents: Bools, *, chat: Lengths, document: Lengths) -> I8:
    tokens = _log_normal(u, chat)
    tokens[documents] = _log_normal(u[documents], document)
    return tokens


def _log_normal(u: F8, lengths: Lengths) -> I8:
    """Return token counts at the quantiles ``u`` of a truncated log-normal distribution."""
    if lengths.sigma == 0:
        return np.full(u.shape, round(lengths.median), dtype=np.int64)
    centre = math.log(lengths.median)
    low = _NORMAL.cdf((math.log(lengths.minimum) - centre) / lengths.sigma)
    high = _NORMAL.cdf((math.log(lengths.maximum) - centre) / lengths.sigma)
    # Half-way between neighbours of 0 and 1, so that a cut far outside stays invertible.
    inside = np.clip(low + u * (high - low), 2.0**-53, 1 - 2.0**-53)
    tokens = np.rint(np.exp(centre + lengths.sigma * _normals(inside)))
    whole: I8 = np.clip(tokens, lengths.minimum, lengths.maximum).astype(np.int64)
    return whole


def _hash_ids(
    scenario: Scenario,
    documents: Bools,
    prompts: I8,
    *,
    prefix_sharing: float,
    block_size: int,
    seed: int,
) -> list[tuple[int, ...]]:
    """Return the ids of each prompt: those of its shared prefix, if any, then fresh ones."""
    blocks = int(np.sum(-(-prompts // block_size)))
    if blocks > _MOST_BLOCKS:
        raise UsageError(
            f"the prompts have {blocks} blocks, more than 50 million",
            hint="choose a larger block size, shorter prompts or fewer requests",
        )
    shares = _draws(seed, _Stream.SHARING, prompts.size) < prefix_sharing
    picks = (_draws(seed, _Stream.PREFIX, prompts.size) * SHARED_PREFIXES).astype(np.int64)
    prefixes, fresh = _shared_prefixes(scenario, prefix_sharing, block_size)
    found = []
    for document, tokens, shared, pick in zip(documents, prompts, shares, picks, strict=True):
        prefix: tuple[int, ...] = ()
        if shared:
            # Only whole blocks are shared, and the last token is always the request's own.
            prefix = prefixes[bool(document)][pick][: (int(tokens) - 1) // block_size]
        own = blocks_of(int(tokens), block_size) - len(prefix)
        found.append(prefix + tuple(range(fresh, fresh + own)))
        fresh += own
    return found


def _shared_prefixes(
    scenario: Scenario, prefix_sharing: float, block_size: int
) -> tuple[dict[bool, list[tuple[int, ...]]], int]:
    """Return the ids of the prefixes of chats and of documents, and the first id left over."""
    prefixes: dict[bool, list[tuple[int, ...]]] = {}
    fresh = 0
    kinds: list[tuple[bool, float, Population]] = [
        (False, 1 - scenario.document_share, scenario.chat),
        (True, scenario.document_share, scenario.document),
    ]
    for is_document, share, population in kinds:
        blocks = int(population.prompt.median / 2) // block_size
        if not prefix_sharing or not share:
            continue
        if not blocks:
            raise UsageError(
                f"blocks of {block_size} tokens are too large to share half of a prompt of "
                f"{population.prompt.median:g} tokens",
                hint="choose a smaller block size",
            )
        prefixes[is_document] = [
            tuple(range(fresh + n * blocks, fresh + (n + 1) * blocks))
            for n in range(SHARED_PREFIXES)
        ]
        fresh += SHARED_PREFIXES * blocks
    return prefixes, fresh
