"""``--load auto``: the load at which the baseline is at the edge of the budget, by simulation."""

from __future__ import annotations

import math
from collections.abc import Callable

from autotune.candidates.lattice import SEQS, TOKENS, integer
from autotune.engine.protocol import EngineInfo
from autotune.engine.supervisor import Description
from autotune.errors import TraceError, UsageError
from autotune.forecast.compiled import COMPILED
from autotune.forecast.forecaster import forecast_obstacle, log_metrics
from autotune.forecast.goal import Goal
from autotune.forecast.simulation import Traffic, simulate
from autotune.forecast.step_times import StepTimes
from autotune.settings import AUTO, TuneSettings
from autotune.simulated.shape import shape_of
from autotune.study.earlier import Earlier
from autotune.study.job import Job, make_job
from autotune.study.plan import CONFIRM_FROM
from autotune.study.session import fit_traffic, read_traffic
from autotune.traffic.load import Load
from objectives.limits import parse_budget
from objectives.measurement import point_values
from objectives.samples import RequestSamples

LEAST, MOST = 0.125, 8.0
"""Times the recorded traffic between which the edge is looked for."""

_STEPS = 6
"""Halvings of an octave, to within 1 %."""

_GIVE = "give a number: --load 2"


def known_load(settings: TuneSettings, earlier: Earlier | None) -> TuneSettings:
    """Return settings with the load that an earlier run of the study has found.

    Raises:
        UsageError: no load can be found by such settings.
    """
    if settings.load != AUTO:
        return settings
    if earlier is not None:
        return settings.model_copy(update={"load": earlier.study.spec.get("load")})
    budget = parse_budget(settings.budget)
    if not budget.limits or len(budget.absolute) < len(budget.limits):
        raise UsageError(
            "--load auto needs a budget in ms, at whose edge the baseline is to be",
            hint=f"such as --budget 'ttft_p95:800 tpot_p95:40', or {_GIVE}",
        )
    if not settings.calibrate or settings.trials < CONFIRM_FROM:
        raise UsageError(
            "--load auto needs step times, which this study does not measure",
            hint=f"leave out --no-calibrate and give {CONFIRM_FROM} --trials or more, or {_GIVE}",
        )
    return settings


def at_edge(
    job: Job, described: Description, engine: EngineInfo | None, say: Callable[[str], None]
) -> Job:
    """Return the job at the load at which its baseline is at the edge of the budget.

    As it is where the user has given a load. The ladders stay those of the recorded load, for
    which step times were measured.

    Args:
        job: with step times, at the recorded load.
        described: what vLLM makes of the user's arguments.
        engine: the engine that was measured, None if none could be.
        say: told in words.

    Raises:
        UsageError: there are no step times, or no such load.
    """
    if job.settings.load != AUTO:
        return job
    obstacle = forecast_obstacle(job.lattice, job.forecast_obstacle)
    if job.calibrated is None or engine is None or obstacle is not None:
        raise UsageError(
            f"--load auto cannot be found: {obstacle or 'no step times were measured'}",
            hint=_GIVE,
        )
    slowly = "" if COMPILED else ", in plain Python: numba would be 10 times as fast"
    say(f"simulating the baseline at other loads{slowly}")
    factor = edge(_Forecast(job, engine))
    if factor is None:
        raise UsageError(
            f"--load auto: by forecast the baseline breaks {job.budget.text} even at {LEAST:g} "
            "times the traffic",
            hint=f"loosen the budget, or {_GIVE}",
        )
    baseline = f"{job.baseline[TOKENS]}/{job.baseline[SEQS]}"
    within = "holds the budget up to" if factor < MOST else "holds the budget even at"
    say(f"load: by forecast the baseline {baseline} {within} {factor:g} times the traffic")
    settings = job.settings.model_copy(update={"load": factor})
    traffic = fit_traffic(read_traffic(settings), settings, described.info.max_model_len)
    if traffic.trace.notes.load is not None:
        say(traffic.trace.notes.load)
    return make_job(
        settings,
        traffic.trace,
        traffic.budget,
        traffic.classes,
        described,
        peak=job.peak_concurrency,
        live=job.live,
        calibrated=job.calibrated,
        held=traffic.held,
    )


def edge(kept: Callable[[float], bool]) -> float | None:
    """Return the highest load, in two digits, at which the budget is kept.

    ``MOST`` where it is kept at that, None where it is not even at ``LEAST``.
    """
    low, high = (1.0, 2.0) if kept(1.0) else (0.5, 1.0)
    while high > 1 and kept(high):
        if high >= MOST:
            return MOST
        low, high = high, 2 * high
    while high <= 1 and not kept(low):
        if low <= LEAST:
            return None
        low, high = low / 2, low
    for _ in range(_STEPS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if kept(middle) else (low, middle)
    # Down, as more may break it.
    digits = 1 - math.floor(math.log10(low))
    return math.floor(low * 10.0**digits) / 10.0**digits


class _Forecast:
    """Whether the baseline keeps the budget at a load, by the step times of the sweep."""

    def __init__(self, job: Job, engine: EngineInfo) -> None:
        if job.calibrated is None:
            raise ValueError("a job without step times has no forecasts")
        ladders = job.lattice.ladders
        self._job = job
        self._shape = shape_of(engine)
        self._times = StepTimes.fit(
            job.calibrated.steps,
            capture_sizes=engine.capture_sizes,
            max_tokens=max(map(integer, ladders[TOKENS])),
            max_seqs=max(map(integer, ladders[SEQS])),
        )
        self._keys = tuple(dict.fromkeys(limit.key for limit in job.budget.limits))
        self._goal = Goal.of(job.budget, self._keys, [self._keys[0]])

    def __call__(self, load: float) -> bool:
        try:
            trace = Load.of(load).changed(self._job.trace)
        except TraceError:
            # So near to 1, for so few requests, that nothing changes.
            trace = self._job.trace
        traffic = Traffic.of(trace, self._shape)
        replay = simulate(traffic, self._times, self._shape, self._job.baseline)
        logs = log_metrics(replay, self._keys, self._measure)
        return float(self._goal.excess(logs)) == 0

    def _measure(self, samples: RequestSamples) -> dict[str, float | None]:
        return point_values(samples, self._keys, classes=self._job.classes)
