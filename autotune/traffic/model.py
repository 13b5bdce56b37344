"""Recorded traffic as a value: when requests came, how long they were, what they shared."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.errors import TraceError, UsageError
from objectives.arrays import F8, I8

MAX_TOKENS = 10_000_000
YEAR_MS = 366 * 86_400_000.0
MAX_HASH_ID = 2**63 - 1
MIN_PRIORITY, MAX_PRIORITY = -(2**31), 2**31 - 1
DEFAULT_BLOCK_SIZE = 512

# Nanoseconds: finer than any recorder, coarse enough to hide the noise of a subtraction.
_DECIMALS_MS = 6


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request of a trace.

    Attributes:
        timestamp_ms: arrival, counted from time zero of the trace.
        input_length: tokens of the prompt, at least 1.
        output_length: tokens generated, at least 1.
        hash_ids: one id per block of the prompt; equal ids mean equal tokens.
        max_tokens: the limit that the client asked for, None if unknown.
        priority: the scheduling priority that the client gave, None if unknown.
        cached_tokens: prompt tokens that the recorded server found in its prefix cache.
        model: the model that was asked for, None if unknown.
    """

    timestamp_ms: float
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...]
    max_tokens: int | None = None
    priority: int | None = None
    cached_tokens: int | None = None
    model: str | None = None

    def to_line(self) -> str:
        """Return the canonical JSON line, without its line break."""
        row: dict[str, Any] = {
            "timestamp": float(self.timestamp_ms),
            "input_length": self.input_length,
            "output_length": self.output_length,
            "hash_ids": self.hash_ids,
        }
        for name in ("max_tokens", "priority", "cached_tokens", "model"):
            value = getattr(self, name)
            if value is not None:
                row[name] = value
        return json.dumps(row, separators=(",", ":"))


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceMeta:
    """What ``NAME.meta.json`` says about ``NAME.jsonl``.

    Attributes:
        version: of the trace format.
        block_size: prompt tokens that one hash id stands for.
        prefixes_known: False if hash ids were made up because the source had none.
        source: where the traffic comes from, for people.
        captured_at: ISO 8601 time of time zero, with its offset from UTC; None if unknown.
        requests: how many there are.
        sha256: of the canonical lines, which is that of the saved file.
        with_text: whether texts of prompts were kept.
    """

    version: int = 1
    block_size: int
    prefixes_known: bool
    source: str
    captured_at: str | None = None
    requests: int
    sha256: str
    with_text: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadNotes:
    """What reading changed; nothing is changed silently.

    Attributes:
        reordered: rows that were earlier than a row before them, and were sorted in.
        without_tokens: rows left out for having no prompt or no output tokens.
        from_clock: times were clock time and are now counted from the first request.
    """

    reordered: int = 0
    without_tokens: int = 0
    from_clock: bool = False

    def sentences(self) -> list[str]:
        """Return one sentence for each thing that was changed."""
        found = []
        if self.reordered:
            found.append(f"Rows out of order, now sorted by time: {self.reordered}.")
        if self.without_tokens:
            found.append(f"Rows without prompt or output tokens, left out: {self.without_tokens}.")
        if self.from_clock:
            found.append("Times were clock time; they now count from the first request.")
        return found


