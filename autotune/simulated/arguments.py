"""Which engine arguments a simulation can follow, and what vLLM would object to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from autotune.candidates.lattice import SEQS, TOKENS
from autotune.candidates.live import THRESHOLD
from autotune.simulated.profile import OF_THE_HOST, Profile
from autotune.simulated.profile_schema import MOST_TOKENS

_SIZES = (TOKENS, SEQS, "max_model_len")
_SWITCHES = (
    "async_scheduling",
    "enable_chunked_prefill",
    "enable_prefix_caching",
    "scheduler_reserve_full_isl",
)
POLICIES = ("fcfs", "priority")

HONOURED = frozenset({*_SIZES, THRESHOLD, *_SWITCHES, "scheduling_policy", "watermark"})
"""Engine arguments that a simulation follows, whatever was measured."""

WITHOUT_EFFECT = frozenset({"load_format", "model", "seed", "skip_tokenizer_init", "tokenizer"})
"""Engine arguments that change no step."""

CARRIED = (
    "dtype",
    "quantization",
    "max_model_len",
    "block_size",
    "gpu_memory_utilization",
    "kv_cache_memory_bytes",
    "num_gpu_blocks_override",
    "tensor_parallel_size",
    "enable_expert_parallel",
    "enforce_eager",
    "async_scheduling",
    "enable_chunked_prefill",
    "enable_prefix_caching",
    "long_prefill_token_threshold",
    "scheduling_policy",
    "scheduler_reserve_full_isl",
    "watermark",
    "stream_interval",
)
"""Engine arguments that an engine must have to be like the profile's: those of its steps, its
memory and its schedule. vLLM's defaults for them depend on version, model and machine."""


def carried(resolved: Mapping[str, Any]) -> dict[str, Any]:
    """Return which of an engine's arguments are to be given to one that shall be like it."""
    return {name: resolved[name] for name in CARRIED if resolved.get(name) is not None}


def unlike(profile: Profile, engine_args: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is given of which the profile tells nothing, a sentence each."""
    name_of, measured = profile.name, profile.info.resolved
    longest = profile.info.max_model_len
    if (obstacle := profile.info.forecast_obstacle) is not None:
        yield f"the engine of the profile {name_of} cannot be simulated: {obstacle}"
    for name, value in engine_args.items():
        if name in WITHOUT_EFFECT or value is None:
            continue
        if name not in measured and name not in HONOURED:
            why = "names its machine" if name in OF_THE_HOST else "was not measured with it"
            yield f"{name} cannot be simulated: the profile {name_of} {why}"
        elif name not in HONOURED and value != measured[name]:
            yield (
                f"{name}={value} cannot be simulated: the profile {name_of} was measured with "
                f"{name}={measured[name]}"
            )
        elif name == "max_model_len" and isinstance(value, int) and value > longest:
            yield (
                f"max_model_len={value} cannot be simulated: the profile {name_of} was measured "
                f"with requests of up to {longest} tokens"
            )


def objections(resolved: Mapping[str, Any]) -> Iterator[str]:
    """Yield why vLLM would refuse arguments, in its words as far as it has some.

    Only of those that a simulation follows.
    """
    wrong = list(_ill_typed(resolved))
    yield from wrong
    if wrong:
        return
    tokens, seqs, longest = (resolved[name] for name in _SIZES)
    if tokens < longest and not resolved.get("enable_chunked_prefill", True):
        yield (
            f"{TOKENS} ({tokens}) is smaller than max_model_len ({longest}). This effectively "
            f"limits the maximum sequence length to {TOKENS} and makes vLLM reject longer "
            f"sequences. Please increase {TOKENS} or decrease max_model_len."
        )
    if tokens < seqs:
        yield f"{TOKENS} ({tokens}) must be greater than or equal to {SEQS} ({seqs})."


def _ill_typed(resolved: Mapping[str, Any]) -> Iterator[str]:
    for name in (*_SIZES, THRESHOLD):
        value, least = resolved.get(name, 0), 0 if name == THRESHOLD else 1
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            yield f"{name} must be a whole number of at least {least}, not {value!r}"
        elif name in {TOKENS, SEQS} and value > MOST_TOKENS:
            yield f"{name} cannot be simulated beyond {MOST_TOKENS}"
    for name in _SWITCHES:
        value = resolved.get(name, False)
        if not isinstance(value, bool):
            yield f"{name} must be true or false, not {value!r}"
    share = resolved.get("watermark", 0.0)
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share < 1:
        yield f"watermark must be a number from 0 to below 1, not {share!r}"
    policy = resolved.get("scheduling_policy", POLICIES[0])
    if policy not in POLICIES:
        yield f"scheduling_policy must be one of {', '.join(POLICIES)}, not {policy!r}"
