"""A replay with times that are no numbers is a failure, and no measurement."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autotune.engine.numbers import require_numbers
from autotune.engine.protocol import ReplayResult, TrialFailed, Warmup
from tests.autotune.study.scripted import clear_knee, samples_of, small_trace, steps_of

CANDIDATE = {"max_num_batched_tokens": 2048, "max_num_seqs": 64}
WHOLE = ReplayResult(
    samples=samples_of(clear_knee(CANDIDATE), small_trace()),
    steps=steps_of(CANDIDATE),
    warmup=Warmup(requests=0, passes=0, drift=None, seconds=0.0),
    replay_s=2.0,
    began_at=1.0,
    ended_at=3.0,
    errors=(),
)
SAMPLES, STEPS = WHOLE.samples, WHOLE.steps

SPOILT = {
    "gap_s": replace(WHOLE, samples=replace(SAMPLES, gap_s=SAMPLES.gap_s * np.nan)),
    "last_token_s": replace(
        WHOLE, samples=replace(SAMPLES, last_token_s=SAMPLES.last_token_s + np.inf)
    ),
    "done_s of steps": replace(WHOLE, steps=replace(STEPS, done_s=STEPS.done_s * np.nan)),
    "replay_s": replace(WHOLE, replay_s=float("nan")),
    "seconds of the warm-up": replace(WHOLE, warmup=replace(WHOLE.warmup, seconds=float("inf"))),
}


def test_a_replay_of_numbers_is_returned() -> None:
    assert require_numbers(WHOLE) is WHOLE


def test_a_request_that_never_came_back_is_no_fault() -> None:
    nothing = np.full(len(SAMPLES), np.nan)
    lost = replace(SAMPLES, sent_s=nothing, first_token_s=nothing, last_token_s=nothing)
    assert require_numbers(replace(WHOLE, samples=lost)).samples is lost


@pytest.mark.parametrize("what", SPOILT)
def test_one_with_others_fails_and_says_which(what: str) -> None:
    with pytest.raises(TrialFailed) as caught:
        require_numbers(SPOILT[what])
    failure = caught.value.failure
    assert failure.failure_class == "unknown"
    assert failure.evidence == f"the replay has times that are no numbers: {what}"
