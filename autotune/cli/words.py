"""The verdict in sentences that a tired person understands."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.candidates.lattice import SEQS, TOKENS, half_octaves, integer
from autotune.cli.advice import AS_GIVEN, Commands, held_back, next_lines, upper_bound
from autotune.cli.caveats import caveat_lines, few_requests_lines
from autotune.cli.certainty import certainty_lines, gain_text, largest_spread
from autotune.cli.changes import against, objective, trade
from autotune.cli.ending_words import ending_lines
from autotune.cli.holdout_words import holdout_words
from autotune.cli.tables import duration, figure, joined, limits, plain_line
from autotune.study.costs import WORK_COST
from autotune.study.counted import censored
from autotune.study.ending import out_of_time
from autotune.study.plan import finished_trials
from autotune.study.view import calibration_of, load_of, simulated_by
from objectives.budget import margins
from objectives.statistics import requests_needed

if TYPE_CHECKING:
    from autotune.forecast.calibration import Calibration
    from autotune.study.costs import Cell
    from autotune.study.judgement import Judgement
    from autotune.study.view import StudyView
    from objectives.arrays import F8
    from objectives.limits import Limit
    from storage.records import StudyRecord, StudyState, TrialRecord


_UNCONFIRMED = "was measured live only; not confirmed by a restart"


def study_verdict(view: StudyView) -> list[str]:
    """Return ``verdict_lines`` of a stored study, and how its winner did on held-out traffic.

    Nothing before its first result. That the winner breaks the budget there comes first of all,
    before that only that no verdict can be had of so few requests.
    """
    if view.judgement is None:
        return []
    commands = Commands(
        simulated=simulated_by(view.study) is not None, out_of_time=out_of_time(view.study)
    )
    held = holdout_words(view, command=commands.tune)
    return [
        *few_requests_lines(int(view.study.spec["requests"])),
        *held.first,
        *reasons(view.judgement, view.trials),
        *held.then,
        *ending_lines(view),
        *next_lines(
            view.judgement,
            state=view.study.state,
            trials=view.trials,
            total=int(view.study.spec["trials"]),
            commands=commands,
        ),
    ]


def verdict_lines(
    judgement: Judgement,
    *,
    state: StudyState = "finished",
    trials: Sequence[TrialRecord] = (),
    total: int = 0,
    commands: Commands = AS_GIVEN,
) -> list[str]:
    """Return the verdict, its reasons and what to do next, one sentence a line.

    The first line says what to deploy, or that there is nothing. A study that has not ended is
    to be waited for or resumed, whatever its trials say so far.

    Args:
        judgement: to be put into words.
        state: of the study.
        trials: all of it, those that do not count included.
        total: trials that were asked for.
        commands: to be named.
    """
    return [
        *reasons(judgement, trials),
        *next_lines(judgement, state=state, trials=trials, total=total, commands=commands),
    ]


def reasons(judgement: Judgement, trials: Sequence[TrialRecord]) -> list[str]:
    """Return the verdict and its reasons, without what to do next."""
    return [*_lines(judgement, any(map(censored, trials))), *caveat_lines(judgement, trials)]


def simulation_lines(study: StudyRecord) -> list[str]:
    """Return that no engine was run, if none was."""
    if "engine" not in study.fingerprint:
        return []
    device, version = study.fingerprint["device"], study.fingerprint["vllm_version"]
    return [plain_line(f"No engine was run, all times are those of {device}, vLLM {version}.")]


def forecast_lines(study: StudyRecord) -> list[str]:
    """Return what a verdict is worth that no engine has given."""
    if "engine" not in study.fingerprint:
        return []
    measure = "by the same command with --model in place of --engine, and the --engine-arg values"
    return [f"All this is a forecast: measure it, {measure} that autotune best shows."]


def time_line(
    trials: Sequence[TrialRecord], *, calibration_s: float = 0.0, simulated: bool = False
) -> str:
    """Return where the time of a study went; of a simulated one nobody waited for it."""
    names = {
        "start_s": "engine starts",
        "warmup_s": "warm-up",
        "replay_s": "replays",
        "stop_s": "stops",
    }
    totals = {
        label: sum((trial.timings or {}).get(name) or 0.0 for trial in trials)
        for name, label in names.items()
    }
    if calibration_s:
        totals = {"calibration": calibration_s, **totals}
    parts = ", ".join(f"{label} {duration(seconds)}" for label, seconds in totals.items())
    spent = f"{duration(sum(totals.values()))}{' of simulated time' if simulated else ''}"
    return f"{len(trials)} trials took {spent}: {parts}."


def state_line(view: StudyView) -> str:
    """Return how far a study is."""
    finished = finished_trials(view.trials)
    total = view.study.spec["trials"]
    name = f"Study {plain_line(view.study.name)!r}"
    load = load_of(view.study)
    at = "" if load is None else f", at load {load.words}"
    if finished <= total:
        return f"{name}: {view.study.state}, {finished} of {total} trials{at}."
    return (
        f"{name}: {view.study.state}, {finished} trials{at}. That is more than the {total} asked "
        "for, since this budget counts replays that another did not."
    )


def calibration_lines(study: StudyRecord) -> list[str]:
    """Return what a study's calibration found, and made of its ladders; nothing without one."""
    calibration = calibration_of(study)
    if calibration is None:
        return []
    points, limit = calibration.points, calibration.capture_limit
    parts = [
        f"{len(points)} step sizes up to {points[-1].tokens} tokens"
        if points
        else "no prefill step"
    ]
    if limit is not None:
        jumps = [e.jump_ratio for e in calibration.edges if e.kind == "capture"]
        beyond = f", one token more takes {100 * jumps[0]:.0f} % longer" if jumps else ""
        parts.append(f"CUDA graphs up to {limit} tokens{beyond}")
    if others := [str(e.from_tokens) for e in calibration.edges if e.kind != "capture"]:
        parts.append(f"{'edge' if len(others) == 1 else 'edges'} at {joined(others)} tokens")
    quantum, best = calibration.quantum, calibration.best_flops_per_s
    parts.append("no quantum stands out" if quantum is None else f"quantum {quantum} tokens")
    unknown = "work is not counted, so tokens are scored"
    parts.append(unknown if best is None else f"best {best / 1e12:.3g} TFLOP/s")
    parts.append(_ladders(calibration, study.fingerprint))
    if not study.spec["calibration"].get("whole", True):
        parts.append("not all of its plan was measured")
    return [f"Calibration: {'; '.join(parts)}."]


