from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.errors import TraceError, UsageError
from autotune.traffic.likeness import reused_share
from autotune.traffic.load import MOST_LOAD, SPACING_S, Load, compressed, superposed, thinned
from autotune.traffic.model import MAX_HASH_ID, Trace, TraceRequest
from autotune.traffic.recording import Gap
from autotune.traffic.trace import load_trace
from tests.autotune.traffic.examples import MOONCAKE, request, trace


def _lengths(built: Trace) -> list[tuple[int, int]]:
    return [(each.input_length, each.output_length) for each in built.requests]


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Up to 40 requests within 300 s, of which some begin alike."""
    at_s = st.floats(0, 300, allow_nan=False)
    chains = st.sampled_from([(7,), (7, 8), (7, 8, 9), (3,), (3, 1), (MAX_HASH_ID, 0)])
    rows = draw(st.lists(st.tuples(at_s, chains), min_size=2, max_size=40))
    return trace(
        *(
            request(at, prompt=512 * len(ids), output=n + 1, hash_ids=ids)
            for n, (at, ids) in enumerate(rows)
        )
    )


few = settings(max_examples=30)
factors = st.floats(0.05, 6, allow_nan=False)
seeds = st.integers(0, 2**31 - 1)


@few
@given(traces(), factors)
def test_compressing_keeps_everything_but_times(built: Trace, factor: float) -> None:
    changed = compressed(built, factor)
    np.testing.assert_allclose(changed.timestamps_s, built.timestamps_s / factor, atol=1e-9)
    assert _lengths(changed) == _lengths(built)
    assert [r.hash_ids for r in changed.requests] == [r.hash_ids for r in built.requests]


@few
@given(traces(), st.floats(1, 6, allow_nan=False), seeds)
def test_superposing_adds_copies(built: Trace, factor: float, seed: int) -> None:
    count = len(built.requests)
    if round(count * factor) == count:
        with pytest.raises(TraceError, match="changes none"):
            superposed(built, factor, seed=seed)
        return
    changed = superposed(built, factor, seed=seed)
    assert len(changed.requests) == count * int(factor) + round(count * (factor - int(factor)))
    copies = Counter(_lengths(changed))
    assert set(copies) == set(_lengths(built))
    assert all(int(factor) <= many <= int(factor) + 1 for many in copies.values())
    # What was recorded is still there, as it was.
    assert Counter(built.requests) <= Counter(changed.requests)
    period_s = built.duration_s * (1 + 1 / count)
    assert changed.duration_s <= period_s + 1e-9
    assert np.all(np.diff(changed.timestamps_s) >= 0)
    assert changed.notes.reordered == built.notes.reordered


@few
@given(traces(), seeds)
def test_a_copy_shares_within_itself_and_with_nobody(built: Trace, seed: int) -> None:
    changed = superposed(built, 2, seed=seed)
    known = set(built.requests)
    copied = [each for each in changed.requests if each not in known]
    own = {hash_id for each in built.requests for hash_id in each.hash_ids}
    fresh = {hash_id for each in copied for hash_id in each.hash_ids}
    assert own.isdisjoint(fresh)
    assert max(fresh) <= MAX_HASH_ID

    def pattern(requests: list[TraceRequest]) -> list[tuple[int, ...]]:
        ordered = sorted(requests, key=lambda each: each.output_length)
        names: dict[int, int] = {}
        return [tuple(names.setdefault(i, len(names)) for i in r.hash_ids) for r in ordered]

    assert pattern(copied) == pattern(list(built.requests))
    assert reused_share(changed) == pytest.approx(reused_share(built))


@few
@given(traces(), st.floats(0.01, 1, allow_nan=False), seeds)
def test_thinning_keeps_the_right_number_as_it_was(built: Trace, share: float, seed: int) -> None:
    wanted = round(len(built.requests) * share)
    if wanted in (0, len(built.requests)):
        with pytest.raises(TraceError):
            thinned(built, share, seed=seed)
        return
    changed = thinned(built, share, seed=seed)
    assert len(changed.requests) == wanted
    assert Counter(changed.requests) <= Counter(built.requests)


@few
@given(traces(), factors, seeds)
def test_the_same_seed_gives_the_same_bytes(built: Trace, factor: float, seed: int) -> None:
    if round(len(built.requests) * factor) in (0, len(built.requests)):
        return
    once, again = (Load.of(factor).apply(built, seed=seed) for _ in range(2))
    assert once.sha256 == again.sha256
    assert once.meta == again.meta


def test_another_seed_gives_other_traffic() -> None:
    built = trace(*(request(n * 1.5, hash_ids=(n,)) for n in range(40)))
    for factor in (0.5, 1.5):
        one, other = (Load.of(factor).apply(built, seed=seed) for seed in (0, 1))
        assert one.sha256 != other.sha256


def test_a_load_of_one_is_the_trace_itself() -> None:
    built = trace(request(0), request(1))
    for method in ("auto", "compress", "superpose", "thin"):
        assert Load.of(1, method).apply(built) is built


def test_a_window_is_cut_before_the_load() -> None:
    built = trace(*(request(n, hash_ids=(n,)) for n in range(100)))
    changed = Load.of(2).apply(built.window(20, 40))
    assert len(changed.requests) == 40
    assert changed.duration_s < 20 * (1 + 1 / 20)
    assert changed.meta.source == "test 20:40, load 2, superpose"


def test_copies_are_a_minute_apart_where_there_is_room() -> None:
    built = trace(*(request(n * 10.0, prompt=n + 1, hash_ids=(n,)) for n in range(400)))
    changed = superposed(built, 3, seed=5)
    known = set(built.requests)
    first = min(r.timestamp_ms for r in changed.requests if r.input_length == 1 and r not in known)
    assert abs(first / 1e3 - SPACING_S) <= SPACING_S / 4
    short = trace(*(request(n * 0.1, prompt=n + 1, hash_ids=(n,)) for n in range(100)))
    assert superposed(short, 5, seed=5).duration_s < 10.0


def test_whole_sessions_are_thinned() -> None:
    # Ten conversations of four turns each, begun by one system prompt.
    turns = [
        request(n + 40 * turn, hash_ids=(0, *range(100 * n + 1, 100 * n + 2 + turn)))
        for n in range(10)
        for turn in range(4)
    ]
    changed = thinned(trace(*turns, block_size=100), 0.5, seed=3)
    told = Counter(each.hash_ids[1] for each in changed.requests)
    assert sorted(told.values()) == [4, 4, 4, 4, 4]


def test_the_number_is_right_even_within_a_session() -> None:
    turns = [request(turn, hash_ids=tuple(range(turn + 1))) for turn in range(10)]
    kept = thinned(trace(*turns, block_size=100), 0.3, seed=0)
    assert [each.timestamp_ms for each in kept.requests] == [0.0, 1000.0, 2000.0]


def test_gaps_of_a_recording_move_with_the_requests() -> None:
    built = trace(request(0), request(10))
    gap = Gap(start_ms=4000.0, end_ms=6000.0, requests=3, reason="the disk was full")
    built = replace(built, meta=replace(built.meta, gaps=(gap,)))
    (moved,) = compressed(built, 2).meta.gaps
    assert (moved.start_ms, moved.end_ms, moved.requests) == (2000.0, 3000.0, 3)
    assert superposed(built, 2, seed=0).meta.gaps == (gap,)


def test_requests_at_one_instant_stay_there() -> None:
    built = trace(*(request(0.0, hash_ids=(n,)) for n in range(10)))
    assert Load.of(2).apply(built).duration_s == 0
    assert len(Load.of(0.5).apply(built).requests) == 5
    with pytest.raises(TraceError, match="all requests come at once"):
        Load.of(2, "compress").apply(built)


@pytest.mark.parametrize(
    "factor", [0.0, -1.0, float("nan"), float("inf"), -float("inf"), 1e9, MOST_LOAD + 1]
)
@pytest.mark.parametrize("method", ["auto", "compress", "superpose", "thin"])
def test_no_load_at_all_is_refused(factor: float, method: str) -> None:
    with pytest.raises(UsageError, match="must be above 0 and at most 100"):
        Load.of(factor, method)


def test_methods_that_cannot_reach_a_load_are_refused() -> None:
    with pytest.raises(UsageError, match="thin lowers a load, and 2 does not"):
        Load.of(2, "thin")
    with pytest.raises(UsageError, match=r"superpose raises a load, and 0\.5 does not"):
        Load.of(0.5, "superpose")
    with pytest.raises(UsageError, match="'squeeze'"):
        Load.of(2, "squeeze")


def test_a_load_that_leaves_nothing_is_refused() -> None:
    built = trace(*(request(n) for n in range(10)))
    with pytest.raises(TraceError, match=r"test: load 0\.0001 leaves none of 10 requests"):
        Load.of(0.0001).apply(built)
    with pytest.raises(TraceError, match=r"load 1\.0001 changes none of 10 requests"):
        Load.of(1.0001).apply(built)
    with pytest.raises(TraceError, match="load 1e-08 would stretch 9 s to more than a year"):
        Load.of(1e-8, "compress").apply(built)


def test_a_load_of_millions_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.traffic.load.MOST_REQUESTS", 100)
    with pytest.raises(TraceError, match="load 20 makes 200 requests of it, more than 100"):
        Load.of(20).apply(trace(*(request(n) for n in range(10))))


def test_the_sentence_says_what_changed() -> None:
    built = trace(*(request(n * 0.5, hash_ids=(n % 10,)) for n in range(101)))
    (said,) = Load.of(2, "compress").apply(built).notes.sentences()
    assert said == (
        "Load 2 by compressing time: 2.02 → 4.04 requests/s, dispersion at 1 s 0.0 → 0.0, "
        "at 10 s 0.0 → 0.0, reuse 90 → 90 %."
    )
    unknown = trace(*(request(n, hash_ids=(n,)) for n in range(5)), prefixes_known=False)
    (said,) = Load.of(0.5, "compress").apply(unknown).notes.sentences()
    assert said == (
        "Load 0.5 by stretching time: 1.25 → 0.625 requests/s, dispersion at 1 s 0.0 → 0.6, "
        "at 10 s unknown, reuse unknown."
    )


def test_earlier_notes_stay() -> None:
    built = trace(request(5), request(0), request(7))
    assert Load.of(2).apply(built).notes.sentences()[0] == (
        "Rows out of order, now sorted by time: 1."
    )


@pytest.mark.shared
def test_recorded_conversations_keep_their_reuse() -> None:
    built = load_trace(MOONCAKE).window(0, 500)
    before = reused_share(built)
    assert before is not None
    assert reused_share(superposed(built, 2, seed=0)) == pytest.approx(before)
    by_session = reused_share(thinned(built, 0.5, seed=0))
    # As many requests drawn one by one, from which conversations have holes.
    alone = built.with_requests(
        [r for n, r in enumerate(built.requests) if n * 7919 % 4001 % 2], built.notes
    )
    by_request = reused_share(alone)
    assert by_session is not None
    assert by_request is not None
    assert before - by_session < 0.03
    assert before - by_request > 2 * (before - by_session)
