"""The verdict as ``autotune best`` tells it, maybe under a budget that the study does not have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.cli.advice import Commands, looser_lines, next_lines
from autotune.cli.words import reasons
from autotune.study.ending import out_of_time
from autotune.study.plan import finished_trials
from autotune.study.view import simulated_by

if TYPE_CHECKING:
    from autotune.study.judgement import Judgement
    from autotune.study.view import StudyView

_TUNE = "the same autotune tune"


def verdict_and_advice(
    view: StudyView, judgement: Judgement, budget: str | None
) -> tuple[list[str], list[str]]:
    """Return the verdict, and what to do next in words that hold for another command.

    Args:
        view: the study, judged by ``budget``.
        judgement: the view's.
        budget: given in place of the study's own; None if that is the one.
    """
    verdict = reasons(judgement, view.trials)
    total = int(view.study.spec["trials"])
    left = total - finished_trials(view.trials)
    if budget is not None and left > 0 and _is_open(view, judgement):
        more = "trial" if left == 1 else "trials"
        goes_on = f"it goes on by these limits, with up to {left} more {more}"
        advice = [f"Next: {_TUNE} with --budget '{budget}': {goes_on}."]
        if judgement.chosen is None and judgement.unconfirmed is None:
            advice += [f"Or {line}" for line in looser_lines(judgement, view.trials, total)]
        return verdict, advice
    return verdict, next_lines(
        judgement,
        state=view.study.state,
        trials=view.trials,
        total=total,
        commands=Commands(
            _TUNE,
            budget,
            simulated=simulated_by(view.study) is not None,
            out_of_time=out_of_time(view.study),
        ),
    )


def _is_open(view: StudyView, judgement: Judgement) -> bool:
    """Whether a study that ended early, by its own budget, should go on by another."""
    return view.study.state == "finished" and (
        judgement.chosen is None or judgement.code == "not_converged"
    )
