from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.traffic.replay import PreparedRequest, Replay, RequestFailed
from objectives.samples import RequestSamples
from tests.autotune.traffic.virtual_time import VirtualLoop, run

Step = float | int | Exception


class EngineDead(Exception):
    """The engine, not a request, is gone."""


@dataclass
class FakeEngine:
    """Answers each request by a script: floats are seconds of waiting, ints deliveries.

    Attributes:
        answers: the script of each row; ``default`` for the others.
        calls: what was asked for, in order, with the time.
    """

    loop: VirtualLoop
    answers: Mapping[int, Sequence[Step]] = field(default_factory=dict)
    default: Sequence[Step] = (0.5, 1, 0.25, 1)
    cached: Mapping[int, int] = field(default_factory=dict)
    calls: list[tuple[float, tuple[str, str, int, int, int]]] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)

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
