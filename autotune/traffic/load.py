"""More or less of the same traffic.

Three ways to change the load of a trace, each with its price:

- ``compress`` divides all times by the factor: the same requests in the same order, sooner or
  later. What happened within ten seconds happens within fewer, so bursts become sharper.
- ``superpose`` lays copies over the trace, each later by about a minute more and with hash ids
  of its own: more users of the same kind on the same day. Bursts of seconds come independently,
  so that the index of dispersion that they have stays, and slow changes of the rate grow with
  it. Copies share nothing with each other, so that a prefix cache has more to hold.
- ``thin`` takes requests out, those that share a prefix together: fewer users.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from autotune.errors import TraceError, UsageError
from autotune.traffic.hashing import key, uniforms
from autotune.traffic.likeness import Likeness
from autotune.traffic.model import YEAR_MS, Trace, TraceRequest
from autotune.traffic.sessions import sessions

Method = Literal["compress", "superpose", "thin"]
METHODS: tuple[Method, ...] = get_args(Method)

MOST_LOAD = 100.0
MOST_REQUESTS = 5_000_000

SPACING_S = 60.0
"""Between copies: long beside bursts and the gaps of a conversation, short beside a day."""

_DECIMALS_MS = 6
_THINNING, _SHIFTING = 1, 2
_WORDS = {
    "compress": "compressing time",
    "superpose": "superposing copies",
    "thin": "thinning",
}


@dataclass(frozen=True, slots=True)
class Load:
    """How many times a trace's traffic, and by which method; make one with ``Load.of``."""

    factor: float
    method: Method

    @classmethod
    def of(cls, factor: float, method: str = "auto") -> Load:
        """Check a load.

        Args:
            factor: above 0, at most 100.
            method: one of ``METHODS``, or ``auto``: copies are superposed above 1, requests
                thinned below.

        Raises:
            UsageError: there is no such load, or the method cannot reach it.
        """
        if not (math.isfinite(factor) and 0 < factor <= MOST_LOAD):
            raise UsageError(
                f"load {factor:g}: must be above 0 and at most {MOST_LOAD:g}",
                hint="1 is the traffic as it was recorded, 1.4 is 40 % more, 0.5 half of it",
            )
        if method == "auto":
            return cls(factor, "superpose" if factor > 1 else "thin")
        if method not in METHODS:
            raise UsageError(
                f"there is no way {method!r} to change a load",
                hint=f"there are auto, {', '.join(METHODS)}",
            )
        if (method == "thin" and factor > 1) or (method == "superpose" and factor < 1):
            does, other = ("lowers", "superpose") if method == "thin" else ("raises", "thin")
            raise UsageError(
                f"--method {method} {does} a load, and {factor:g} does not",
                hint=f"choose --method {other} or compress, or leave the choice to auto",
            )
        return cls(factor, method)

    def apply(self, trace: Trace, *, seed: int = 0) -> Trace:
        """Return ``changed``; its notes say what that did to rate, burstiness and reuse."""
        changed = self.changed(trace, seed=seed)
        if changed is trace:
            return trace
        said = self.sentence(trace, changed)
        return replace(changed, notes=replace(trace.notes, load=said))

    def changed(self, trace: Trace, *, seed: int = 0) -> Trace:
        """Return ``trace`` at this load.

        Time zero stays. A factor of 1 gives ``trace`` itself, and the same seed the same bytes.

        Args:
            trace: the traffic, of which a window has been cut before.
            seed: of what is thinned, and of the times of copies.

        Raises:
            TraceError: nothing would be left, or be changed, or far too much would come of it.
        """
        if self.factor == 1:
            return trace
        if self.method == "compress" and trace.duration_s == 0:
            raise TraceError(
                f"{trace.meta.source}: all requests come at once, so that there is no time to "
                "compress",
                hint="choose another --method",
            )
        if self.method == "compress":
            changed = compressed(trace, self.factor)
        elif self.method == "superpose":
            changed = superposed(trace, self.factor, seed=seed)
        else:
            changed = thinned(trace, self.factor, seed=seed)
        source = f"{trace.meta.source}, load {self.factor:g}, {self.method}"
        return replace(changed, meta=replace(changed.meta, source=source))

    def sentence(self, before: Trace, after: Trace) -> str:
        """Say what a change of load by this did to rate, burstiness and reuse."""
        one, other = Likeness.of(before), Likeness.of(after)
        return (
            f"Load {self.words}: "
            f"{_change(one.rate_per_s, other.rate_per_s, '.3g')} requests/s, "
            f"dispersion at 1 s {_change(one.dispersion_1s, other.dispersion_1s, '.1f')}, "
            f"at 10 s {_change(one.dispersion_10s, other.dispersion_10s, '.1f')}, "
            f"reuse {_change(_percent(one.reuse), _percent(other.reuse), '.0f', unit=' %')}."
        )

    @property
    def words(self) -> str:
        """Factor and method, as a sentence names them."""
        slower = self.method == "compress" and self.factor < 1
        return f"{self.factor:g} by {'stretching time' if slower else _WORDS[self.method]}"


