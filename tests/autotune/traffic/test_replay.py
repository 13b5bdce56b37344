from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.traffic.replay import PreparedRequest, Replay, RequestFailed
from objectives.censoring import Censored, Lost, unfinished
from objectives.errors import ObjectiveError
from objectives.limits import parse_budget
from objectives.samples import RequestSamples
from tests.autotune.traffic.virtual_time import VirtualLoop, run

Step = float | int | Exception
LOST = Lost("ttft_p95", 500.0, 750.0)


class EngineDead(Exception):
    """The engine, not a request, is gone."""


@dataclass
class FakeEngine:
    """Answers each request by a script: floats are seconds of waiting, ints deliveries.

    Attributes:
        answers: the script of each row; ``default`` for the others.
        calls: what was asked for, in order, with the time.
        closing_s: how long it takes to end a stream, dropped ones included.
    """

    loop: VirtualLoop
    answers: Mapping[int, Sequence[Step]] = field(default_factory=dict)
    default: Sequence[Step] = (0.5, 1, 0.25, 1)
    cached: Mapping[int, int] = field(default_factory=dict)
    calls: list[tuple[float, tuple[str, str, int, int, int]]] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    closing_s: float = 0.0

    async def generate(
        self,
        prompt: Sequence[int],
        output_tokens: int,
        *,
        request_id: str,
        salt: str,
        priority: int,
    ) -> AsyncIterator[int]:
        asked = (request_id, salt, priority, len(prompt), output_tokens)
        self.calls.append((self.loop.time(), asked))
        try:
            for step in self.answers.get(row_of(request_id), self.default):
                match step:
                    case float():
                        await asyncio.sleep(step)
                    case int():
                        yield step
                    case _:
                        raise step
        finally:
            if self.closing_s:
                await asyncio.sleep(self.closing_s)
            self.closed.append(request_id)

    def cached_tokens(self, request_id: str) -> int:
        return self.cached.get(row_of(request_id), 0)


def row_of(request_id: str) -> int:
    return int(request_id.rpartition("-")[2])


def requests(*at_s: float, output_tokens: int = 2) -> list[PreparedRequest]:
    return [
        PreparedRequest(at, [5] * (10 + row), output_tokens, priority=row)
        for row, at in enumerate(at_s)
    ]


@pytest.fixture
def loop() -> VirtualLoop:
    return VirtualLoop()


def replay(
    loop: VirtualLoop, engine: FakeEngine, prepared: Sequence[PreparedRequest]
) -> tuple[Replay, RequestSamples]:
    one = Replay(prepared, engine, salt="salt", clock=loop.time)
    return one, run(loop, one.run())


def test_every_request_leaves_on_time_although_the_engine_is_stuck(loop: VirtualLoop) -> None:
    engine = FakeEngine(loop, default=(3600.0, 2))
    times_s = [0.0, 0.5, 0.5, 7.25]
    one, samples = replay(loop, engine, requests(*times_s))
    assert [at - one.started_at for at, _ in engine.calls] == times_s
    np.testing.assert_array_equal(samples.sent_s, times_s)
    np.testing.assert_array_equal(samples.first_token_s, np.array(times_s) + 3600.0)


@given(st.lists(st.integers(0, 50_000), min_size=1, max_size=20), st.data())
def test_sending_never_depends_on_the_answers(times_ms: list[int], data: st.DataObject) -> None:
    step = st.floats(0.0, 100.0) | st.integers(0, 3) | st.just(RequestFailed("no"))
    scripts = {row: data.draw(st.lists(step, max_size=4)) for row in range(len(times_ms))}
    times_s = [ms / 1000 for ms in sorted(times_ms)]
    loop = VirtualLoop()
    one, samples = replay(loop, FakeEngine(loop, scripts), requests(*times_s))
    np.testing.assert_allclose(samples.sent_s, times_s, atol=1e-9)
    assert one.progress.sent == one.progress.done == one.progress.total == len(times_ms)
    assert one.progress.tokens == samples.output_tokens.sum()
    assert (np.isnan(samples.first_token_s) == (samples.output_tokens == 0)).all()
    assert (samples.gap_s >= 0).all()


