"""Every value of every knob, checked by the installed vLLM before the first engine starts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, Protocol

from autotune.candidates.lattice import Value, is_consistent, plain_value, value_of
from autotune.engine.protocol import EngineInfo, TrialFailed
from autotune.engine.supervisor import Description
from autotune.errors import UsageError
from autotune.simulated.profile import name_in
from autotune.study.job import Job
from autotune.study.session import one_line

_MANY = 48
"""Values of knobs that are checked without a word: it takes about a second."""

_MOST_TRIES = 32
"""Companies in which a value is tried that the baseline's refuses."""

_CAPTURE_SIZES = "cudagraph_capture_sizes"


class Vllm(Protocol):
    """What is asked of vLLM; see ``autotune.engine.supervisor``."""

    def validate(self, engine_args: Mapping[str, Any]) -> tuple[str | None, tuple[str, ...]]: ...

    def describe(self, engine_args: Mapping[str, Any]) -> Description: ...


def check_knobs(job: Job, vllm: Vllm, say: Callable[[str], None]) -> list[str]:
    """Have vLLM check each value of each knob, the other arguments as the baseline has them.

    A value that it refuses there, but takes beside another value of another ladder, stays: its
    trials tell in which company. Each check takes milliseconds; of many values ``say`` is told.

    Returns:
        What the user should know of values that vLLM reads as others, in sentences.

    Raises:
        UsageError: vLLM refuses a value, or requests of the trace would be too long with it.
    """
    knobs, who = job.settings.knobs, _asked(job)
    many = sum(map(len, knobs.values())) > _MANY
    sentences: list[str] = []
    for name, values in knobs.items():
        if many:
            say(f"asking {who} about {len(values)} values of knob {name}")
        sentences += _check_knob(job, vllm, name)
    return sentences


def _asked(job: Job) -> str:
    """Return who answers: vLLM, or in its place the profile of a simulated engine."""
    profile = job.simulated_by
    return "vLLM" if profile is None else f"profile {name_in(profile)}"


def _check_knob(job: Job, vllm: Vllm, name: str) -> Iterator[str]:
    who = _asked(job)
    read_as: dict[Value, list[Value]] = {}
    for value in job.settings.knobs[name]:
        answer = _ask(job, vllm, {**job.baseline, name: value})
        if isinstance(answer, EngineInfo):
            _check_length(job, answer, name, value)
            resolved = _resolved(answer, name, value)
            read_as.setdefault(resolved, []).append(value)
            if resolved != value:
                yield f"knob {name}: {who} reads {_shown(value)} as {_shown(resolved)} here"
        elif not _fits_elsewhere(job, vllm, name, value):
            raise UsageError(
                f"{who} refuses {_shown(value)} for knob {name}: {answer}",
                hint="leave that value out; the other arguments were the baseline's",
            )
    for resolved, values in read_as.items():
        if len(values) > 1:
            listed = " and ".join(map(_shown, values))
            same = _shown(resolved)
            yield f"knob {name}: {listed} are the same to {who}, {same}; keep one of them"


def _resolved(info: EngineInfo, name: str, value: Value) -> Value:
    """Return what vLLM makes of a value, which is the value itself where it does not say."""
    if name == _CAPTURE_SIZES:
        # It sorts them, leaves out those beyond the largest step, and all on an eager engine.
        return info.capture_sizes
    resolved: Value = value_of(info.resolved.get(name, value))
    return resolved


def _shown(value: Value) -> str:
    return repr(plain_value(value))


def _ask(job: Job, vllm: Vllm, candidate: Mapping[str, Value]) -> EngineInfo | str:
    """Return what vLLM makes of a candidate, or in one line why it refuses it."""
    engine_args = job.engine_args(candidate)
    try:
        error, _ = vllm.validate(engine_args)
        return vllm.describe(engine_args).info if error is None else one_line(error)
    except TrialFailed as outcome:
        return outcome.failure.evidence


def _check_length(job: Job, info: EngineInfo, name: str, value: Value) -> None:
    if info.max_model_len < job.trace.longest_request:
        raise UsageError(
            f"with {_shown(value)} for knob {name} {_asked(job)} allows requests of "
            f"{info.max_model_len} tokens, and the longest has {job.trace.longest_request}",
            hint="leave that value out, or choose another --window",
        )


def _fits_elsewhere(job: Job, vllm: Vllm, name: str, value: Value) -> bool:
    """Whether vLLM takes a value beside another value of one other ladder.

    If there is more company than is tried, it counts as taken: its trials tell.
    """
    others = [
        [{**job.baseline, name: value, other: rung} for rung in _ends_first(ladder)]
        for other, ladder in job.lattice.ladders.items()
        if other != name
    ]
    own = {**job.baseline, name: value}
    company = [
        candidate
        for abreast in zip_longest(*others)
        for candidate in abreast
        if candidate is not None and candidate != own and is_consistent(candidate)
    ]
    tried = company[:_MOST_TRIES]
    fits = any(isinstance(_ask(job, vllm, each), EngineInfo) for each in tried)
    return fits or len(company) > len(tried)


def _ends_first(ladder: Sequence[Value]) -> list[Value]:
    """Return the rungs from the ends inwards: what one end refuses the other often takes."""
    inwards = sorted(range(len(ladder)), key=lambda at: min(at, len(ladder) - 1 - at))
    return [ladder[at] for at in inwards]
