"""The study loop: ask, start, replay, score, store, tell, stop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import optuna

from autotune.candidates.diagnosis import Load, summarise
from autotune.candidates.lattice import SEQS, TOKENS, Candidate, cell_key
from autotune.candidates.starts import starting_points
from autotune.engine.protocol import Failure, ReplayPlan, ReplayResult, TrialFailed
from autotune.engine.supervisor import Started, open_log
from autotune.errors import EnvironmentFault, TooManyFailures
from autotune.study.job import Job
from autotune.study.judgement import Judgement, judge, verdict_json
from autotune.study.outcomes import Yardstick
from autotune.study.plan import Plan, Step, failures_in_a_row, finished_trials, retry
from autotune.study.replays import warmup_requests
from autotune.study.sampler import UntestedCellSampler, ask
from autotune.traffic.model import Trace
from objectives.measurement import Measurement
from storage.records import Outcome, TrialFailure, TrialRecord
from storage.repository import Repository
from storage.study import reconcile, tell_stored


class Engines(Protocol):
    """What the controller needs of an engine host; see ``autotune.engine.supervisor``."""

    def start(self, engine_args: Mapping[str, Any], log_path: Path) -> Started: ...

    def replay(
        self, trace: Trace, plan: ReplayPlan, on_progress: Callable[[Mapping[str, Any]], None]
    ) -> ReplayResult: ...

    def stop(self) -> float: ...

    def kill(self) -> None: ...


class Watcher(Protocol):
    """Whoever follows a study on a screen."""

    def begun(self, row: TrialRecord, position: int, total: int) -> None: ...

    def progress(self, body: Mapping[str, Any]) -> None:
        """Take note of how many requests are ``done`` of ``total`` in which ``stage``."""

    def finished(self, row: TrialRecord) -> None: ...


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """What one trial yielded before it is judged."""

    measurement: Measurement
    replayed: ReplayResult
    started: Started
    load: Load
    timings: Mapping[str, float | None]


class Controller:
    """Runs one study to its end.

    Args:
        job: what is tuned.
        study_id: of the study's row.
        repository: our tables, the truth.
        optuna_study: Optuna's tables; its sampler is set here.
        engines: starts and replays.
        watcher: told of progress.
        log_folder: one engine log a trial goes here.
    """

    def __init__(
        self,
        *,
        job: Job,
        study_id: int,
        repository: Repository,
        optuna_study: optuna.Study,
        engines: Engines,
        watcher: Watcher,
        log_folder: Path,
    ) -> None:
        self._job = job
        self._study_id = study_id
        self._repository = repository
        self._optuna = optuna_study
        self._engines = engines
        self._watcher = watcher
        self._log_folder = log_folder
        self._yardstick = Yardstick(job.budget, job.classes, job.baseline)
        lattice = job.lattice
        self._plan = Plan(
            trials=job.settings.trials,
            baseline=job.baseline,
            starts=starting_points(
                lattice, job.trace.input_lengths, job.baseline, self._is_not_baseline
            ),
            lattice=lattice,
            finalist=self._finalist,
        )
        optuna_study.sampler = UntestedCellSampler(
            lattice,
            lambda: self._plan.untested(self._rows()),
            seed=job.settings.seed,
        )

    def run(self) -> Judgement | None:
        """Run every trial that is still to run, and return the judgement.

        Raises:
            TooManyFailures: failures of one class came too often in a row.
            EnvironmentFault: the baseline does not run on this machine.
        """
        reconcile(self._optuna, self._repository, self._study_id)
        while (step := self._plan.next_step(self._rows())) is not None:
            number = self._begin(step)
            try:
                result = self._run_engine(number)
            except TrialFailed as outcome:
                self._store_failure(number, outcome.failure)
            else:
                self._store(number, result)
            tell_stored(self._optuna, self._repository, self._study_id, number)
            self._watcher.finished(self._repository.trial(self._study_id, number))
            self._give_up_if_hopeless()
        return self._conclude()

    def _begin(self, step: Step) -> int:
        """Draw the candidate and write its row, before anything is started."""
        attributes = {**(step.candidate or {}), "phase": step.phase}
        if step.rule is not None:
            attributes["rule"] = step.rule
        number, candidate = ask(self._optuna, self._job.lattice, step.candidate, attributes)
        open_log(self._log_path(number)).close()
        self._repository.begin_trial(
            self._study_id,
            number,
            phase=step.phase,
            fidelity="restart",
            candidate=candidate,
            replicate_of=step.replicate_of,
            log_path=str(self._log_path(number)),
        )
        done = finished_trials(self._rows())
        row = self._repository.trial(self._study_id, number)
        self._watcher.begun(row, done + 1, self._job.settings.trials)
        return number

    def _run_engine(self, number: int) -> Result:
        """Start an engine with exactly what would be exported, replay, and stop it."""
        job = self._job
        candidate = self._repository.trial(self._study_id, number).candidate
        started = self._engines.start(job.engine_args(candidate), self._log_path(number))
        plan = ReplayPlan(
            seed=job.settings.seed,
            salt=f"trial-{number}",
            warmup_requests=warmup_requests(job.trace, job.settings.warmup_s),
        )
        replayed = self._engines.replay(job.trace, plan, self._watcher.progress)
        count = len(job.trace.requests)
        self._watcher.progress({"stage": "stop", "done": count, "total": count})
        stop_s = self._stop()
        measurement = self._yardstick.measure(replayed.samples)
        iterations = replayed.iterations
        load = summarise(
            **{name: getattr(iterations, name) for name in iterations.__slots__ if name != "at_s"},
            max_num_batched_tokens=int(candidate[TOKENS]),
            max_num_seqs=int(candidate[SEQS]),
        )
        timings = {
            "start_s": started.start_s,
            "warmup_s": replayed.warmup_s,
            "replay_s": replayed.replay_s,
            "stop_s": stop_s,
        }
        return Result(measurement, replayed, started, load, timings)

    def _stop(self) -> float | None:
        """Stop the engine; what it measured counts even if it will not go quietly."""
        try:
            return self._engines.stop()
        except TrialFailed:
            self._engines.kill()
            return None

    def _store(self, number: int, result: Result) -> None:
        """Write measurement, samples and the outcome to be told, in one transaction."""
        measurement, replayed = result.measurement, result.replayed
        row = self._repository.trial(self._study_id, number)
        earlier = self._rows()
        late = self._yardstick.late(measurement, earlier)
        diagnosis = self._yardstick.diagnosis(
            result.load, row.candidate, measurement.metrics, earlier
        )
        self._repository.finish_trial(
            self._study_id,
            number,
            state="complete" if late is None else "invalid",
            outcome=self._yardstick.measured(measurement, earlier, row.candidate)
            if late is None
            else self._yardstick.uncounted(),
            timings=result.timings,
            metrics=measurement.metrics,
            intervals={name: [i.low, i.high] for name, i in measurement.intervals.items()},
            engine={
                **result.started.info.to_json(),
                "ground": result.started.ground.to_json(),
                "load": result.load.to_json(),
                "requests": measurement.requests,
                "failed_requests": measurement.failed_requests,
                "errors": list(replayed.errors),
                "busy_s": measurement.busy_s,
                "useful_tokens": measurement.useful_tokens,
                "send_lag_p99_ms": measurement.send_lag_p99_ms,
            },
            diagnosis=diagnosis.to_json(),
            failure=None if late is None else TrialFailure(late.failure_class, late.evidence),
            samples={**replayed.samples.to_arrays(), **replayed.iterations.to_arrays()},
        )

    def _store_failure(self, number: int, failure: Failure) -> None:
        """Write a failure; one that the candidate causes is told as infeasible, never as fast."""
        self._engines.kill()
        infeasible = self._yardstick.infeasible(self._rows())
        self._repository.finish_trial(
            self._study_id,
            number,
            state="infeasible" if failure.deterministic else "failed",
            outcome=infeasible if failure.deterministic else Outcome("fail"),
            failure=TrialFailure(failure.failure_class, failure.evidence),
        )

    def _conclude(self) -> Judgement | None:
        judgement = self.judge()
        verdict = None if judgement is None else verdict_json(judgement)
        self._repository.set_verdict(self._study_id, verdict)
        self._repository.set_state(self._study_id, "finished")
        return judgement

    def judge(self) -> Judgement | None:
        """Return what the trials so far say."""
        return judge(
            self._rows(),
            lambda number: self._repository.samples(self._study_id, number),
            budget=self._job.budget,
            classes=self._job.classes,
            baseline=self._job.baseline,
        )

    def _finalist(self) -> Candidate | None:
        judgement = self.judge()
        if judgement is None or judgement.knee is None:
            return None
        candidate = judgement.cells[judgement.knee.cell].candidate
        return candidate if self._is_not_baseline(candidate) else None

    def _is_not_baseline(self, candidate: Candidate) -> bool:
        return cell_key(candidate) != cell_key(self._job.baseline)

    def _rows(self) -> tuple[TrialRecord, ...]:
        return self._repository.trials(self._study_id)

    def _log_path(self, number: int) -> Path:
        return self._log_folder / f"trial-{number:04d}.log"

    def _give_up_if_hopeless(self) -> None:
        rows = self._rows()
        failure_class, count = failures_in_a_row(rows)
        if failure_class is None:
            return
        evidence = rows[-1].failure_evidence or ""
        if count >= self._job.settings.max_failures_in_a_row:
            raise TooManyFailures(
                f"{count} trials in a row failed with {failure_class}: {evidence}",
                hint=f"the engine's own words are in {rows[-1].log_path}",
            )
        if (
            rows[-1].phase == "baseline"
            and retry([r for r in rows if r.phase == "baseline"]) is None
        ):
            raise EnvironmentFault(
                f"the baseline does not run here ({failure_class}): {evidence}",
                hint=f"the engine's own words are in {rows[-1].log_path}",
            )
