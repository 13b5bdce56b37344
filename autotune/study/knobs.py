"""Every value of every knob, checked by the installed vLLM before the first engine starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from autotune.candidates.lattice import Scalar, is_consistent
from autotune.engine.protocol import EngineInfo, TrialFailed
from autotune.engine.supervisor import Description
from autotune.errors import UsageError
from autotune.study.job import Job
from autotune.study.session import one_line


class Vllm(Protocol):
    """What is asked of vLLM; see ``autotune.engine.supervisor``."""

    def validate(self, engine_args: Mapping[str, Any]) -> tuple[str | None, tuple[str, ...]]: ...

    def describe(self, engine_args: Mapping[str, Any]) -> Description: ...


def check_knobs(job: Job, vllm: Vllm) -> list[str]:
    """Have vLLM check each value of each knob, the other arguments as the baseline has them.

    A value that it refuses there, but takes beside another value of another ladder, stays: its
    trials tell in which company. Each check takes milliseconds.

    Returns:
        What the user should know of values that vLLM reads as others, in sentences.

    Raises:
        UsageError: vLLM refuses a value, or requests of the trace would be too long with it.
    """
    return [sentence for name in job.settings.knobs for sentence in _check_knob(job, vllm, name)]


def _check_knob(job: Job, vllm: Vllm, name: str) -> Iterator[str]:
    read_as: dict[Scalar, list[Scalar]] = {}
    for value in job.settings.knobs[name]:
        answer = _ask(job, vllm, {**job.baseline, name: value})
        if isinstance(answer, EngineInfo):
            _check_length(job, answer, name, value)
            resolved: Scalar = answer.resolved.get(name, value)
            read_as.setdefault(resolved, []).append(value)
            if resolved != value:
                yield f"knob {name}: vLLM reads {value!r} as {resolved!r} here"
        elif not _fits_elsewhere(job, vllm, name, value):
            raise UsageError(
                f"vLLM refuses {value!r} for knob {name}: {answer}",
                hint="leave that value out; the other arguments were the baseline's",
            )
    for resolved, values in read_as.items():
        if len(values) > 1:
            listed = " and ".join(map(repr, values))
            yield f"knob {name}: {listed} are the same to vLLM, {resolved!r}; keep one of them"


def _ask(job: Job, vllm: Vllm, candidate: Mapping[str, Scalar]) -> EngineInfo | str:
    """Return what vLLM makes of a candidate, or in one line why it refuses it."""
    engine_args = job.engine_args(candidate)
    try:
        error, _ = vllm.validate(engine_args)
        return vllm.describe(engine_args).info if error is None else one_line(error)
    except TrialFailed as outcome:
        return outcome.failure.evidence


def _check_length(job: Job, info: EngineInfo, name: str, value: Scalar) -> None:
    if info.max_model_len < job.trace.longest_request:
        raise UsageError(
            f"with {value!r} for knob {name} vLLM allows requests of {info.max_model_len} tokens, "
            f"and the longest has {job.trace.longest_request}",
            hint="leave that value out, or choose another --window",
        )


def _fits_elsewhere(job: Job, vllm: Vllm, name: str, value: Scalar) -> bool:
    """Whether vLLM takes a value beside another value of one other ladder."""
    for other, ladder in job.lattice.ladders.items():
        for rung in ladder:
            if other == name or rung == job.baseline[other]:
                continue
            candidate = {**job.baseline, name: value, other: rung}
            if is_consistent(candidate) and isinstance(_ask(job, vllm, candidate), EngineInfo):
                return True
    return False
