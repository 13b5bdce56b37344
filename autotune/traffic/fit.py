"""What becomes of requests that are longer than the engine allows."""

from __future__ import annotations

from dataclasses import replace

from autotune.errors import TraceError
from autotune.settings import TooLong
from autotune.traffic.inspect import enough_model_len
from autotune.traffic.model import ReadNotes, Trace, TraceRequest, blocks_of


def fitted(
    trace: Trace,
    max_model_len: int,
    policy: TooLong,
    *,
    allowed: int | None = None,
    allowed_by: str = "the model",
) -> Trace:
    """Return traffic whose prompts fit into ``max_model_len`` together with their outputs.

    Arrivals stay as they are. A request that is truncated keeps its output, and its prompt
    loses its end, so that what it shared with others it still shares. Only where the output
    alone leaves no room is the prompt one token and the output cut as well.

    Args:
        trace: the traffic; returned as it is if everything fits.
        max_model_len: of the engine, in tokens.
        policy: ``error`` refuses, ``skip`` leaves out, ``truncate`` cuts.
        allowed: the largest ``max_model_len`` that can be had, so that no hint goes beyond it;
            None if unknown.
        allowed_by: what does not allow more.

    Raises:
        TraceError: something is too long and the policy is ``error``, or nothing is left.
    """
    lengths = trace.input_lengths + trace.output_lengths
    too_long = int((lengths > max_model_len).sum())
    if not too_long:
        return trace
    if policy == "error":
        raise TraceError(
            f"{too_long} of {len(trace.requests)} requests are longer than the engine's "
            f"max_model_len of {max_model_len}; the longest has {trace.longest_request} tokens",
            hint=f"{_longer(trace, allowed, allowed_by)}leave them out with --too-long skip, or "
            "cut them with --too-long truncate",
        )
    notes = replace(trace.notes, max_model_len=max_model_len)
    if policy == "skip":
        kept = [r for r in trace.requests if r.input_length + r.output_length <= max_model_len]
        skipped = replace(notes, skipped=notes.skipped + too_long)
        return _rebuilt(trace, kept, skipped, allowed)
    block_size = trace.meta.block_size
    # A prompt token and an output token are the least that a request has.
    cut = (
        [_truncated(r, max_model_len, block_size) for r in trace.requests]
        if max_model_len > 1
        else []
    )
    truncated = replace(notes, truncated=notes.truncated + too_long)
    return _rebuilt(trace, cut, truncated, allowed)


def _longer(trace: Trace, allowed: int | None, allowed_by: str) -> str:
    """Return the beginning of a hint: the ``max_model_len`` that is enough, if it can be had."""
    if allowed is not None and allowed < trace.longest_request:
        return f"{allowed_by} allows no more than {allowed}: "
    return f"give --engine-arg max_model_len={_enough(trace, allowed)}, "


def _enough(trace: Trace, allowed: int | None) -> int:
    return enough_model_len(trace.longest_request, model_allows=allowed)


def _truncated(request: TraceRequest, max_model_len: int, block_size: int) -> TraceRequest:
    if request.input_length + request.output_length <= max_model_len:
        return request
    output = min(request.output_length, max_model_len - 1)
    prompt = max_model_len - output
    cached = request.cached_tokens
    return replace(
        request,
        input_length=prompt,
        output_length=output,
        hash_ids=request.hash_ids[: blocks_of(prompt, block_size)],
        cached_tokens=None if cached is None else min(cached, prompt),
    )


def _rebuilt(
    trace: Trace, requests: list[TraceRequest], notes: ReadNotes, allowed: int | None
) -> Trace:
    if not requests:
        within = allowed is None or allowed >= trace.longest_request
        raise TraceError(
            f"{trace.meta.source}: no request fits into max_model_len {notes.max_model_len}",
            hint=f"give --engine-arg max_model_len={_enough(trace, allowed)}"
            if within
            else "replay traffic whose requests are shorter",
        )
    return trace.with_requests(requests, notes)
