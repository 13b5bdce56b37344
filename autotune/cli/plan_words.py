"""The plan of a study, as ``autotune tune --dry-run`` prints it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from autotune.cli.tables import at_least, duration, limits, plain_line, written


def plan_lines(plan: Mapping[str, Any]) -> list[str]:
    """Return what ``autotune.study.outlook.outlook`` says, a line for each thing to know."""
    return [plain_line(line) for line in _lines(plan)]


def _lines(plan: Mapping[str, Any]) -> Iterator[str]:
    yield (
        f"window: {plan['requests']} requests in {duration(plan['duration_s'])}; "
        f"the longest has {plan['longest_request']} tokens of {plan['max_model_len']} allowed"
    )
    yield f"classes: {plan['classes']}"
    yield f"budget: {plan['budget']}"
    yield from map(_short_of, plan["too_few_requests_for"])
    yield f"baseline: {limits(plan['baseline'])}"
    yield f"starts: {', '.join(map(limits, plan['starts'])) or 'none'}"
    for name, values in plan["ladders"].items():
        count = len(values)
        yield f"{name}, {count} {'value' if count == 1 else 'values'}: {_listed(values)}"
    for name, values in plan["off_tile"].items():
        yield f"off the tile, as the baseline has it: {name} {_listed(values)}"
    yield f"candidates: {plan['cells']}; trials: {plan['trials']}, repeats among them"
    if plan["live"]:
        yield _starts(plan["trials"], plan["engine_starts"], plan["restarted_knobs"])
    yield (
        f"time: at least {at_least(3600 * plan['replay_hours_at_least'])}; "
        "engine starts and stops come on top"
    )
    yield from plan["notes"]
    yield f"vLLM {plan['vllm_version']} on {plan['device']}"


def _starts(trials: int, starts: int, knobs: Sequence[str]) -> str:
    if starts == trials:
        return "engines: each trial starts one, as so few trials leave none to confirm others by"
    if knobs:
        return (
            f"engines: at least {starts} trials start one, the first, those that decide, and each "
            f"that changes {' or '.join(knobs)}; the others change the limits of one that runs"
        )
    return (
        f"engines: {starts} trials start one, the first and those that decide; {trials - starts} "
        "change the limits of one that runs"
    )


def _short_of(limit: Mapping[str, Any]) -> str:
    name, needed = limit["limit"], limit["needed"]
    if needed is None:
        return f"{name} can be met but never called kept: no window bounds a maximum"
    return (
        f"{name} can be met but not called kept: it counts {limit['requests']} requests of the "
        f"window and needs {needed}"
    )


def _listed(values: Sequence[Any]) -> str:
    return ", ".join(map(written, values))
