"""What controller and engine host say to each other, as values; knows nothing of vLLM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from objectives.censoring import Censored
from objectives.samples import RequestSamples
from objectives.steps import Steps
from objectives.utilization import Work

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

PROGRESS_EVERY_S = 1.0
"""How often a replay that runs is reported, and looked at whether its budget is lost."""

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
    ``kv_cache_tokens`` is None until an engine was started. ``live_obstacle`` says why limits
    cannot be changed while it runs, None if they can; ``forecast_obstacle`` why the simulated
    scheduler does not know such engines, None if it does or nobody asked. ``work`` is what the
    model computes, None where nobody can say.
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
    live_obstacle: str | None = None
    work: Work | None = None
    forecast_obstacle: str | None = None

    @property
    def max_model_len(self) -> int:
        return int(self.resolved["max_model_len"])

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        lists = {name: tuple(data[name]) for name in ("capture_sizes", "device_uuids")}
        work = None if data["work"] is None else Work.from_json(data["work"])
        return cls(**{**data, **lists, "work": work})

    @classmethod
    def of_trial(cls, engine: Mapping[str, Any]) -> Self:
        """Return what the engine of a stored trial said, among all else that is stored of it.

        Fields that came later are not there in every trial.
        """
        named = [each.name for each in fields(cls)]
        return cls.from_json({name: engine[name] for name in named if name in engine})


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """Who computed how many tokens in which step, and when each request arrived.

    Requests are numbered by ``names``; a step by its row among all that computed something.

    Attributes:
        names: of the requests, as vLLM has them.
        step: [shares], in order.
        request: [shares].
        tokens: [shares], computed for that request in that step.
        arrival_step: [names], the first step that was not planned yet when it arrived; -1 where
            it arrived before recording began.
    """

    names: tuple[str, ...]
    step: NDArray[np.int64]
    request: NDArray[np.int64]
    tokens: NDArray[np.int64]
    arrival_step: NDArray[np.int64]

    @classmethod
    def empty(cls) -> Self:
        return cls.build([], [])

    def to_arrays(self) -> dict[str, NDArray[np.int64]]:
        """Return all but the names."""
        return {SCHEDULE_PREFIX + name: getattr(self, name) for name in SCHEDULE_ARRAYS}

    @classmethod
    def build(
        cls, shares: Sequence[tuple[int, str, int]], arrivals: Sequence[tuple[str, int]]
    ) -> Self:
        """Build from (step, name, tokens) and (name, step)."""
        arrived = dict(arrivals)
        names = tuple(dict.fromkeys([*arrived, *(name for _, name, _ in shares)]))
        numbers = {name: number for number, name in enumerate(names)}
        columns = np.array(
            [(step, numbers[name], tokens) for step, name, tokens in shares], dtype=np.int64
        ).reshape(-1, 3)
        step, request, computed = columns.T
        came = np.array([arrived.get(name, -1) for name in names], dtype=np.int64)
        return cls(names, step, request, computed, came)


SCHEDULE_ARRAYS = ("step", "request", "tokens", "arrival_step")
SCHEDULE_PREFIX = "schedule_"
"""Before the names of these arrays where they are kept together with others."""


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """What the host replays: which rows warm up, and the seed and salt of the prompts.

    A warm-up replays the first ``warmup_requests`` rows at their recorded pace and drains; the
    first one on an engine that has just started ``first_warmup_requests``, if those are more. It
    is repeated, up to ``warmup_passes`` times in all, until step times at equal work stand still;
    only then does the measured replay of all rows begin. It is cut short once a limit of
    ``budget``, in ms and by ``classes``, is lost for certain; '' lets it run to its end.
    ``detail`` has the tokens of each request in each step recorded too.
    """

    seed: int
    salt: str
    warmup_requests: int
    first_warmup_requests: int = 0
    warmup_passes: int = 4
    budget: str = ""
    classes: str = ""
    detail: bool = False


@dataclass(frozen=True, slots=True)
class Warmup:
    """How an engine was warmed up before a replay.

    Attributes:
        requests: in all passes together.
        passes: how often the rows were replayed.
        drift: of step times at equal work, from the last pass but one to the last, as a share:
            0.05 is 5 % slower; None where there was nothing to compare.
        seconds: that all of it took.
    """

    requests: int
    passes: int
    drift: float | None
    seconds: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True, eq=False)
class ReplayResult:
    """What came out of a replay.

    Attributes:
        samples: what the client saw.
        steps: what the engine did; none where it has no recorder.
        warmup: before it.
        replay_s: seconds from its first request to its last token.
        began_at: when the engine had taken the first request, of the warm-up if there is one, in
            seconds of the clock that all processes of the machine share.
        ended_at: when the last token came, on the same clock.
        errors: of single requests, the first few.
        censored: why the samples are those of a part, None if they are whole.
        schedule: who computed what in which step, where it was asked for.
    """

    samples: RequestSamples
    steps: Steps
    warmup: Warmup
    replay_s: float
    began_at: float
    ended_at: float
    errors: tuple[str, ...] = field(default=())
    censored: Censored | None = None
    schedule: Schedule | None = None
