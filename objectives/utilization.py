"""Useful work per busy second: what an engine is worth while it has something to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self, get_args

import numpy as np

from objectives.arrays import F8
from objectives.errors import ObjectiveError
from objectives.samples import RequestSamples
from objectives.steps import Steps

WorkSource = Literal["vllm", "shape"]


@dataclass(frozen=True, slots=True)
class Work:
    """What a model computes, in floating point operations over all of its GPUs.

    Attributes:
        flops_per_token: of the linear layers, for each token that is computed.
        flops_per_pair: of attention, for each computed token with each token up to itself.
        flops_per_sample: of the output layer, for each request with a part in a step.
        source: ``vllm`` if vLLM's own accounting gave them, ``shape`` if the model's shape.

    Raises:
        ObjectiveError: a figure is negative or not finite, or a token costs nothing.
    """

    flops_per_token: float
    flops_per_pair: float
    flops_per_sample: float
    source: WorkSource

    def __post_init__(self) -> None:
        figures = (self.flops_per_token, self.flops_per_pair, self.flops_per_sample)
        if not all(0 <= each < np.inf for each in figures) or not self.flops_per_token:
            raise ObjectiveError(f"no model computes {figures} FLOPs a token, pair and sample.")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Build from what ``to_json`` gave; raises ``ObjectiveError`` on anything else."""
        figures = ("flops_per_token", "flops_per_pair", "flops_per_sample")
        try:
            numbers = [float(data[name]) for name in figures]
            source: WorkSource = data["source"]
        except (KeyError, TypeError, ValueError) as error:
            raise ObjectiveError(f"this is no account of a model's work: {data!r}.") from error
        if source not in get_args(WorkSource):
            raise ObjectiveError(f"work is known from vLLM or the model's shape, not {source!r}.")
        token, pair, sample = numbers
        return cls(token, pair, sample, source)


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


def prefix_hit_rate(samples: RequestSamples) -> float | None:
    """Share of prompt tokens that the prefix cache served, 0 to 1; None if no prompt was read.

    As ``vllm:prefix_cache_hits`` over ``vllm:prefix_cache_queries``, without what is read again
    after a preemption. The prompt of a request without any token is left out.
    """
    begun = ~np.isnan(samples.first_token_s)
    prompt = int(samples.prompt_tokens[begun].sum())
    return float(samples.cached_tokens[begun].sum() / prompt) if prompt else None


def tokens_per_busy_s(samples: RequestSamples) -> float | None:
    """Useful tokens per busy second; None if the engine was never busy."""
    busy = busy_s(samples)
    return useful_tokens(samples) / busy if busy > 0 else None


def useful_flops(samples: RequestSamples, work: Work) -> float:
    """Operations that had to be done, each once, whatever the engine did.

    The prompt is computed but for its cached prefix, which is still attended to. Each output
    token but the last is computed too, and attends to all before it and itself. Every output
    token is sampled. Recomputing after a preemption, padding and the discarded samples of
    prompt chunks earn nothing; nor does a request without any token.
    """
    begun = ~np.isnan(samples.first_token_s) & (samples.output_tokens > 0)
    prompt, output = samples.prompt_tokens[begun], samples.output_tokens[begun]
    cached = np.minimum(samples.cached_tokens[begun], prompt)
    last = (prompt + output - 1).astype(np.float64)
    tokens = float((last - cached).sum())
    pairs = float((last * (last + 1) / 2 - cached * (cached + 1) / 2).sum())
    return (
        tokens * work.flops_per_token
        + pairs * work.flops_per_pair
        + float(output.sum()) * work.flops_per_sample
    )


def step_flops(steps: Steps, work: Work) -> F8:
    """Operations that each step executed, [steps]; those that a preemption repeats included."""
    pairs = steps.prefill_pairs + steps.decode_kv_tokens
    flops: F8 = (
        steps.tokens * work.flops_per_token
        + pairs * work.flops_per_pair
        + steps.requests * work.flops_per_sample
    )
    return flops


def utilization(samples: RequestSamples, work: Work, best_flops_per_s: float) -> float | None:
    """Useful operations over those that the busy seconds had room for; None if never busy.

    Args:
        samples: one replay.
        work: of the model that was replayed.
        best_flops_per_s: the best that this engine was seen to do, over all of its GPUs, by the
            same account; one figure for all that is compared.

    Raises:
        ObjectiveError: the best is not positive.
    """
    if not best_flops_per_s > 0:
        raise ObjectiveError(f"the best FLOP/s must be positive, not {best_flops_per_s:g}.")
    busy = busy_s(samples)
    return useful_flops(samples, work) / (busy * best_flops_per_s) if busy > 0 else None
