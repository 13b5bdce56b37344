"""The last thing that a study does: the winner and the baseline on traffic held out until then."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autotune.candidates.lattice import SEQS, TOKENS, Candidate, cell_key
from autotune.engine.protocol import Failure, TrialFailed
from autotune.engine.supervisor import open_log
from autotune.study.confirm import ATTEMPTS
from autotune.study.deadline import DeadlinePassed
from autotune.study.held import KEY, REPEATS, HeldPart, HeldReplay, HeldResult, held_part
from autotune.study.job import Job
from autotune.study.judgement import Judgement
from autotune.study.outcomes import Yardstick
from autotune.study.replays import client_bound
from autotune.study.runner import Engines, Runner
from autotune.study.session import Follower
from autotune.study.stage import Stage
from autotune.study.timekeeper import Timekeeper
from autotune.traffic.holdout import Holdout
from objectives.limits import Budget
from storage.records import StudyRecord
from storage.repository import Repository


def held_spec(job: Job, earlier: StudyRecord | None) -> dict[str, Any]:
    """Return what a study's spec says of held-out traffic, with what was measured on it already.

    Nothing where nothing is held out.
    """
    if job.held is None or job.settings.holdout is None:
        return {}
    part = HeldPart.of(job.settings.holdout, job.held, job.classes)
    known = None if earlier is None else held_part(earlier)
    return {KEY: part.with_results_of(known).to_json()}


def due(part: HeldPart, *, baseline: Candidate, winner: Candidate) -> list[Candidate]:
    """Return whose replays are still missing: of baseline, winner, winner, baseline.

    In this order, so that a machine that changes meanwhile treats them alike. If the winner is
    the baseline, that one twice. Nobody's who cannot run at all.
    """
    in_turn = [baseline, winner, winner, baseline]
    if cell_key(baseline) == cell_key(winner):
        in_turn = [baseline] * REPEATS
    missing = []
    for turn, candidate in enumerate(in_turn):
        before = sum(cell_key(each) == cell_key(candidate) for each in in_turn[:turn])
        result = part.result(candidate)
        if before >= len(result.replays) and not result.cannot_run:
            missing.append(candidate)
    return missing


def confirm_on_held(
    job: Job,
    judgement: Judgement | None,
    *,
    record: StudyRecord,
    repository: Repository,
    engines: Engines,
    stage: Stage,
    follower: Follower,
    log_folder: Path,
    pause: Callable[[float], None] = time.sleep,
    timekeeper: Timekeeper | None = None,
) -> int:
    """Replay what is held out with the winner and the baseline, as far as that is missing.

    Each replay is stored as soon as it ends. One that was sent late or hit by a slow spell, or
    whose engine failed without the candidate's fault, is tried once more; if that is no better
    the reason is stored, and the next run tries again.

    Args:
        job: of the study; nothing is done if it holds nothing out.
        judgement: of the study; nothing is done without a winner.
        record: the study's row, whose spec has ``held_spec``.
        repository: keeps it.
        engines: replay.
        stage: which of them runs; none does in the end.
        follower: told of progress.
        log_folder: one engine log a replay goes here.
        pause: waits for some seconds.
        timekeeper: of the deadline, None without one.

    Returns:
        How many replays are left out, as they would end after the deadline.
    """
    if job.held is None or judgement is None or judgement.chosen is None:
        return 0
    part, winner = HeldPart.from_json(record.spec[KEY]), judgement.chosen.candidate
    missing = due(part, baseline=job.baseline, winner=winner)
    if not missing:
        return 0
    rows = repository.trials(record.id)
    repository.set_state(record.id, "running")
    follower.say(
        f"confirming on the last {Holdout(part.share).words} of the window: {part.requests} "
        "requests that nothing was chosen on"
    )
    held, labelled = replace(job, trace=job.held, live=False), _Labelled(follower)
    replays = _Replays(
        job=held,
        budget=judgement.budget,
        runner=Runner(held, engines, stage, labelled.progress, pause=pause),
        stage=stage,
        labelled=labelled,
        log_folder=log_folder,
    )
    given_up: set[str] = set()
    left_out = 0
    for number, candidate in enumerate(missing, start=1):
        if cell_key(candidate) in given_up:
            continue
        if timekeeper is not None and not timekeeper.has_time_for_held(rows):
            left_out = len(missing) - number + 1
            break
        labelled.begin(f"held-out replay {number} of {len(missing)}, {_name(candidate)}")
        try:
            result, attempts = replays.more(part.result(candidate), done=part.attempts)
        except DeadlinePassed as passed:
            follower.say(f"this replay does not count: {passed.message}")
            stage.kill()
            left_out = len(missing) - number + 1
            break
        if result.failure is not None:
            given_up.add(cell_key(candidate))
            follower.say(f"it does not count: {result.failure['evidence']}")
        part = part.with_result(result, attempts=attempts)
        repository.update_spec(record.id, {**record.spec, KEY: part.to_json()})
    stage.clear()
    repository.set_state(record.id, "finished")
    if left_out:
        follower.say(
            f"left out, as there is no time: {left_out} of {len(missing)} replays of what is held "
            "out; the same command with more time goes on"
        )
    return left_out


@dataclass(slots=True, eq=False)
class _Labelled:
    """Tells a follower of progress what it is of: nobody has announced a trial."""

    follower: Follower
    label: str = ""

    def begin(self, label: str) -> None:
        self.label = label
        self.follower.say(label)

    def progress(self, body: Mapping[str, Any]) -> None:
        self.follower.progress({**body, "label": self.label})


@dataclass(frozen=True, slots=True, eq=False)
class _Replays:
    """Replays of held-out traffic: ``job`` has it as its trace, ``budget`` is in ms."""

    job: Job
    budget: Budget
    runner: Runner
    stage: Stage
    labelled: _Labelled
    log_folder: Path

    def more(self, result: HeldResult, *, done: int) -> tuple[HeldResult, int]:
        """Return the result with another replay or with why there is none, and the attempts.

        ``done`` attempts were made before, of all candidates.
        """
        attempts = 0
        while True:
            outcome = self._replay(result.candidate, f"holdout-{done + attempts}")
            attempts += 1
            if isinstance(outcome, HeldReplay):
                replays = (*result.replays, outcome)
                return replace(result, replays=replays, failure=None), attempts
            if outcome.deterministic or attempts == ATTEMPTS:
                failure = {"class": outcome.failure_class, "evidence": outcome.evidence}
                return replace(result, failure=failure), attempts

    def _replay(self, candidate: Candidate, salt: str) -> HeldReplay | Failure:
        self.labelled.progress({"stage": "start", "done": 0, "total": 0})
        log_path = self.log_folder / f"{salt}.log"
        open_log(log_path).close()
        try:
            run = self.runner.run(candidate, "restart", salt=salt, log_path=log_path, budget=None)
        except TrialFailed as outcome:
            self.stage.kill()
            return outcome.failure
        if run.spell is not None:
            return run.spell
        measured = Yardstick.of(self.job).measure(run.replayed.samples)
        late = client_bound(measured, self.budget)
        if late is not None:
            self.runner.forget(candidate, "restart")
            return late
        # Goodput is by the budget of now, and what is stored may be judged by another.
        metrics = {n: value for n, value in measured.metrics.items() if n != "goodput"}
        intervals = {n: [i.low, i.high] for n, i in measured.intervals.items()}
        return HeldReplay(metrics, intervals, measured.failed_requests)


def _name(candidate: Candidate) -> str:
    further = [f"{k}={v}" for k, v in candidate.items() if k not in (TOKENS, SEQS)]
    return " ".join([f"{candidate[TOKENS]}/{candidate[SEQS]}", *further])
