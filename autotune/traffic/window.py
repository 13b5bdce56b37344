"""The part of a trace that is replayed."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.errors import UsageError
from autotune.moments import seconds_in
from autotune.traffic.model import Trace

_HINT = "examples: 600:900 (seconds), 10m:15m, busiest:10m, busiest:90s"


@dataclass(frozen=True, slots=True)
class Span:
    """The requests of ``[start_s, end_s)``."""

    start_s: float
    end_s: float

    def bounds(self, _trace: Trace) -> tuple[float, float]:
        """Return ``(start_s, end_s)``."""
        return self.start_s, self.end_s

    def apply(self, trace: Trace) -> Trace:
        """Return that part of ``trace``; raises as ``Trace.window`` does."""
        return trace.window(self.start_s, self.end_s)


@dataclass(frozen=True, slots=True)
class Busiest:
    """The window of ``length_s`` seconds with most tokens."""

    length_s: float

    def bounds(self, trace: Trace) -> tuple[float, float]:
        """Return ``(start_s, end_s)`` of that window in ``trace``."""
        return trace.busiest(self.length_s)

    def apply(self, trace: Trace) -> Trace:
        """Return that part of ``trace``."""
        return trace.window(*self.bounds(trace))


WindowSpec = Span | Busiest


def parse_window(text: str) -> WindowSpec:
    """Read ``600:900``, ``10m:15m``, ``busiest:10m`` or ``busiest:90s``.

    Raises:
        UsageError: it is none of these, or the window has no length.
    """
    head, colon, tail = text.strip().partition(":")
    end_s = seconds_in(tail)
    if not colon or end_s is None:
        raise UsageError(f"{text!r} is no window of a trace", hint=_HINT)
    if head == "busiest":
        if end_s == 0:
            raise UsageError(f"the window {text!r} has no length", hint=_HINT)
        return Busiest(end_s)
    start_s = seconds_in(head)
    if start_s is None:
        raise UsageError(f"{text!r} is no window of a trace", hint=_HINT)
    if start_s >= end_s:
        raise UsageError(f"the window {text!r} ends before it starts", hint=_HINT)
    return Span(start_s, end_s)


def parse_duration(text: str) -> float:
    """Return the seconds of ``600``, ``90s``, ``10m`` or ``2h``.

    Raises:
        UsageError: it is none of these.
    """
    seconds = seconds_in(text.strip())
    if seconds is None:
        raise UsageError(
            f"{text!r} is no length of time", hint="examples: 600 (seconds), 90s, 10m, 2h"
        )
    return seconds
