"""Engine arguments that cannot be meant, whatever the installed vLLM says of the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.errors import UsageError

_MAX_COUNT = 2**31 - 1
_MAX_BYTES = 2**63 - 1

_COUNTS: Mapping[str, int] = {
    "block_size": _MAX_COUNT,
    "kv_cache_memory_bytes": _MAX_BYTES,
    "max_model_len": _MAX_COUNT,
    "max_num_batched_tokens": _MAX_COUNT,
    "max_num_seqs": _MAX_COUNT,
    "tensor_parallel_size": _MAX_COUNT,
}
_LEFT_TO_VLLM: Mapping[str, int | str] = {"max_model_len": -1}
_WORDS = ("dtype", "kv_cache_dtype")


def check_arguments(engine_args: Mapping[str, Any]) -> None:
    """Return if the arguments that a bill is made from can be meant; None is vLLM's default.

    Raises:
        UsageError: a number is none, or out of range; a name is no text.
    """
    for name, value in engine_args.items():
        if value is None or value == _LEFT_TO_VLLM.get(name):
            continue
        if name in _COUNTS and not _is_count(value, _COUNTS[name]):
            raise UsageError(
                f"--engine-arg {name}: {value!r} is no whole number from 1 to {_COUNTS[name]}",
                hint=f"leave {name} out for vLLM's own value",
            )
        if name in _WORDS and not isinstance(value, str):
            raise UsageError(
                f"--engine-arg {name}: {value!r} is no name of a type",
                hint=f"for example --engine-arg {name}=auto",
            )


def _is_count(value: object, most: int) -> bool:
    """Whether a value is a whole number in range; vLLM takes one in quotes, too."""
    if isinstance(value, str) and value.isdecimal() and len(value) <= len(str(most)):
        value = int(value)
    return type(value) is int and 1 <= value <= most
