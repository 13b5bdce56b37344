"""What controller and engine host say to each other, as values; knows nothing of vLLM."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from objectives.samples import RequestSamples

FailureClass = Literal[
    "oom_start",
    "no_kv_room",
    "refused_argument",
    "oom_run",
    "engine_dead",
    "hang",
    "start_timeout",
    "client_bound",
    "slow_spell",
    "endpoint",
    "unknown",
]

MODEL_FAULT = "cannot load the model"
"""How an objection begins that is not about the arguments."""

DETERMINISTIC_FAILURES: frozenset[FailureClass] = frozenset(
    {"oom_start", "no_kv_room", "refused_argument", "oom_run"}
)
"""Failures that the candidate causes: repeating it would fail again."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a trial has no measurement: its class, and the line that shows it."""

    failure_class: FailureClass
    evidence: str

    @property
    def deterministic(self) -> bool:
        return self.failure_class in DETERMINISTIC_FAILURES


class TrialFailed(Exception):
    """Raised inside the trial boundary only, and turned into a stored failure there."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(f"{failure.failure_class}: {failure.evidence}")
        self.failure = failure


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What an engine, or without starting one its configuration, says of itself.

    ``device_uuids`` names the GPUs that an engine of this configuration uses, none on a CPU.
    ``kv_cache_tokens`` is None until an engine was started.
    """

    vllm_version: str
    torch_version: str
    device: str
    device_uuids: tuple[str, ...]
    model: str
    resolved: Mapping[str, Any]
    vocab_size: int
    kv_cache_tokens: int | None = None
    capture_sizes: tuple[int, ...] = ()

    @property
    def max_model_len(self) -> int:
        return int(self.resolved["max_model_len"])

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        lists = {name: tuple(data[name]) for name in ("capture_sizes", "device_uuids")}
        return cls(**{**data, **lists})


_PREFIX = "iteration_"


@dataclass(frozen=True, slots=True, eq=False)
class Iterations:
    """One row an engine iteration of a replay, as vLLM reports it; all arrays of one length.

    ``at_s`` is seconds from the start of the replay, at the front end. ``prefill_tokens`` and
    ``decode_requests`` are what the step computed, ``running`` the requests that had a part in
    it. ``waiting`` and ``kv_usage`` (0 to 1) hold after it. ``gaps`` counts the token gaps that
    ended with it.
    """

    at_s: NDArray[np.float64]
    prefill_tokens: NDArray[np.int64]
    decode_requests: NDArray[np.int64]
    running: NDArray[np.int64]
    waiting: NDArray[np.int64]
    kv_usage: NDArray[np.float64]
    preemptions: NDArray[np.int64]
    gaps: NDArray[np.int64]

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        return {_PREFIX + name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def split(cls, arrays: Mapping[str, NDArray[Any]]) -> tuple[Self, dict[str, NDArray[Any]]]:
        """Take the iterations out of named arrays; return them and the other arrays."""
        own = {name: arrays[_PREFIX + name] for name in cls.__slots__}
        return cls(**own), request_arrays(arrays)


def request_arrays(arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return the arrays of a stored replay that are about its requests."""
    return {name: array for name, array in arrays.items() if not name.startswith(_PREFIX)}


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """What the host replays: which rows warm up, and the seed and salt of the prompts.

    The warm-up replays the first ``warmup_requests`` rows at their recorded pace, drains, and
    only then does the measured replay of all rows begin.
    """

    seed: int
    salt: str
    warmup_requests: int


@dataclass(frozen=True, slots=True, eq=False)
class ReplayResult:
    """What came out of a replay, with the seconds that its parts took."""

    samples: RequestSamples
    iterations: Iterations
    warmup_s: float
    replay_s: float
    errors: tuple[str, ...] = field(default=())
