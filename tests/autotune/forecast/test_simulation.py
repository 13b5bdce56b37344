"""The clock of a simulation, and what a client would have seen."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.candidates.lattice import SEQS, TOKENS
from autotune.forecast.simulation import STEADY, EngineShape, Simulated, Times, Traffic, simulate
from autotune.traffic.model import Trace, TraceRequest
from objectives.arrays import F8
from tests.autotune.forecast.clock import a_second_each

SMALL = EngineShape(kv_blocks=9, block_size=4)
WIDE = {TOKENS: 64, SEQS: 8}


def run(
    *rows: tuple[float, int, int],
    shape: EngineShape = SMALL,
    times: Times | None = None,
    candidate: dict[str, int] | None = None,
    jitter: F8 = STEADY,
) -> Simulated:
    """Simulate requests of arrival in seconds, prompt and output length; no two are alike."""
    requests = [
        TraceRequest(at_s * 1e3, prompt, output, tuple(range(100 * n, 100 * n + -(-prompt // 4))))
        for n, (at_s, prompt, output) in enumerate(rows)
    ]
    trace = Trace.build(requests, block_size=4, prefixes_known=True, source="made up")
    traffic = Traffic.of(trace, shape)
    return simulate(traffic, times or a_second_each(), shape, candidate or WIDE, jitter=jitter)


def test_tokens_come_at_the_ends_of_steps() -> None:
    samples = run((0.0, 4, 3), (0.5, 4, 1)).samples
    assert samples.first_token_s.tolist() == [1.0, 2.0]
    assert samples.last_token_s.tolist() == [3.0, 2.0]
    assert samples.gap_s.tolist() == [1.0, 1.0]
    assert samples.gap_request.tolist() == [0, 0]
    assert samples.sent_s.tolist() == samples.scheduled_s.tolist() == [0.0, 0.5]
    assert samples.cached_tokens.tolist() == [0, 0]


def test_an_idle_engine_begins_when_somebody_comes() -> None:
    done = run((0.0, 4, 1), (7.25, 4, 1))
    assert done.steps.planned_s.tolist() == [0.0, 7.25]
    assert done.samples.first_token_s.tolist() == [1.0, 8.25]


def test_the_client_has_its_tokens_a_little_later_but_as_far_apart() -> None:
    late = EngineShape(kv_blocks=9, block_size=4, delivery_s=0.25)
    samples = run((0.0, 4, 3), shape=late).samples
    assert samples.first_token_s.tolist() == [1.25]
    assert samples.last_token_s.tolist() == [3.25]
    assert samples.gap_s.tolist() == [1.0, 1.0]


def test_who_fits_nowhere_has_failed_without_a_token() -> None:
    samples = run((0.0, 40, 2), (0.0, 4, 2)).samples
    assert samples.failed.tolist() == [True, False]
    assert samples.output_tokens.tolist() == [0, 2]
    assert np.isnan(samples.first_token_s).tolist() == [True, False]
    assert np.isnan(samples.last_token_s).tolist() == [True, False]
    assert samples.gap_request.tolist() == [1]


def test_if_nobody_fits_there_is_no_step() -> None:
    done = run((0.0, 40, 2), (3.0, 40, 2))
    assert len(done.steps) == 0
    assert done.samples.failed.all()
    assert done.samples.gap_s.size == 0


def test_who_found_no_room_makes_it_for_others_at_once() -> None:
    """Of the lowest priority, it gives way to itself, and nobody computes in that step."""
    shape = EngineShape(kv_blocks=9, block_size=2, priority=True, whole_prompt=False)
    requests = [TraceRequest(0.0, 13, 1, (1,) * 4, priority=1)]
    requests += [TraceRequest(2e3, 1, 4, (2,), priority=0)]
    trace = Trace.build(requests, block_size=4, prefixes_known=True, source="made up")
    candidate = {TOKENS: 3, SEQS: 3, "long_prefill_token_threshold": 2}
    done = simulate(Traffic.of(trace, shape), a_second_each(), shape, candidate)
    assert not done.samples.failed.any()
    # Which is none of those that are told of, as in vLLM's own records.
    assert done.steps.preemptions.sum() == 0
    assert done.samples.last_token_s[1] == 6.0
    assert done.steps.prefill_tokens.sum() == 12 + 13 + 1


def test_with_two_in_flight_the_host_works_while_a_step_runs() -> None:
    times = a_second_each(host_s=0.375, between_s=0.5)
    one = run((0.0, 4, 3), times=times)
    assert one.steps.done_s.tolist() == [1.0, 2.5, 4.0]
    two = run((0.0, 4, 3), shape=EngineShape(kv_blocks=9, in_flight=2), times=times)
    # Both are planned at once; what the host does for the second is hidden by the first.
    assert two.steps.planned_s.tolist() == [0.0, 0.0, 1.0]
    assert two.steps.done_s.tolist() == [1.0, 1.625, 2.25]


def test_a_step_takes_what_its_parts_say() -> None:
    times = a_second_each(kv_token_s=0.25, pair_s=0.5, request_s=8.0)
    steps = run((0.0, 3, 2), times=times).steps
    # Three tokens with 1 + 2 + 3 pairs and one request, then a token with four of context.
    assert np.diff([0.0, *steps.done_s]).tolist() == [1.0 + 3.0 + 8.0, 1.0 + 1.0]


def test_jitter_is_taken_in_turn() -> None:
    steps = run((0.0, 4, 4), jitter=np.array([1.0, 2.0, 4.0])).steps
    assert np.diff([0.0, *steps.done_s]).tolist() == [1.0, 2.0, 4.0, 1.0]


def test_tables_go_on_as_over_their_last_doubling() -> None:
    times = a_second_each(mixed_s=np.array([0.0, 1.0, 2.0, 3.0, 6.0]))
    # From 2 for two tokens to 6 for four.
    assert run((0.0, 6, 1), times=times).steps.done_s.tolist() == [6.0 + 2.0 * 2]


def test_the_steps_say_how_full_the_cache_is() -> None:
    steps = run((0.0, 7, 3)).steps
    assert steps.kv_usage.tolist() == [2 / 8, 2 / 8, 3 / 8]


def test_starved_of_blocks_all_end_and_some_compute_anew() -> None:
    done = run(*[(0.0, 8, 12)] * 5)
    assert done.steps.preemptions.sum() > 0
    assert not done.samples.failed.any()
    assert done.steps.prefill_tokens.sum() > 5 * 8


def test_what_the_prefix_cache_has_is_neither_computed_nor_paid_for() -> None:
    shape = EngineShape(kv_blocks=99, block_size=4, caching=True)
    requests = [TraceRequest(at_ms, 16, 1, (1, 2, 3, 4)) for at_ms in (0.0, 5e3)]
    trace = Trace.build(requests, block_size=4, prefixes_known=True, source="made up")
    times = a_second_each(mixed_s=np.arange(65.0))
    done = simulate(Traffic.of(trace, shape), times, shape, WIDE)
    assert done.samples.cached_tokens.tolist() == [0, 12]
    assert done.steps.prefill_tokens.tolist() == [16, 4]
    assert (done.steps.done_s - done.steps.planned_s).tolist() == [16.0, 4.0]


def test_ranks_only_count_by_priority() -> None:
    requests = [TraceRequest(0.0, 4, 1, (n,), priority=-n) for n in range(3)]
    trace = Trace.build(requests, block_size=4, prefixes_known=True, source="made up")
    assert Traffic.of(trace, SMALL).load.rank.tolist() == [0, 0, 0]
    by_priority = EngineShape(kv_blocks=9, priority=True)
    assert Traffic.of(trace, by_priority).load.rank.tolist() == [0, -1, -2]


@pytest.mark.parametrize("in_flight", [1, 2])
def test_more_steps_than_there_was_room_for_at_first(in_flight: int) -> None:
    shape = EngineShape(kv_blocks=2000, in_flight=in_flight)
    done = run((0.0, 4, 5000), shape=shape)
    assert len(done.steps) == 5000
    assert done.steps.done_s.tolist() == np.arange(1.0, 5001.0).tolist()


rows = st.lists(
    st.tuples(st.integers(0, 6).map(float), st.integers(1, 30), st.integers(1, 12)),
    min_size=1,
    max_size=8,
).map(sorted)
candidates = st.fixed_dictionaries({TOKENS: st.integers(1, 40), SEQS: st.integers(1, 6)})


@given(rows, candidates, st.integers(1, 2), st.sampled_from((9, 99)))
def test_samples_and_steps_tell_of_the_same_tokens(
    given_rows: list[tuple[float, int, int]],
    candidate: dict[str, int],
    in_flight: int,
    kv_blocks: int,
) -> None:
    shape = EngineShape(kv_blocks=kv_blocks, block_size=4, in_flight=in_flight)
    done = run(*given_rows, shape=shape, candidate=candidate)
    samples, steps = done.samples, done.steps
    most = samples.prompt_tokens + samples.expected_output_tokens - 1
    fits = -(-most // 4) < kv_blocks
    assert np.array_equal(samples.failed, ~fits)
    assert np.array_equal(samples.output_tokens, samples.expected_output_tokens * fits)
    counts = np.bincount(samples.gap_request, minlength=len(samples))
    assert np.array_equal(counts, np.maximum(samples.output_tokens - 1, 0))
    # All that a request waits between its tokens lies between its first and its last.
    waits = np.bincount(samples.gap_request, weights=samples.gap_s, minlength=len(samples))
    spans = samples.last_token_s - samples.first_token_s
    assert waits[fits] == pytest.approx(spans[fits])
    assert (samples.first_token_s[fits] > samples.sent_s[fits]).all()
    assert set(samples.first_token_s[fits]) <= set(steps.done_s)
    # Steps do not overlap, and none begins after its end.
    assert (np.diff(steps.done_s) >= 1.0).all()
    assert (steps.planned_s < steps.done_s).all()
    computed = (steps.prefill_tokens + steps.decode_requests).sum()
    # With room for all, nothing is computed anew.
    assert computed == most[fits].sum() or (kv_blocks == 9 and computed > most[fits].sum())


@given(rows)
def test_two_in_flight_are_as_fast_as_one_where_nobody_has_to_wait(
    given_rows: list[tuple[float, int, int]],
) -> None:
    at_once = [(0.0, prompt, output) for _, prompt, output in given_rows]
    ends = [
        run(*at_once, shape=EngineShape(kv_blocks=999, in_flight=n)).samples.last_token_s
        for n in (1, 2)
    ]
    assert ends[0].tolist() == ends[1].tolist()
