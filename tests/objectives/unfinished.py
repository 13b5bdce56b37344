"""Replays that can be looked at before they are over."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from objectives.abort import AbortWatch
from objectives.arrays import F8
from objectives.censoring import Lost
from objectives.classes import LengthClass, class_mask, parse_classes
from objectives.latency import e2e_ms, itl_ms, tpot_ms, ttft_ms
from objectives.limits import Budget, metric_key
from objectives.samples import RequestSamples
from objectives.statistics import AGGREGATES, aggregate

CLASSES = parse_classes("short:0-2000 long:2000-")
METRIC_VALUES = {"ttft": ttft_ms, "tpot": tpot_ms, "itl": itl_ms, "e2e": e2e_ms}


@dataclass(frozen=True)
class Course:
    """How one request will have gone: (seconds, tokens) per delivery; all of it, or a failure."""

    scheduled_s: float
    deliveries: Sequence[tuple[float, int]] = ()
    expected: int = 1
    fails_at_s: float | None = None
    prompt_tokens: int = 100

    @property
    def end_s(self) -> float:
        return self.deliveries[-1][0] if self.fails_at_s is None else self.fails_at_s


@dataclass
class Seen:
    """What of a course has been seen."""

    tokens: int = 0
    failed: bool = False
    ended: bool = False
    deliveries_s: list[float] = field(default_factory=list)

    def look(self, course: Course, now_s: float) -> None:
        for at_s, tokens in course.deliveries[len(self.deliveries_s) :]:
            if at_s <= now_s:
                self.deliveries_s.append(at_s)
                self.tokens += tokens
        self.ended = course.end_s <= now_s
        self.failed = self.ended and course.fails_at_s is not None


class Watched:
    """A watch over courses; time may only go forward."""

    def __init__(
        self, courses: Sequence[Course], budget: Budget, classes: Sequence[LengthClass] = CLASSES
    ) -> None:
        self._courses = courses
        self._seen = [Seen() for _ in courses]
        self._watch = AbortWatch(
            budget,
            classes,
            self._seen,
            scheduled_s=np.array([each.scheduled_s for each in courses]),
            prompt_tokens=np.array([each.prompt_tokens for each in courses]),
            expected_output_tokens=np.array([each.expected for each in courses]),
        )

    def lost(self, now_s: float) -> Lost | None:
        for seen, course in zip(self._seen, self._courses, strict=True):
            seen.look(course, now_s)
        return self._watch.lost(now_s)


def samples(courses: Sequence[Course], now_s: float = math.inf) -> RequestSamples:
    """What a client has of the courses by ``now_s``."""
    seen = [Seen() for _ in courses]
    for each, course in zip(seen, courses, strict=True):
        each.look(course, now_s)
    gaps: list[F8] = [np.diff(each.deliveries_s) for each in seen]
    scheduled_s = np.array([each.scheduled_s for each in courses])
    return RequestSamples(
        scheduled_s=scheduled_s,
        sent_s=np.where(scheduled_s <= now_s, scheduled_s, np.nan),
        first_token_s=np.array([(each.deliveries_s or [np.nan])[0] for each in seen]),
        last_token_s=np.array([(each.deliveries_s or [np.nan])[-1] for each in seen]),
        prompt_tokens=np.array([each.prompt_tokens for each in courses]),
        output_tokens=np.array([each.tokens for each in seen]),
        expected_output_tokens=np.array([each.expected for each in courses]),
        cached_tokens=np.zeros(len(courses), dtype=np.int64),
        failed=np.array([each.failed for each in seen]),
        gap_s=np.concatenate(gaps),
        gap_request=np.repeat(np.arange(len(gaps)), [gap.size for gap in gaps]),
    )


def latencies(
    whole: RequestSamples, keys: Collection[str] | None = None
) -> Mapping[str, float | None]:
    """Latencies of a whole replay, as ``measure`` gives them, without the intervals.

    Those of these keys, by default all.
    """
    found = {}
    parts = {None: whole} | {
        each.name: whole.select(class_mask(whole.prompt_tokens, each)) for each in CLASSES
    }
    for class_name, part in parts.items():
        for metric, values_of in METRIC_VALUES.items():
            for name in AGGREGATES:
                key = metric_key(metric, name, class_name)
                if keys is None or key in keys:
                    found[key] = aggregate(values_of(part), name)
    return found