def _ladders(calibration: Calibration, fingerprint: Mapping[str, Any]) -> str:
    """Say which rungs are there because of what was measured."""
    called_for = {*(edge.from_tokens for edge in calibration.edges), *calibration.capture_sizes}
    moved = []
    for name in (TOKENS, SEQS):
        off_tile = fingerprint["off_tile"].get(name, ())
        ladder = [rung for rung in fingerprint["ladders"][name] if rung not in off_tile]
        tile = math.gcd(*ladder)
        plain = half_octaves(tile, tile, max(ladder, default=0)) if tile else []
        rungs = [str(rung) for rung in ladder if rung in called_for and rung not in plain]
        moved += [f"{name} {joined(rungs)}"] if rungs else []
    return f"rungs made of it: {', '.join(moved)}" if moved else "the ladders are the plain ones"


def _lines(judgement: Judgement, cut: bool) -> Iterator[str]:
    chosen = judgement.chosen
    if chosen is None or judgement.winner is None:
        yield from _nothing(judgement) if judgement.unconfirmed is None else _live_only(judgement)
        return
    yield _headline(judgement, chosen, cut)
    yield from _budget(judgement, chosen)
    yield from _against_baseline(judgement, chosen)
    held, shown = held_back(judgement, judgement.winner)
    yield from held
    yield from _cap_unreached(judgement, chosen)
    if judgement.code == "knee":
        yield from _trades(judgement, shown)
    yield from _spoilt(judgement)
    yield from certainty_lines(judgement)
    yield from _left_out(judgement)


def _cap_unreached(judgement: Judgement, chosen: Cell) -> Iterator[str]:
    """Say that a cap below the baseline's was won by chance, where it was never reached."""
    if judgement.baseline is None or chosen.peak_running is None:
        return
    cap = integer(chosen.candidate[SEQS])
    usual = integer(judgement.cells[judgement.baseline].candidate[SEQS])
    if chosen.peak_running < cap < usual:
        yield (
            f"At most {chosen.peak_running} requests ran at once, so that {SEQS} made no "
            f"difference here: {usual} as before does the same, and leaves room for more traffic."
        )


