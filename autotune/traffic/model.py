"""Recorded traffic as a value: when requests came, how long they were, what they shared."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.errors import TraceError, UsageError
from autotune.traffic.recording import Gap, Outcome, Prefixes, Recording, gaps_within
from objectives.arrays import F8, I8

MAX_TOKENS = 10_000_000
YEAR_MS = 366 * 86_400_000.0
MAX_HASH_ID = 2**63 - 1
MIN_PRIORITY, MAX_PRIORITY = -(2**31), 2**31 - 1
DEFAULT_BLOCK_SIZE = 512

# Nanoseconds: finer than any recorder, coarse enough to hide the noise of a subtraction.
_DECIMALS_MS = 6

_OPTIONAL = (
    "max_tokens", "priority", "cached_tokens", "model", "outcome", "ttft_ms", "e2e_ms",
    "estimated", "prompt_text", "output_text",
)  # fmt: skip
"""Fields of a row that are written where they are known, in this order."""

_CAPTURED = ("prefixes_estimated", "gaps", "recording")


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
        outcome: how it ended; None if well, or if that is unknown.
        ttft_ms: from arrival to the first token, as recorded; never used by a replay.
        e2e_ms: from arrival to the end, as recorded; never used by a replay.
        estimated: True if one of its lengths was not counted in tokens, else None.
        prompt_text: the prompt, where texts were asked for; never used by a replay.
        output_text: the answer, likewise.
    """

    timestamp_ms: float
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...]
    max_tokens: int | None = None
    priority: int | None = None
    cached_tokens: int | None = None
    model: str | None = None
    outcome: Outcome | None = None
    ttft_ms: float | None = None
    e2e_ms: float | None = None
    estimated: bool | None = None
    prompt_text: str | None = None
    output_text: str | None = None

    def to_line(self) -> str:
        """Return the canonical JSON line, without its line break."""
        row: dict[str, Any] = {
            "timestamp": float(self.timestamp_ms),
            "input_length": self.input_length,
            "output_length": self.output_length,
            "hash_ids": self.hash_ids,
        }
        for name in _OPTIONAL:
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
        prefixes_known: False if hash ids were made up because no row of the source had any.
        source: where the traffic comes from, for people.
        captured_at: ISO 8601 time of time zero, with its offset from UTC; None if unknown.
        requests: how many there are.
        sha256: of the canonical lines, which is that of the saved file.
        with_text: whether texts of prompts were kept.
        prefixes_estimated: hash ids stand for blocks of text, at least in some rows.
        gaps: when requests passed that were not recorded.
        recording: what the recorder counted, None if the trace was not captured.
    """

    version: int = 1
    block_size: int
    prefixes_known: bool
    source: str
    captured_at: str | None = None
    requests: int
    sha256: str
    with_text: bool = False
    prefixes_estimated: bool = False
    gaps: tuple[Gap, ...] = ()
    recording: Recording | None = None

    @property
    def prefixes(self) -> Prefixes:
        """What hash ids stand for."""
        if not self.prefixes_known:
            return "unknown"
        return "estimated" if self.prefixes_estimated else "known"

    def to_json(self) -> dict[str, Any]:
        """Return what the file holds: what only captured traces have is left out of others."""
        row = asdict(self)
        return {name: value for name, value in row.items() if name not in _CAPTURED or value}


_COUNTED = (
    ("reordered", "Rows out of order, now sorted by time"),
    ("without_tokens", "Rows without prompt or output tokens, left out"),
    ("failed", "Requests that failed, left out"),
    ("not_requests", "Rows that are no text requests, left out"),
    ("from_cache", "Requests answered from a gateway's cache, left out"),
    ("unrecorded", "Requests that passed unrecorded while the trace was captured"),
    ("estimated", "Requests with a length that was estimated"),
    ("with_images", "Requests with images, replayed as text"),
    ("without_ids", "Rows without hash_ids among others with them, taken to share nothing"),
)
"""What ``ReadNotes`` counts, in the order in which it is told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadNotes:
    """What reading, cutting and fitting changed; nothing is changed silently.

    Attributes:
        reordered: rows that were earlier than a row before them, and were sorted in.
        without_tokens: rows left out for having no prompt or no output tokens.
        unrecorded: requests that passed while a recorder could not record them.
        estimated: rows of which a length was not counted in tokens.
        failed: requests left out because they failed.
        not_requests: rows of a log left out for being something else than a text request.
        from_cache: requests left out because a gateway answered them from its own cache.
        with_images: requests with images, of which only the tokens are replayed.
        without_ids: rows without hash ids among others that have them; they share nothing.
        perhaps_seconds: in how many seconds all came, where that is suspiciously short; else None.
        from_clock: times were clock time and are now counted from the first request.
        beyond_end: end of a window and of its trace in seconds, where much lies between.
        skipped: requests left out for being too long.
        truncated: requests cut for being too long.
        max_model_len: what they were too long for; None if nothing was.
        load: what another load than the recorded one changed, as a sentence; None if it is that.
        remarks: sentences of a reader on how it took what the file leaves open.
    """

    reordered: int = 0
    without_tokens: int = 0
    unrecorded: int = 0
    estimated: int = 0
    failed: int = 0
    not_requests: int = 0
    from_cache: int = 0
    with_images: int = 0
    without_ids: int = 0
    perhaps_seconds: float | None = None
    from_clock: bool = False
    beyond_end: tuple[float, float] | None = None
    skipped: int = 0
    truncated: int = 0
    max_model_len: int | None = None
    load: str | None = None
    remarks: tuple[str, ...] = ()

    def sentences(self) -> list[str]:
        """Return one sentence for each thing that was changed."""
        counted = [
            f"{what}: {number}." for name, what in _COUNTED if (number := getattr(self, name))
        ]
        found = [*self.remarks, *counted]
        if self.perhaps_seconds is not None:
            found.append(
                f"All requests come within {self.perhaps_seconds:.3g} s: timestamp is in ms, so "
                "multiply times in seconds by 1000."
            )
        if self.from_clock:
            found.append("Times were clock time; they now count from the first request.")
        if self.beyond_end is not None:
            window_s, trace_s = self.beyond_end
            found.append(f"The window ends at {window_s:g} s, the trace at {trace_s:.1f} s.")
        if self.load is not None:
            found.append(self.load)
        too_long = f"Requests longer than max_model_len {self.max_model_len}"
        if self.skipped:
            found.append(f"{too_long}, left out: {self.skipped}.")
        if self.truncated:
            found.append(f"{too_long}, cut to it: {self.truncated}.")
        return found

    def since(self, earlier: ReadNotes) -> list[str]:
        """Return the sentences that ``earlier`` has not."""
        told = earlier.sentences()
        return [sentence for sentence in self.sentences() if sentence not in told]


