from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autotune.study.comparison import Difference, differences
from objectives.classes import parse_classes
from objectives.samples import RequestSamples
from tests.objectives.builders import random_samples

METRICS = ("ttft_mean", "ttft_p95", "tpot_p95", "itl_p99", "e2e_mean")


def later(samples: RequestSamples, seconds: float) -> RequestSamples:
    """Return the same answers, each begun so much later."""
    return replace(
        samples,
        first_token_s=samples.first_token_s + seconds,
        last_token_s=samples.last_token_s + seconds,
    )


def only(found: list[Difference]) -> Difference:
    (one,) = found
    return one


def test_equal_sides_do_not_differ() -> None:
    samples = random_samples(200)
    for each in differences([samples, samples], [samples, samples], METRICS):
        assert (each.difference, each.low, each.high) == (0.0, 0.0, 0.0)
        assert not each.shown


def test_what_meets_every_request_alike_is_known_exactly() -> None:
    samples = random_samples(200)
    ttft, tpot = differences([samples], [later(samples, 0.05)], ["ttft_p95", "tpot_p95"])
    assert [ttft.difference, ttft.low, ttft.high] == pytest.approx([50.0, 50.0, 50.0])
    assert ttft.shown
    assert ttft.share == pytest.approx(50.0 / (ttft.first or 0.0))
    assert tpot.difference == pytest.approx(0.0)


def test_the_order_of_the_sides_is_the_sign() -> None:
    first, second = random_samples(200, seed=1), random_samples(200, seed=2)
    there = only(differences([first], [second], ["ttft_mean"]))
    back = only(differences([second], [first], ["ttft_mean"]))
    assert there.difference == pytest.approx(-(back.difference or 0.0))
    assert there.low is not None
    assert back.high is not None
    assert there.low == pytest.approx(-back.high, rel=0.05)


def test_noise_between_replays_widens_the_interval() -> None:
    samples = random_samples(200)
    steady = only(differences([samples] * 2, [later(samples, 0.05)] * 2, ["ttft_mean"]))
    noisy = only(
        differences([samples, later(samples, 0.04)], [later(samples, 0.05)] * 2, ["ttft_mean"])
    )
    assert steady.shown
    assert noisy.low is not None
    assert noisy.high is not None
    assert noisy.low < 0 < noisy.high
    assert not noisy.shown
    # The noise of two replays 40 ms apart, by Student's t of two degrees: 2.92 sigma.
    sigma = np.sqrt((0.04**2 / 2 / 2) * (1 / 2 + 1 / 2)) * 1000
    assert noisy.high - 30 == pytest.approx(2.92 * sigma, rel=0.2)


def test_a_second_side_of_another_number_of_replays() -> None:
    samples = random_samples(50)
    found = only(differences([samples] * 3, [later(samples, 0.01)], ["ttft_mean"]))
    assert found.difference == pytest.approx(10.0)


def test_lost_requests_leave_nothing_to_subtract() -> None:
    whole = random_samples(100)
    lossy = replace(whole, failed=np.arange(100) < 20)
    found = only(differences([whole], [lossy], ["ttft_p95"]))
    assert found.second == np.inf
    assert (found.difference, found.low, found.high) == (None, None, None)
    few = replace(whole, failed=np.arange(100) == 50)
    found = only(differences([whole], [few], ["ttft_p50"]))
    assert found.difference is not None


def test_an_end_that_lost_requests_leave_open() -> None:
    whole = random_samples(100)
    # Some resamples draw the four twice, and then more than 5 % are lost.
    lossy = replace(whole, failed=np.abs(np.arange(100) - 50) < 2)
    found = only(differences([whole], [lossy], ["ttft_p95"]))
    assert found.difference is not None
    assert found.low is not None
    assert found.high is None
    assert not found.shown


def test_what_no_request_shows_is_missing() -> None:
    single = random_samples(30, longest=2)
    found = only(differences([single], [single], ["tpot_p95"]))
    assert found == Difference("tpot_p95", None, None, None, None, None)
    assert found.share is None


def test_classes_are_compared_alone() -> None:
    samples = random_samples(200)
    long = samples.prompt_tokens > 2000
    shifted = replace(
        samples,
        first_token_s=samples.first_token_s + 0.1 * long,
        last_token_s=samples.last_token_s + 0.1 * long,
    )
    classes = parse_classes("short:0-2000 long:2000-")
    short, slow = differences(
        [samples], [shifted], ["ttft_mean@short", "ttft_mean@long"], classes=classes
    )
    assert short.difference == 0.0
    assert slow.difference == pytest.approx(100.0)
