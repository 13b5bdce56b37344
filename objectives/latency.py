"""Latencies of requests from the stamps of a replay, in ms.

The request is the user's: time runs from the moment when the trace wanted it sent, so that
queueing at the client counts, and a lost request (failed, or without any token) is infinitely
late instead of absent.
"""

from __future__ import annotations

import numpy as np

from objectives.arrays import F8, I8
from objectives.samples import RequestSamples


def ttft_ms(samples: RequestSamples) -> F8:
    """First token received − scheduled send time, per request; inf where lost."""
    value = (samples.first_token_s - samples.scheduled_s) * 1000
    return np.where(samples.lost, np.inf, value)


def tpot_ms(samples: RequestSamples) -> F8:
    """(Last token − first token) / (output tokens − 1), per request.

    NaN for a reply of fewer than 2 tokens, which has no such time; inf where lost.
    """
    steps = np.where(samples.output_tokens > 1, samples.output_tokens - 1, np.nan)
    value = (samples.last_token_s - samples.first_token_s) / steps * 1000
    return np.where(samples.lost, np.inf, value)


def e2e_ms(samples: RequestSamples) -> F8:
    """Last token received − scheduled send time, per request; inf where lost."""
    value = (samples.last_token_s - samples.scheduled_s) * 1000
    return np.where(samples.lost, np.inf, value)


def itl_ms(samples: RequestSamples) -> F8:
    """Gaps between token deliveries, pooled over requests.

    A lost request keeps the gaps that it had and adds one that is infinite: the wait for the
    delivery that never came. So the length is the number of gaps plus that of lost requests,
    and the infinite ones come last. ``itl_owner`` names the row of each.
    """
    return np.concatenate([samples.gap_s * 1000, np.full(int(samples.lost.sum()), np.inf)])


def itl_owner(samples: RequestSamples) -> I8:
    """Return the row of the request that each entry of ``itl_ms`` belongs to."""
    return np.concatenate([samples.gap_request, np.flatnonzero(samples.lost)])


def send_lag_ms(samples: RequestSamples) -> F8:
    """Sent − scheduled, per request: how late the client itself was; NaN if never sent."""
    return (samples.sent_s - samples.scheduled_s) * 1000
