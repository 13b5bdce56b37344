"""Samples to measure."""

from __future__ import annotations

import numpy as np

from objectives.arrays import F8
from objectives.samples import RequestSamples


def from_deliveries(
    deliveries: list[list[float]],
    *,
    scheduled_s: list[float],
    prompt_tokens: list[int] | None = None,
    failed: list[bool] | None = None,
    send_lag_s: float = 0.0,
) -> RequestSamples:
    """Samples of requests whose tokens came one by one at the given seconds."""
    count = len(deliveries)
    output = np.array([len(each) for each in deliveries], dtype=np.int64)
    gaps = [np.diff(np.asarray(each, dtype=np.float64)) for each in deliveries]
    owner = np.repeat(np.arange(count), [each.size for each in gaps])
    return RequestSamples(
        scheduled_s=np.asarray(scheduled_s, dtype=np.float64),
        sent_s=np.asarray(scheduled_s, dtype=np.float64) + send_lag_s,
        first_token_s=np.array([each[0] if each else np.nan for each in deliveries]),
        last_token_s=np.array([each[-1] if each else np.nan for each in deliveries]),
        prompt_tokens=np.asarray(prompt_tokens or [100] * count, dtype=np.int64),
        output_tokens=output,
        expected_output_tokens=output,
        cached_tokens=np.zeros(count, dtype=np.int64),
        failed=np.asarray(failed or [False] * count, dtype=np.bool_),
        gap_s=np.concatenate(gaps) if gaps else np.zeros(0),
        gap_request=owner,
    )


def random_samples(
    requests: int, *, seed: int = 0, longest: int = 30, fail: float = 0.0
) -> RequestSamples:
    """A replay of chats and documents; some replies have one token, some requests fail."""
    rng = np.random.default_rng(seed)
    scheduled = np.sort(rng.uniform(0, requests / 10, requests))
    deliveries = [
        list(start + rng.exponential(0.3) + np.cumsum(rng.exponential(0.02, tokens)))
        for start, tokens in zip(scheduled, rng.integers(1, longest, requests), strict=True)
    ]
    prompts = np.where(rng.random(requests) < 0.15, 7000, 300)
    failed = rng.random(requests) < fail
    return from_deliveries(
        deliveries,
        scheduled_s=list(scheduled),
        prompt_tokens=list(prompts),
        failed=list(failed),
        send_lag_s=0.001,
    )


def mixed_lengths(requests: int, *, seed: int) -> F8:
    """Prompt lengths of 85 % chats around 300 tokens and 15 % documents of 6000 to 8000."""
    rng = np.random.default_rng(seed)
    document = rng.random(requests) < 0.15
    chats = rng.lognormal(np.log(300), 0.7, requests)
    return np.where(document, rng.uniform(6000, 8000, requests), chats)
