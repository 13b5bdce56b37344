"""What a checkup found, in sentences: each with a name, and whether it is as it should be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from autotune.hardware.model_shape import EngineDecides, Layers
from autotune.study.checkup import Checkup, Traffic
from autotune.study.kv_fit import ASSUMED_TPOT_MS, ASSUMED_TTFT_MS, Need

FindingState = Literal["ok", "open", "warn", "fail"]

FULL_SHARE = 0.9
"""What the peak may take of the cache before it is called tight."""

WIDE_FACTOR = 4
"""How many times what the trace needs ``max_model_len`` may be without a word."""

RATIO_TOLERANCE = 0.02

_KINDS = {
    "full": "full attention",
    "sliding": "sliding window",
    "chunked": "attention in chunks",
    "latent": "latent attention",
    "recurrent": "recurrent, no KV cache",
    "shared": "sharing another layer's cache",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One sentence or more about one matter.

    ``open`` means that nobody knows yet, and ``fail`` that it will not work like this.
    """

    name: str
    state: FindingState
    sentence: str


def findings_of(checkup: Checkup) -> tuple[Finding, ...]:
    """Return all findings, in the order in which they are best read."""
    return tuple(found for each in _CHECKS if (found := each(checkup)) is not None)


def size(count: int) -> str:
    """Return bytes with a binary unit, with a decimal where they are no whole number of it."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= factor:
            shown = (
                f"{count / factor:.1f}".removesuffix(".0") if count % factor else count // factor
            )
            return f"{shown} {unit}"
    return f"{count} bytes"


def layers_text(layers: Layers) -> str:
    """Return layers of one kind in words: ``32 full attention (8 KV heads × 128)``."""
    text = f"{layers.count} {_KINDS[layers.kind]}"
    if layers.window is not None:
        text += f" of {layers.window}"
    if layers.kind == "latent":
        return f"{text} ({layers.head_size} numbers)"
    if layers.kv_heads:
        heads = "KV head" if layers.kv_heads == 1 else "KV heads"
        text += f" ({layers.kv_heads} {heads} × {layers.head_size})"
    return text


def _vllm(checkup: Checkup) -> Finding | None:
    engine = checkup.engine
    if engine.failure is not None:
        return Finding("engine", "fail", f"The engine did not start: {engine.failure}.")
    if engine.info is None:
        sentence = "There is no vLLM here to ask for its defaults, so only what you give is known."
        return Finding("engine", "open", sentence)
    return None


def _bill(checkup: Checkup) -> Finding:
    bill = checkup.bill
    if isinstance(bill, EngineDecides):
        return Finding("kv_bill", "open", f"The engine decides what a token costs: {bill.reason}.")
    sentence = f"One token costs {size(bill.bytes_per_token)} of KV cache"
    if bill.tensor_parallel_size > 1:
        sentence += f" on each of {bill.tensor_parallel_size} GPUs"
    if bill.window_bytes:
        beyond = bill.bytes_per_token_unbounded
        sentence += f", and beyond the windows {size(beyond) if beyond else 'nothing more'}"
    if bill.keeps_state:
        sentence += "; each sequence has a state besides, whose size the engine decides"
    return Finding("kv_bill", "ok", sentence + ".")


def _cache(checkup: Checkup) -> Finding:
    reported, estimated = checkup.engine.reported_tokens, checkup.estimated_tokens
    if reported is not None:
        sentence = f"The engine reports room for {reported:,} tokens"
        if estimated is None:
            return Finding("kv_cache", "ok", sentence + ".")
        ratio = estimated / reported if reported else float("inf")
        state: FindingState = "ok" if abs(ratio - 1) <= RATIO_TOLERANCE else "warn"
        return Finding(
            "kv_cache",
            state,
            f"{sentence}; the estimate is {estimated:,}, {ratio:.3f} times that.",
        )
    if estimated is not None:
        return _estimated(checkup, estimated)
    if isinstance(checkup.pool, EngineDecides) and checkup.engine.number("kv_cache_memory_bytes"):
        reason = f"The engine decides how many tokens fit: {checkup.pool.reason}."
        return Finding("kv_cache", "open", reason + " Add --start to ask one.")
    return Finding(
        "kv_cache",
        "open",
        "How many tokens fit is known once an engine has measured its memory: add --start, or "
        "fix the memory with --engine-arg kv_cache_memory_bytes=….",
    )


def _estimated(checkup: Checkup, tokens: int) -> Finding:
    pool, memory_bytes = checkup.pool, checkup.engine.number("kv_cache_memory_bytes") or 0
    sentence = f"{size(memory_bytes)} of KV cache hold about {tokens:,} tokens (estimate)."
    longest = checkup.engine.number("max_model_len") or 0
    if isinstance(pool, EngineDecides) or pool.request_blocks(longest) < pool.blocks_in(
        memory_bytes
    ):
        return Finding("kv_cache", "ok", sentence)
    needed = size(pool.request_bytes(longest))
    return Finding(
        "kv_cache",
        "fail",
        f"{sentence} One request of max_model_len {longest} needs {needed}, so the engine will "
        "refuse to start: lower max_model_len, or give the cache more memory.",
    )


def _model_len(checkup: Checkup) -> Finding | None:
    if checkup.traffic is None:
        return _own_maximum(checkup)
    longest, enough = checkup.traffic.trace.longest_request, checkup.traffic.enough_model_len
    context, chosen = _context(checkup), checkup.engine.number("max_model_len")
    if context is not None and longest > context:
        return Finding(
            "max_model_len",
            "fail",
            f"The longest request has {longest:,} tokens, and the model allows {context:,}: "
            "choose another --window, or another model.",
        )
    sentence = f"The longest request has {longest:,} tokens: max_model_len={enough} is enough"
    cost = checkup.request_bytes(enough)
    sentence += "." if cost is None else f", and one such request costs {size(cost)}."
    if chosen is not None and longest > chosen:
        refused = f"{sentence} Yours is {chosen:,}, so the engine would refuse that request."
        return Finding("max_model_len", "fail", refused)
    return _wide_model_len(checkup, sentence, enough, chosen or context)


def _wide_model_len(checkup: Checkup, sentence: str, enough: int, used: int | None) -> Finding:
    if used is None or used <= WIDE_FACTOR * enough:
        return Finding("max_model_len", "ok", sentence)
    sentence += f" As it is, {used:,} tokens are allowed"
    cost = checkup.request_bytes(used)
    sentence += "." if cost is None else f", at {size(cost)} for one request."
    return Finding("max_model_len", "warn", sentence)


def _context(checkup: Checkup) -> int | None:
    return None if isinstance(checkup.bill, EngineDecides) else checkup.bill.shape.context_tokens


def _own_maximum(checkup: Checkup) -> Finding | None:
    longest = _context(checkup)
    cost = checkup.request_bytes(longest)
    if cost is None:
        return None
    return Finding(
        "max_model_len",
        "ok",
        f"One request of the model's own maximum of {longest:,} tokens costs {size(cost)}. Give "
        "--trace to see what your traffic needs.",
    )


def _chunked_prefill(checkup: Checkup) -> Finding | None:
    if checkup.traffic is None:
        return None
    return Finding("chunked_prefill", "ok", _chunking_sentence(checkup.traffic))


def _chunking_sentence(traffic: Traffic) -> str:
    chunking, prompts = traffic.chunking, traffic.trace.input_lengths
    longest = int(prompts.max())
    if chunking.chunk_tokens is None or chunking.prompts_over is None:
        return (
            "Whether prefill is chunked depends on the step budget, which is not known here: "
            "give --engine-arg max_num_batched_tokens=…."
        )
    many = f"{chunking.prompts_over:,} of {len(prompts):,} prompts"
    step = f"the {chunking.chunk_tokens:,} tokens that one step takes of a prompt"
    if chunking.code == "off":
        return (
            "Chunked prefill is off (enable_chunked_prefill is false): a prompt waits until it "
            f"fits into a step as a whole. {many} are longer than {step}."
        )
    if chunking.code == "in_effect":
        return f"Chunked prefill is in effect: {many} are longer than {step}."
    if chunking.code == "budget_holds_all":
        return (
            f"Chunked prefill is on but not in effect: one step takes {chunking.chunk_tokens:,} "
            "tokens of a prompt, as much as the longest request that the engine allows. A prompt "
            "is split only where several queue for one step."
        )
    return (
        f"Chunked prefill is on but not in effect: the longest prompt has {longest:,} tokens, no "
        f"more than {step}. A prompt is split only where several queue for one step."
    )


def _fit(checkup: Checkup) -> Finding | None:
    if checkup.traffic is None:
        return None
    need, share = checkup.traffic.need, checkup.peak_share
    sentence = (
        f"If a request takes {ASSUMED_TTFT_MS:.0f} ms to its first token and "
        f"{ASSUMED_TPOT_MS:.0f} ms for each further one, at most {need.open_requests:,} are open "
        f"at once; those that run hold {need.tokens:,} tokens"
        f"{_in_blocks(checkup, need)}."
    )
    if share is None:
        return Finding("kv_fit", "ok", sentence)
    sentence += f" That is {share:.0%} of the cache."
    if share <= FULL_SHARE:
        return Finding("kv_fit", "ok", sentence)
    return Finding(
        "kv_fit",
        "warn",
        f"{sentence} Expect requests to wait or to be preempted: lower max_num_seqs, or give the "
        "cache more memory.",
    )


def _in_blocks(checkup: Checkup, need: Need) -> str:
    """Say in how many blocks they come, as each request leaves its last one empty in part."""
    if need.blocks is None or isinstance(checkup.pool, EngineDecides):
        return ""
    return f", in {need.blocks:,} blocks of up to {checkup.pool.rules.block_size} each"


_CHECKS: tuple[Callable[[Checkup], Finding | None], ...] = (
    _vllm,
    _bill,
    _cache,
    _model_len,
    _chunked_prefill,
    _fit,
)
