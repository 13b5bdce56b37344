"""The table of trials, row by row: printed at the end of a study, and grown while it runs.

Every column has its width before the first row is known, so that a row is the same in both.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.candidates.lattice import SEQS, TOKENS
from autotune.cli.conditions import beside_line
from autotune.cli.tables import figure, limits, plain_line, written
from autotune.study.costs import RATE, UTILIZATION
from autotune.study.counted import censored
from autotune.study.view import feasible, headline, is_calibrated
from objectives.budget import margins

if TYPE_CHECKING:
    from rich.console import Console

    from autotune.study.view import StudyView
    from objectives.limits import Budget
    from storage.records import StudyRecord, TrialRecord

_LATENCIES = ("ttft_", "tpot_", "itl_")
_NUMBER, _PHASE, _LIMITS, _WORK, _BUDGET, _REMARK = (
    "trial", "phase", "tokens/seqs", "work", "budget", "diagnosis",
)  # fmt: skip
_LEFT = (_PHASE, _BUDGET, _REMARK)
_LEAST = {_NUMBER: 6, _PHASE: 8, _WORK: 7}
_LEAST_LATENCY = 8
_KNOB_HEADING = 13
_REMARK_WIDTH, _TERSE_WIDTH = 26, 16
_FEWEST_LATENCIES = 2
_NARROWEST = 12
_EVIDENCE_LINES = 2


@dataclass(frozen=True, slots=True)
class _Layout:
    """The columns in order, the blanks between them, and whether remarks are codes alone."""

    columns: tuple[str, ...]
    gap: int
    terse: bool


class TrialTable:
    """Lays out the trials of one study for a width.

    What is missed least is left out until the columns fit; where not even the least of them do,
    a trial is a few short lines instead of one.
    """

    def __init__(self, study: StudyRecord, *, width: int) -> None:
        self._width = max(width, _NARROWEST)
        self._latencies = [name for name in headline(study) if name.startswith(_LATENCIES)]
        self._calibrated = is_calibrated(study)
        self._ladders = study.fingerprint["ladders"]
        self._knobs = [name for name in self._ladders if name not in (TOKENS, SEQS)]
        self._layout = next(
            (each for each in self._layouts() if self._taken(each) <= self._width), None
        )

    def heading(self) -> list[str]:
        """Return the lines above the first row, none where a trial is several lines."""
        layout = self._layout
        if layout is None:
            return []
        headings = {name: self._heading(name) for name in layout.columns}
        height = max(map(len, headings.values()))
        lines = [
            self._line(layout, {n: h[line] if line < len(h) else "" for n, h in headings.items()})
            for line in range(height)
        ]
        return [*lines, "─" * self._taken(layout)]

    def row(self, trial: TrialRecord, budget: Budget | None, *, winner: bool = False) -> list[str]:
        """Return a trial as a line, or as several where there is no room or it failed.

        Args:
            trial: of the study.
            budget: in ms, None if it is not known yet.
            winner: marked by a star.
        """
        layout = self._layout
        cells = self._cells(trial, budget, winner=winner, terse=layout is None or layout.terse)
        evidence = plain_line(trial.failure_evidence or _cut_short(trial))
        beside = beside_line(trial)
        if layout is None:
            return self._stacked(cells, evidence, beside)
        below = [*self._indented(evidence, lines=_EVIDENCE_LINES), *self._indented(beside)]
        return [self._line(layout, cells), *below]

    def _layouts(self) -> Iterator[_Layout]:
        limited = (_LIMITS, *self._knobs)
        known, shown = tuple(self._latencies), (_BUDGET, _REMARK)
        everything = (_NUMBER, _PHASE, *limited, *known, _WORK, *shown)
        yield _Layout(everything, gap=2, terse=False)
        yield _Layout(everything, gap=1, terse=False)
        without_work = tuple(name for name in everything if name != _WORK)
        yield _Layout(without_work, gap=1, terse=False)
        yield _Layout(without_work, gap=1, terse=True)
        for count in range(len(known), _FEWEST_LATENCIES - 1, -1):
            yield _Layout((_NUMBER, *limited, *known[:count], *shown), gap=1, terse=True)

    def _taken(self, layout: _Layout) -> int:
        widths = (self._column_width(name, layout) for name in layout.columns)
        return sum(widths) + layout.gap * (len(layout.columns) - 1)

    def _column_width(self, name: str, layout: _Layout) -> int:
        if name == _REMARK:
            return _TERSE_WIDTH if layout.terse else _REMARK_WIDTH
        return max(*map(len, self._heading(name)), self._widest_value(name))

    def _widest_value(self, name: str) -> int:
        if name == _LIMITS:
            values = (map(str, self._ladders[limit]) for limit in (TOKENS, SEQS))
            return 1 + sum(max(map(len, texts)) for texts in values)
        if name in self._knobs:
            return max(len(plain_line(written(value))) for value in self._ladders[name])
        return _LEAST_LATENCY if name in self._latencies else _LEAST.get(name, 0)

    def _heading(self, name: str) -> list[str]:
        if name == _NUMBER:
            return [f"{name} "]
        if name in self._knobs:
            return _broken(name)
        if name == _WORK:
            return list(self._work_heading)
        return [name, "ms"] if name in self._latencies else [name]

    @property
    def _work_heading(self) -> tuple[str, str]:
        """What work is told by, and its unit."""
        return ("util", "%") if self._calibrated else (_WORK, "tok/s")

    def _work(self, metrics: Mapping[str, float | None]) -> str:
        if not self._calibrated:
            return figure(metrics.get(RATE), 0)
        share = metrics.get(UTILIZATION)
        return figure(None if share is None else 100 * share)

    def _cells(
        self, trial: TrialRecord, budget: Budget | None, *, winner: bool, terse: bool
    ) -> dict[str, str]:
        metrics = trial.metrics or {}
        own = trial.candidate
        return {
            _NUMBER: f"{trial.number}{'*' if winner else ' '}",
            _PHASE: trial.phase,
            _LIMITS: limits({TOKENS: own[TOKENS], SEQS: own[SEQS]}),
            **{name: plain_line(written(own[name])) for name in self._knobs},
            **{name: figure(metrics.get(name)) for name in self._latencies},
            _WORK: self._work(metrics),
            _BUDGET: _met(feasible(budget, trial)),
            _REMARK: _remark(trial, budget, terse=terse),
        }

    def _line(self, layout: _Layout, cells: dict[str, str]) -> str:
        padded = []
        for name in layout.columns:
            width = self._column_width(name, layout)
            text = cells[name]
            padded.append(text.ljust(width) if name in _LEFT else text.rjust(width))
        return (" " * layout.gap).join(padded).rstrip()

    def _stacked(self, cells: dict[str, str], *notes: str) -> list[str]:
        first = " ".join([cells[_NUMBER].strip(), cells[_PHASE], cells[_LIMITS], cells[_BUDGET]])
        figures = [f"{name} {cells[name]}" for name in self._knobs]
        if cells[_WORK] != "-":
            figures += [f"{name} {cells[name]} ms" for name in self._latencies]
            heading, unit = self._work_heading
            figures.append(f"{heading} {cells[_WORK]} {unit}")
        parts = [
            line for each in (*figures, cells[_REMARK], *notes) for line in self._indented(each)
        ]
        return [*textwrap.wrap(first, self._width, subsequent_indent="  "), *parts]

    def _indented(self, text: str, *, lines: int | None = None) -> list[str]:
        indent = "  " if self._layout is None else " " * (_LEAST[_NUMBER] + 1)
        return textwrap.wrap(
            text,
            self._width,
            initial_indent=indent,
            subsequent_indent=indent,
            max_lines=lines,
            placeholder=" …",
        )


def print_trials(view: StudyView, screen: Console) -> None:
    """Print all trials of a study, those of the candidate to deploy in bold."""
    table = TrialTable(view.study, width=screen.width)
    judgement = view.judgement
    budget = None if judgement is None else judgement.budget
    chosen = None if judgement is None else judgement.chosen
    winners: Sequence[int] = () if chosen is None else chosen.numbers
    for line in table.heading():
        screen.print(line, soft_wrap=True)
    for trial in view.trials:
        won = trial.number in winners
        for line in table.row(trial, budget, winner=won):
            screen.print(line, style="bold" if won else None, soft_wrap=True)


def _met(keeps: bool | None) -> str:
    """Say how a trial's own values stand to the budget; only bounds could call it kept."""
    if keeps is None:
        return "-"
    return "met" if keeps else "broken"


