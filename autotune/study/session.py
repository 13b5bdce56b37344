"""What a job needs before its study is opened: its traffic, its engine and its names."""

from __future__ import annotations

import difflib
import hashlib
import importlib.metadata
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from autotune.demo import resolve_model, resolve_trace
from autotune.engine.failures import telling_line
from autotune.engine.protocol import MODEL_FAULT, EngineInfo, TrialFailed
from autotune.engine.run_folder import Remains, end_left_over
from autotune.engine.supervisor import Description, Supervisor, Watchdogs
from autotune.errors import EnvironmentFault, UsageError
from autotune.hardware.config_file import load_config
from autotune.hardware.model_shape import EngineDecides, read_shape
from autotune.lease import device_lock, lease
from autotune.settings import AUTO, SIMULATED, TuneSettings
from autotune.simulated.engines import SimulatedEngines
from autotune.simulated.profile import load_profile
from autotune.study.engines import AnyEngines
from autotune.study.measurable import check_measurable
from autotune.traffic.fit import fitted
from autotune.traffic.holdout import Holdout
from autotune.traffic.load import Load
from autotune.traffic.model import Trace
from autotune.traffic.trace import load_trace
from autotune.traffic.window import parse_window
from objectives.classes import LengthClass, default_classes, parse_classes
from objectives.limits import Budget, parse_budget

_NEAR = 0.75
"""Spelling and shared words, each 0 to 1, that together make a name worth proposing."""

_NAMES_SHOWN = 3


# What vLLM and Transformers say of a model that they cannot make out.
_MODEL_WORDS = (
    "Invalid repository ID or local directory",
    "does not recognize this architecture",
    "are not supported for now",
)
_MODEL_HINT = (
    "--model is a folder with a config.json, or a hub name, of an architecture that the "
    "installed vLLM and Transformers know"
)


# And of a max_model_len beyond what the model was made for.
_DERIVED = "greater than the derived max_model_len"
_LENGTH_HINT = (
    "give the model's own limit or less; --too-long skip or truncate is for requests beyond it"
)

_OWN = "give other values, or measure a profile of your own: autotune calibrate --save"

_LONGEST_LINE = 400

_HELD_OUT = "the part that is held out"


