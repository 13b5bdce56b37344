"""Whether chunked prefill is in effect for given traffic and engine arguments, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from autotune.study.kv_fit import whole_number
from autotune.traffic.model import Trace

ChunkingCode = Literal["in_effect", "off", "budget_holds_all", "prompts_shorter", "unknown"]


@dataclass(frozen=True, slots=True)
class Chunking:
    """What becomes of the prompts of a trace.

    Attributes:
        code: ``in_effect``; ``off`` by argument, or because vLLM has it off for the model;
            ``budget_holds_all`` if a chunk may be as long as any request; ``prompts_shorter`` if
            only this trace's prompts are; ``unknown`` without a step budget.
        chunk_tokens: the most tokens of one prompt in one step, None if unknown.
        prompts_over: prompts longer than that, None if unknown.
    """

    code: ChunkingCode
    chunk_tokens: int | None
    prompts_over: int | None


def chunking_of(trace: Trace, arguments: Mapping[str, Any]) -> Chunking:
    """Compare the prompts of a trace with what one step takes of a prompt.

    Args:
        trace: the traffic.
        arguments: of the engine, as vLLM resolves them; without ``enable_chunked_prefill`` it is
            taken to be on, as it is by default.
    """
    chunk = _chunk_tokens(arguments)
    if chunk is None:
        return Chunking("unknown", None, None)
    over = int(np.sum(trace.input_lengths > chunk))
    return Chunking(_code(arguments, chunk, over), chunk, over)


def _code(arguments: Mapping[str, Any], chunk: int, over: int) -> ChunkingCode:
    if arguments.get("enable_chunked_prefill") is False:
        return "off"
    if over:
        return "in_effect"
    longest = whole_number(arguments, "max_model_len")
    return "budget_holds_all" if longest is not None and chunk >= longest else "prompts_shorter"


def _chunk_tokens(arguments: Mapping[str, Any]) -> int | None:
    """Return the least of the limits on a prompt's part of a step; 0 and None are no limits."""
    budget = whole_number(arguments, "max_num_batched_tokens")
    if budget is None:
        return None
    further = ("max_num_scheduled_tokens", "long_prefill_token_threshold")
    limits = (whole_number(arguments, name) for name in further)
    return min([budget, *(limit for limit in limits if limit is not None)])
