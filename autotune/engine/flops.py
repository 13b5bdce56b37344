"""What a model computes, by the accounting of the vLLM that runs it.

Runs in the engine host only. The accounting needs a configuration, neither an engine nor a GPU.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from autotune.hardware.model_flops import work_by_shape
from objectives.errors import ObjectiveError
from objectives.utilization import Work

Count = Callable[[int, int, bool], float]
"""FLOPs of one request in one step: tokens, context after the step, whether it is a prefill."""

TOLERANCE = 0.01
"""By how much the account may miss what vLLM counts."""

_MODULE = "vllm.v1.metrics.perf"
_ATTENTION = frozenset({"attn", "mla_attn"})
_OTHERS = frozenset({"ffn", "unembed"})

# The accounting reads fields of configs that other people write, and checks few of them.
_FAULTS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    NotImplementedError,
    TypeError,
    ValueError,
)


def work_of(config: Any) -> Work | None:
    """Return what a model computes, None where neither vLLM nor its shape says.

    vLLM's account is taken if it knows attention, feed-forward and output layer of the model and
    is linear in tokens, attention pairs and samples; it is not where a sliding window is shorter
    than the longest request. Otherwise the model's shape is counted.

    Args:
        config: a ``VllmConfig``.
    """
    longest = int(config.model_config.max_model_len)
    try:
        counted = _vllm_count(config)
        found = None if counted is None else fit(counted, longest)
    except _FAULTS:
        found = None
    if found is not None:
        return found
    shape = work_by_shape(config.model_config.hf_config.to_dict(), max_model_len=longest)
    return shape if isinstance(shape, Work) else None


def fit(count: Count, longest: int) -> Work | None:
    """Return the account that a count follows; None if it misses the count by over 1 %.

    vLLM counts attention as tokens × context, in a prefill too: there that is twice what is
    needed, because a token attends to none after it. A decoding token does attend to all of its
    context, so the figure for a pair is taken from decoding, and pairs are counted as they are.

    Args:
        count: what vLLM counts, over all GPUs.
        longest: the longest context that is looked at.
    """
    if longest < 2:
        return None
    pair = (count(1, longest, False) - count(1, 1, False)) / (longest - 1)
    token = count(2, 2, True) - count(1, 2, True) - 2 * pair
    sample = count(1, 1, False) - token - pair
    try:
        work = Work(token, pair, sample, "vllm")
    except ObjectiveError:
        return None
    return work if all(_agrees(work, count, *probe) for probe in _probes(longest)) else None


def _probes(longest: int) -> Iterator[tuple[int, int, bool]]:
    context = longest
    while context:
        for tokens in sorted({1, (context + 1) // 2, context}):
            yield tokens, context, True
            yield tokens, context, False
        context //= 4


def _agrees(work: Work, count: Count, tokens: int, context: int, prefill: bool) -> bool:
    """Whether the account gives what vLLM counts: a prefill has one sample, decoding one each."""
    expected = (
        tokens * work.flops_per_token
        + tokens * context * work.flops_per_pair
        + (1 if prefill else tokens) * work.flops_per_sample
    )
    counted = count(tokens, context, prefill)
    return abs(expected - counted) <= TOLERANCE * counted


def _vllm_count(config: Any) -> Count | None:
    """Return vLLM's count, None if this vLLM has none or knows a part of the model only."""
    try:
        from vllm.v1.metrics.perf import ExecutionContext, ModelMetrics
    except ImportError:
        return None
    with _silent(logging.getLogger(_MODULE)):
        metrics = ModelMetrics(config)
    known = {metric.component_type() for metric in metrics.metrics}
    if not (known >= _OTHERS and known & _ATTENTION):
        return None

    def count(tokens: int, context: int, prefill: bool) -> float:
        step = ExecutionContext.from_single_request(tokens, context, prefill)
        return float(metrics.get_num_flops(step, per_gpu=False))

    return count


@contextmanager
def _silent(logger: logging.Logger) -> Iterator[None]:
    """Keep a line for each component, with all of its figures, out of the engine's log."""
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)
