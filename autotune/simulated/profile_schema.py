"""What the JSON of a profile may hold, value by value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from autotune.errors import in_plain_words
from objectives.errors import nearest
from objectives.utilization import WorkSource

MOST_TOKENS = 2**20
"""Of one step, and requests in it: hundreds of times what engines are given, and still a table."""

_LONGEST_REQUEST = 2**24
_MOST_KV_TOKENS = 2**30
_LONGEST_S = 86400.0
_LONGEST_NAME = 100
_LONGEST_TEXT = 2000
_LARGEST = 1e15


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("must be a text on one line that can be shown")
    return text


def _block_size(tokens: int) -> int:
    if tokens % 16 and tokens not in {1, 2, 4, 8}:
        raise ValueError("must be 1, 2, 4, 8 or a multiple of 16")
    return tokens


def _ascending(counts: list[float]) -> list[float]:
    if any(right <= left for left, right in pairwise(counts)):
        raise ValueError("must rise from each value to the next")
    return counts


def _never_falling(seconds: list[float]) -> list[float]:
    for left, right in pairwise(seconds):
        if right < left:
            raise ValueError(f"must never fall: {right:g} comes after {left:g}")
    return seconds


_Text = Annotated[str, Field(max_length=_LONGEST_TEXT), AfterValidator(_printable)]
_Name = Annotated[str, Field(min_length=1, max_length=_LONGEST_NAME), AfterValidator(_printable)]
_Seconds = Annotated[float, Field(ge=0, le=_LONGEST_S)]
_Short = Annotated[float, Field(ge=0, lt=1)]
_Share = Annotated[float, Field(ge=0, lt=1)]
_Amount = Annotated[float, Field(ge=0, le=_LARGEST)]
_Count = Annotated[int, Field(ge=1, le=MOST_TOKENS)]
_Range = Annotated[list[Annotated[int, Field(ge=0, le=MOST_TOKENS)]], Field(min_length=2)]
_Sizes = Annotated[list[_Count], AfterValidator(_ascending)]
_Takes = Annotated[float, Field(gt=0, lt=_LONGEST_S)]
_Parallel = Annotated[int, Field(ge=1, le=MOST_TOKENS)]


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class _Origin(_Part):
    device: _Text
    vllm_version: _Text
    model: _Text
    date: _Text
    words: _Text


class _Noise(_Part):
    run: _Share = 0.0
    step: _Share = 0.0
    stalls: Annotated[float, Field(ge=0, le=1)] = 0.0
    stall_factor: Annotated[float, Field(gt=0, le=1000)] = 1.0


class _Work(_Part):
    flops_per_token: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    flops_per_pair: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    flops_per_sample: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    source: WorkSource


class _Resolved(_Part):
    """The arguments that a simulation goes by; vLLM has many more."""

    model_config = ConfigDict(extra="allow")

    max_num_batched_tokens: _Count
    max_num_seqs: _Count
    max_model_len: Annotated[int, Field(ge=1, le=_LONGEST_REQUEST)]
    block_size: Annotated[int, Field(ge=1, le=4096), AfterValidator(_block_size)] = 16
    long_prefill_token_threshold: Annotated[int, Field(ge=0, le=_LONGEST_REQUEST)] = 0
    async_scheduling: bool | None = None
    enable_chunked_prefill: bool | None = None
    enable_prefix_caching: bool | None = None
    scheduler_reserve_full_isl: bool | None = None
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    watermark: _Share | None = None
    tensor_parallel_size: _Parallel = 1
    pipeline_parallel_size: _Parallel = 1
    data_parallel_size: _Parallel = 1
    decode_context_parallel_size: _Parallel = 1
    prefill_context_parallel_size: _Parallel = 1
    prefill_schedule_interval: _Parallel = 1
    long_prefill_token_threshold_adaptive: bool | None = None


class _Info(_Part):
    vllm_version: _Text
    torch_version: _Text
    device: _Text
    device_uuids: list[_Text]
    model: _Text
    resolved: _Resolved
    vocab_size: Annotated[int, Field(ge=1, le=_LONGEST_REQUEST)]
    kv_cache_tokens: Annotated[int, Field(ge=1, le=_MOST_KV_TOKENS)]
    capture_sizes: _Sizes
    live_obstacle: _Text | None = None
    work: _Work | None
    forecast_obstacle: _Text | None = None


class _Curve(_Part):
    x: Annotated[
        list[Annotated[float, Field(gt=0, le=MOST_TOKENS)]],
        Field(min_length=1),
        AfterValidator(_ascending),
    ]
    y: Annotated[list[_Takes], Field(min_length=1), AfterValidator(_never_falling)]

    @model_validator(mode="after")
    def _pairs(self) -> Self:
        if len(self.x) != len(self.y):
            raise ValueError(f"has {len(self.x)} values of x and {len(self.y)} of y")
        return self


class _Known(_Part):
    tokens: Annotated[_Range, Field(max_length=2)]
    decode_requests: Annotated[_Range, Field(max_length=2)]
    decode_context: _Amount
    prefill_context: _Amount


class _StepTimes(_Part):
    decode: _Curve
    mixed: _Curve
    capture_sizes: _Sizes
    max_tokens: _Count
    max_seqs: _Count
    kv_token_s: _Short
    pair_s: _Short
    request_s: _Short
    host_s: _Short
    host_request_s: _Short
    between_s: _Short
    between_request_s: _Short
    error: Annotated[float, Field(ge=0, lt=10)]
    known: _Known


class _Profile(_Part):
    version: Literal[1]
    name: _Name
    measured_on: _Origin
    delivery_s: _Seconds
    noise: _Noise
    start_s: _Seconds
    info: _Info
    step_times: _StepTimes


def objection(data: Mapping[str, Any]) -> str | None:
    """Return the first that is wrong with the JSON of a profile, by its key; None if nothing."""
    try:
        _Profile.model_validate(data)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)
        # A misspelt key is missing as well, and the more telling of the two faults.
        return _worded(min(found, key=lambda each: each["type"] != "extra_forbidden"), found)
    return next(_beyond(data, ""), None)


def _worded(fault: Mapping[str, Any], found: list[Any]) -> str:
    *outer, last = fault["loc"]
    place = _place(fault["loc"])
    if fault["type"] == "missing":
        return f"it has no {place}"
    if fault["type"] == "extra_forbidden":
        missing = [
            str(each["loc"][-1])
            for each in found
            if each["type"] == "missing" and list(each["loc"][:-1]) == outer
        ]
        near = nearest(str(last), missing)
        return f"it has an unknown key {place}" + (f" ({near.rstrip('.')})" if near else "")
    if fault["type"] == "model_type":
        return f"{place} must be an object with keys"
    plain = in_plain_words(fault["msg"].removeprefix("Value error, "))
    return f"{place} {plain.partition(' after validation')[0]}"


def _place(loc: tuple[str | int, ...]) -> str:
    """Return the key with those above it; of a list the place, counted from 1."""
    keys = [str(each) if isinstance(each, str) else f"({each + 1})" for each in loc]
    return ".".join(keys).replace(".(", " (")


def _beyond(value: Any, place: str) -> Iterator[str]:
    """Yield which values that no part names nothing can be made of."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _beyond(each, f"{place}.{key}" if place else str(key))
    elif isinstance(value, list):
        for each in value:
            yield from _beyond(each, place)
    elif isinstance(value, str):
        if not value.isprintable():
            yield f"{place} must be a text on one line that can be shown"
    elif value is not None and not -_LARGEST <= value <= _LARGEST:
        yield f"{place} must be from {-_LARGEST:g} to {_LARGEST:g}"