class Follower(Protocol):
    """Who is told what happens, and of the progress."""

    def progress(self, body: Mapping[str, Any]) -> None: ...

    def say(self, text: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Traffic:
    """What is replayed, and how it is judged.

    Attributes:
        trace: what every trial replays.
        budget: limits.
        classes: of prompt length.
        held: what the winner is confirmed on; None if nothing is held out.
    """

    trace: Trace
    budget: Budget
    classes: tuple[LengthClass, ...]
    held: Trace | None = None


def read_traffic(settings: TuneSettings) -> Traffic:
    """Read trace, window, what is held out of it, load, classes and budget.

    Raises:
        TraceError, UsageError, ObjectiveError: one of them cannot be used.
    """
    trace = load_trace(resolve_trace(settings.trace))
    if settings.window is not None:
        trace = parse_window(settings.window).apply(trace)
    held = None
    if settings.holdout is not None:
        trace, held = Holdout(settings.holdout).split(trace)
    if settings.load not in (None, AUTO):
        load = Load.of(float(settings.load))
        trace, held = load.apply(trace), None if held is None else load.apply(held)
    budget = parse_budget(settings.budget)
    if settings.classes is None:
        classes = default_classes(trace.input_lengths)
    else:
        classes = parse_classes(settings.classes)
    return _measurable(Traffic(trace, budget, classes, held))


def changes(given: Traffic, fit: Traffic) -> list[str]:
    """Return what ``fit_traffic`` changed, in sentences."""
    found = fit.trace.notes.since(given.trace.notes)
    if given.held is not None and fit.held is not None:
        found += [f"Held out: {each}" for each in fit.held.notes.since(given.held.notes)]
    return found


def _measurable(traffic: Traffic) -> Traffic:
    check_measurable(traffic.trace, traffic.budget, traffic.classes)
    if traffic.held is not None:
        check_measurable(traffic.held, traffic.budget, traffic.classes, of=_HELD_OUT)
    return traffic


def fit_traffic(traffic: Traffic, settings: TuneSettings, max_model_len: int) -> Traffic:
    """Return what is replayed once requests longer than ``max_model_len`` are dealt with.

    Classes that were found in the lengths are looked for again where lengths have changed.

    Raises:
        TraceError: requests are too long and may not be changed, or none is left.
        ObjectiveError: the budget names a class that is no more.
        UsageError: no request is left of what the budget limits.
    """
    allowed, by = None, "the model"
    parts = [traffic.trace, *([] if traffic.held is None else [traffic.held])]
    if max(part.longest_request for part in parts) > max_model_len:
        allowed = _model_allows(settings)
        if settings.simulated:
            profile = load_profile(settings.engine)
            allowed, by = profile.info.max_model_len, f"the profile {profile.name}"
    trace, *held = (
        fitted(part, max_model_len, settings.too_long, allowed=allowed, allowed_by=by)
        for part in parts
    )
    if [trace, *held] == parts:
        return traffic
    classes = traffic.classes
    if settings.classes is None:
        classes = default_classes(trace.input_lengths)
    return _measurable(Traffic(trace, traffic.budget, classes, held[0] if held else None))


def _model_allows(settings: TuneSettings) -> int | None:
    """Return the longest request that the model's config allows, None if it does not say."""
    with suppress(EnvironmentFault, UsageError):
        shape = read_shape(load_config(str(resolve_model(settings.model)), ask_hub=False))
        return None if isinstance(shape, EngineDecides) else shape.context_tokens
    return None


def study_name(settings: TuneSettings) -> str:
    """Return the given name, else one made of model or profile, and of the traffic."""
    if settings.study_name is not None:
        return settings.study_name
    model = settings.model.rstrip("/").rsplit("/", 1)[-1].removeprefix("demo:")
    if settings.simulated:
        profile = Path(settings.engine.removeprefix(SIMULATED)).name
        model = "sim-" + profile.removesuffix(".json")
    trace = Path(settings.trace.removeprefix("demo:")).stem
    window = "" if settings.window is None else f"-{settings.window}"
    load = "" if settings.load in (None, 1) else f"-load{settings.load}".removesuffix(".0")
    held = "" if settings.holdout is None else f"-holdout{settings.holdout}".removesuffix("%")
    return f"{model}-{trace}{window}{load}{held}"


def log_folder(settings: TuneSettings, name: str) -> Path:
    """Return where the engine logs of a study go; any study name makes a plain folder name."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-")[:60]
    digest = hashlib.blake2b(name.encode(errors="backslashreplace"), digest_size=4).hexdigest()
    return settings.log_folder / f"{plain or 'study'}-{digest}"


def end_earlier_runs(say: Callable[[str], None]) -> None:
    """End what killed runs of this user have left on this machine, and say so."""
    for remains in end_left_over():
        say(_remains_words(remains))


def _remains_words(remains: Remains) -> str:
    """Say whose the remains were, so that nobody fears for processes of their own."""
    controller = remains.controller
    whose = "an earlier run of autotune, yours by its owner, had left something"
    if controller is not None:
        began = controller.started_at
        since = "" if began is None else f", started {began:%Y-%m-%d %H:%M} UTC"
        whose = (
            f"your earlier run of autotune (process {controller.pid}{since}) was killed and had "
            "left something"
        )
    ended = [
        f"{each.pid} ({name})" for each, name in zip(remains.processes, remains.names, strict=True)
    ]
    done = [f"ended its processes {', '.join(ended)}"] if ended else []
    if count := len(remains.segments):
        done.append(f"removed {count} {'segment' if count == 1 else 'segments'} of shared memory")
    return f"{whose} in {remains.folder}: {', '.join(done)}"


def open_supervisor(settings: TuneSettings, name: str) -> AnyEngines:
    """Return what runs the engines that the settings ask for.

    Raises:
        UsageError: the profile of a simulation cannot be used.
    """
    folder = log_folder(settings, name)
    if settings.simulated:
        profile = load_profile(settings.engine)
        return SimulatedEngines(profile, seed=settings.seed, log_folder=folder)
    return Supervisor(
        log_folder=folder,
        watchdogs=Watchdogs(
            settings.start_timeout_s, settings.silence_timeout_s, settings.settle_timeout_s
        ),
        log_bytes=settings.engine_log_bytes,
    )


def question(settings: TuneSettings) -> str:
    """Return what is done before there is a description, in words."""
    if settings.simulated:
        return f"simulating {settings.engine.removeprefix(SIMULATED)}: no engine runs"
    return "asking vLLM for its defaults"


def describe_engine(settings: TuneSettings, supervisor: AnyEngines) -> Description:
    """Ask the installed vLLM, or a profile, what it makes of the user's engine arguments.

    Raises:
        UsageError: vLLM refuses them, or has no such argument.
        EnvironmentFault: there is no vLLM here, or it cannot load the model's configuration.
    """
    if isinstance(supervisor, SimulatedEngines):
        return _describe_simulated(settings, supervisor)
    engine_args = {"model": str(resolve_model(settings.model)), **settings.engine_args}
    try:
        error, known = supervisor.validate(engine_args)
        if error is not None:
            raise _refusal(error, known, [*engine_args, *settings.knobs])
        unknown = [name for name in settings.knobs if known and name not in known]
        if unknown:
            raise _unknown_argument(unknown[0], known)
        return supervisor.describe(engine_args)
    except TrialFailed as outcome:
        if "No module named 'vllm'" in outcome.failure.evidence:
            raise EnvironmentFault(
                "vLLM is not installed in this environment",
                hint="run scripts/install, or pip install 'vllm-autotune[vllm]'",
            ) from outcome
        raise EnvironmentFault(
            f"vLLM cannot use this model or these arguments: {outcome.failure.evidence}",
            hint=f"its own words are in {supervisor.host_log}",
        ) from outcome


def _describe_simulated(settings: TuneSettings, engines: SimulatedEngines) -> Description:
    engine_args = {"model": settings.model, **settings.engine_args}
    error, known = engines.validate(engine_args)
    unknown = [name for name in settings.knobs if name not in known]
    if error is None and unknown:
        error, _ = engines.validate({unknown[0]: settings.knobs[unknown[0]][0]})
    if error is None:
        return engines.describe(engine_args)
    strange = [name for name in [*settings.engine_args, *settings.knobs] if name not in known]
    close = nearest_names(strange[0], known) if strange else []
    raise UsageError(error, hint=f"nearest that it has: {', '.join(close)}" if close else _OWN)


@contextmanager
def device_lease(device: str, uuids: Iterable[str]) -> Iterator[None]:
    """Hold the GPUs that engines will use within the block; a CPU is free for all.

    Raises:
        LeaseHeld: another process has one of them.
    """
    with ExitStack() as stack:
        # In one order for everybody, so that two jobs never wait for each other.
        for uuid in sorted(uuids):
            stack.enter_context(lease(device_lock(uuid), f"{device} {uuid}"))
        yield


@contextmanager
def engine_lease(supervisor: AnyEngines, info: EngineInfo) -> Iterator[None]:
    """Hold the GPUs of one engine; on leaving, it is gone before they are given back.

    Raises:
        LeaseHeld: another process has one of them.
    """
    with device_lease(info.device, info.device_uuids):
        try:
            yield
        finally:
            supervisor.close()


def log_of_one_engine(settings: TuneSettings, name: str) -> Path:
    """Return where the log of an engine that belongs to no study goes."""
    return log_folder(settings, name) / f"{datetime.now(UTC):%Y%m%dT%H%M%S}.log"


def _refusal(
    error: str, known: Sequence[str], given: Sequence[str]
) -> UsageError | EnvironmentFault:
    if error.startswith(MODEL_FAULT) or any(words in error for words in _MODEL_WORDS):
        return EnvironmentFault(one_line(error), hint=_MODEL_HINT)
    unknown = [name for name in given if known and name not in known]
    if unknown:
        return _unknown_argument(unknown[0], known)
    return UsageError(
        f"vLLM refuses the engine arguments: {one_line(error)}",
        hint=_LENGTH_HINT
        if _DERIVED in error
        else "look at the --engine-arg values, and whether --model is the right one",
    )


def _unknown_argument(name: str, known: Sequence[str]) -> UsageError:
    close = nearest_names(name, known)
    return UsageError(
        f"vLLM{installed_version()} has no engine argument {name!r}",
        hint=f"nearest that it has: {', '.join(close)}"
        if close
        else "vllm serve --help=all lists what it has",
    )


def nearest_names(name: str, known: Sequence[str]) -> list[str]:
    """Return the known names that are spelt alike or share words, the nearest first."""
    words = set(name.split("_"))
    scores = {}
    for each in known:
        others = set(each.split("_"))
        spelling = difflib.SequenceMatcher(None, name, each).ratio()
        scores[each] = spelling + len(words & others) / len(words | others)
    near = [each for each, score in scores.items() if score >= _NEAR]
    return sorted(near, key=lambda each: -scores[each])[:_NAMES_SHOWN]


def installed_version() -> str:
    """Return the version of vLLM for a sentence, with a blank before it; '' if unknown.

    Its distribution has several names, and importing it here would take seconds.
    """
    for distribution in importlib.metadata.packages_distributions().get("vllm", ()):
        return f" {importlib.metadata.version(distribution)}"
    return ""


def one_line(text: str) -> str:
    """Return the part of a long message that says what is wrong."""
    lines = [line for line in text.splitlines() if line.strip()]
    asserted = [line for line in lines if line.strip().startswith("Assertion failed")]
    line = telling_line(asserted or lines or [""]).strip()
    if len(line) <= _LONGEST_LINE:
        return line
    # Whole words, unless there is none.
    return f"{line[:_LONGEST_LINE].rpartition(' ')[0] or line[:_LONGEST_LINE]} …"