def compressed(trace: Trace, factor: float) -> Trace:
    """Return the same requests in the same order with all times divided by ``factor``.

    Raises:
        TraceError: they would be more than a year apart.
    """
    if trace.duration_s * 1e3 / factor >= YEAR_MS:
        raise TraceError(
            f"{trace.meta.source}: load {factor:g} would stretch {trace.duration_s:.0f} s to "
            "more than a year",
            hint="choose a load nearer to 1, or --method thin",
        )
    moved = [_at(request, request.timestamp_ms / factor) for request in trace.requests]
    gaps = tuple(
        replace(gap, start_ms=gap.start_ms / factor, end_ms=gap.end_ms / factor)
        for gap in trace.meta.gaps
    )
    changed = trace.with_requests(moved, trace.notes)
    return replace(changed, meta=replace(changed.meta, gaps=gaps))


def thinned(trace: Trace, share: float, *, seed: int) -> Trace:
    """Return ``share`` of the requests, drawn by sessions, to the nearest whole request.

    Requests of one session (see ``sessions``) are kept or dropped together; one session may
    lose its last requests so that the number is right.

    Raises:
        TraceError: none would be left, or none dropped.
    """
    kept = _drawn(trace, share, seed=seed, stream=0)
    if not kept or len(kept) == len(trace.requests):
        raise _no_whole_request(trace, share)
    return trace.with_requests([trace.requests[row] for row in kept], trace.notes)


def superposed(trace: Trace, factor: float, *, seed: int) -> Trace:
    """Return the trace with copies laid over it; the last one is thinned to the fraction.

    Copies are ``SPACING_S`` apart, each off by up to a quarter of it by the seed, and in a short
    trace by as much as lets all of them begin within it. What that moves beyond the end comes at
    the start instead, so that the load is the same from end to end. Hash ids are fresh for each
    copy: it shares within itself what the trace does, and nothing with others.

    Raises:
        TraceError: there would be more than ``MOST_REQUESTS``, or no copied request.
    """
    total = round(len(trace.requests) * factor)
    if total > MOST_REQUESTS:
        raise TraceError(
            f"{trace.meta.source}: load {factor:g} makes {total:,} requests of it, more than "
            f"{MOST_REQUESTS:,}",
            hint="cut a window first, or choose --method compress",
        )
    whole = math.floor(factor)
    last = _drawn(trace, factor - whole, seed=seed, stream=whole)
    parts: list[Sequence[int]] = [range(len(trace.requests))] * (whole - 1)
    parts += [last] if last else []
    if not parts:
        raise _no_whole_request(trace, factor)
    requests = list(trace.requests)
    used = {hash_id for request in trace.requests for hash_id in request.hash_ids}
    fresh = (number for number in itertools.count() if number not in used)
    period_ms = _period_ms(trace)
    spacing_ms = min(SPACING_S * 1e3, period_ms / (len(parts) + 1))
    for copy, rows in enumerate(parts, start=1):
        luck = float(uniforms(key(seed, _SHIFTING), np.array([copy], dtype=np.uint64))[0])
        shift_ms = spacing_ms * (copy + (luck - 0.5) / 2)
        requests += _copied([trace.requests[row] for row in rows], shift_ms, period_ms, fresh)
    # In order, so that nothing is counted as having been out of it.
    requests.sort(key=lambda request: request.timestamp_ms)
    return trace.with_requests(requests, trace.notes)


def _drawn(trace: Trace, share: float, *, seed: int, stream: int) -> list[int]:
    """Return the rows of ``share`` of the requests, whole sessions but for the last one."""
    wanted = round(len(trace.requests) * share)
    if not wanted:
        return []
    groups = sessions(trace)
    luck = uniforms(key(seed, _THINNING, stream), np.arange(len(groups), dtype=np.uint64))
    rows = itertools.chain.from_iterable(groups[number] for number in np.argsort(luck))
    return sorted(itertools.islice(rows, wanted))


def _period_ms(trace: Trace) -> float:
    """Return after how long a trace that is repeated begins anew: a mean gap after its end."""
    end_ms = trace.requests[-1].timestamp_ms
    return end_ms * (1 + 1 / len(trace.requests))


def _copied(
    requests: Sequence[TraceRequest], shift_ms: float, period_ms: float, fresh: Iterator[int]
) -> Iterator[TraceRequest]:
    renamed: dict[int, int] = {}
    for request in requests:
        for hash_id in request.hash_ids:
            if hash_id not in renamed:
                renamed[hash_id] = next(fresh)
        moved_ms = request.timestamp_ms + shift_ms
        moved_ms -= period_ms if moved_ms >= period_ms else 0.0
        ids = tuple(renamed[hash_id] for hash_id in request.hash_ids)
        yield replace(_at(request, moved_ms), hash_ids=ids)


def _at(request: TraceRequest, timestamp_ms: float) -> TraceRequest:
    return replace(request, timestamp_ms=max(0.0, round(timestamp_ms, _DECIMALS_MS)))


def _no_whole_request(trace: Trace, factor: float) -> TraceError:
    count = len(trace.requests)
    if round(count * factor) == 0:
        does, hint = "leaves none", "choose a higher load, or a longer trace or window"
    else:
        does, hint = "changes none", "choose a load further from 1, or --method compress"
    return TraceError(
        f"{trace.meta.source}: load {factor:g} {does} of {count} requests", hint=hint
    )


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _change(before: float | None, after: float | None, form: str, *, unit: str = "") -> str:
    if before is None and after is None:
        return "unknown"
    one, other = ("unknown" if each is None else f"{each:{form}}" for each in (before, after))
    return f"{one} → {other}{unit}"