@dataclass(frozen=True)
class Trace:
    """Traffic in order of arrival. Make one with ``Trace.build``, which sorts and counts."""

    requests: tuple[TraceRequest, ...]
    meta: TraceMeta
    notes: ReadNotes = field(default=ReadNotes(), compare=False)

    @classmethod
    def build(
        cls,
        requests: Iterable[TraceRequest],
        *,
        block_size: int,
        prefixes_known: bool,
        source: str,
        captured_at: str | None = None,
        with_text: bool = False,
        without_tokens: int = 0,
        from_clock: bool = False,
    ) -> Trace:
        """Sort ``requests`` by arrival (stable) and describe them.

        Raises:
            TraceError: there are none, or they are more than a year apart.
        """
        given = list(requests)
        if not given:
            raise TraceError(f"{source}: no requests")
        arrivals = np.array([request.timestamp_ms for request in given])
        ordered = tuple(sorted(given, key=lambda request: request.timestamp_ms))
        if ordered[-1].timestamp_ms - ordered[0].timestamp_ms >= YEAR_MS:
            raise TraceError(f"{source}: arrivals are more than a year apart")
        meta = TraceMeta(
            block_size=block_size,
            prefixes_known=prefixes_known,
            source=source,
            captured_at=captured_at,
            requests=len(ordered),
            sha256=_digest(ordered),
            with_text=with_text,
        )
        notes = ReadNotes(
            reordered=int(np.sum(arrivals < np.maximum.accumulate(arrivals))),
            without_tokens=without_tokens,
            from_clock=from_clock,
        )
        return cls(ordered, meta, notes)

    @property
    def sha256(self) -> str:
        """Identity of the traffic: the hash of its canonical lines."""
        return self.meta.sha256

    @cached_property
    def timestamps_s(self) -> F8:
        """Arrivals in seconds, ascending, read-only."""
        return _frozen(np.array([r.timestamp_ms for r in self.requests], dtype=np.float64) / 1e3)

    @cached_property
    def input_lengths(self) -> I8:
        """Prompt tokens in order of arrival, read-only."""
        return _frozen(np.array([r.input_length for r in self.requests], dtype=np.int64))

    @cached_property
    def output_lengths(self) -> I8:
        """Output tokens in order of arrival, read-only."""
        return _frozen(np.array([r.output_length for r in self.requests], dtype=np.int64))

    @property
    def duration_s(self) -> float:
        """Seconds from time zero of the trace to its last arrival."""
        return float(self.timestamps_s[-1])

    @property
    def longest_request(self) -> int:
        """Prompt and output tokens of the longest request: what ``max_model_len`` must hold."""
        return int(np.max(self.input_lengths + self.output_lengths))

    def lines(self) -> Iterator[bytes]:
        """Yield the canonical lines with their line breaks."""
        return _lines(self.requests)

    def window(self, start_s: float, end_s: float) -> Trace:
        """Return the requests of ``[start_s, end_s)`` with times counted from ``start_s``.

        Time zero becomes the start of the window, not its first request, so that a window
        keeps its phase and its rate.

        Raises:
            UsageError: the window is empty or upside down.
            TraceError: no request arrived in it, or it starts after the calendar's end.
        """
        if not 0 <= start_s < end_s:
            raise UsageError(
                f"window {start_s:g}:{end_s:g} must start at 0 or later and end later"
            )
        first, last = np.searchsorted(self.timestamps_s, [start_s, end_s], side="left")
        if first == last:
            raise TraceError(
                f"{self.meta.source}: no request between {start_s:g} s and {end_s:g} s",
                hint=f"the trace ends at {self.duration_s:g} s",
            )
        return Trace.build(
            (_moved(request, start_s * 1e3) for request in self.requests[first:last]),
            block_size=self.meta.block_size,
            prefixes_known=self.meta.prefixes_known,
            source=f"{self.meta.source} {start_s:g}:{end_s:g}",
            captured_at=_later(self.meta.captured_at, start_s),
            with_text=self.meta.with_text,
        )

    def busiest(self, seconds: float) -> tuple[float, float]:
        """Return ``(start_s, end_s)`` of the window of that length with most tokens.

        Prompt and output tokens count by the arrival of their request. Among equals the
        earliest window wins. It starts at an arrival, which loses nothing.

        Raises:
            UsageError: ``seconds`` is not positive.
        """
        if not seconds > 0:
            raise UsageError(f"a window of {seconds:g} s has no length")
        tokens = np.concatenate([[0], np.cumsum(self.input_lengths + self.output_lengths)])
        ends = np.searchsorted(self.timestamps_s, self.timestamps_s + seconds, side="left")
        start_s = float(self.timestamps_s[np.argmax(tokens[ends] - tokens[:-1])])
        return start_s, start_s + seconds


def blocks_of(tokens: int, block_size: int) -> int:
    """Return how many blocks hold ``tokens``, the last one perhaps in part."""
    return -(-tokens // block_size)


def _lines(requests: Iterable[TraceRequest]) -> Iterator[bytes]:
    return (request.to_line().encode() + b"\n" for request in requests)


def _digest(requests: Iterable[TraceRequest]) -> str:
    digest = hashlib.sha256()
    for line in _lines(requests):
        digest.update(line)
    return digest.hexdigest()


def _moved(request: TraceRequest, start_ms: float) -> TraceRequest:
    moved_ms = max(0.0, round(request.timestamp_ms - start_ms, _DECIMALS_MS))
    return replace(request, timestamp_ms=moved_ms)


def _later(moment: str | None, seconds: float) -> str | None:
    if moment is None:
        return None
    try:
        return (datetime.fromisoformat(moment) + timedelta(seconds=seconds)).isoformat()
    except OverflowError as error:
        raise TraceError(
            f"captured_at: {seconds:g} s after {moment} is no date", hint="correct captured_at"
        ) from error


def _frozen(array: NDArray[Any]) -> NDArray[Any]:
    array.flags.writeable = False
    return array
