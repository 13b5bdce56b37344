"""The searches that are compared: the product's own, and plain samplers of Optuna."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import optuna
from optuna.samplers import BaseSampler
from search_truth import (
    BASELINE,
    CELLS,
    KEYS,
    LATTICE,
    MACHINE,
    ROW_OF,
    SHAPE,
    WINDOWS,
    WORK,
    Workload,
    drifted,
    luck,
    metrics_of,
    replayed,
)

from autotune.candidates.diagnosis import summarise
from autotune.candidates.lattice import SEQS, TOKENS, Candidate, cell_key, integer
from autotune.candidates.starts import starting_points
from autotune.engine.ground import Ground
from autotune.engine.protocol import EngineInfo, ReplayResult, Warmup
from autotune.engine.supervisor import Started
from autotune.forecast.forecaster import Forecasts, Measure, forecast_cells
from autotune.forecast.goal import Scale
from autotune.forecast.simulation import STEADY, EngineShape, Timed, Times, Traffic
from autotune.hardware.hardware_use import HardwareSeries, HardwareUse
from autotune.settings import TuneSettings
from autotune.simulated.cutting import cut_at_loss
from autotune.study import screen
from autotune.study.earned import earn, engine_json
from autotune.study.job import Job
from autotune.study.judgement import Judgement, judge
from autotune.study.outcomes import Yardstick
from autotune.study.plan import Plan, is_search
from autotune.study.runner import Result
from autotune.study.sampler import UntestedCellSampler, ask, distributions
from autotune.study.standing import Judged
from objectives.arrays import F8, Bools
from objectives.measurement import Measurement
from objectives.samples import RequestSamples
from storage.records import TrialRecord
from storage.study import tell

INFO = EngineInfo(
    vllm_version="0.26.0",
    torch_version="2.9.0",
    device="NVIDIA H200",
    device_uuids=(),
    model="llama-8b",
    resolved={
        "max_model_len": 16384,
        "block_size": SHAPE.block_size,
        "enable_prefix_caching": SHAPE.caching,
        "async_scheduling": SHAPE.in_flight > 1,
        **BASELINE,
    },
    vocab_size=128_256,
    kv_cache_tokens=SHAPE.kv_blocks * SHAPE.block_size,
    capture_sizes=MACHINE.calibrated.calibration.capture_sizes,
    work=WORK,
)
STARTED = Started(INFO, 0.0, Ground(0, 0, 0, 0, 0, {}))
UNWATCHED = HardwareUse(0, {}, {}, (), None, None, HardwareSeries(np.empty(0), {}))
WARM = Warmup(requests=0, passes=0, drift=None, seconds=0.0)
WHEN = "2026-11-30T00:00:00+00:00"

Worth = Callable[[F8], Bools]

QMC = "qmc"
"""Sobol points, shifted at random and enqueued: Optuna's own sampler of them needs scipy."""

SAMPLERS: Mapping[str, Callable[[int], BaseSampler]] = {
    "tpe": lambda seed: optuna.samplers.TPESampler(seed=seed),
    "random": lambda seed: optuna.samplers.RandomSampler(seed=seed),
    QMC: lambda seed: optuna.samplers.RandomSampler(seed=seed),
    "gp": lambda seed: optuna.samplers.GPSampler(seed=seed),
    "grid": lambda seed: optuna.samplers.GridSampler(
        {name: list(range(len(ladder))) for name, ladder in LATTICE.ladders.items()}, seed=seed
    ),
}


