from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.errors import TraceError
from autotune.traffic.fit import fitted
from autotune.traffic.model import Trace, TraceRequest
from tests.autotune.traffic.examples import request, trace

SHORT = request(0.0, prompt=100, output=10)
LONG = request(1.0, prompt=1500, output=100, hash_ids=(1, 2, 3))


def test_what_fits_is_left_alone() -> None:
    given_trace = trace(SHORT, LONG)
    assert all(fitted(given_trace, 1600, p) is given_trace for p in ("error", "skip", "truncate"))


def test_an_error_names_the_ways_out() -> None:
    with pytest.raises(TraceError, match="1 of 2 requests are longer") as caught:
        fitted(trace(SHORT, LONG), 1599, "error")
    assert "the longest has 1600 tokens" in caught.value.message
    for way in ("max_model_len=1600", "--too-long skip", "--too-long truncate"):
        assert way in caught.value.hint


@pytest.mark.parametrize(
    ("allowed", "hint"),
    [
        (None, "give --engine-arg max_model_len=1600, leave them out"),
        (1599, "the model allows no more than 1599: leave them out"),
        (1600, "give --engine-arg max_model_len=1600, leave them out"),
    ],
)
def test_no_hint_goes_beyond_the_model(allowed: int | None, hint: str) -> None:
    with pytest.raises(TraceError) as caught:
        fitted(trace(SHORT, LONG), 800, "error", allowed=allowed)
    assert caught.value.hint.startswith(hint)


def test_skip_leaves_out_and_counts() -> None:
    fit = fitted(trace(SHORT, LONG, request(2.0)), 1599, "skip")
    assert [r.timestamp_ms for r in fit.requests] == [0.0, 2000.0]
    assert fit.notes.sentences() == ["Requests longer than max_model_len 1599, left out: 1."]
    assert fit.meta.requests == 2


def test_truncate_keeps_the_output_and_the_start_of_the_prompt() -> None:
    given_trace = trace(SHORT, TraceRequest(1e3, 1500, 100, (1, 2, 3), cached_tokens=1024))
    fit = fitted(given_trace, 1000, "truncate")
    assert fit.requests == (SHORT, TraceRequest(1e3, 900, 100, (1, 2), cached_tokens=900))
    assert fit.notes.sentences() == ["Requests longer than max_model_len 1000, cut to it: 1."]


def test_an_output_that_leaves_no_room_is_cut_as_well() -> None:
    fit = fitted(trace(LONG), 50, "truncate")
    assert [(r.input_length, r.output_length, r.hash_ids) for r in fit.requests] == [(1, 49, (1,))]


@pytest.mark.parametrize("policy", ["skip", "truncate"])
def test_nothing_left_is_refused(policy: str) -> None:
    with pytest.raises(TraceError, match="test: no request fits into max_model_len 1") as caught:
        fitted(trace(SHORT), 1, "skip" if policy == "skip" else "truncate")
    assert caught.value.hint == "give --engine-arg max_model_len=128"


def test_nothing_left_of_what_cannot_be_had_longer_needs_other_traffic() -> None:
    with pytest.raises(TraceError) as caught:
        fitted(trace(LONG), 10, "skip", allowed=1599)
    assert caught.value.hint == "replay traffic whose requests are shorter"
    with pytest.raises(TraceError) as caught:
        fitted(trace(LONG), 10, "skip", allowed=1600)
    assert caught.value.hint == "give --engine-arg max_model_len=1600"


LENGTHS = st.lists(st.tuples(st.integers(1, 300), st.integers(1, 300)), min_size=1, max_size=12)


def of_lengths(lengths: list[tuple[int, int]]) -> Trace:
    """Prompts that all begin alike, in blocks of 16."""
    requests = [
        TraceRequest(float(at), prompt, output, tuple(range(-(-prompt // 16))))
        for at, (prompt, output) in enumerate(lengths)
    ]
    return trace(*requests, block_size=16)


@settings(max_examples=60)
@given(LENGTHS, st.integers(2, 700))
def test_whatever_is_left_fits_and_still_shares(
    lengths: list[tuple[int, int]], limit: int
) -> None:
    given_trace = of_lengths(lengths)
    fit = fitted(given_trace, limit, "truncate")
    assert fit.longest_request <= limit
    assert fit.timestamps_s.tolist() == given_trace.timestamps_s.tolist()
    for before, after in zip(given_trace.requests, fit.requests, strict=True):
        assert len(after.hash_ids) == -(-after.input_length // 16)
        assert before.hash_ids[: len(after.hash_ids)] == after.hash_ids
        assert after.output_length == min(before.output_length, limit - 1)
        fits = before.input_length + before.output_length <= limit
        assert (after == before) == fits
    assert fitted(fit, limit, "error") is fit


@settings(max_examples=60)
@given(LENGTHS, st.integers(2, 700))
def test_skip_keeps_exactly_what_fits(lengths: list[tuple[int, int]], limit: int) -> None:
    given_trace = of_lengths(lengths)
    kept = [r for r in given_trace.requests if r.input_length + r.output_length <= limit]
    if not kept:
        with pytest.raises(TraceError):
            fitted(given_trace, limit, "skip")
        return
    fit = fitted(given_trace, limit, "skip")
    assert list(fit.requests) == kept
    assert fit.notes.skipped == len(lengths) - len(kept)
