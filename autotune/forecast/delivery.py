"""How long tokens are on their way from the engine to the client."""

from __future__ import annotations

import numpy as np

from objectives.arrays import F8, I8
from objectives.samples import RequestSamples
from objectives.steps import Steps


def delivery_s(steps: Steps, samples: RequestSamples) -> float:
    """Return the median of the times from the end of a step until a client has its first token.

    The step is that which completes the prompt: prompts are computed in the order in which they
    were sent. Where the tokens do not add up to that (after preemptions, by priority, with a
    long-prefill threshold), it is the latest one before the token that computed any prompt, which
    finds less than there was if that one was another's. 0 if no token came after a step.
    """
    first_s = samples.first_token_s
    came = np.isfinite(first_s)
    last = _completing(steps, samples)
    if last is None or np.any(first_s[came] < steps.done_s[last[came]]):
        return _since_latest(steps, first_s[came])
    return float(np.median(first_s[came] - steps.done_s[last[came]])) if came.any() else 0.0


def _completing(steps: Steps, samples: RequestSamples) -> I8 | None:
    """Return the step that completes each prompt, [requests]; None if the sums differ."""
    own = samples.prompt_tokens - samples.cached_tokens
    if not len(steps) or own.sum() != steps.prefill_tokens.sum():
        return None
    order = np.argsort(samples.sent_s, kind="stable")
    last = np.empty_like(order)
    last[order] = np.searchsorted(np.cumsum(steps.prefill_tokens), np.cumsum(own[order]))
    return last


def _since_latest(steps: Steps, first_s: F8) -> float:
    done_s = steps.done_s[steps.prefill_tokens > 0]
    before = np.searchsorted(done_s, first_s, side="right") - 1
    known = before >= 0
    return float(np.median(first_s[known] - done_s[before[known]])) if known.any() else 0.0