class Bench:
    """All searches of one workload with one seed: the same sweep, the same luck.

    Studies of different lengths begin alike, so that replays, their measurement and forecasts
    are remembered.

    Args:
        workload: what is tuned for.
        seed: of everything that is drawn.
        shuffled: whether the step times of the model that searches have nothing to do with the
            machine's.
    """

    def __init__(self, workload: Workload, seed: int, *, shuffled: bool = False) -> None:
        self.workload = workload
        # No two pairs of workload and seed share their chances.
        self.seed = seed = seed * len(WINDOWS) + list(WINDOWS).index(workload.name)
        self._shuffled = shuffled
        self._calibrated = MACHINE.swept(seed)
        self._replays: dict[tuple[int, int, int, bool], ReplayResult] = {}
        self._measured: dict[tuple[int, int, int], F8] = {}
        self._central: dict[bytes, F8] = {}
        self._forecasts: dict[bytes, dict[bytes, Forecasts]] = {}
        self.yardstick = Remembering(Yardstick.of(self.job(1)))

    def autotune(self, trials: int) -> ProductSearch:
        """Return a study of the product with so many trials, at its end."""
        search = ProductSearch(self, trials)
        with patch.object(screen, "forecast_cells", self._forecast):
            search.run()
        return search

    def plain(self, name: str, trials: int) -> list[tuple[int, F8]]:
        """Return what a sampler of Optuna measures, in order: rows of cells, and their logs."""
        own = self.workload
        study = optuna.create_study(directions=["minimize"] * 3, sampler=SAMPLERS[name](self.seed))
        study.enqueue_trial(LATTICE.indices(BASELINE))
        if name == QMC:
            for point in _spread(self.seed, trials - 1):
                study.enqueue_trial(point)
        found: list[tuple[int, F8]] = []
        while len(found) < trials:
            trial = study.ask(distributions(LATTICE))
            cell = _consistent(LATTICE.at({k: int(v) for k, v in trial.params.items()}))
            row = ROW_OF[cell_key(cell)]
            repeat = sum(other == row for other, _ in found)
            logs = self._logs(cell, repeat, len(found))
            found.append((row, logs))
            goal = own.goal
            for column, limit in zip(goal.limits, goal.log_limits, strict=True):
                over = min(float(np.expm1(logs[column] - limit)), 10.0)
                trial.set_constraint(KEYS[column], over)
            costs = np.exp(goal.signs * logs[goal.costs])
            study.tell(trial, np.minimum(costs, 1e9).tolist())
        return found

    def _logs(self, candidate: Candidate, repeat: int, number: int) -> F8:
        """Return the logs of the metrics of a replay; samplers begin alike."""
        key = ROW_OF[cell_key(candidate)], repeat, number
        if key not in self._measured:
            metrics = metrics_of(self.replay(candidate, repeat, number, cut=False).samples)
            values = [metrics[name] for name in KEYS]
            self._measured[key] = np.log(np.array([np.nan if v is None else v for v in values]))
        return self._measured[key]

    def job(self, trials: int) -> Job:
        own = self.workload
        return Job(
            settings=TuneSettings(
                model=INFO.model,
                trace=own.name,
                budget=own.budget.text,
                trials=trials,
                seed=self.seed,
            ),
            trace=own.trace,
            budget=own.budget,
            classes=(),
            info=INFO,
            flags={},
            pinned={},
            baseline=BASELINE,
            lattice=LATTICE,
            peak_concurrency=0,
            live=True,
            calibrated=self._calibrated,
        )

    def replay(self, candidate: Candidate, repeat: int, number: int, *, cut: bool) -> ReplayResult:
        """Return the ``repeat``-th measurement of a candidate, as the ``number``-th trial."""
        own, seed = self.workload, self.seed
        key = ROW_OF[cell_key(candidate)], repeat, number, cut
        if key not in self._replays:
            whole = replayed(
                own.traffic,
                candidate,
                luck(seed, candidate, repeat),
                drift=drifted(seed, number),
            )
            samples, steps, censored = whole.samples, whole.steps, None
            if cut:
                samples, steps, censored = cut_at_loss(whole, own.budget, ())
            end_s = float(steps.done_s[-1])
            self._replays[key] = ReplayResult(
                samples=samples,
                steps=steps,
                warmup=WARM,
                replay_s=end_s,
                began_at=0.0,
                ended_at=end_s,
                errors=(),
                censored=censored,
            )
        return self._replays[key]

    def _forecast(
        self,
        cells: Sequence[Candidate],
        traffic: Traffic,
        times: Timed,
        shape: EngineShape,
        *,
        keys: Sequence[str],
        measure: Measure,
        worth: Worth,
    ) -> Forecasts:
        """As the product's own, but once for the same step times and cells worth more."""
        plain = _plain(times)
        digest = hashlib.blake2b(repr((keys, shape)).encode())
        for part in plain:
            digest.update(np.asarray(part).tobytes())
        key = digest.digest()
        known, chosen = self._forecasts.setdefault(key, {}), b""
        if key in self._central:
            chosen = worth(self._central[key]).tobytes()
            if chosen in known:
                return known[chosen]

        def watched(logs: F8) -> Bools:
            nonlocal chosen
            self._central[key] = logs.copy()
            found = worth(logs)
            chosen = found.tobytes()
            return found

        used = _shuffle(plain, self.seed) if self._shuffled else plain
        found = forecast_cells(
            cells, traffic, used, shape, keys=keys, measure=measure, worth=watched
        )
        known[chosen] = found
        return found


