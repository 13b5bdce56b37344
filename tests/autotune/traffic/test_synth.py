from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from autotune.errors import UsageError
from autotune.traffic.inspect import describe
from autotune.traffic.model import Trace
from autotune.traffic.scenarios import SCENARIOS, Lengths
from autotune.traffic.synth import SHARED_PREFIXES, synthesize


def shared_share(trace: Trace) -> float:
    """Share of requests whose first block was seen in another request too."""
    first = [request.hash_ids[0] for request in trace.requests]
    return float(np.mean([first.count(each) > 1 for each in first]))


def test_the_first_requests_are_pinned() -> None:
    trace = synthesize("mixed", rate=8, duration_s=30, seed=1, block_size=512)
    assert [
        (r.timestamp_ms, r.input_length, r.output_length, r.hash_ids) for r in trace.requests[:4]
    ] == [
        (0.0, 398, 309, (0,)),
        (60.61, 160, 238, (1,)),
        (345.904, 270, 123, (2,)),
        (473.67, 289, 453, (3,)),
    ]


def test_same_arguments_same_bytes() -> None:
    one, two, other = (
        synthesize("mixed", rate=8, duration_s=60, seed=seed, burstiness=0.5, prefix_sharing=0.3)
        for seed in (5, 5, 6)
    )
    assert one == two
    assert one.sha256 != other.sha256


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_arrivals_have_the_rate_and_the_burstiness_asked_for(burstiness: float) -> None:
    trace = synthesize("short_chat", rate=10, duration_s=1200, seed=2, burstiness=burstiness)
    summary = describe(trace, classes=())
    assert trace.timestamps_s[0] == 0.0
    assert trace.duration_s < 1200
    assert len(trace.requests) / 1200 == pytest.approx(10, rel=0.05)
    assert summary.gap_cv == pytest.approx(burstiness**-0.5, rel=0.05)
    assert summary.dispersion_index is not None
    assert (summary.dispersion_index > 1.2) == (burstiness < 1)
    assert (summary.dispersion_index < 0.8) == (burstiness > 1)


@pytest.mark.parametrize(
    ("scenario", "median", "low", "high"),
    [("short_chat", 400, 32, 2000), ("long_documents", 6000, 2000, 30_000)],
)
def test_prompts_have_the_median_and_the_bounds(
    scenario: str, median: int, low: int, high: int
) -> None:
    lengths = synthesize(scenario, rate=10, duration_s=500, seed=3).input_lengths
    assert np.median(lengths) == pytest.approx(median, rel=0.05)
    assert low <= lengths.min()
    assert lengths.max() <= high
    assert np.mean(lengths == high) < 0.01


def test_mixed_has_its_share_of_documents() -> None:
    trace = synthesize("mixed", rate=10, duration_s=500, seed=4)
    assert np.mean(trace.input_lengths >= 2000) == pytest.approx(0.15, abs=0.02)
    short, long = describe(trace).classes
    assert short.share + long.share == 1.0


def test_rate_and_burstiness_leave_the_lengths_alone() -> None:
    slow = synthesize("mixed", rate=1, duration_s=100, seed=5)
    fast = synthesize("mixed", rate=9, duration_s=100, seed=5, burstiness=0.3)
    count = len(slow.requests)
    assert fast.input_lengths[:count].tolist() == slow.input_lengths.tolist()
    assert fast.output_lengths[:count].tolist() == slow.output_lengths.tolist()


def test_no_spread_gives_the_median() -> None:
    chat = SCENARIOS["short_chat"].chat
    fixed = replace(chat, prompt=replace(chat.prompt, sigma=0.0))
    trace = synthesize(replace(SCENARIOS["short_chat"], chat=fixed), rate=5, duration_s=20, seed=6)
    assert set(trace.input_lengths.tolist()) == {400}


def test_nothing_is_shared_unless_asked_for() -> None:
    trace = synthesize("mixed", rate=10, duration_s=60, seed=7)
    ids = [each for request in trace.requests for each in request.hash_ids]
    assert len(ids) == len(set(ids))


def test_prefixes_are_shared_as_often_as_asked_for() -> None:
    trace = synthesize("mixed", rate=10, duration_s=200, seed=8, prefix_sharing=0.4)
    assert shared_share(trace) == pytest.approx(0.4, abs=0.03)
    first = {r.hash_ids[0] for r in trace.requests if r.hash_ids[0] < 3000}
    assert len({each for each in first if each < SHARED_PREFIXES * 12}) == SHARED_PREFIXES
    assert trace.meta.prefixes_known
    for request in trace.requests:
        assert len(request.hash_ids) == -(-request.input_length // 16)


def test_blocks_too_large_to_share_are_refused() -> None:
    with pytest.raises(UsageError, match="too large to share") as caught:
        synthesize("mixed", rate=1, duration_s=10, prefix_sharing=0.5, block_size=512)
    assert caught.value.hint == "choose a smaller block size"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"rate": 0.0}, "the rate is 0"),
        ({"rate": float("nan")}, "the rate is nan"),
        ({"duration_s": -1.0}, "the duration is -1"),
        ({"duration_s": float("inf")}, "the duration is inf"),
        ({"burstiness": 0.0}, "the burstiness is 0"),
        ({"prefix_sharing": 1.5}, "the share of shared prefixes is 1.5"),
        ({"burstiness": 1e-300}, "the burstiness is 1e-300; it must be from 0.01 to 1e"),
        ({"burstiness": 1e300}, "the burstiness is 1e.300"),
        ({"burstiness": float("nan")}, "the burstiness is nan"),
        ({"rate": 5e-324}, "the rate is 4.9"),
        ({"rate": 1e-300, "duration_s": 1e300}, "the rate is 1e-300"),
        ({"duration_s": 1e300}, "the duration is 1e.300"),
        ({"duration_s": 1e-300}, "the duration is 1e-300"),
        ({"prefix_sharing": float("nan")}, "the share of shared prefixes is nan"),
        ({"block_size": 0}, "the block size is 0"),
        ({"block_size": 10_000_001}, "the block size is 10000001"),
        ({"rate": 1e6}, "more than 5 million"),
    ],
)
def test_impossible_arguments_are_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        synthesize("mixed", **{"rate": 1.0, "duration_s": 10.0, **changes})


def test_more_blocks_than_memory_holds_are_refused() -> None:
    long = Lengths(median=10_000_000, sigma=0.0, minimum=1, maximum=10_000_000)
    document = replace(SCENARIOS["mixed"].document, prompt=long)
    scenario = replace(SCENARIOS["mixed"], document_share=1.0, document=document)
    with pytest.raises(UsageError, match="blocks, more than 50 million") as caught:
        synthesize(scenario, rate=10, duration_s=10, block_size=1)
    assert caught.value.hint.startswith("choose a larger block size")


@pytest.mark.parametrize("burstiness", [0.01, 1e6])
def test_the_extremes_of_burstiness_end(burstiness: float) -> None:
    made = synthesize("short_chat", rate=10, duration_s=20, burstiness=burstiness)
    assert made.requests[0].timestamp_ms == 0.0
    assert made.duration_s < 20