def _nothing(judgement: Judgement) -> Iterator[str]:
    if not judgement.budget.limits:
        yield from _failed_everywhere(judgement)
        yield from certainty_lines(judgement)
        return
    yield "Nothing keeps the budget."
    if judgement.nearest is not None:
        cell = judgement.cells[judgement.nearest]
        yield f"Nearest is {limits(cell.candidate)}: {_stand(judgement, cell)}."
        if cell.failed_requests:
            yield _log_says(cell)
    yield from _spoilt(judgement)
    yield from certainty_lines(judgement)


def _live_only(judgement: Judgement) -> Iterator[str]:
    """Say what is known where nothing that a restart has measured keeps the budget."""
    cell = judgement.cells[judgement.unconfirmed or 0]
    yield f"Not converged: {limits(cell.candidate)} is the best so far, but {_UNCONFIRMED}."
    if judgement.budget.limits:
        yield f"By its live trials: {_stand(judgement, cell)}."
    yield from _spoilt(judgement)
    yield from certainty_lines(judgement)


def _stand(judgement: Judgement, cell: Cell) -> str:
    """Return how the values of a candidate stand to the limits, those that it breaks first."""
    sayings: list[tuple[bool, str]] = []
    for limit in judgement.budget.limits:
        value = cell.metrics.get(limit.key)
        if value is None:
            sayings.append((False, f"{limit.key} has no value"))
        else:
            keeps = value <= (limit.limit_ms or 0.0)
            stands = (
                f"{figure(value)} ms, {'within' if keeps else 'over'} {figure(limit.limit_ms)}"
            )
            sayings.append((keeps, f"{limit.key} {stands}"))
    parts = [text for _, text in sorted(sayings, key=lambda saying: saying[0])]
    if cell.failed_requests:
        parts.insert(0, _failed(cell))
    return "; ".join(parts)


def _failed_everywhere(judgement: Judgement) -> Iterator[str]:
    """Say what is wrong where there is no limit that a candidate could break."""
    least = min(judgement.cells, key=lambda cell: cell.failed_requests)
    yield "Requests failed under every candidate."
    yield f"Fewest failed under {limits(least.candidate)}: {_failed(least)}."
    yield _log_says(least)


def _log_says(cell: Cell) -> str:
    return f"The engine's log says why: autotune show {cell.numbers[-1]} names it."


def _failed(cell: Cell) -> str:
    count = cell.failed_requests
    return f"{count} {'request' if count == 1 else 'requests'} failed"


def _headline(judgement: Judgement, chosen: Cell, cut: bool) -> str:
    name = limits(chosen.candidate)
    if judgement.code == "keep_default":
        return f"Keep what you have: nothing that was tried is shown to be worth changing {name}."
    if len(judgement.cells) == 1:
        whole = " to the end" if cut else ""
        return f"Not converged: {name} is the only candidate that was measured{whole}."
    if judgement.unconfirmed is not None:
        return _unconfirmed(judgement, name)
    if judgement.too_noisy:
        return _noisy(judgement, name)
    if judgement.code == "not_converged":
        return f"Not converged: {name} is the best so far, but the study cannot be sure of it."
    return (
        f"The knee is at {name} (max_num_batched_tokens/max_num_seqs): the best compromise that "
        "was measured."
    )


def _unconfirmed(judgement: Judgement, name: str) -> str:
    index = judgement.unconfirmed or 0
    other, values = limits(judgement.cells[index].candidate), judgement.scores.values
    if judgement.winner is not None and values[index] < values[judgement.winner]:
        return f"Not converged: {other} seems better than {name}, but {_UNCONFIRMED}."
    return (
        f"Not converged: {name} is the best so far, and next to it {other}, which {_UNCONFIRMED}."
    )


def _noisy(judgement: Judgement, name: str) -> str:
    start = (
        "Not converged: too noisy to tell. Repeats of one candidate differ "
        f"{largest_spread(judgement)}, "
    )
    if judgement.winner == judgement.baseline:
        return f"{start}so any other may be better than the baseline {name}, the best so far."
    return f"{start}so what {name}, the best so far, seemed to gain on the baseline may be noise."