class Remembering(Yardstick):
    """Measures each replay once."""

    def __init__(self, own: Yardstick) -> None:
        super().__init__(own.budget, own.classes, own.baseline, own.work, own.best_flops_per_s)
        object.__setattr__(self, "_known", {})

    def measure(self, samples: RequestSamples) -> Measurement:
        known: dict[int, tuple[RequestSamples, Measurement]] = self.__dict__["_known"]
        if id(samples) not in known:
            known[id(samples)] = samples, super().measure(samples)
        return known[id(samples)][1]


class ProductSearch:
    """One study as the controller runs it, without engines and database.

    Attributes:
        rows: its trials.
    """

    def __init__(self, bench: Bench, trials: int) -> None:
        self.rows: list[TrialRecord] = []
        self._bench = bench
        self._job = job = bench.job(trials)
        self._arrays: dict[int, Mapping[str, Any]] = {}
        self._standing = Judged(lambda: self.rows, self._judge, BASELINE)
        self._plan = Plan(
            trials=trials,
            baseline=BASELINE,
            starts=starting_points(
                LATTICE, job.trace.input_lengths, BASELINE, self._is_not_baseline
            ),
            lattice=LATTICE,
            standing=self._standing,
            live=job.live,
            screen=screen.Screen.of(job, bench.yardstick, self._arrays.__getitem__),
        )
        self._study = optuna.create_study(
            directions=["minimize"] * 3,
            sampler=UntestedCellSampler(
                LATTICE, lambda: self._plan.untested(self.rows), seed=bench.seed
            ),
        )

    def run(self) -> None:
        while (step := self._plan.next_step(self.rows)) is not None:
            number, candidate = ask(self._study, LATTICE, step.candidate, {"phase": step.phase})
            row = TrialRecord(
                study_id=1,
                number=number,
                state="running",
                phase=step.phase,
                fidelity=step.fidelity,
                candidate=candidate,
                replicate_of=step.replicate_of,
                started_at=WHEN,
                finished_at=None,
                timings=None,
                metrics=None,
                intervals=None,
                engine=None,
                diagnosis=None,
                failure_class=None,
                failure_evidence=None,
                outcome=None,
                told=False,
                log_path=None,
            )
            self.rows.append(self._finished(row))

    @property
    def pick(self) -> int:
        """Row of the cell that the user would be told to deploy, or is told to be nearest."""
        judged = self.judge()
        if judged is None:
            return ROW_OF[cell_key(BASELINE)]
        index = judged.winner if judged.winner is not None else judged.nearest
        candidate = BASELINE if index is None else judged.cells[index].candidate
        return ROW_OF[cell_key(candidate)]

    def judge(self) -> Judgement | None:
        return self._standing.judgement()

    def _judge(self, rows: Sequence[TrialRecord]) -> Judgement | None:
        return judge(
            rows,
            self._arrays.__getitem__,
            budget=self._job.budget,
            classes=(),
            baseline=BASELINE,
        )

    def _finished(self, row: TrialRecord) -> TrialRecord:
        yardstick = self._bench.yardstick
        known = yardstick.baseline_metrics(self.rows) is not None
        may_be_cut = known and is_search(row, self.rows)
        repeat = Counter(cell_key(each.candidate) for each in self.rows)[cell_key(row.candidate)]
        replay = self._bench.replay(row.candidate, repeat, row.number, cut=may_be_cut)
        load = summarise(
            replay.steps,
            max_num_batched_tokens=integer(row.candidate[TOKENS]),
            max_num_seqs=integer(row.candidate[SEQS]),
        )
        result = Result(replay, STARTED, load, UNWATCHED, None, {})
        earned = earn(yardstick, result, row, self.rows)
        self._arrays[row.number] = {**replay.samples.to_arrays(), **replay.steps.to_arrays()}
        tell(self._study, row.number, earned.outcome)
        return replace(
            row,
            state=earned.state,
            finished_at=WHEN,
            metrics=earned.metrics,
            intervals=earned.intervals,
            engine={**engine_json(result), **earned.engine},
            diagnosis=earned.diagnosis,
            outcome=earned.outcome,
            told=True,
        )

    def _is_not_baseline(self, candidate: Candidate) -> bool:
        return cell_key(candidate) != cell_key(BASELINE)