def test_requests_reach_the_engine_as_they_were_prepared(loop: VirtualLoop) -> None:
    engine = FakeEngine(loop)
    replay(loop, engine, requests(0.0, 1.0))
    assert [asked for _, asked in engine.calls] == [
        ("salt-0", "salt", 0, 10, 2),
        ("salt-1", "salt", 1, 11, 2),
    ]


def test_the_stamps_of_a_replay(loop: VirtualLoop) -> None:
    engine = FakeEngine(loop, {1: [0.125, 3]}, cached={0: 4})
    prepared = [PreparedRequest(0.5, [1, 2, 3], 2), PreparedRequest(0.75, [4], 3)]
    one, samples = replay(loop, engine, prepared)
    assert one.started_at == 1000.0
    expected = {
        "scheduled_s": [0.5, 0.75],
        "sent_s": [0.5, 0.75],
        "first_token_s": [1.0, 0.875],
        "last_token_s": [1.25, 0.875],
        "prompt_tokens": [3, 1],
        "output_tokens": [2, 3],
        "expected_output_tokens": [2, 3],
        "cached_tokens": [4, 0],
        "failed": [False, False],
        "gap_s": [0.25],
        "gap_request": [0],
    }
    assert {name: array.tolist() for name, array in samples.to_arrays().items()} == expected


def test_several_tokens_in_a_delivery_are_one_gap(loop: VirtualLoop) -> None:
    engine = FakeEngine(loop, default=(0.5, 4, 0.25, 3, 1.0, 1))
    one, samples = replay(loop, engine, requests(0.0, output_tokens=8))
    np.testing.assert_array_equal(samples.gap_s, [0.25, 1.0])
    assert samples.output_tokens.tolist() == [8]
    assert one.progress.tokens == 8
    assert not samples.failed.any()


def test_a_delivery_without_tokens_is_none(loop: VirtualLoop) -> None:
    engine = FakeEngine(loop, default=(0.5, 0, 0.5, 1, 0.25, 0, 0.25, 1, 1.0, 0))
    _, samples = replay(loop, engine, requests(0.0))
    assert samples.first_token_s.tolist() == [1.0]
    assert samples.last_token_s.tolist() == [1.5]
    assert samples.gap_s.tolist() == [0.5]


def test_gaps_are_grouped_by_row_even_if_answers_interleave(loop: VirtualLoop) -> None:
    engine = FakeEngine(loop, {0: [0.5, 1, 1.0, 1, 1.0, 1], 2: [0.25, 1, 0.5, 1, 0.5, 1]})
    _, samples = replay(loop, engine, requests(0.0, 0.0, 0.0, output_tokens=3))
    assert samples.gap_request.tolist() == [0, 0, 1, 2, 2]
    assert samples.gap_s.tolist() == [1.0, 1.0, 0.25, 0.5, 0.5]


def test_a_failing_request_is_counted_and_the_others_go_on(loop: VirtualLoop) -> None:
    engine = FakeEngine(
        loop, {1: [0.5, 1, RequestFailed("too long")], 2: [RequestFailed("refused")]}
    )
    one, samples = replay(loop, engine, requests(0.0, 0.0, 0.0, 2.0))
    assert samples.failed.tolist() == [False, True, True, False]
    assert samples.output_tokens.tolist() == [2, 1, 0, 2]
    assert np.isnan(samples.first_token_s).tolist() == [False, False, True, False]
    assert sorted(one.progress.errors) == ["refused", "too long"]
    assert one.progress.done == 4


def test_a_stream_that_ends_short_of_its_length_has_failed(loop: VirtualLoop) -> None:
    engine = FakeEngine(loop, {0: [0.5, 1], 1: []})
    one, samples = replay(loop, engine, requests(0.0, 0.0, 0.0))
    assert samples.failed.tolist() == [True, True, False]
    assert one.progress.errors == []
    assert samples.lost.tolist() == [True, True, False]


@pytest.mark.parametrize("at", ["send", "middle"])
def test_the_death_of_the_engine_ends_the_replay_at_once(loop: VirtualLoop, at: str) -> None:
    dead = EngineDead("gone")
    script: list[Step] = [dead] if at == "send" else [0.5, 1, dead]
    engine = FakeEngine(loop, {1: script}, default=(3600.0, 2))
    one = Replay(requests(0.0, 1.0, 100.0), engine, salt="salt", clock=loop.time)
    with pytest.raises(ExceptionGroup) as caught:
        run(loop, one.run())
    assert caught.value.exceptions == (dead,)
    # What waited was cancelled, and what was still to come was not sent.
    assert loop.time() - one.started_at <= 1.5
    assert engine.closed == ["salt-1", "salt-0"]
    assert (one.progress.sent, one.progress.done) == (2, 0)