def _budget(judgement: Judgement, chosen: Cell) -> Iterator[str]:
    if not judgement.budget.limits:
        yield "No budget was given, so latencies are weighed against the best that was seen."
        return
    for limit in judgement.budget.limits:
        value = figure(chosen.metrics.get(limit.key))
        upper = _upper(chosen, limit)
        yield f"{limit.key} is {value} ms of {figure(limit.limit_ms)} allowed ({upper})."
    yield kept_line(judgement)


def _upper(chosen: Cell, limit: Limit) -> str:
    bound = upper_bound(chosen, limit)
    if bound is not None:
        return f"with 95 % confidence at most {figure(bound)}"
    if _boundless(limit):
        return "no upper bound, as no window bounds a maximum"
    return "no upper bound, the window is too short"


def _boundless(limit: Limit) -> bool:
    """Whether a window of any length has no upper bound for this value."""
    return requests_needed(limit.aggregate) is None


def kept_line(judgement: Judgement) -> str:
    """Return whether the budget of a winner is kept with confidence, or only met."""
    if judgement.kept:
        return "The budget is kept: the upper bounds are within it too."
    if judgement.kept is False:
        return "The budget is met in this replay, but an upper bound is beyond it."
    if any(_boundless(limit) for limit in judgement.budget.limits):
        return "The budget is met in this replay; a limit on a maximum is never called kept."
    return "The budget is met in this replay, which is too short to call it kept."


def _against_baseline(judgement: Judgement, chosen: Cell) -> Iterator[str]:
    if judgement.baseline is None or judgement.winner == judgement.baseline:
        return
    base = judgement.cells[judgement.baseline]
    yield from against(judgement, base, chosen)
    if not base.feasible:
        broken = [
            f"{limit.key} {figure(base.metrics.get(limit.key))} of {figure(limit.limit_ms)} ms"
            for limit in judgement.budget.limits
            if (margins(judgement.budget, base.metrics)[limit.key] or 0.0) > 0
        ]
        if base.failed_requests:
            broken.append(_failed(base))
        fault = "breaks the budget" if judgement.budget.limits else "is no alternative"
        yield f"The baseline {fault}: {', '.join(broken)}."
    elif judgement.gain is not None:
        yield f"All in all it gains {gain_text(judgement, judgement.gain)}."


def _trades(judgement: Judgement, shown: int | None) -> Iterator[str]:
    """Say what moving on to either neighbour would change, unless it was said already."""
    if judgement.knee is None:
        return
    for each in judgement.knee.trade_offs:
        if each.neighbour != shown:
            other = limits(judgement.cells[each.neighbour].candidate)
            yield f"Moving on to {other}: {trade(judgement.names, each.changes)}."
    if not judgement.knee.pronounced:
        yield (
            "No knee stands out: its neighbours gain about as much as they lose, so choose by "
            "taste."
        )


def _left_out(judgement: Judgement) -> Iterator[str]:
    costs = np.stack([cell.costs for cell in judgement.cells if cell.feasible])
    left = [
        f"{objective(name)}{_range(name, costs[:, column])}"
        for column, name in enumerate(judgement.names)
        if not judgement.scores.used[column] and math.isfinite(judgement.scores.ideal[column])
    ]
    if left:
        compared = "those that keep the budget" if judgement.budget.limits else "candidates"
        yield (
            f"Not counted, since {compared} differ in it by less than repeats of one do: "
            f"{', '.join(left)}."
        )


def _range(name: str, costs: F8) -> str:
    if name == WORK_COST:
        return ""
    return f" ({figure(float(costs.min()))} to {figure(float(costs.max()))} ms)"


def _spoilt(judgement: Judgement) -> Iterator[str]:
    """Say why a candidate of which the table shows a trial that met the budget is not eligible."""
    if not judgement.budget.limits:
        return
    for cell in judgement.cells:
        if cell.met and not cell.feasible:
            one = "trial" if len(cell.met) == 1 else "trials"
            reason = (
                f"{_failed(cell)} in another of its trials"
                if cell.failed_requests
                else f"the mean of its trials {joined(list(map(str, cell.numbers)))} breaks it"
            )
            yield (
                f"{limits(cell.candidate)} met the budget in {one} "
                f"{joined(list(map(str, cell.met)))} only: {reason}."
            )
