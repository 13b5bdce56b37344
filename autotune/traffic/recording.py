"""What a recorder says of the traffic that it recorded, beside the requests themselves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

Outcome = Literal["cancelled", "failed"]
"""How a request ended that did not end well."""

Prefixes = Literal["known", "estimated", "unknown"]
"""Whether hash ids stand for blocks of tokens, for blocks of text, or for nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """A while in which requests passed that nobody recorded.

    Attributes:
        start_ms: when the first of them ended, from time zero of the trace; perhaps negative.
        end_ms: when the last of them ended.
        requests: how many there were.
        reason: why they were not recorded, for people.
    """

    start_ms: float
    end_ms: float
    requests: int
    reason: str

    def within(self, start_ms: float, end_ms: float) -> Gap | None:
        """Return the gap as a window sees it, None if it lies outside; it counts as a whole."""
        if self.end_ms < start_ms or self.start_ms >= end_ms:
            return None
        return replace(self, start_ms=self.start_ms - start_ms, end_ms=self.end_ms - start_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """Counts of a whole recording; a window that is cut from it keeps them.

    Attributes:
        by: what recorded it: ``proxy``, ``middleware`` or ``stat-logger``.
        completed: requests that ended as they should.
        cancelled: requests whose client went away.
        failed: requests that were answered by an error, or not to their end.
        without_tokens: of these, requests of which no tokens are known, so that there is no row.
        estimated_prompts: rows whose prompt was not counted in tokens.
        estimated_outputs: rows whose output was not counted in tokens.
        estimated_prefixes: rows whose hash ids stand for blocks of text.
        torn: lines of the recording that a crash had cut off.
    """

    by: str
    completed: int = 0
    cancelled: int = 0
    failed: int = 0
    without_tokens: int = 0
    estimated_prompts: int = 0
    estimated_outputs: int = 0
    estimated_prefixes: int = 0
    torn: int = 0


def gaps_within(gaps: Iterable[Gap], start_ms: float, end_ms: float) -> tuple[Gap, ...]:
    """Return the gaps that a window ``[start_ms, end_ms)`` has, counted from its start."""
    seen = (gap.within(start_ms, end_ms) for gap in gaps)
    return tuple(gap for gap in seen if gap is not None)