def test_a_client_that_was_held_up_sends_late_and_says_so(loop: VirtualLoop) -> None:
    engine = FakeEngine(loop)
    one = Replay(requests(0.0, 1.0, 5.0), engine, salt="salt", clock=loop.time)
    loop.call_later(0.5, loop.work, 2.0)
    samples = run(loop, one.run())
    np.testing.assert_array_equal(samples.sent_s, [0.0, 2.5, 5.0])
    np.testing.assert_array_equal(samples.scheduled_s, [0.0, 1.0, 5.0])


def test_progress_can_be_watched(loop: VirtualLoop) -> None:
    engine = FakeEngine(loop, default=(0.5, 1, 1.0, 1))
    one = Replay(requests(0.0, 4.0), engine, salt="salt", clock=loop.time)
    seen: list[tuple[int, int, int]] = []
    for at_s in (0.25, 1.0, 3.0, 4.25):
        loop.call_later(
            at_s,
            lambda: seen.append((one.progress.sent, one.progress.done, one.progress.tokens)),
        )
    run(loop, one.run())
    assert seen == [(1, 0, 0), (1, 0, 1), (1, 1, 2), (2, 1, 2)]
    assert (one.progress.sent, one.progress.done, one.progress.tokens) == (2, 2, 4)


def test_a_replay_of_nothing(loop: VirtualLoop) -> None:
    _, samples = replay(loop, FakeEngine(loop), [])
    assert len(samples) == 0
    assert samples.gap_s.size == 0


def cut_at(
    loop: VirtualLoop, engine: FakeEngine, prepared: Sequence[PreparedRequest], *times_s: float
) -> tuple[Replay, RequestSamples]:
    """Run a replay that is told to abort at the given seconds."""
    one = Replay(prepared, engine, salt="salt", clock=loop.time)
    for at_s in times_s:
        loop.call_later(at_s, one.abort, LOST)
    return one, run(loop, one.run())


def test_an_aborted_replay_returns_what_it_has(loop: VirtualLoop) -> None:
    engine = FakeEngine(
        loop,
        {1: [0.5, 1, 0.25, 1, 3600.0], 2: [RequestFailed("no")], 3: [3600.0], 4: [3600.0]},
    )
    prepared = requests(0.0, 0.0, 0.0, 1.0, 50.0, 60.0, output_tokens=2)
    prepared[1] = PreparedRequest(0.0, [1], 3)
    one, samples = cut_at(loop, engine, prepared, 2.0)
    assert loop.time() - one.started_at == 2.0
    assert unfinished(samples).tolist() == [False, True, False, True, True, True]
    assert samples.failed.tolist() == [False, False, True, False, False, False]
    assert samples.output_tokens.tolist() == [2, 2, 0, 0, 0, 0]
    assert samples.gap_request.tolist() == [0, 1]
    np.testing.assert_array_equal(samples.sent_s, [0.0, 0.0, 0.0, 1.0, np.nan, np.nan])
    assert one.censored == Censored(LOST, cut_s=2.0, requests=6, sent=4, ended=2)
    assert (one.progress.sent, one.progress.done) == (4, 2)


def test_an_abort_closes_every_stream_before_the_replay_returns(loop: VirtualLoop) -> None:
    engine = FakeEngine(loop, default=(3600.0, 2), closing_s=0.5)
    one, _ = cut_at(loop, engine, requests(0.0, 1.0, 9.0), 2.0, 2.25)
    assert loop.time() - one.started_at == 2.5
    assert sorted(engine.closed) == ["salt-0", "salt-1"]
    assert one.censored == Censored(LOST, cut_s=2.0, requests=3, sent=2, ended=0)


