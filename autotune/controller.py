"""The study loop: ask, start, replay, score, store, tell, stop."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

import optuna
from numpy.typing import NDArray

from autotune.candidates.lattice import Candidate, cell_key
from autotune.candidates.starts import starting_points
from autotune.engine.protocol import Failure, TrialFailed
from autotune.engine.supervisor import open_log
from autotune.errors import EnvironmentFault, TooManyFailures
from autotune.study.costs import Fidelity
from autotune.study.deadline import ClockWatch, DeadlinePassed, too_short
from autotune.study.earned import Earned, earn, engine_json
from autotune.study.ending import ended_json
from autotune.study.job import Job
from autotune.study.judgement import Judgement, judge, verdict_json
from autotune.study.outcomes import Yardstick
from autotune.study.plan import (
    GIVEN_UP_AFTER,
    EndedBy,
    Plan,
    Step,
    failures_in_a_row,
    finished_trials,
    is_search,
    live_given_up,
    retry,
)
from autotune.study.runner import Engines, Result, Runner
from autotune.study.sampler import UntestedCellSampler, ask
from autotune.study.screen import Screen, Simulations
from autotune.study.stage import Stage
from autotune.study.standing import Judged
from autotune.study.timekeeper import Timekeeper
from objectives.steps import Steps
from storage.keeping import Keeper
from storage.records import Outcome, TrialFailure, TrialRecord
from storage.repository import Repository, utc_now
from storage.study import reconcile, tell_stored

BUSY_HINT = "let nothing else run on this machine; the same command then tries again"


class Watcher(Protocol):
    """Whoever follows a study on a screen."""

    def say(self, text: str) -> None: ...

    def begun(self, row: TrialRecord, position: int, total: int) -> None: ...

    def progress(self, body: Mapping[str, Any]) -> None:
        """Take note of how many requests are ``done`` of ``total`` in which ``stage``.

        ``label`` says what runs where that is no trial; it may be missing.
        """

    def finished(self, row: TrialRecord) -> None: ...


class Controller:
    """Runs one study to its end.

    Args:
        job: what is tuned.
        study_id: of the study's row.
        repository: our tables, the truth.
        optuna_study: Optuna's tables; its sampler is set here.
        engines: replays.
        stage: which of them runs.
        watcher: told of progress.
        log_folder: one engine log a trial goes here.
        pause: waits for some seconds.
        now: the time of day, by which a study that goes on knows how long it stood.
        timekeeper: of the deadline, None without one.
        clocks: watched for jumps of the time of day.
    """

    def __init__(
        self,
        *,
        job: Job,
        study_id: int,
        repository: Repository,
        optuna_study: optuna.Study,
        engines: Engines,
        stage: Stage,
        watcher: Watcher,
        log_folder: Path,
        pause: Callable[[float], None] = time.sleep,
        now: Callable[[], datetime] = utc_now,
        timekeeper: Timekeeper | None = None,
        clocks: ClockWatch | None = None,
    ) -> None:
        self._job = job
        self._study_id = study_id
        self._repository = repository
        self._optuna = optuna_study
        self._stage = stage
        self._runner = Runner(job, engines, stage, watcher.progress, pause=pause)
        self._watcher = watcher
        self._log_folder = log_folder
        self._keeper = Keeper(repository, study_id, log_folder, watcher.say)
        self._begun: tuple[TrialRecord, ...] = ()
        self._now = now
        self._timekeeper = timekeeper
        self._clocks = clocks or ClockWatch()
        self._yardstick = Yardstick.of(job)
        lattice = job.lattice
        self._screen = Screen.of(job, self._yardstick, self._samples, say=watcher.say)
        self._standing = Judged(self._rows, self._judge, job.baseline)
        self._plan = Plan(
            trials=job.settings.trials,
            baseline=job.baseline,
            starts=starting_points(
                lattice, job.trace.input_lengths, job.baseline, self._is_not_baseline
            ),
            lattice=lattice,
            standing=self._standing,
            live=job.live,
            screen=self._screen,
            timing=timekeeper,
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
            UsageError: there is no time for any trial of those that are still to run.
        """
        reconcile(self._optuna, self._repository, self._study_id)
        self._recall()
        self._refuse_if_too_short()
        while (step := self._plan.next_step(self._rows())) is not None:
            number = self._begin(step)
            try:
                result = self._measure(number)
            except TrialFailed as outcome:
                self._store_failure(outcome.failure)
            except DeadlinePassed as passed:
                self._store_cut(passed)
            else:
                self._store(result)
            tell_stored(self._optuna, self._repository, self._study_id, number)
            self._end(self._repository.trial(self._study_id, number))
            self._give_up_if_hopeless()
        self._stage.clear()
        return self._conclude()

    def _recall(self) -> None:
        """Give the runner the replays that it had seen before the study was stopped."""
        now = self._now()
        for row in self._rows():
            hit = row.state == "invalid" and row.failure_class == "slow_spell"
            arrays = self._samples(row.number) if hit or row.state == "complete" else {}
            if not arrays:
                continue
            steps = Steps.split(arrays)[0]
            if not hit:
                self._runner.remember(row.candidate, _fidelity(row), steps)
                continue
            ended_at = now if row.finished_at is None else datetime.fromisoformat(row.finished_at)
            self._runner.suspect(
                row.candidate,
                _fidelity(row),
                steps,
                capture_limit=max((row.engine or {})["capture_sizes"], default=None),
                ended_s_ago=(now - ended_at).total_seconds(),
            )

    def _begin(self, step: Step) -> int:
        """Draw the candidate and write its row, before anything is started."""
        self._keeper.prepare()
        attributes = {**(step.candidate or {}), "phase": step.phase}
        if step.rule is not None:
            attributes["rule"] = step.rule
        number, candidate = ask(
            self._optuna,
            self._job.lattice,
            step.candidate,
            attributes,
            steadily=self._repository.steadily,
        )
        log_path = self._stage.log_path(self._job, candidate, step.fidelity)
        if log_path is None:
            log_path = self._log_path(number)
            open_log(log_path).close()
        self._repository.begin_trial(
            self._study_id,
            number,
            phase=step.phase,
            fidelity=step.fidelity,
            candidate=candidate,
            replicate_of=step.replicate_of,
            log_path=str(log_path),
        )
        # What follows is scored by these: when it ends, the database may be away.
        self._begun = self._rows()
        done = finished_trials(self._begun)
        self._watcher.begun(self._begun[-1], done + 1, self._job.settings.trials)
        return number

    def _measure(self, number: int) -> Result:
        """Run a trial; a search need not see the end of a replay that has lost the budget."""
        rows, row = self._begun, self._begun[-1]
        # Interrupted trials do not count, so that a study that was stopped goes on the same.
        before = sum(each.number < number and each.state != "interrupted" for each in rows)
        may_be_cut = is_search(row, rows) and self._yardstick.baseline_metrics(rows) is not None
        return self._runner.run(
            row.candidate,
            _fidelity(row),
            salt=f"trial-{before}",
            log_path=self._log_path(number),
            budget=self._yardstick.absolute_budget(rows) if may_be_cut else None,
        )

    def _store(self, result: Result) -> None:
        """Write what was measured and the outcome to be told, in one transaction."""
        row = self._begun[-1]
        earned = earn(self._yardstick, result, row, self._begun)
        if earned.state == "invalid" and result.spell is None:
            # What a starved client sent is no measure of the engine's pace either.
            self._runner.forget(row.candidate, _fidelity(row))
        self._keeper.finish(
            row,
            state=earned.state,
            outcome=earned.outcome,
            timings=result.timings,
            metrics=earned.metrics,
            intervals=earned.intervals,
            engine={**engine_json(result), **earned.engine},
            diagnosis=earned.diagnosis,
            failure=earned.failure,
            samples=_kept(earned, result),
        )

    def _store_failure(self, failure: Failure) -> None:
        """Write a failure; one that the candidate causes is told as infeasible, never as fast.

        What goes wrong live shows nothing of the candidate: the engine has other limits than it.
        """
        self._stage.kill()
        row = self._begun[-1]
        live = row.fidelity == "live"
        caused = failure.deterministic and not live
        infeasible = self._yardstick.infeasible(self._begun)
        self._keeper.finish(
            row,
            state="infeasible" if caused else "failed",
            outcome=infeasible if caused else Outcome("fail"),
            failure=TrialFailure(failure.failure_class, failure.evidence),
        )
        rows = self._rows()
        if live and live_given_up(rows):
            self._watcher.say(
                f"every trial restarts an engine from now on: {GIVEN_UP_AFTER} live ones failed, "
                f"the last with {failure.failure_class}: {failure.evidence}"
            )

    def _store_cut(self, passed: DeadlinePassed) -> None:
        """Mark a trial as interrupted that the deadline has caught; it is run again some time."""
        self._stage.kill()
        self._repository.interrupt_running(self._study_id)
        self._watcher.say(f"this trial does not count: {passed.message}")

    def _end(self, row: TrialRecord) -> None:
        """Tell of a trial that has ended, and look at the clocks."""
        self._watcher.finished(row)
        if self._timekeeper is not None:
            self._timekeeper.ended(row)
        jump_s = self._clocks.jump_s()
        if jump_s is not None:
            self._repository.add_event(self._study_id, "clock_jump", {"seconds": jump_s})
            self._watcher.say(
                f"the time of day has jumped by {jump_s:+.0f} s; no time here is counted by it"
            )

    def _refuse_if_too_short(self) -> None:
        """Refuse to run where the deadline leaves no time for anything.

        Raises:
            UsageError: it leaves none, and something is still to be measured.
        """
        rows, timing = self._rows(), self._timekeeper
        if timing is None or self._plan.next_step(rows) is not None:
            return
        step = replace(self._plan, timing=None).wanted(rows)
        if step is None:
            return
        raise too_short(timing.deadline, self._plan.needed_s(timing, step, rows))

    def _conclude(self) -> Judgement | None:
        judgement = self.judge()
        verdict = None
        if judgement is not None:
            rows = self._rows()
            by = self.ended_by
            missing = self._plan.unconfirmed(rows) if by == "deadline" else 0
            verdict = {**verdict_json(judgement), **ended_json(by, confirmations=missing)}
        self._repository.set_verdict(self._study_id, verdict)
        self._repository.set_state(self._study_id, "finished")
        return judgement

    @property
    def ended_by(self) -> EndedBy:
        """Why no further trial is run."""
        return self._plan.ended_by(self._rows())

    @property
    def simulations(self) -> Simulations | None:
        """The latest forecasts of all cells, None where there are none."""
        return None if self._screen is None else self._screen.simulations

    def judge(self) -> Judgement | None:
        """Return what the trials so far say."""
        return self._standing.judgement()

    def _judge(self, rows: Sequence[TrialRecord]) -> Judgement | None:
        return judge(
            rows,
            self._samples,
            budget=self._job.budget,
            classes=self._job.classes,
            baseline=self._job.baseline,
        )

    def _samples(self, number: int) -> dict[str, NDArray[Any]]:
        return self._repository.samples(self._study_id, number)

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
        evidence, ran = rows[-1].failure_evidence or "", rows[-1].state == "invalid"
        # Of a replay that does not count the engine's log has nothing: it was the machine.
        hint = BUSY_HINT if ran else f"the engine's own words are in {rows[-1].log_path}"
        if count >= self._job.settings.max_failures_in_a_row:
            how = "ran and do not count:" if ran else "failed with"
            raise TooManyFailures(
                f"{count} trials in a row {how} {failure_class}: {evidence}", hint=hint
            )
        if (
            rows[-1].phase == "baseline"
            and retry([r for r in rows if r.phase == "baseline"]) is None
        ):
            what = (
                "the baseline ran, but the machine was too busy to trust what was measured"
                if ran
                else "the baseline does not run here"
            )
            raise EnvironmentFault(f"{what} ({failure_class}): {evidence}", hint=hint)


def _kept(earned: Earned, result: Result) -> dict[str, NDArray[Any]] | None:
    """Return what is stored of a replay: of one cut short, only what its repetition will need."""
    steps = result.replayed.steps.to_arrays()
    if earned.metrics is not None:
        return {**result.replayed.samples.to_arrays(), **steps}
    return None if result.spell is None else steps


def _fidelity(row: TrialRecord) -> Fidelity:
    return "live" if row.fidelity == "live" else "restart"
