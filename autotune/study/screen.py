"""Which cell to measure next, by simulations of all of them and what was measured so far.

The step times of the calibration are corrected by the steps of the trials, every cell of the
lattice is simulated with them, and what is still off is learnt from the residuals. As long as
that tells anything, the search follows it; where it does not, it says nothing and Optuna's
sampler searches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from autotune.candidates.lattice import SEQS, TOKENS, Candidate, Lattice, cell_key, integer
from autotune.candidates.live import THRESHOLD
from autotune.engine.protocol import EngineInfo
from autotune.forecast.choice import HOPELESS, Outlook, look
from autotune.forecast.compiled import COMPILED
from autotune.forecast.delivery import delivery_s
from autotune.forecast.forecaster import Forecasts, forecast_cells, forecast_obstacle
from autotune.forecast.goal import Goal
from autotune.forecast.residuals import LEAST_TRUST, Corrected, correct
from autotune.forecast.simulation import EngineShape, Traffic
from autotune.forecast.step_times import StepTimes
from autotune.forecast.sweep import Calibrated
from autotune.simulated.shape import shape_of
from autotune.study.costs import RATE, UTILIZATION, LoadSamples, objective_names
from autotune.study.counted import is_restart_of
from autotune.study.outcomes import Yardstick
from autotune.traffic.model import Trace
from objectives.arrays import F8, Bools
from objectives.classes import LengthClass
from objectives.limits import Budget
from objectives.measurement import point_values
from objectives.samples import RequestSamples
from objectives.steps import Steps
from storage.records import TrialRecord

SETTLED_TRUST = 0.9
SETTLED_GAIN = 0.01
"""What the best cell that was not measured is expected to gain, in widths of the budget, below
which measuring on is not worth a trial; asked of forecasts that are trusted so much."""

DOUBTFUL = 0.03
"""What is lost on average, in widths of the budget, since a cell is not known well enough, beyond
which it is measured again before it counts as the best."""

WORTH = float(HOPELESS) + math.log(1.25)
"""Excess, as a log, up to which a forecast cell is simulated at all paces: what is hopeless at one
pace may be less so at another, and trials correct forecasts."""

LEAST_MEASURED = 4
"""Cells that are measured before a search may be settled."""


class Studied(Protocol):
    """What is asked of a job, or of a study that is stored."""

    @property
    def trace(self) -> Trace: ...

    @property
    def budget(self) -> Budget: ...

    @property
    def classes(self) -> tuple[LengthClass, ...]: ...

    @property
    def baseline(self) -> Candidate: ...

    @property
    def lattice(self) -> Lattice: ...

    @property
    def calibrated(self) -> Calibrated | None: ...

    @property
    def forecast_obstacle(self) -> str | None: ...

    @property
    def seed(self) -> int: ...


@dataclass(frozen=True, slots=True, eq=False)
class Simulations:
    """All cells simulated, by step times that some trials have corrected.

    Attributes:
        replays: numbers of these trials: the baseline's first restart, then those that count.
        forecasts: of the cells.
        times: of steps.
        shape: of the engine.
    """

    replays: tuple[int, ...]
    forecasts: Forecasts
    times: StepTimes
    shape: EngineShape

    def serve(self, replays: tuple[int, ...], keys: tuple[str, ...]) -> bool:
        """Whether they are by these trials, and of these metrics."""
        return (self.replays, self.forecasts.keys) == (replays, keys)


@dataclass(frozen=True, slots=True, eq=False)
class Looked:
    """What forecasts say after some trials."""

    simulations: Simulations
    corrected: Corrected
    goal: Goal
    outlook: Outlook


class Screen:
    """Forecasts of all cells of a study, kept up to date with its trials.

    What it says follows from the stored trials alone, so that a resumed study goes on the same.

    Args:
        study: with a calibration, and with knobs that the simulation knows; see ``of``.
        yardstick: says by which budget.
        load_samples: returns the arrays of a complete trial.
        say: told when all cells are simulated, which takes seconds.
        simulations: of the same study, made before; None if there are none.
    """

    def __init__(
        self,
        study: Studied,
        yardstick: Yardstick,
        load_samples: LoadSamples,
        *,
        say: Callable[[str], None] = lambda _: None,
        simulations: Simulations | None = None,
    ) -> None:
        self._say = say
        self._study = study
        self._yardstick = yardstick
        self._load_samples = load_samples
        self.cells = study.lattice.cells()
        self._rows_of = {cell_key(cell): row for row, cell in enumerate(self.cells)}
        self._sweep_times: StepTimes | None = None
        self.simulations = simulations
        self._looked: tuple[tuple[int, ...], Looked] | None = None

    @classmethod
    def of(
        cls,
        study: Studied,
        yardstick: Yardstick,
        load_samples: LoadSamples,
        *,
        say: Callable[[str], None] = lambda _: None,
        simulations: Simulations | None = None,
    ) -> Screen | None:
        """Return the screen of a study, None where nothing can be forecast."""
        if study.calibrated is None:
            return None
        obstacle = forecast_obstacle(study.lattice, study.forecast_obstacle)
        if obstacle is not None:
            say(f"searching without forecasts: {obstacle}")
            return None
        return cls(study, yardstick, load_samples, say=say, simulations=simulations)

    def pick(
        self, rows: Sequence[TrialRecord], allowed: Callable[[Candidate], bool]
    ) -> Candidate | None:
        """Return the cell that is most worth measuring, None where forecasts have no say."""
        looked = self.look(rows)
        if looked is None or looked.outlook.trust < LEAST_TRUST:
            return None
        outlook = looked.outlook
        able = [
            row
            for row, cell in enumerate(self.cells)
            if allowed(cell) and not outlook.hopeless[row]
        ]
        if not able:
            return None
        best = max(able, key=lambda row: (outlook.improvement[row], -outlook.expected[row]))
        return self.cells[self._plainest(best, able, looked.simulations.forecasts)]

    def _plainest(self, best: int, able: Sequence[int], forecasts: Forecasts) -> int:
        """Return which of the cells that are simulated alike differs least from the baseline.

        A limit that makes no difference to the traffic is best left as it is.
        """
        own, base = forecasts.logs[best], self._rows_of[cell_key(self._study.baseline)]
        alike = [row for row in able if np.array_equal(forecasts.logs[row], own, equal_nan=True)]
        apart = np.abs(self._places - self._places[base]).sum(axis=1)
        return min(alike, key=lambda row: (apart[row], row != best))

    def settled(self, rows: Sequence[TrialRecord], allowed: Callable[[Candidate], bool]) -> bool:
        """Whether cells may still be tried, and none is expected to be better by much."""
        looked = self.look(rows)
        if looked is None or looked.outlook.trust < SETTLED_TRUST:
            return False
        if len({cell_key(row.candidate) for row in _counting(rows)}) < LEAST_MEASURED:
            return False
        gains = [
            float(looked.outlook.improvement[row])
            for row, cell in enumerate(self.cells)
            if allowed(cell)
        ]
        return bool(gains) and max(gains) < SETTLED_GAIN

    def doubtful(self, rows: Sequence[TrialRecord], candidate: Candidate) -> bool:
        """Whether luck may have made a measured cell what it seems, so near a limit is it."""
        looked = self.look(rows)
        if looked is None or looked.outlook.trust < SETTLED_TRUST:
            return False
        return bool(looked.outlook.doubts[self._rows_of[cell_key(candidate)]] > DOUBTFUL)

    def look(self, rows: Sequence[TrialRecord]) -> Looked | None:
        """Return what forecasts say by now, None before the baseline was measured."""
        base = self._yardstick.baseline_metrics(rows)
        counting = _counting(rows)
        if base is None or not counting:
            return None
        # Once for each state of the study; it is asked several times.
        state = tuple(row.number for row in [*counting, *_cut(rows)])
        if self._looked is None or self._looked[0] != state:
            self._looked = state, self._look_anew(rows, counting)
        return self._looked[1]

    def _look_anew(self, rows: Sequence[TrialRecord], counting: Sequence[TrialRecord]) -> Looked:
        # Simulating all cells takes seconds: anew whenever the replays have doubled.
        used = 2 ** int(math.log2(len(counting)))
        first = next(r for r in counting if is_restart_of(r, self._study.baseline))
        numbers = (first.number, *(row.number for row in counting[:used]))
        budget = self._yardstick.absolute_budget(rows)
        costs = [*objective_names(self._study.budget)[:-1], self._work]
        goal = Goal.of(budget, self.keys, costs)
        simulations = self.simulations
        if simulations is None or not simulations.serve(numbers, self.keys):
            tried = [self._row_of(row) for row in [*counting, *_cut(rows)]]
            simulations = self.simulations = self._forecast(first, numbers, goal, tried)
        whole = [
            (self._row_of(trial), _logs(trial.metrics or {}, self.keys)) for trial in counting
        ]
        corrected = _corrected(simulations, self._places, whole)
        if bounds := self._bounds(rows, corrected):
            corrected = _corrected(simulations, self._places, [*whole, *bounds])
        # What was cut short is not known well enough to be the best.
        measured = np.array([row for row, _ in whole])
        outlook = look(corrected, goal, measured=measured, seed=self._study.seed)
        return Looked(simulations, corrected, goal, outlook)

    def _forecast(
        self, baseline: TrialRecord, replays: tuple[int, ...], goal: Goal, tried: Sequence[int]
    ) -> Simulations:
        def worth(logs: F8) -> Bools:
            near = goal.excess(logs) <= WORTH
            near[tried] = True
            return near

        count = len(replays) - 1
        slowly = "" if COMPILED else ", in plain Python: numba would be 10 times as fast"
        self._say(
            f"simulating all {len(self.cells)} candidates, by the steps of {count} "
            f"{'replay' if count == 1 else 'replays'}{slowly}"
        )
        study, info = self._study, EngineInfo.of_trial(baseline.engine or {})
        arrays = {number: self._load_samples(number) for number in replays}
        shape = shape_of(info, delivery_s=_delivered_s(arrays[baseline.number]))
        times = self._swept(info.capture_sizes).refined(
            [Steps.split(each)[0] for each in arrays.values()],
            overlapping=shape.in_flight > 1,
        )
        forecasts = forecast_cells(
            self.cells,
            Traffic.of(study.trace, shape),
            times,
            shape,
            keys=self.keys,
            measure=self.measure,
            worth=worth,
        )
        return Simulations(replays, forecasts, times, shape)

    def _swept(self, capture_sizes: Sequence[int]) -> StepTimes:
        """Return the step times of the sweep alone."""
        if self._sweep_times is None:
            calibrated = self._study.calibrated
            if calibrated is None:
                raise ValueError("a study without step times has no forecasts")
            ladders = self._study.lattice.ladders
            self._sweep_times = StepTimes.fit(
                calibrated.steps,
                capture_sizes=capture_sizes,
                max_tokens=max(map(integer, ladders[TOKENS])),
                max_seqs=max(map(integer, ladders[SEQS])),
            )
        return self._sweep_times

    def _bounds(self, rows: Sequence[TrialRecord], expected: Corrected) -> list[tuple[int, F8]]:
        """Return the rows of cells whose replay was cut short, and the logs of what is known.

        It says of a limit only that it is missed by so much at least: that counts where less was
        expected.
        """
        found = []
        for trial in _cut(rows):
            row = self._row_of(trial)
            bounds = _logs((trial.engine or {})["censored"]["bounds"], self.keys)
            found.append((row, np.where(bounds > expected.logs[row], bounds, np.nan)))
        return found

    def _row_of(self, trial: TrialRecord) -> int:
        return self._rows_of[cell_key(trial.candidate)]

    def measure(self, samples: RequestSamples) -> Mapping[str, float | None]:
        """Return the metrics that are forecast."""
        return point_values(
            samples,
            self.keys,
            classes=self._study.classes,
            work=self._yardstick.work,
            best_flops_per_s=self._yardstick.best_flops_per_s,
        )

    @cached_property
    def _work(self) -> str:
        own = self._yardstick
        return RATE if own.work is None or own.best_flops_per_s is None else UTILIZATION

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """The metrics that are forecast: those with limits, and those that are scored."""
        limits = [limit.key for limit in self._study.budget.limits]
        names = [*limits, *objective_names(self._study.budget)[:-1], self._work]
        return tuple(dict.fromkeys(names))

    @cached_property
    def _places(self) -> F8:
        """Where each cell is, [cells, axes], in octaves; the step budget first."""
        top = max(map(integer, self._study.lattice.ladders[TOKENS]))

        def octaves(cell: Candidate) -> list[float]:
            # No threshold is one that no prompt reaches.
            threshold = integer(cell.get(THRESHOLD) or 0) or top
            sizes = (integer(cell[TOKENS]), integer(cell[SEQS]), threshold)
            return [math.log2(size) for size in sizes]

        return np.array([octaves(cell) for cell in self.cells])


def _corrected(
    simulations: Simulations, places: F8, trials: Sequence[tuple[int, F8]]
) -> Corrected:
    """Return forecasts corrected by trials: the row of the cell of each, and its logs."""
    forecasts = simulations.forecasts
    return correct(
        forecasts.logs,
        forecasts.slopes,
        forecasts.noise,
        places,
        measured=np.array([row for row, _ in trials]),
        measured_logs=np.array([logs for _, logs in trials]),
        time_error=simulations.times.error,
    )


def _counting(rows: Sequence[TrialRecord]) -> list[TrialRecord]:
    return [row for row in rows if row.state == "complete" and row.metrics is not None]


def _cut(rows: Sequence[TrialRecord]) -> list[TrialRecord]:
    return [row for row in rows if row.state == "infeasible" and "censored" in (row.engine or {})]


def _logs(metrics: Mapping[str, float | None], keys: Sequence[str]) -> F8:
    values = [metrics.get(key) for key in keys]
    return np.array([math.log(v) if v and math.isfinite(v) else math.nan for v in values])


def _delivered_s(arrays: Mapping[str, F8]) -> float:
    steps, requests = Steps.split(arrays)
    return delivery_s(steps, RequestSamples.from_arrays(requests))
