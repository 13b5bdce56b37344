"""The plan of a study, as ``autotune tune --dry-run`` prints it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from autotune.cli.caveats import few_requests_lines
from autotune.cli.tables import duration, limits, plain_line, written


def plan_lines(plan: Mapping[str, Any]) -> list[str]:
    """Return what ``autotune.study.outlook.outlook`` says, a line for each thing to know."""
    return [plain_line(line) for line in _lines(plan)]


def _lines(plan: Mapping[str, Any]) -> Iterator[str]:
    yield (
        f"window: {plan['requests']} requests in {duration(plan['duration_s'])}; "
        f"the longest has {plan['longest_request']} tokens of {plan['max_model_len']} allowed"
    )
    yield from few_requests_lines(plan["requests"])
    if plan["load"] == "auto":
        yield "load: auto, found once step times are measured; the window is shown as recorded"
    yield f"classes: {plan['classes']}"
    yield f"budget: {plan['budget']}"
    for limit in plan["too_few_requests_for"]:
        yield _short_of(limit, plan["duration_s"])
    if plan["holdout"] is not None:
        yield from _held(plan["holdout"])
    yield f"baseline: {limits(plan['baseline'])}"
    starts = ", ".join(map(limits, plan["starts"])) or "none"
    yield f"starts, where the search has no forecasts: {starts}"
    for name, values in plan["ladders"].items():
        count = len(values)
        yield f"{name}, {count} {'value' if count == 1 else 'values'}: {_listed(values)}"
    for name, values in plan["off_tile"].items():
        yield f"off the tile, as the baseline has it: {name} {_listed(values)}"
    yield f"candidates: {plan['cells']}; trials: {plan['trials']} at most, repeats among them"
    if "simulated" not in plan:
        yield _starts(plan)
    yield (
        f"time: about {duration(3600 * plan['replay_hours_at_least'])} of warm-up and replays, "
        "less where some are cut short; engine starts and stops come on top"
    )
    if "time" in plan:
        yield from _time(plan["time"], asked=plan["trials"])
    yield from plan["notes"]
    yield f"vLLM {plan['vllm_version']} on {plan['device']}"


def _starts(plan: Mapping[str, Any]) -> str:
    """Say how many engines start, those that are no trial's own included."""
    live, knobs = plan["live_trials"], plan["restarted_knobs"]
    held = 0 if plan["holdout"] is None else plan["holdout"]["engine_starts"]
    starts = plan["engine_starts"] - held
    at_last = f"; up to {held} more for what is held out" if held else ""
    if not live:
        more = "" if starts == plan["trials"] else ", and one for the calibration"
        return f"engines: {starts} start, one for each trial{more}{at_last}"
    least = "at least " if knobs else ""
    further = f", and one for each trial that changes {' or '.join(knobs)}" if knobs else ""
    return (
        f"engines: {least}{starts} start in all, from the calibration to the trials that decide"
        f"{further}; {live} trials change the limits of one that runs{at_last}"
    )


def _time(time: Mapping[str, Any], *, asked: int) -> Iterator[str]:
    """Say how long a trial and each phase may take, and what there is time for."""
    parts = time["seconds"]
    start = f"engine start {duration(parts['start'])}"
    if not time["start_known"]:
        start += " (not known yet)"
    yield (
        f"a trial may take: {start}, warm-up {duration(parts['warmup'])}, replay "
        f"{duration(parts['replay'])}, stop {duration(parts['stop'])}; of the search "
        f"{duration(time['trial_s'])} in all, a restart {duration(time['restart_s'])}"
    )
    phases = [f"{name} {duration(s)}" for name, s in time["phases"].items() if s]
    yield f"time by phase, if all take so long: {', '.join(phases) or 'none'}"
    ends = f"{datetime.fromisoformat(time['ends_at']):%Y-%m-%d %H:%M}"
    if time["deadline"] is None:
        yield f"would end by {ends}, after {duration(time['total_s'])}"
        return
    at = f"{datetime.fromisoformat(time['deadline_at']):%Y-%m-%d %H:%M}"
    yield f"deadline: {at}, in {duration(time['deadline_s'])} ({time['deadline']})"
    if time["cut"]:
        yield (
            f"there is time for about {time['trials']} of {asked} trials; the search ends early, "
            "so that what it found is confirmed"
        )
        return
    spare_s = time["deadline_s"] - time["total_s"]
    more = int(spare_s // time["trial_s"])
    further = f": --trials {asked + more} would use it" if more else ""
    yield f"all trials would end by {ends}; {duration(spare_s)} are left{further}"


def _held(held: Mapping[str, Any]) -> Iterator[str]:
    yield (
        f"held out: the last {held['share'].replace('%', ' %')} of the window, {held['requests']} "
        f"requests in {duration(held['duration_s'])}, to confirm the winner on"
    )
    for limit in held["too_few_requests_for"]:
        if limit["needed"] is not None:
            yield (
                f"held out, {limit['limit']} has no upper bound: it counts {limit['requests']} "
                f"requests there and needs {limit['needed']}"
            )


def _short_of(limit: Mapping[str, Any], duration_s: float) -> str:
    """Say what a window is too short for, and how long it had to be at its rate."""
    name, needed = limit["limit"], limit["needed"]
    if needed is None:
        return f"{name} can be met but never called kept: no window bounds a maximum"
    return (
        f"{name} can be met but not called kept: it counts {limit['requests']} requests of the "
        f"window and needs {needed}{_that_come_in(limit, duration_s)}"
    )


def _that_come_in(limit: Mapping[str, Any], duration_s: float) -> str:
    if not limit["requests"]:
        return ""
    return f", as many as come in {duration(duration_s * limit['needed'] / limit['requests'])}"


def _listed(values: Sequence[Any]) -> str:
    return ", ".join(map(written, values))
