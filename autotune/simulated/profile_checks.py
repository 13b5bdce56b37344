"""What a profile may say: a file that somebody edited must not end a study in the middle."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from autotune.simulated.profile import Profile

_LARGEST = 1e15
_LONGEST_S = 86400.0
_LONGEST_NAME = 100
_WHOLE = ("max_num_batched_tokens", "max_num_seqs", "max_model_len", "block_size")
_SECONDS = ("kv_token_s", "pair_s", "request_s", "host_s", "host_request_s", "between_s")


def check_values(data: Mapping[str, Any]) -> None:
    """Refuse numbers that are none, and text that cannot be written.

    Raises:
        ValueError: there is such a value; says where.
    """
    for place, value in _leaves(data, ""):
        if isinstance(value, str):
            _require(value.isprintable() or "\n" in value, f"{place} is no text")
        elif isinstance(value, int | float):
            _require(math.isfinite(value) and abs(value) <= _LARGEST, f"{place} is out of range")


def check_profile(profile: Profile) -> None:
    """Refuse what no engine can be like.

    Raises:
        ValueError: says what is wrong.
    """
    _require(0 < len(profile.name) <= _LONGEST_NAME, f"its name has over {_LONGEST_NAME} letters")
    for name in ("delivery_s", "start_s"):
        seconds = getattr(profile, name)
        _require(0 <= seconds <= _LONGEST_S, f"{name} is not between 0 and {_LONGEST_S:.0f}")
    noise, times, info = profile.noise, profile.step_times, profile.info
    _require(max(noise.run, noise.step) < 1, "noise.run and noise.step are shares below 1")
    _require(0 < noise.stall_factor <= 1000, "noise.stall_factor is not above 0, up to 1000")
    for name in _WHOLE:
        value = info.resolved.get(name, 1)
        _require(type(value) is int and value > 0, f"resolved.{name} is no whole number from 1")
    tokens = info.kv_cache_tokens
    _require(type(tokens) is int and tokens > 0, "info.kv_cache_tokens is no number from 1")
    _require(min(times.max_tokens, times.max_seqs) > 0, "step_times has no sizes")
    for name in ("decode", "mixed"):
        seconds_of = getattr(times, name).y
        _require(bool(np.all(seconds_of > 0)), f"step_times.{name} has steps that take no time")
        _require(bool(np.all(seconds_of < _LONGEST_S)), f"step_times.{name} has endless steps")
    for name in _SECONDS:
        _require(0 <= getattr(times, name) < 1, f"step_times.{name} is not between 0 and 1")
    _require(0 <= times.error < 10, "step_times.error is not between 0 and 10")


def _leaves(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _leaves(each, f"{place}.{key}" if place else str(key))
    elif isinstance(value, list):
        for each in value:
            yield from _leaves(each, place)
    else:
        yield place, value


def _require(held: bool, otherwise: str) -> None:
    if not held:
        raise ValueError(otherwise)
