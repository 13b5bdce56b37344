"""Useful work per busy second: what an engine is worth while it has something to do."""

from __future__ import annotations

import numpy as np

from objectives.samples import RequestSamples


def busy_s(samples: RequestSamples) -> float:
    """Seconds in which at least one request was unfinished.

    The length of the union of [sent, last token] over all requests. A failed request counts
    to its last token, not at all if it had none.
    """
    sent = samples.sent_s[~np.isnan(samples.sent_s)]
    last = samples.last_token_s[~np.isnan(samples.sent_s)]
    if not sent.size:
        return 0.0
    order = np.argsort(sent, kind="stable")
    start, end = sent[order], np.fmax(last, sent)[order]
    covered_to = np.concatenate([[start[0]], np.maximum.accumulate(end)[:-1]])
    return float(np.maximum(end - np.maximum(start, covered_to), 0.0).sum())


def useful_tokens(samples: RequestSamples) -> int:
    """Tokens that had to be computed: prompt − cached + output, summed over requests.

    Work that a preemption repeats counts once. The prompt of a request without any token is
    left out, because how much of it was computed is unknown.
    """
    begun = ~np.isnan(samples.first_token_s)
    prompt = np.maximum(samples.prompt_tokens - samples.cached_tokens, 0)
    return int(prompt[begun].sum() + samples.output_tokens.sum())


def tokens_per_busy_s(samples: RequestSamples) -> float | None:
    """Useful tokens per busy second; None if the engine was never busy."""
    busy = busy_s(samples)
    return useful_tokens(samples) / busy if busy > 0 else None
