"""What to do with a verdict: the exact option or command that comes next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.cli.changes import moved, others_moved, relative, trade
from autotune.cli.tables import limits
from autotune.study.counted import breaks_for_certain, censored
from autotune.study.plan import finished_trials
from objectives.classes import parse_classes
from objectives.statistics import requests_needed

if TYPE_CHECKING:
    from autotune.study.costs import Cell
    from autotune.study.judgement import Judgement
    from objectives.limits import Budget, Limit
    from storage.records import StudyState, TrialRecord

MORE_TRIALS = 8
"""How many further trials are proposed: enough for a few cells and their repeats."""


_AT_STAKE = "what is at stake is said above"
_MORE_TRAFFIC = "replay more traffic as a new study, such as --load 2 or a busier --window"
_NOTHING_LEFT = (
    "More --trials would add none: what was not tried does the same here, or is expected to be no "
    "better"
)


@dataclass(frozen=True, slots=True)
class Commands:
    """How the commands that come next are called, where another one speaks of them.

    Attributes:
        tune: that which measures.
        budget: the limits to give with it that are not the study's own, None if there are none.
        simulated: whether nothing was measured, so that an export is not to be served yet.
        out_of_time: whether the study was ended by its deadline.
    """

    tune: str = "the same command"
    budget: str | None = None
    simulated: bool = False
    out_of_time: bool = False

    @property
    def raised(self) -> str:
        """The one that measures, with what has run out: trials, or time."""
        with_budget = "" if self.budget is None else f" --budget '{self.budget}' and"
        more = "more time" if self.out_of_time else f"--trials raised by {MORE_TRIALS}"
        return f"{self.tune} with{with_budget} {more}"

    @property
    def adds(self) -> str:
        """What that one does."""
        return "goes on" if self.out_of_time else f"adds {MORE_TRIALS}"

    @property
    def export(self) -> str:
        other = "" if self.budget is None else f" --budget '{self.budget}'"
        return f"autotune best{other} --output serve.yaml"

    @property
    def deploy(self) -> str:
        """What to do with what is exported."""
        if self.simulated:
            return f"{self.export}, and measure what it says before it is served"
        return f"{self.export}, then vllm serve --config serve.yaml"


AS_GIVEN = Commands()
"""As a study names them that has just ended."""


def too_light(judgement: Judgement) -> bool:
    """Whether nothing was held up by its limits of all that may be the best, baseline included.

    More trials then measure more of the noise, and more traffic would tell them apart.
    """
    if judgement.winner is None or judgement.certainty is None:
        return False
    asked = {judgement.winner, *judgement.certainty.knee_set}
    asked |= set() if judgement.baseline is None else {judgement.baseline}
    return len(asked) > 1 and all(_light(judgement.cells[each]) for each in asked)


def _light(cell: Cell) -> bool:
    return (cell.diagnosis or {}).get("code") == "under_loaded"


def held_back(judgement: Judgement, winner: int) -> tuple[list[str], int | None]:
    """Say which limit bound the winner, and what moving it does as far as it was measured.

    Returns:
        The sentences, and the cell that they compare with, None without one.
    """
    cell = judgement.cells[winner]
    name = limits(cell.candidate)
    if cell.diagnosis is None:
        return [], None
    direction, _, knob = str(cell.diagnosis["next_knob"]).partition(" ")
    if not knob:
        return [f"Neither limit holds {name} back: {cell.diagnosis['reason']}."], None
    held = f"What holds {name} back: {cell.diagnosis['reason']}."
    verb = "Raising" if direction == "raise" else "Lowering"
    other = moved(judgement, winner, knob, 1 if direction == "raise" else -1)
    if other is None:
        return [held, f"{verb} {knob} was not measured from there."], None
    there = judgement.cells[other]
    also = others_moved(cell.candidate, there.candidate, knob)
    asides = [f"with another {', '.join(also)} too"] if also else []
    asides += ["measured live"] if there.live and not cell.live else []
    aside = f" ({'; '.join(asides)})" if asides else ""
    broken = "" if there.feasible else "; it breaks the budget"
    effect = trade(judgement.names, relative(cell, there))
    return [
        held,
        f"{verb} {knob}, as at {limits(there.candidate)}{aside}: {effect}{broken}.",
    ], other


def next_lines(
    judgement: Judgement,
    *,
    state: StudyState = "finished",
    trials: Sequence[TrialRecord] = (),
    total: int = 0,
    commands: Commands = AS_GIVEN,
) -> list[str]:
    """Return what to do now, the likeliest first, one sentence a line.

    Args:
        judgement: to be acted upon.
        state: of the study.
        trials: all of it.
        total: trials that were asked for.
        commands: to be named.
    """
    if state == "running":
        so_far = "This is what the trials so far say, and the study has not ended."
        return [f"{so_far} If it was killed, {commands.tune} goes on from here."]
    if state == "interrupted":
        return [f"Next: {commands.tune}, which goes on from here: the study was cut short."]
    return list(_lines(judgement, trials, total, commands))


def _lines(
    judgement: Judgement, trials: Sequence[TrialRecord], total: int, commands: Commands
) -> Iterator[str]:
    chosen = judgement.chosen
    if judgement.unconfirmed is not None:
        yield from _confirm(judgement, judgement.unconfirmed, commands)
        return
    if chosen is None:
        yield from _loosen(judgement, trials, total, commands)
        return
    if judgement.code == "not_converged":
        nothing_left = _nothing_left(trials, total, commands)
        yield from _go_on(judgement, chosen, commands, nothing_left=nothing_left)
    elif judgement.code == "keep_default":
        yield "Next: nothing to change."
        if _light(chosen):
            yield f"The limits hardly mattered here: to see them matter, {_MORE_TRAFFIC}."
    else:
        yield f"Next: {commands.deploy}."
    yield from _longer_window(judgement, chosen)


def _nothing_left(trials: Sequence[TrialRecord], total: int, commands: Commands) -> bool:
    """Whether a study ended before its trials were used up, so that more would not be used."""
    return 0 < finished_trials(trials) < total and not commands.out_of_time


def _go_on(
    judgement: Judgement, chosen: Cell, commands: Commands, *, nothing_left: bool
) -> Iterator[str]:
    if too_light(judgement):
        yield (
            "The traffic is too light to tell candidates apart: of the baseline and those that "
            f"may be best, none was ever held up by its limits. Next: {_MORE_TRAFFIC}."
        )
    elif judgement.too_noisy:
        yield "Next: a quieter machine, or a longer --window of the trace, either as a new study."
    elif nothing_left:
        yield "Next: busier traffic, or other values by --knob, either as a new study."
    if nothing_left:
        yield f"{_NOTHING_LEFT}."
    else:
        start = "Or" if judgement.too_noisy or too_light(judgement) else "Next:"
        yield f"{start} {commands.raised}: it keeps these trials and {commands.adds}."
    if len(judgement.cells) > 1:
        yield _take(chosen, commands)


def _confirm(judgement: Judgement, unconfirmed: int, commands: Commands) -> Iterator[str]:
    name = limits(judgement.cells[unconfirmed].candidate)
    yield f"Next: {commands.raised}: it keeps these trials and has time to restart {name}."
    if judgement.chosen is not None and judgement.winner != judgement.baseline:
        yield _take(judgement.chosen, commands)


def _take(chosen: Cell, commands: Commands) -> str:
    return f"Or take {limits(chosen.candidate)} now, with {commands.export}: {_AT_STAKE}."


def _longer_window(judgement: Judgement, chosen: Cell) -> Iterator[str]:
    """Say how long a window must be where it was too short for an upper bound."""
    needs = [
        f"{limit.key} needs {needed} requests{_of_class(limit)}"
        for limit in judgement.budget.limits
        if upper_bound(chosen, limit) is None and (needed := requests_needed(limit.aggregate))
    ]
    if needs:
        yield (
            f"To have the budget kept, not only met, give a longer --window: {', '.join(needs)}. "
            "That is a new study."
        )
    elif judgement.kept is False:
        yield (
            "To be surer that the budget is kept, give a longer --window, which is a new study, "
            "or leave more room in --budget."
        )


def _of_class(limit: Limit) -> str:
    return "" if limit.class_name is None else f" of class {limit.class_name}"


def upper_bound(cell: Cell, limit: Limit) -> float | None:
    """Return the upper confidence bound of what a limit is about, None if there is none."""
    bound: float | None = (cell.intervals.get(limit.key) or (None, None))[1]
    return bound


def _loosen(
    judgement: Judgement, trials: Sequence[TrialRecord], total: int, commands: Commands
) -> Iterator[str]:
    first, *rest = looser_lines(judgement, trials, total) or [""]
    if not first:
        return
    if _nothing_left(trials, total, commands):
        yield f"{_NOTHING_LEFT}."
        yield f"Next: {commands.tune} {first}" if rest else f"Or {first}"
    else:
        yield f"Next: {commands.raised}, to search on."
        yield f"Or {first}"
    yield from (f"Or {line}" for line in rest)


def looser_lines(judgement: Judgement, trials: Sequence[TrialRecord], total: int) -> list[str]:
    """Return what helps where nothing keeps the budget but to search on, each to follow an "Or".

    First a budget that the nearest candidate meets, if there is one. Nothing without a budget,
    or where requests failed: the engine's log says more than any other budget would.
    """
    nearest = None if judgement.nearest is None else judgement.cells[judgement.nearest]
    if not judgement.budget.limits or nearest is None or nearest.failed_requests:
        return []
    lines = ["lighten the load, or give the model more hardware."]
    if (loosened := judgement.loosened) is not None:
        again = f"these trials are judged again{_engines(loosened, trials, total)}"
        meets = f"which {limits(nearest.candidate)} meets"
        lines.insert(0, f"with --budget '{loosened.text}', {meets}: {again}.")
    return lines


def _engines(budget: Budget, trials: Sequence[TrialRecord], total: int) -> str:
    """Say what a looser budget has measured anew, if anything."""
    cut = [
        trial
        for trial in trials
        if trial.state == "infeasible"
        and (why := censored(trial)) is not None
        and not breaks_for_certain(trial, budget, parse_classes(why.get("classes", "")))
    ]
    left = max(0, total - finished_trials(trials)) if trials else 0
    if not cut and not left:
        return ", without an engine"
    again = "the one that was cut short is" if len(cut) == 1 else f"the {len(cut)} cut short are"
    parts = [f"{again} measured again"] if cut else []
    parts += (
        [f"up to {left} more {'trial' if left == 1 else 'trials'} may confirm it"] if left else []
    )
    return f"; {' and '.join(parts)}"
