from __future__ import annotations

import numpy as np
import pytest

from autotune.forecast.simulation import Simulated
from autotune.simulated.cutting import cut_at_loss
from objectives.censoring import unfinished
from objectives.limits import parse_budget
from objectives.samples import RequestSamples
from objectives.steps import COLUMNS, Steps


def replay_of(firsts_s: list[float], *, gap_s: float = 0.1, tokens: int = 5) -> Simulated:
    """A request each 0.5 s whose first token comes after so many seconds; steps of 0.1 s."""
    count = len(firsts_s)
    scheduled_s = np.arange(count, dtype=np.float64) * 0.5
    first_s = scheduled_s + np.array(firsts_s)
    lengths = np.full(count, tokens)
    samples = RequestSamples(
        scheduled_s=scheduled_s,
        sent_s=scheduled_s,
        first_token_s=first_s,
        last_token_s=first_s + gap_s * (tokens - 1),
        prompt_tokens=np.full(count, 100),
        output_tokens=lengths,
        expected_output_tokens=lengths,
        cached_tokens=np.full(count, 16),
        failed=np.zeros(count, dtype=np.bool_),
        gap_s=np.full(count * (tokens - 1), gap_s),
        gap_request=np.repeat(np.arange(count), tokens - 1),
    )
    rows = np.zeros((200, len(COLUMNS)))
    rows[:, COLUMNS.index("done_s")] = 0.1 * np.arange(1, 201)
    return Simulated(samples, Steps.from_rows(rows))


def test_a_replay_that_keeps_its_budget_is_whole() -> None:
    whole = replay_of([0.1] * 20)
    samples, steps, why = cut_at_loss(whole, parse_budget("ttft_p95:200"), ())
    assert why is None
    assert samples is whole.samples
    assert steps is whole.steps


def test_the_first_look_after_the_loss_ends_it() -> None:
    # Two of twenty are certain to be above once the second has waited for 200 ms, at 2.2 s.
    whole = replay_of([0.1] * 3 + [0.4, 0.1] + [0.4] + [0.1] * 14)
    samples, steps, why = cut_at_loss(whole, parse_budget("ttft_p95:200"), ())
    assert why is not None
    assert why.cut_s == 3.0
    assert why.lost.key == "ttft_p95"
    assert why.lost.at_least_ms > 200
    assert (why.sent, why.requests) == (7, 20)
    assert steps.done_s.max() == pytest.approx(3.0)
    assert unfinished(samples).sum() == 20 - why.ended


def test_what_had_come_by_then_is_kept_as_it_was() -> None:
    whole = replay_of([0.1] * 3 + [0.4, 0.1] + [0.4] + [0.1] * 14)
    samples, _, why = cut_at_loss(whole, parse_budget("ttft_p95:200"), ())
    assert why is not None
    ended = ~unfinished(samples)
    before = whole.samples
    np.testing.assert_allclose(samples.last_token_s[ended], before.last_token_s[ended])
    assert np.nanmax(samples.last_token_s) <= why.cut_s
    assert np.isnan(samples.sent_s[why.sent :]).all()
    assert samples.output_tokens[why.sent :].sum() == 0
    assert samples.cached_tokens[-1] == 0
    assert samples.gap_s.size == np.maximum(samples.output_tokens - 1, 0).sum()
    assert not samples.failed.any()


def test_gaps_lose_a_budget_too() -> None:
    whole = replay_of([0.1] * 20, gap_s=0.3)
    _, _, why = cut_at_loss(whole, parse_budget("itl_p50:200"), ())
    assert why is not None
    assert why.lost.key == "itl_p50"


def test_a_loss_that_shows_when_all_has_ended_cuts_nothing() -> None:
    whole = replay_of([0.3], gap_s=0.05)
    _, _, why = cut_at_loss(whole, parse_budget("ttft_p95:200"), ())
    assert why is None


def test_a_request_without_any_token_stays_open() -> None:
    whole = replay_of([0.1] * 20)
    nan = np.where(np.arange(20) == 2, np.nan, 1.0)
    late = whole.samples.select(np.ones(20, dtype=np.bool_))
    silent = RequestSamples.from_arrays(
        {
            **late.to_arrays(),
            "first_token_s": late.first_token_s * nan,
            "last_token_s": late.last_token_s * nan,
            "output_tokens": np.where(np.arange(20) == 2, 0, late.output_tokens),
            "failed": np.arange(20) == 2,
            "gap_s": late.gap_s[late.gap_request != 2],
            "gap_request": late.gap_request[late.gap_request != 2],
        }
    )
    samples, _, why = cut_at_loss(Simulated(silent, whole.steps), parse_budget("ttft_max:300"), ())
    assert why is not None
    assert why.cut_s == 2.0
    assert unfinished(samples)[2]
