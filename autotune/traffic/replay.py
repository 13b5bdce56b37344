"""Open-loop replay: every request leaves at its recorded time, whatever the engine does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from objectives.abort import AbortWatch
from objectives.arrays import F8, I8
from objectives.censoring import Censored, Lost, censored
from objectives.classes import LengthClass
from objectives.limits import Budget
from objectives.samples import RequestSamples


class RequestFailed(Exception):
    """One request ended without its tokens; the engine lives on."""


class TokenSource(Protocol):
    """An engine, as a replay sees it."""

    def generate(
        self,
        prompt: Sequence[int],
        output_tokens: int,
        *,
        request_id: str,
        salt: str,
        priority: int,
    ) -> AsyncIterator[int]:
        """Yield the number of new tokens of each delivery, ``output_tokens`` in all.

        If the wait for a delivery is cancelled the request is dropped.

        Raises:
            RequestFailed: this request failed. Any other exception ends the whole replay.
        """
        ...

    def cached_tokens(self, request_id: str) -> int:
        """Return how many prompt tokens of a finished request came from the prefix cache."""
        ...


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A request ready to send: seconds from the start of the replay, token ids, output length."""

    scheduled_s: float
    prompt: Sequence[int]
    output_tokens: int
    priority: int = 0


@dataclass(slots=True)
class Progress:
    """Counters that a watcher may read while a replay runs."""

    total: int
    sent: int = 0
    done: int = 0
    tokens: int = 0
    errors: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Stamps:
    """What one request's consumer writes down."""

    sent_s: float = float("nan")
    tokens: int = 0
    cached: int = 0
    failed: bool = False
    ended: bool = False
    deliveries_s: list[float] = field(default_factory=list)


class Replay:
    """Replays prepared requests, in order of their scheduled times, against one engine.

    Args:
        requests: sorted by ``scheduled_s``.
        source: the engine.
        salt: separates this replay's prefix cache entries from all others.
        forced: whether the source gives every request its recorded length, so that one that
            ends before has failed; else whatever it ends without ``RequestFailed`` is an answer.
        clock: monotonic seconds.

    Attributes:
        started_at: when it began, by the clock; NaN before.
        progress: counters, for a watcher.
        censored: what the samples lack, if ``abort`` cut the replay short; None if they are
            whole.
    """

    def __init__(
        self,
        requests: Sequence[PreparedRequest],
        source: TokenSource,
        *,
        salt: str,
        forced: bool = True,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._requests = requests
        self._source = source
        self._salt = salt
        self._forced = forced
        self._clock = clock
        self._stamps = [_Stamps() for _ in requests]
        self.started_at = float("nan")
        self.progress = Progress(total=len(requests))
        self.censored: Censored | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._cut: tuple[float, Lost | None] | None = None

    async def run(self) -> RequestSamples:
        """Send everything on time, wait for every last token, and return the stamps.

        After ``abort`` they are those of a part, which must not be measured as if it were all:
        ``censored`` is then set, and some rows are ``unfinished``.
        """
        self.started_at = self._clock()
        async with asyncio.TaskGroup() as group:
            self._tasks.append(group.create_task(self._send(group)))
        samples = self._samples()
        if self._cut is not None:
            cut_s, lost = self._cut
            self.censored = None if lost is None else censored(samples, lost=lost, cut_s=cut_s)
        return samples

    def abort(self, lost: Lost | None) -> None:
        """Send nothing more and cancel what runs, so that ``run`` soon returns.

        ``lost`` says why; None if nobody will look at the samples.

        Without effect before and after ``run``, and the second time: an engine that is told to
        drop a request must be given the time to do so.
        """
        if self._tasks and self._cut is None:
            self._cut = self._now_s(), lost
            for task in self._tasks:
                task.cancel()

    def watch(self, budget: Budget, classes: Sequence[LengthClass]) -> Callable[[], Lost | None]:
        """Return a look at the replay that says which limit in ms is lost by now, if any is.

        Raises:
            ObjectiveError: a limit that is relative, or on an unknown class.
        """
        scheduled_s, prompt_tokens, output_tokens = self._asked()
        watch = AbortWatch(
            budget,
            classes,
            self._stamps,
            scheduled_s=scheduled_s,
            prompt_tokens=prompt_tokens,
            expected_output_tokens=output_tokens,
        )
        return lambda: watch.lost(self._now_s())

    def _now_s(self) -> float:
        return self._clock() - self.started_at

    async def _send(self, group: asyncio.TaskGroup) -> None:
        for row, request in enumerate(self._requests):
            delay_s = request.scheduled_s - self._now_s()
            if delay_s > 0:
                await asyncio.sleep(delay_s)
            self._tasks.append(group.create_task(self._consume(row, request)))
            self.progress.sent += 1

    async def _consume(self, row: int, request: PreparedRequest) -> None:
        stamps = self._stamps[row]
        request_id = f"{self._salt}-{row}"
        stamps.sent_s = self._now_s()
        stream = self._source.generate(
            request.prompt,
            request.output_tokens,
            request_id=request_id,
            salt=self._salt,
            priority=request.priority,
        )
        try:
            async for new_tokens in stream:
                if new_tokens:
                    stamps.deliveries_s.append(self._now_s())
                    stamps.tokens += new_tokens
                    self.progress.tokens += new_tokens
        except RequestFailed as error:
            stamps.failed = True
            self.progress.errors.append(str(error))
        # A stream that ends short of its forced length is no answer.
        least = request.output_tokens if self._forced else 1
        stamps.failed = stamps.failed or stamps.tokens < least
        stamps.cached = self._source.cached_tokens(request_id)
        stamps.ended = True
        self.progress.done += 1

    def _asked(self) -> tuple[F8, I8, I8]:
        """Scheduled times, prompt lengths and output lengths."""
        return (
            np.array([r.scheduled_s for r in self._requests], dtype=np.float64),
            np.array([len(r.prompt) for r in self._requests], dtype=np.int64),
            np.array([r.output_tokens for r in self._requests], dtype=np.int64),
        )

    def _samples(self) -> RequestSamples:
        nan = float("nan")
        scheduled_s, prompt_tokens, output_tokens = self._asked()
        gaps = [np.diff(stamps.deliveries_s) for stamps in self._stamps]
        firsts = [s.deliveries_s[0] if s.deliveries_s else nan for s in self._stamps]
        lasts = [s.deliveries_s[-1] if s.deliveries_s else nan for s in self._stamps]
        return RequestSamples(
            scheduled_s=scheduled_s,
            sent_s=np.array([s.sent_s for s in self._stamps], dtype=np.float64),
            first_token_s=np.array(firsts, dtype=np.float64),
            last_token_s=np.array(lasts, dtype=np.float64),
            prompt_tokens=prompt_tokens,
            output_tokens=np.array([s.tokens for s in self._stamps], dtype=np.int64),
            expected_output_tokens=output_tokens,
            cached_tokens=np.array([s.cached for s in self._stamps], dtype=np.int64),
            failed=np.array([s.failed for s in self._stamps], dtype=np.bool_),
            gap_s=np.concatenate(gaps) if gaps else np.empty(0),
            gap_request=np.repeat(np.arange(len(gaps)), [len(gap) for gap in gaps]),
        )