def best_of(workload: Workload, found: Sequence[tuple[int, F8]]) -> int:
    """Return the cell that measures best, by the rule of the verdict and by means of repeats."""
    rows = list(dict.fromkeys(row for row, _ in found))
    logs = np.array([np.mean([own for row, own in found if row == each], axis=0) for each in rows])
    return rows[int(np.argmin(Scale.of(workload.goal, logs).losses(logs)))]


def sobol(seed: int, count: int) -> F8:
    """Return [count, 2], points of Sobol's sequence, all shifted by the same bits."""
    bits, second, directions = 16, 1, []
    for bit in range(bits):
        directions.append([1 << (bits - 1 - bit), second << (bits - 1 - bit)])
        second ^= second << 1
    numbers = np.arange(count)[:, np.newaxis] >> np.arange(bits) & 1
    points = np.bitwise_xor.reduce(numbers[:, :, np.newaxis] * np.array(directions), axis=1)
    shift = np.random.default_rng(seed).integers(0, 1 << bits, 2)
    return np.asarray((points ^ shift) / (1 << bits))


def _spread(seed: int, count: int) -> list[dict[str, int]]:
    """Return so many points of Sobol's sequence as indices of ladders."""
    sizes = np.array([len(ladder) for ladder in LATTICE.ladders.values()])
    places = (sobol(seed, count) * sizes).astype(int)
    return [dict(zip(LATTICE.ladders, map(int, each), strict=True)) for each in places]


def _consistent(candidate: Candidate) -> Candidate:
    """Return the nearest candidate whose step has room for each sequence."""
    tokens = integer(candidate[TOKENS])
    caps = [integer(cell[SEQS]) for cell in CELLS if cell[TOKENS] == tokens]
    return {TOKENS: tokens, SEQS: min(max(caps), integer(candidate[SEQS]))}


def _plain(times: Timed) -> Times:
    return Times(
        times.decode_s,
        times.mixed_s,
        times.kv_token_s,
        times.pair_s,
        times.request_s,
        times.host_s,
        times.host_request_s,
        times.between_s,
        times.between_request_s,
        STEADY,
    )


def _shuffle(times: Times, seed: int) -> Times:
    """Return the same times, of steps of other sizes."""
    chance = np.random.default_rng(seed)

    def mixed_up(table: F8) -> F8:
        return np.concatenate([table[:1], chance.permutation(table[1:])])

    return times._replace(decode_s=mixed_up(times.decode_s), mixed_s=mixed_up(times.mixed_s))
