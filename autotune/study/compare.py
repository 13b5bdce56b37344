"""Two sides or more on the same traffic, in turn, and what differs between them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.endpoint_settings import EndpointSettings, endpoint_named
from autotune.errors import UsageError
from autotune.settings import TuneSettings, load_settings
from autotune.study.compare_results import Comparison, SideResult, caveats
from autotune.study.compare_sides import About, Replayed, Side, Sides, in_turn
from autotune.study.comparison import Difference, differences
from autotune.study.endpoint_replay import NO_LIMIT
from autotune.study.serve_config import read_serve_config
from autotune.study.session import Follower, Traffic, fit_traffic, read_traffic
from objectives.limits import Budget
from objectives.measurement import measure

DEFAULT = "default"
"""Names the engine with vLLM's own limits."""

NO_MODEL = "-"
"""In place of a model where none was given, and every side may name its own."""

MOST_SIDES = 8

_PER_TOKEN = ("ttft", "tpot", "itl")
_WHOLE = ("e2e",)
_AGGREGATES = ("mean", "p50", "p95", "p99")
_SUFFIXES = (".yaml", ".yml")
_SIDES = (
    "name endpoints, files that autotune best wrote, or default; one of them twice shows the noise"
)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be compared.

    Attributes:
        settings: of the traffic, and of engines that are started; ``model`` is that of those
            whose file names none.
        names: of endpoints, of files for ``vllm serve --config``, or ``default``.
        endpoints: reads those that have names; called where one is asked for.
        where: what names the endpoints, for errors.
        repeats: replays of each side.
    """

    settings: TuneSettings
    names: Sequence[str]
    endpoints: Callable[[], Mapping[str, EndpointSettings]]
    where: str
    repeats: int


def compare(wanted: Wanted, follower: Follower) -> Comparison:
    """Replay the same traffic on all sides, each as often as wanted, in turn.

    Raises:
        UsageError: a name, a file or an endpoint cannot be used.
        TraceError: a request is longer than one of the sides allows.
        EnvironmentFault: an engine does not run, a server does not answer, or all fails.
        LeaseHeld: another process has a GPU that is needed.
    """
    names, settings = wanted.names, wanted.settings
    if not 2 <= len(names) <= MOST_SIDES:
        raise UsageError(
            f"a comparison has 2 to {MOST_SIDES} sides, not {len(names)}",
            hint=_SIDES,
        )
    given = read_traffic(settings)
    for sentence in given.trace.notes.sentences():
        follower.say(sentence)
    with Sides(follower, run=f"compare-{time.time_ns():x}") as opened:
        sides = [
            _open(opened, wanted, label, name, follower)
            for label, name in zip(_labels(names), names, strict=True)
        ]
        opened.hold_devices()
        longest = [each.about.max_model_len or NO_LIMIT for each in sides]
        traffic = fit_traffic(given, settings, min(longest))
        for sentence in traffic.trace.notes.since(given.trace.notes):
            follower.say(sentence)
        order = in_turn(len(sides), wanted.repeats)
        replays: list[list[Replayed]] = [[] for _ in sides]
        for turn, number in enumerate(order):
            side = sides[number]
            follower.say(f"{turn + 1} of {len(order)}: {side.about.name}")
            replays[number].append(side.replay(traffic.trace, turn, follower))
    results = tuple(
        _result(side.about, own, traffic) for side, own in zip(sides, replays, strict=True)
    )
    return Comparison(
        settings=settings,
        traffic=traffic,
        order=tuple(sides[number].about.name for number in order),
        sides=results,
        differences=tuple(_against(results[0], each, traffic) for each in results[1:]),
        caveats=tuple(caveats(results, traffic, repeats=wanted.repeats)),
    )


def _labels(names: Sequence[str]) -> list[str]:
    """Return the names, numbered where one comes again."""
    return [
        name if name not in names[:place] else f"{name} ({names[:place].count(name) + 1})"
        for place, name in enumerate(names)
    ]


def _open(opened: Sides, wanted: Wanted, label: str, name: str, follower: Follower) -> Side:
    settings = wanted.settings
    if name == DEFAULT:
        return opened.engine(label, _with(settings, None, {}, name))
    if not name.endswith(_SUFFIXES):
        endpoint = endpoint_named(wanted.endpoints(), name, where=wanted.where)
        return opened.endpoint(label, name, endpoint, settings)
    config = read_serve_config(Path(name))
    if config.left_out:
        follower.say(f"{name}: of the server, and left out: {', '.join(config.left_out)}")
    return opened.engine(label, _with(settings, config.model, config.engine_args, name))


def _with(
    settings: TuneSettings, model: str | None, engine_args: Mapping[str, object], name: str
) -> TuneSettings:
    """Return the settings of an engine, with what a file says of it."""
    model = model or settings.model
    if model == NO_MODEL:
        raise UsageError(f"{name} names no model", hint="give it with --model")
    arguments = {**settings.engine_args, **engine_args}
    given = {**settings.model_dump(), "model": model, "engine_args": arguments}
    return load_settings(None, given, command="compare")


def _result(about: About, replays: Sequence[Replayed], traffic: Traffic) -> SideResult:
    budget = Budget(traffic.budget.absolute)
    measured = tuple(
        measure(each.samples, classes=traffic.classes, budget=budget) for each in replays
    )
    return SideResult(about, tuple(replays), measured)


def compared_metrics(first: SideResult, second: SideResult, traffic: Traffic) -> list[str]:
    """Return the latencies that may be compared, with those that the budget limits."""
    fair = first.about.forced and second.about.forced
    kinds = (*_PER_TOKEN, *(_WHOLE if fair else ()))
    limited = [limit.key for limit in traffic.budget.limits if limit.metric in kinds]
    plain_ones = [f"{metric}_{each}" for metric in kinds for each in _AGGREGATES]
    return list(dict.fromkeys([*plain_ones, *limited]))


def _against(first: SideResult, second: SideResult, traffic: Traffic) -> tuple[Difference, ...]:
    found = differences(
        [each.samples for each in first.replays],
        [each.samples for each in second.replays],
        compared_metrics(first, second, traffic),
        classes=traffic.classes,
    )
    return tuple(found)