def _remark(trial: TrialRecord, budget: Budget | None, *, terse: bool) -> str:
    if trial.failure_class is not None:
        return trial.failure_class if terse else f"{trial.state}: {trial.failure_class}"
    if trial.diagnosis is None:
        cut = trial.state == "infeasible" and censored(trial) is not None
        return "cut short" if cut else trial.state
    # "budget" is the column beside it, and what the user gave.
    code = str(trial.diagnosis["code"]).replace("budget_bound", "step budget")
    # The column heading is tokens/seqs as well.
    knob = trial.diagnosis["next_knob"].replace("max_num_batched_", "").replace("max_num_", "")
    against = knob == "raise tokens" and _breaks_gaps(trial, budget)
    return code if terse or not knob or against else f"{code}: {knob}"


def _cut_short(trial: TrialRecord) -> str:
    """Say when and why a replay was not watched to its end; '' of one that was."""
    cut = censored(trial)
    if cut is None:
        return ""
    if trial.state == "interrupted":
        return f"cut short at {cut['at_s']:.0f} s under a stricter budget"
    known = cut["bound_ms"] is not None
    least = f"at least {figure(cut['bound_ms'])} ms" if known else "without bound"
    return f"cut short at {cut['at_s']:.0f} s: {cut['limit']} {least} for certain"


def _breaks_gaps(trial: TrialRecord, budget: Budget | None) -> bool:
    """Whether a limit on the time between tokens is broken, which larger steps only lengthen."""
    if budget is None or trial.metrics is None:
        return False
    broken = margins(budget, trial.metrics)
    return any((broken[x.key] or 0.0) > 0 for x in budget.limits if x.metric in ("tpot", "itl"))


def _broken(name: str) -> list[str]:
    """Break the name of a knob behind its underscores, into lines of a column heading."""
    words = name.replace("_", "_ ").split()
    lines = [""]
    for word in words:
        if lines[-1] and len(lines[-1] + word) > _KNOB_HEADING:
            lines.append("")
        lines[-1] += word
    return lines
