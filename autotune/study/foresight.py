"""What a stored study forecasts: of candidates it did not measure, other budgets, other loads."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from autotune.candidates.lattice import Candidate, Lattice, cell_key, plain_values
from autotune.demo import resolve_trace
from autotune.errors import TraceError, UsageError
from autotune.forecast.forecaster import forecast_cells, forecast_obstacle
from autotune.forecast.residuals import LEAST_TRUST
from autotune.forecast.simulation import Traffic
from autotune.forecast.sweep import Calibrated
from autotune.study.confirm import FINISHED
from autotune.study.costs import LoadSamples
from autotune.study.counted import breaks_for_certain, censored, counted_trials
from autotune.study.outcomes import Yardstick
from autotune.study.plan import Plan, live_given_up, retry
from autotune.study.screen import SETTLED_GAIN, Looked, Screen, Simulations
from autotune.study.standing import Nobody
from autotune.study.view import StudyView, load_of
from autotune.traffic.fit import fitted
from autotune.traffic.holdout import Holdout
from autotune.traffic.load import compressed
from autotune.traffic.model import Trace
from autotune.traffic.trace import load_trace
from autotune.traffic.window import parse_window
from objectives.arrays import F8
from objectives.classes import LengthClass, parse_classes
from objectives.limits import Budget
from objectives.utilization import Work
from storage.records import TrialRecord

MOST_LOAD = 4.0
_LOAD_STEPS = 6
_BOUNDS = 1.645


@dataclass(frozen=True, slots=True)
class Stored:
    """A study as forecasts need it; see ``autotune.study.screen.Studied``."""

    trace: Trace
    budget: Budget
    classes: tuple[LengthClass, ...]
    baseline: Candidate
    lattice: Lattice
    calibrated: Calibrated | None
    forecast_obstacle: str | None
    seed: int


@dataclass(frozen=True, slots=True, eq=False)
class Forecast:
    """What is forecast of one candidate.

    Attributes:
        candidate: the limits.
        metrics: by key, in ms or as they are: lower bound, mean and upper bound of 90 %; inf
            where requests never end, NaN where there is nothing to measure.
        probability: of keeping the budget, 0 to 1; None without one.
        loss: expected score, 1 and more where the budget is missed.
        trials: numbers of the trials that measured it, none of a mere forecast.
        cut_short: of those whose replay ended early, since the budget was lost.
        failed: of those that ended by its own fault without a replay.
    """

    candidate: Candidate
    metrics: Mapping[str, tuple[float, float, float]]
    probability: float | None
    loss: float
    trials: tuple[int, ...]
    cut_short: tuple[int, ...] = ()
    failed: tuple[int, ...] = ()

    @property
    def source(self) -> str:
        """Where it comes from, in a word or two."""
        if self.trials:
            return "measured"
        if self.cut_short:
            return "cut short"
        return "failed" if self.failed else "forecast"

    def to_json(self) -> dict[str, Any]:
        return {
            "candidate": plain_values(self.candidate),
            "metrics": {
                key: dict(zip(("low", "mean", "high"), map(_known, found), strict=True))
                for key, found in self.metrics.items()
            },
            "keeps_budget": self.probability,
            "loss": self.loss,
            "trials": list(self.trials),
            "cut_short": list(self.cut_short),
            "failed": list(self.failed),
        }


class Foresight:
    """Forecasts of a stored study.

    Args:
        view: the study, with a calibration and a measured baseline, judged by the budget that
            counts.
        trace: what its trials replayed.
        load_samples: returns the arrays of a trial.
        say: told when all candidates are simulated, which takes seconds to minutes.
        simulations: of this study by this budget, made before; None if there are none.

    Raises:
        UsageError: the study cannot be forecast, or the trace is another one.
    """

    def __init__(
        self,
        view: StudyView,
        trace: Trace,
        load_samples: LoadSamples,
        *,
        say: Callable[[str], None] = lambda _: None,
        simulations: Simulations | None = None,
    ) -> None:
        self._view = view
        self.study = _stored(view, trace)
        self._rows = [_judged(trial, self.study) for trial in view.trials]
        self._screen = Screen(
            self.study,
            _yardstick(view, self.study),
            load_samples,
            say=say,
            simulations=simulations,
        )
        looked = self._screen.look(self._rows)
        if looked is None:
            raise UsageError(
                f"study {view.study.name!r} has not measured its baseline yet",
                hint="forecasts are corrected by it; autotune trials shows what happened",
            )
        self.looked: Looked = looked

    @property
    def trust(self) -> float:
        """The probability, by the trials so far, that forecasts tell anything."""
        return self.looked.outlook.trust

    @property
    def trusted(self) -> bool:
        """Whether a search follows them; others are not worth being told."""
        return self.trust >= LEAST_TRUST

    @cached_property
    def forecasts(self) -> list[Forecast]:
        """All candidates of the study, the most promising first."""
        found = [self._forecast(row) for row in range(len(self._screen.cells))]
        return sorted(found, key=lambda each: each.loss)

    def of(self, candidate: Candidate) -> Forecast:
        """Return what is forecast of one candidate of the lattice.

        Raises:
            UsageError: it is none.
        """
        return self._forecast(self._row(candidate))

    def holds_up_to(self, candidate: Candidate) -> float | None:
        """Return the load, as a multiple of the traffic, up to which the budget is kept.

        The same requests at a denser pace. None if it is not kept as it is, or there is no
        budget; ``MOST_LOAD`` if it is kept at that.
        """
        if not self.looked.goal.limits.size or self._excess(candidate, 1.0) > 0:
            return None
        if self._excess(candidate, MOST_LOAD) <= 0:
            return MOST_LOAD
        low, high = 1.0, MOST_LOAD
        for _ in range(_LOAD_STEPS):
            middle = math.sqrt(low * high)
            low, high = (middle, high) if self._excess(candidate, middle) <= 0 else (low, middle)
        return low

    def at_load(self, candidate: Candidate, load: float) -> dict[str, float | None]:
        """Return the metrics that are forecast at a multiple of the traffic.

        Infinite where requests never end, None where there is nothing to measure.
        """
        found = np.exp(self._logs_at(candidate, load)).tolist()
        return {key: _known(value) for key, value in zip(self._screen.keys, found, strict=True)}

    def broken(self, metrics: Mapping[str, float | None]) -> list[str] | None:
        """Return the keys of the limits that metrics break; None without a budget.

        As in any judgement, a limit is broken where there is nothing to measure.
        """
        goal = self.looked.goal
        if not goal.limits.size:
            return None
        found = []
        for column, log_limit in zip(goal.limits.tolist(), goal.log_limits.tolist(), strict=True):
            value = metrics[self._screen.keys[column]]
            if value is None or value > math.exp(log_limit):
                found.append(self._screen.keys[column])
        return found

    @property
    def deployed(self) -> Forecast | None:
        """The candidate that the verdict is for; None if it is the baseline, or there is none."""
        judgement = self._view.judgement
        chosen = None if judgement is None else judgement.chosen
        if chosen is None or cell_key(chosen.candidate) == cell_key(self.study.baseline):
            return None
        return self.of(chosen.candidate)

    @cached_property
    def next(self) -> Candidate | None:
        """The candidate that a search by this budget would try next.

        None where none is expected to be better, or forecasts have no say.
        """
        rows = self._rows
        if (again := retry(rows)) is not None:
            return again.candidate
        known, spec = self._view.study.fingerprint, self._view.study.spec
        plan = Plan(
            trials=max(int(spec["trials"]), len(rows) + 1),
            baseline=self.study.baseline,
            starts=(),
            lattice=self.study.lattice,
            standing=Nobody(),
            live=known.get("fidelity") == "live" and not live_given_up(rows),
            screen=self._screen,
        )
        return None if plan.settled(rows) else self._screen.pick(rows, plan.untested(rows))

    @property
    def proposal(self) -> Forecast | None:
        """The unmeasured candidate that a search would try next, for what it is expected to gain.

        None where that is nothing to speak of: then a search would look no further for it.
        """
        if self.next is None:
            return None
        gain = float(self.looked.outlook.improvement[self._row(self.next)])
        found = self.of(self.next)
        return None if found.trials or gain < SETTLED_GAIN else found

    def attribution(self, candidate: Candidate) -> dict[str, dict[str, float] | None]:
        """Return what each knob does that a candidate moves, alone and from the baseline.

        As shares, by metric: 0.1 is 10 % more; without a metric of which nothing is forecast.
        None for a knob that alone makes no candidate.
        """
        base = self.looked.corrected.logs[self._row(self.study.baseline)]
        moved = [name for name in candidate if candidate[name] != self.study.baseline[name]]
        known = {cell_key(cell): row for row, cell in enumerate(self._screen.cells)}
        found: dict[str, dict[str, float] | None] = {}
        for name in moved:
            row = known.get(cell_key({**self.study.baseline, name: candidate[name]}))
            if row is None:
                found[name] = None
                continue
            with np.errstate(invalid="ignore"):
                change = np.expm1(self.looked.corrected.logs[row] - base)
            columns = zip(self._screen.keys, change.tolist(), strict=True)
            found[name] = {key: value for key, value in columns if math.isfinite(value)}
        return found

    def loss_by_chance(self) -> float | None:
        """Return the loss of the best of as many random cells as were measured, on average.

        The baseline is among them, as in any search. None if nothing else was measured.
        """
        losses = self.looked.outlook.expected
        base = losses[self._row(self.study.baseline)]
        tried = {cell_key(t.candidate) for t in self._view.trials if t.state in FINISHED}
        drawn = len(tried - {cell_key(self.study.baseline)})
        if not drawn:
            return None
        ordered = np.sort(np.minimum(losses, base))
        # The best of k draws is the i-th best cell with a chance that follows from ranks.
        left = (ordered.size - np.arange(ordered.size + 1)) / ordered.size
        chances = left[:-1] ** drawn - left[1:] ** drawn
        return float(chances @ ordered)

    def _excess(self, candidate: Candidate, load: float) -> float:
        return float(self.looked.goal.excess(self._logs_at(candidate, load)))

    def _logs_at(self, candidate: Candidate, load: float) -> F8:
        """Return logs at another load, off by as much as those at the study's own are.

        The same requests come faster: what they were off by is theirs, and the load up to which
        a budget is kept is found by halving, which needs a load of any size.
        """
        looked, simulations = self.looked, self.looked.simulations
        row = self._row(candidate)
        if load == 1.0:
            return np.asarray(looked.corrected.logs[row])
        with np.errstate(invalid="ignore"):
            off = looked.corrected.logs[row] - simulations.forecasts.logs[row]
        denser = forecast_cells(
            [self._screen.cells[row]],
            Traffic.of(compressed(self.study.trace, load), simulations.shape),
            simulations.times,
            simulations.shape,
            keys=self._screen.keys,
            measure=self._screen.measure,
        )
        return np.asarray(denser.logs[0] + np.nan_to_num(off))

    def _forecast(self, row: int) -> Forecast:
        looked, cell = self.looked, self._screen.cells[row]
        mean, sigma = looked.corrected.logs[row], looked.corrected.sigma[row]
        bounds = np.exp([mean - _BOUNDS * sigma, mean, mean + _BOUNDS * sigma])
        columns = zip(self._screen.keys, bounds.T, strict=True)
        key = cell_key(cell)
        own = [trial for trial in self._view.trials if cell_key(trial.candidate) == key]
        infeasible = [trial for trial in own if trial.state == "infeasible"]
        return Forecast(
            candidate=cell,
            metrics={name: (float(a), float(b), float(c)) for name, (a, b, c) in columns},
            probability=self._probability(mean, sigma),
            loss=float(looked.outlook.expected[row]),
            trials=tuple(t.number for t in own if t.state == "complete"),
            cut_short=tuple(t.number for t in infeasible if censored(t) is not None),
            failed=tuple(t.number for t in infeasible if censored(t) is None),
        )

    def _probability(self, mean: F8, sigma: F8) -> float | None:
        """Return the probability that the limit in most danger is kept."""
        goal = self.looked.goal
        if not goal.limits.size:
            return None
        room = goal.log_limits - mean[goal.limits]
        with np.errstate(invalid="ignore", divide="ignore"):
            deviations = np.where(np.isfinite(room), room / sigma[goal.limits], -np.inf)
        return 0.5 * math.erfc(-float(deviations.min()) / math.sqrt(2))

    def _row(self, candidate: Candidate) -> int:
        key = cell_key(candidate)
        for row, cell in enumerate(self._screen.cells):
            if cell_key(cell) == key:
                return row
        raise _no_such(candidate, self.study.lattice)


def check_candidate(view: StudyView, candidate: Candidate) -> None:
    """Refuse a candidate that a study does not have, before all of it is simulated.

    Raises:
        UsageError: it is none.
    """
    lattice = Lattice.from_json(view.study.fingerprint)
    if cell_key(candidate) not in map(cell_key, lattice.cells()):
        raise _no_such(candidate, lattice)


def _no_such(candidate: Candidate, lattice: Lattice) -> UsageError:
    ladders = "; ".join(
        f"{name}: {', '.join(map(str, ladder))}" for name, ladder in lattice.ladders.items()
    )
    return UsageError(f"no such candidate in this study: {cell_key(candidate)}", hint=ladders)


def stored_traffic(view: StudyView, moved: Path | None = None) -> Trace:
    """Return what the trials of a study replayed, from where it was or was moved to.

    Raises:
        TraceError, UsageError: it cannot be read.
    """
    spec = view.study.spec
    try:
        trace = load_trace(resolve_trace(str(moved or spec["trace"])))
    except TraceError as error:
        if moved is not None:
            raise
        hint = f"study {view.study.name!r} replayed it; if it has moved, give it with --trace"
        raise TraceError(error.message, hint=hint) from error
    if spec["window"] is not None:
        trace = parse_window(spec["window"]).apply(trace)
    held_out = view.study.fingerprint.get("holdout")
    if held_out is not None:
        trace, _ = Holdout(held_out).split(trace)
    load = load_of(view.study)
    if load is not None:
        trace = load.apply(trace)
    policy = view.study.fingerprint.get("too_long")
    own = next((trial.engine for trial in view.trials if trial.engine), None)
    if policy is None or own is None:
        return trace
    return fitted(trace, int(own["resolved"]["max_model_len"]), policy)


def _stored(view: StudyView, trace: Trace) -> Stored:
    known, spec = view.study.fingerprint, view.study.spec
    if trace.sha256 != known["trace"]:
        raise UsageError(
            f"the trace is not the traffic that study {view.study.name!r} replayed",
            hint=f"it was {spec['trace']}; if that has changed since, give the file as it was "
            "with --trace",
        )
    classes = parse_classes(spec["classes"])
    calibration = spec["calibration"]
    told = (trial.engine.get("forecast_obstacle") for trial in view.trials if trial.engine)
    return Stored(
        trace=trace,
        budget=Budget(()) if view.judgement is None else view.judgement.budget,
        classes=classes,
        baseline=known["baseline"],
        lattice=Lattice.from_json(known),
        calibrated=None if calibration is None else Calibrated.from_json(calibration),
        forecast_obstacle=next(filter(None, told), None),
        seed=known["seed"],
    )


def _judged(trial: TrialRecord, study: Stored) -> TrialRecord:
    """Return a trial in the state that it has once a study goes on by this budget."""
    if censored(trial) is not None and trial.state == "infeasible":
        lost = breaks_for_certain(trial, study.budget, study.classes)
        return trial if lost else replace(trial, state="interrupted")
    # Alone, as only what others say of it would tell live trials apart.
    if counted_trials([trial], study.budget, study.baseline, study.classes):
        return replace(trial, state="complete")
    return replace(trial, state="invalid") if trial.state == "complete" else trial


def _yardstick(view: StudyView, study: Stored) -> Yardstick:
    if study.calibrated is None:
        raise UsageError(
            f"study {view.study.name!r} has no calibration to forecast from",
            hint="tune without --no-calibrate, and with 6 trials or more, measures one",
        )
    obstacle = forecast_obstacle(study.lattice, study.forecast_obstacle)
    if obstacle is not None:
        raise UsageError(
            f"study {view.study.name!r} cannot be forecast: {obstacle}",
            hint="simulated are max_num_batched_tokens, max_num_seqs and "
            "long_prefill_token_threshold, on engines of full attention in one pipeline stage",
        )
    own = next((t.engine for t in view.trials if t.state == "complete" and t.engine), None)
    work = None if own is None or own["work"] is None else Work.from_json(own["work"])
    best = study.calibrated.calibration.best_flops_per_s
    return Yardstick(study.budget, study.classes, study.baseline, work, best)


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def described(
    forecasts: Sequence[Forecast], top: int, following: Candidate | None
) -> list[Forecast]:
    """Return the first so many, all that were measured, and the one to be tried next if any."""
    return [
        each
        for n, each in enumerate(forecasts)
        if n < top or each.trials or each.candidate == following
    ]
