"""What every candidate of a lattice would measure, by simulation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from autotune.candidates.lattice import SEQS, TOKENS, Candidate, Lattice, integer
from autotune.candidates.live import THRESHOLD
from autotune.forecast.simulation import EngineShape, Simulated, Timed, Traffic, simulate
from objectives.arrays import F8, Bools
from objectives.samples import RequestSamples

SIMULATED = frozenset({TOKENS, SEQS, THRESHOLD})
"""What the simulation knows of a candidate; one with other knobs cannot be forecast."""

FACTORS = (0.96, 0.98, 1.0, 1.02, 1.04)
JITTER = 0.05
"""Each cell is simulated at several paces, with single steps that vary as on a machine: how a
metric follows the pace shows in the trend, and how far chance alone moves it, in the rest."""

_CENTRAL = FACTORS.index(1.0)
_JITTER_STEPS = 4093

Metrics = Mapping[str, float | None]
Measure = Callable[[RequestSamples], Metrics]


@dataclass(frozen=True, slots=True, eq=False)
class Forecasts:
    """Metrics of all cells.

    Attributes:
        keys: of the metrics.
        logs: [cells, keys], logarithms; inf for requests that never end, NaN where there is
            nothing to measure.
        slopes: [cells, keys], by how much the logs grow with the log of all step times.
        noise: [cells, keys], standard deviation of the logs by chance in single steps.
    """

    keys: tuple[str, ...]
    logs: F8
    slopes: F8
    noise: F8


def forecast_obstacle(lattice: Lattice, engine: str | None) -> str | None:
    """Return why cells cannot be forecast, None if they can.

    Args:
        lattice: whose knobs the simulation may not know.
        engine: what it does not know of the engine, None if it knows all.
    """
    if engine is not None:
        return engine
    unknown = sorted(lattice.ladders.keys() - SIMULATED)
    return f"a simulation does not know {', '.join(unknown)}" if unknown else None


def forecast_cells(
    cells: Sequence[Candidate],
    traffic: Traffic,
    times: Timed,
    shape: EngineShape,
    *,
    keys: Sequence[str],
    measure: Measure,
    worth: Callable[[F8], Bools] | None = None,
) -> Forecasts:
    """Simulate all cells, each at several paces.

    Cells that differ by a sequence cap that is never reached are simulated once. Those that are
    not worth more have the metrics of the central pace, with slopes and noise of the nearest
    cell that is.

    Args:
        cells: candidates.
        traffic: made for an engine of this ``shape``.
        times: of steps.
        shape: of the engine.
        keys: of the metrics.
        measure: gives them.
        worth: says by the logs of all cells at the central pace, [cells, keys], which of them,
            [cells], are worth the other paces; None for all, as where it names none.
    """

    def logs(number: int, own: Sequence[Candidate]) -> F8:
        # Other chances at each pace, but the same for all cells.
        chances = np.random.default_rng(number).normal(0.0, JITTER, _JITTER_STEPS)
        jitter = FACTORS[number] * np.exp(chances)
        return _logs(
            own,
            lambda cell: simulate(traffic, times, shape, cell, jitter=jitter),
            keys,
            measure,
        )

    central = logs(_CENTRAL, cells)
    chosen = np.ones(len(cells), dtype=np.bool_) if worth is None else worth(central)
    if not chosen.any():
        chosen = np.ones_like(chosen)
    own = [cells[row] for row in np.flatnonzero(chosen)]
    repeats = np.stack(
        [
            central[chosen] if number == _CENTRAL else logs(number, own)
            for number in range(len(FACTORS))
        ]
    )
    trend = _trend(tuple(keys), repeats)
    return trend if chosen.all() else _filled(trend, cells, central, chosen)


def _filled(trend: Forecasts, cells: Sequence[Candidate], central: F8, chosen: Bools) -> Forecasts:
    """Return forecasts of all cells, given the logs of one pace and the trend of some cells."""
    places = np.log2([[integer(cell[TOKENS]), integer(cell[SEQS])] for cell in cells])
    apart = ((places[:, np.newaxis] - places[chosen][np.newaxis]) ** 2).sum(axis=-1)
    nearest = np.argmin(apart, axis=1)
    nearest[chosen] = np.arange(chosen.sum())
    logs = central.copy()
    logs[chosen] = trend.logs
    ends = np.isfinite(logs)
    slopes = np.where(ends, trend.slopes[nearest], 0.0)
    return Forecasts(trend.keys, logs, slopes, np.where(ends, trend.noise[nearest], 0.0))


def _trend(keys: tuple[str, ...], repeats: F8) -> Forecasts:
    """Fit a line to the logs of repeats, [paces, cells, keys]."""
    paces = np.log(FACTORS)
    paces = paces - paces.mean()
    with np.errstate(invalid="ignore"):
        logs = repeats.mean(axis=0)
        slopes = np.tensordot(paces, repeats - logs, axes=1) / (paces @ paces)
        rest = repeats - logs - paces[:, np.newaxis, np.newaxis] * slopes
        noise = np.sqrt((rest**2).sum(axis=0) / (len(FACTORS) - 2))
    never = ~np.isfinite(logs)
    return Forecasts(keys, logs, np.where(never, 0.0, slopes), np.where(never, 0.0, noise))


def _logs(
    cells: Sequence[Candidate],
    replay: Callable[[Candidate], Simulated],
    keys: Sequence[str],
    measure: Measure,
) -> F8:
    found = np.full((len(cells), len(keys)), np.nan)
    # By descending cap: a peak below the next cap stands for that one as well.
    order = sorted(range(len(cells)), key=lambda i: -integer(cells[i][SEQS]))
    known: dict[tuple[tuple[str, int], ...], tuple[int, F8]] = {}
    for index in order:
        cell = cells[index]
        rest = tuple(sorted((k, integer(v)) for k, v in cell.items() if k != SEQS))
        if rest in known and known[rest][0] <= integer(cell[SEQS]):
            found[index] = known[rest][1]
            continue
        simulated = replay(cell)
        found[index] = log_metrics(simulated, keys, measure)
        known[rest] = peak_running(simulated), found[index]
    return found


def peak_running(replay: Simulated) -> int:
    """Return how many requests ran at once at most."""
    return int(replay.steps.running.max(initial=0))


def log_metrics(replay: Simulated, keys: Sequence[str], measure: Measure) -> F8:
    """Return [keys], the logs of a replay's metrics; inf where requests never end."""
    metrics = measure(replay.samples)
    values = [metrics.get(key) for key in keys]
    with np.errstate(divide="ignore"):
        return np.log(np.array([np.nan if v is None else v for v in values], dtype=np.float64))