def test_an_abort_while_the_last_answers_come_in(loop: VirtualLoop) -> None:
    engine = FakeEngine(loop, {1: [3600.0, 2]})
    one, samples = cut_at(loop, engine, requests(0.0, 1.0), 5.0)
    assert unfinished(samples).tolist() == [False, True]
    assert one.censored == Censored(LOST, cut_s=5.0, requests=2, sent=2, ended=1)


@pytest.mark.parametrize("row_is_done", [True, False])
def test_an_abort_that_comes_too_late_changes_nothing(
    loop: VirtualLoop, row_is_done: bool
) -> None:
    """Either the replay has returned, or all tokens are there and the stream is still open."""
    engine = FakeEngine(loop, default=(0.5, 2) if row_is_done else (0.5, 2, 1.0))
    one = Replay(requests(0.0), engine, salt="salt", clock=loop.time)
    if not row_is_done:
        loop.call_later(1.0, one.abort, LOST)
    samples = run(loop, one.run())
    one.abort(LOST)
    assert one.censored is None
    assert not unfinished(samples).any()


def test_an_abort_before_the_start_is_none(loop: VirtualLoop) -> None:
    one = Replay(requests(0.0, 1.0), FakeEngine(loop), salt="salt", clock=loop.time)
    one.abort(LOST)
    assert not unfinished(run(loop, one.run())).any()
    assert one.censored is None


def test_a_replay_can_be_aborted_at_its_very_first_moment(loop: VirtualLoop) -> None:
    one, samples = cut_at(loop, FakeEngine(loop), requests(0.0, 1.0), 0.0)
    assert one.censored is not None
    assert unfinished(samples).all()


@given(st.integers(0, 5_000), st.data())
@settings(max_examples=50)
def test_what_is_cut_off_is_the_beginning_of_the_whole(cut_ms: int, data: st.DataObject) -> None:
    step = st.integers(0, 2000).map(lambda ms: ms / 1000) | st.integers(0, 3)
    scripts = {row: data.draw(st.lists(step, max_size=6)) for row in range(4)}
    prepared = [
        PreparedRequest(
            at_s, [1], sum(step for step in scripts[row] if isinstance(step, int)) or 1
        )
        for row, at_s in enumerate([0.0, 0.25, 0.25, 4.0])
    ]

    def cut(at_s: float) -> RequestSamples:
        loop = VirtualLoop()
        return cut_at(loop, FakeEngine(loop, scripts), prepared, at_s)[1]

    # Between two whole ms, so that nothing happens at the very same time.
    at_s = (cut_ms + 0.5) / 1000
    part, whole = cut(at_s), cut(1e6)
    seen = whole.first_token_s <= at_s
    np.testing.assert_array_equal(part.first_token_s, np.where(seen, whole.first_token_s, np.nan))
    assert (np.nan_to_num(part.last_token_s) <= at_s).all()
    assert (part.output_tokens <= whole.output_tokens).all()
    assert (whole.failed | ~part.failed).all()
    ended = ~unfinished(part)
    np.testing.assert_array_equal(part.output_tokens[ended], whole.output_tokens[ended])


def test_a_watch_says_when_a_limit_is_lost(loop: VirtualLoop) -> None:
    engine = FakeEngine(loop, default=(3600.0, 2))
    one = Replay(requests(0.0, 1.0, 50.0), engine, salt="salt", clock=loop.time)
    look = one.watch(parse_budget("ttft_max:1500"), ())
    seen: list[Lost | None] = []

    def abort_if_lost() -> None:
        seen.append(look())
        if (lost := seen[-1]) is not None:
            one.abort(lost)

    for at_s in (1.25, 1.75):
        loop.call_later(at_s, abort_if_lost)
    run(loop, one.run())
    lost = Lost("ttft_max", 1500.0, 1750.0)
    assert seen == [None, lost]
    assert one.censored == Censored(lost, cut_s=1.75, requests=3, sent=2, ended=0)


def test_before_the_start_a_watch_sees_nothing_and_relative_limits_are_refused(
    loop: VirtualLoop,
) -> None:
    one = Replay(requests(0.0), FakeEngine(loop), salt="salt", clock=loop.time)
    assert one.watch(parse_budget("ttft_p95:1 itl_p99:1"), ())() is None
    with pytest.raises(ObjectiveError):
        one.watch(parse_budget("ttft_p95:0.9x"), ())
    run(loop, one.run())