_UNCHANGED = ReadNotes()


@dataclass(frozen=True)
class Trace:
    """Traffic in order of arrival. Make one with ``Trace.build``, which sorts and counts."""

    requests: tuple[TraceRequest, ...]
    meta: TraceMeta
    notes: ReadNotes = field(default=_UNCHANGED, compare=False)

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
        prefixes_estimated: bool = False,
        gaps: tuple[Gap, ...] = (),
        recording: Recording | None = None,
        notes: ReadNotes = _UNCHANGED,
    ) -> Trace:
        """Sort ``requests`` by arrival (stable) and describe them.

        Args:
            requests: in any order.
            block_size: see ``TraceMeta``, as the others.
            prefixes_known: as above.
            source: as above.
            captured_at: as above.
            with_text: as above.
            prefixes_estimated: as above.
            gaps: as above.
            recording: as above.
            notes: what was changed so far; rows out of order are added to it.

        Raises:
            TraceError: there are none, or they are more than a year apart.
        """
        given = list(requests)
        if not given:
            raise TraceError(f"{source}: no requests", hint="a trace needs at least one")
        arrivals = np.array([request.timestamp_ms for request in given])
        ordered = tuple(sorted(given, key=lambda request: request.timestamp_ms))
        if ordered[-1].timestamp_ms - ordered[0].timestamp_ms >= YEAR_MS:
            raise TraceError(
                f"{source}: arrivals are more than a year apart",
                hint="timestamp is in ms from time zero; look for a row that counts otherwise",
            )
        meta = TraceMeta(
            block_size=block_size,
            prefixes_known=prefixes_known,
            source=source,
            captured_at=captured_at,
            requests=len(ordered),
            sha256=_digest(ordered),
            with_text=with_text,
            prefixes_estimated=prefixes_estimated,
            gaps=gaps,
            recording=recording,
        )
        reordered = int(np.sum(arrivals < np.maximum.accumulate(arrivals)))
        return cls(ordered, meta, replace(notes, reordered=notes.reordered + reordered))

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
        keeps its phase and its rate. One that reaches beyond the end of the trace by more than
        a hundredth of its length says so in its notes.

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
        beyond_s = end_s - self.duration_s
        far = beyond_s > (end_s - start_s) / 100
        return self.with_requests(
            (_moved(request, start_s * 1e3) for request in self.requests[first:last]),
            replace(self.notes, beyond_end=(end_s, self.duration_s) if far else None),
            meta=replace(
                self.meta,
                source=f"{self.meta.source} {start_s:g}:{end_s:g}",
                captured_at=_later(self.meta.captured_at, start_s),
                gaps=gaps_within(self.meta.gaps, start_s * 1e3, end_s * 1e3),
            ),
        )

    def with_requests(
        self,
        requests: Iterable[TraceRequest],
        notes: ReadNotes,
        *,
        meta: TraceMeta | None = None,
    ) -> Trace:
        """Return other requests that came from the same place; raises as ``build`` does.

        ``meta`` is what is said of them where that has changed; they are counted anew.
        """
        told = self.meta if meta is None else meta
        return Trace.build(
            requests,
            block_size=told.block_size,
            prefixes_known=told.prefixes_known,
            source=told.source,
            captured_at=told.captured_at,
            with_text=told.with_text,
            prefixes_estimated=told.prefixes_estimated,
            gaps=told.gaps,
            recording=told.recording,
            notes=notes,
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
