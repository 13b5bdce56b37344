"""The morning report on one screen: a label in the margin, its sentences and figures beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from autotune.candidates.lattice import SEQS, TOKENS
from autotune.cli.best_words import verdict_and_advice
from autotune.cli.caveats import caveat_lines, few_requests_lines
from autotune.cli.certainty import certainty_lines, gain_text
from autotune.cli.holdout_words import holdout_words
from autotune.cli.label_page import MARGIN, Page
from autotune.cli.tables import (
    budget_text,
    cropped,
    duration,
    figure,
    joined,
    limits,
    plain_line,
    written,
)
from autotune.cli.words import forecast_lines, kept_line, simulation_lines, state_line
from autotune.study.costs import RATE, UTILIZATION
from autotune.study.spending import PARTS
from autotune.study.view import simulated_by
from autotune.traffic.picture import WIDTH

if TYPE_CHECKING:
    from autotune.study.gains import Gain
    from autotune.study.report import Course, Margin, Report
    from autotune.study.spending import FailureGroup, Spending

MOST_LINES = 40
"""Of one screen; notes that have no room on it are counted instead."""

LABELS = (
    "study",
    "verdict",
    "budget",
    "gain",
    "sure",
    "cost",
    "failures",
    "course",
    "notes",
    "next",
)
"""In their order."""

_LEAST_NOTES = 3
_FAILURES_SHOWN = 4
_NUMBERS_SHOWN = 6
_SURE = ("How sure", "If it is not", "That leaves", "Keeping it")
"""How the sentences begin that say how sure a verdict is; the others are notes to it."""


def report_lines(report: Report, budget: str | None, place: Sequence[str] = ()) -> list[str]:
    """Return the report, at most ``MOST_LINES`` lines of at most 80 columns.

    Args:
        report: to be told.
        budget: given in place of the study's own, else None.
        place: options that name the study to further commands.
    """
    head, tail = Page(), Page()
    head.add("study", [state_line(report.view), *simulation_lines(report.view.study)])
    head.add("verdict", verdict_lines(report, budget))
    head.add_rows("budget", _margin_rows(report.margins))
    head.add_rows("gain", _gain_rows(report.gains))
    head.add("", _gain_words(report))
    sure, notes = _certainty(report)
    head.add("sure", _without("How sure: ", sure))
    head.add("cost", _cost(report.spending))
    head.add("failures", _failures(report))
    head.add("course", _course(report.course, report.view.study.state))
    tail.add("next", _without("Next: ", next_lines(report, budget)))
    for command in _commands(report, budget, place):
        tail.add_command(command)
    room = max(_LEAST_NOTES, MOST_LINES - len(head.lines) - len(tail.lines))
    return [*head.lines, *_fitting(notes, room), *tail.lines]


def verdict_lines(report: Report, budget: str | None) -> list[str]:
    """Return what to deploy, or why there is nothing, and what must be known before."""
    view = report.view
    if view.judgement is None:
        return [f"None yet: no trial has a result. {_why_none(report)}"]
    reasons, _ = verdict_and_advice(view, view.judgement, budget)
    # Without a winner the second sentence says who comes nearest, and the margins are of that one.
    shown = reasons[: 1 if view.judgement.chosen is not None else 2]
    held = holdout_words(view, command=_tune(budget))
    few = few_requests_lines(int(view.study.spec["requests"]))
    return [*few, *held.first, *shown, *_exported(report)]


def _exported(report: Report) -> list[str]:
    chosen = None if report.view.judgement is None else report.view.judgement.chosen
    if chosen is None:
        return []
    pairs = [f"{name}={written(value)}" for name, value in chosen.candidate.items()]
    return [f"Exported: {' '.join(pairs)}"]


def next_lines(report: Report, budget: str | None) -> list[str]:
    """Return what to do next, as ``autotune best`` says it."""
    view = report.view
    if view.judgement is None:
        return [_first_result(report)]
    return [*verdict_and_advice(view, view.judgement, budget)[1], *forecast_lines(view.study)]


def _tune(budget: str | None) -> str:
    return "the same autotune tune" + ("" if budget is None else f" with --budget '{budget}'")


def _why_none(report: Report) -> str:
    if report.failures:
        return "What failed is below."
    return "Its first trial runs." if report.view.study.state == "running" else ""


def _first_result(report: Report) -> str:
    if report.view.study.state == "running":
        return "Wait for the first trial. If it was killed, the same autotune tune goes on."
    return "The same autotune tune goes on; if trials failed, see to what failed first."


def _margin_rows(found: Sequence[Margin]) -> Iterator[str]:
    width = max((len(each.limit.key) for each in found), default=0)
    for each in found:
        upper = "no upper bound" if each.upper is None else f"at most {figure(each.upper)}"
        room = "-" if each.room is None else f"{100 * abs(each.room):.0f} %"
        word = "room" if each.room is None or each.room >= 0 else "OVER"
        yield (
            f"{each.limit.key:{width}} {figure(each.value):>9} of "
            f"{figure(each.limit.limit_ms)} ms ({upper}), {room} {word}"
        )


def _gain_rows(gains: Sequence[Gain]) -> Iterator[str]:
    width = max((len(each.name) for each in gains), default=0)
    for each in gains:
        scale, unit = _UNITS.get(each.name, (1.0, "ms"))
        old, new = (
            None if value is None else scale * value for value in (each.baseline, each.winner)
        )
        yield f"{each.name:{width}} {figure(old):>9} → {figure(new)} {unit}{_changed(each)}"


_UNITS = {UTILIZATION: (100.0, "%"), RATE: (1.0, "tokens/busy s")}


def _changed(gain: Gain) -> str:
    if gain.change is None:
        return ""
    change = f", {_percent(gain.change)}"
    if gain.low is None or gain.high is None:
        return change
    return f"{change} (90 %: {_percent(gain.low)} to {_percent(gain.high)})"


def _percent(change: float) -> str:
    return f"{100 * change:+.0f} %"


def _gain_words(report: Report) -> Iterator[str]:
    judgement = report.view.judgement
    if judgement is None or judgement.chosen is None:
        return
    if judgement.budget.limits:
        yield kept_line(judgement)
    if judgement.baseline is None or judgement.baseline == judgement.winner:
        return
    base = judgement.cells[judgement.baseline]
    if not base.feasible:
        yield f"The baseline {limits(base.candidate)} breaks {_what(report)}."
    elif judgement.gain is not None:
        yield f"All in all it gains {gain_text(judgement, judgement.gain)}."


def _what(report: Report) -> str:
    judgement = report.view.judgement
    if judgement is None or not judgement.budget.limits:
        return "down: requests failed"
    return f"the budget {budget_text(judgement.budget)}"


def _certainty(report: Report) -> tuple[list[str], list[str]]:
    """Return how sure the verdict is, and notes to it: noise, drift, who is missing."""
    view = report.view
    if view.judgement is None:
        return [], []
    lines = list(certainty_lines(view.judgement))
    held = holdout_words(view, command="the same autotune tune")
    sure = [line for line in lines if line.startswith(_SURE)]
    rest = [line for line in lines if not line.startswith(_SURE)]
    # What is missing weighs more than how small the noise was.
    return sure, [*held.then, *caveat_lines(view.judgement, view.trials), *rest]


def _cost(spending: Spending) -> list[str]:
    parts = [
        f"{PARTS[name]} {duration(seconds)}"
        for name, seconds in spending.seconds.items()
        if seconds is not None and seconds >= 0.5
    ]
    total = duration(spending.total_s)
    on = "" if spending.gpus is None else f" on {spending.gpus} GPU{'s' * (spending.gpus > 1)}"
    simulated = " of simulated time" if spending.simulated else ""
    counts = [
        f"{count} {phase}{' live' if fidelity == 'live' else ''}"
        for (phase, fidelity), count in spending.trials.items()
    ]
    spent = f"{total}{simulated}{on}: {', '.join(parts)}." if parts else "Nothing yet."
    states = [f"{count} {state}" for state, count in sorted(spending.states.items())]
    return [spent, *([f"Trials: {joined(counts)}; {', '.join(states)}."] if counts else [])]


def _failures(report: Report) -> list[str]:
    lines = [_failure(each) for each in report.failures[:_FAILURES_SHOWN]]
    if further := len(report.failures) - _FAILURES_SHOWN:
        lines += [f"{further} further classes: autotune trials."] if further > 0 else []
    if report.slow_spells:
        lines.append(
            f"Slow spells of the machine: {len(report.slow_spells)} "
            f"({_trials(report.slow_spells)}), measured again."
        )
    return lines or ["None."]


def _failure(group: FailureGroup) -> str:
    evidence = plain_line(" ".join(group.evidence.split()))
    count = len(group.numbers)
    return cropped(
        f"{group.failure_class} {count}× ({_trials(group.numbers)}): {evidence}",
        2 * (WIDTH - MARGIN) - 4,
    )


def _trials(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:_NUMBERS_SHOWN]))
    more = ", …" if len(numbers) > _NUMBERS_SHOWN else ""
    return f"trial{'s' * (len(numbers) > 1)} {shown}{more}"


ENDED: Mapping[str, str] = {
    "trials": "ended with all of its trials",
    "settled": "ended as nothing better is expected",
    "exhausted": "ended as no candidate is left",
    "deadline": "ended by its deadline",
}


def _course(course: Course, state: str) -> Iterator[str]:
    parts = [f"Began {_minute(course.began)}, last stored {_minute(course.last)} UTC"]
    if course.resumed:
        times = "once" if len(course.resumed) == 1 else f"{len(course.resumed)} times"
        parts.append(f"resumed {times}, last at {_minute(course.resumed[-1])}")
    if course.interrupted:
        parts.append(f"cut short in {_trials(course.interrupted)}")
    if course.working is False:
        parts.append("nobody works on it now: it was killed")
    if state == "finished" and course.ended_by is not None:
        parts.append(ENDED.get(course.ended_by, f"ended by {course.ended_by}"))
    yield f"{'; '.join(parts)}."


def _minute(at: str) -> str:
    return datetime.fromisoformat(at).astimezone(UTC).strftime("%Y-%m-%d %H:%M")


def _commands(report: Report, budget: str | None, place: Sequence[str]) -> Iterator[list[str]]:
    """Yield the words of commands that may come next."""
    view, judgement = report.view, report.view.judgement
    yield ["autotune", "trials", *place]
    if judgement is None or judgement.chosen is None:
        return
    by = [] if budget is None else ["--budget", budget]
    if judgement.code != "keep_default":
        yield ["autotune", "best", *place, *by, "--output", "serve.yaml"]
        if simulated_by(view.study) is None:
            yield ["autotune", "check", "serve.yaml", "--serve"]
    name = limits({key: judgement.chosen.candidate[key] for key in (TOKENS, SEQS)})
    yield ["autotune", "forecast", *place, "--candidate", name, "--load", "1.5"]


def _without(start: str, lines: Sequence[str]) -> list[str]:
    """Return sentences without a word that the label says already."""
    found = []
    for line in lines:
        rest = line.removeprefix(start)
        # A command is copied from here, so it keeps its small letter.
        as_it_is = rest == line or rest.startswith("autotune ")
        found.append(rest if as_it_is else rest[:1].upper() + rest[1:])
    return found


def _fitting(notes: Sequence[str], room: int) -> list[str]:
    """Return as many notes as there is room for, and how many there are besides."""
    page = Page()
    for index, note in enumerate(notes):
        before = len(page.lines)
        page.add("" if index else "notes", [note])
        left = len(notes) - index - 1
        if len(page.lines) + (left > 0) > room:
            del page.lines[before:]
            page.add("" if index else "notes", [f"{left + 1} more: autotune show says all."])
            break
    return page.lines
