"""A tuning job from settings to verdict: opens everything in order, and closes it again."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Protocol

import optuna

from autotune.candidates.lattice import Tiles, check_size
from autotune.controller import Controller, Watcher
from autotune.engine.supervisor import Description
from autotune.lease import lease, study_lock
from autotune.settings import TuneSettings
from autotune.simulated.engines import SimulatedEngines
from autotune.simulated.profile import name_in
from autotune.study.beginning import first_job, searches_live
from autotune.study.deadline import Deadline, Due, boot_time, deadline_line, due
from autotune.study.earlier import Earlier, check_storage, earlier_study
from autotune.study.edge_load import at_edge, known_load
from autotune.study.ending import leave_out_replays
from autotune.study.engines import AnyEngines
from autotune.study.holdout import confirm_on_held, held_spec
from autotune.study.job import Job, make_job
from autotune.study.judgement import Judgement
from autotune.study.knobs import check_knobs
from autotune.study.outcomes import Yardstick
from autotune.study.outlook import outlook
from autotune.study.plan import EndedBy, finished_trials
from autotune.study.preflight import check_leases, check_room, check_weights, leases_elsewhere
from autotune.study.rejudge import rejudge
from autotune.study.sampler import distributions
from autotune.study.schedule import schedule
from autotune.study.screen import Simulations
from autotune.study.session import (
    Traffic,
    changes,
    describe_engine,
    device_lease,
    end_earlier_runs,
    fit_traffic,
    log_folder,
    open_supervisor,
    question,
    read_traffic,
    study_name,
)
from autotune.study.stage import Stage
from autotune.study.stored import marked_when_cut_short, open_stored
from autotune.study.timekeeper import Timekeeper, check_enough, known_start_s
from objectives.classes import classes_text
from objectives.errors import ObjectiveError
from storage.database import resolve_url
from storage.records import StudyRecord, TrialRecord
from storage.repository import Repository
from storage.rows import check_fingerprint
from storage.study import rebuild_if_stale

_REASONS: Mapping[EndedBy, str] = {
    "deadline": "there is no time for another trial by the deadline",
    "settled": "no candidate that was not tried is expected to be better",
    "exhausted": "no untested candidate is left",
}


_ALIVE_EVERY_S = 1.0


class TalkingWatcher(Watcher, Protocol):
    """A watcher that is also told in words what happens between trials."""

    def leased(self) -> None:
        """Take note that the study is ours from now on."""

    def due(self, left_s: float) -> None:
        """Take note of a deadline, so many seconds from now."""

    def opened(self, study: StudyRecord, trials: Sequence[TrialRecord]) -> None: ...

    def judging(self, judge: Callable[[], Judgement | None]) -> None:
        """Take note of who can be asked for the verdict so far."""

    def alive(self) -> None:
        """Take note that the study goes on; called by what makes progress, or waits for some."""


@dataclass(frozen=True, slots=True, eq=False)
class Ended:
    """What a study leaves that is not stored.

    Attributes:
        judgement: None if no trial has a result.
        simulations: the latest of all cells, None if nothing could be forecast.
    """

    judgement: Judgement | None
    simulations: Simulations | None


def run_study(
    settings: TuneSettings, watcher: TalkingWatcher, *, environ: Mapping[str, str]
) -> Ended:
    """Run or resume the study that the settings describe.

    Raises:
        AutotuneError, ObjectiveError, StorageError: with a message and a hint.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    begun_s, limit = boot_time(), due(settings, environ, time.time())
    url, name = _checked_place(settings, environ)
    settings = known_load(settings, earlier_study(url, name))
    given = read_traffic(settings)
    for sentence in given.trace.notes.sentences():
        watcher.say(sentence)
    with ExitStack() as stack:
        stack.enter_context(lease(study_lock(url, name), f"study {name!r}"))
        watcher.leased()
        end_earlier_runs(watcher.say)
        supervisor = stack.enter_context(open_supervisor(settings, name))
        deadline = _deadline(limit, begun_s, supervisor, watcher)
        watcher.say(question(settings))
        described = describe_engine(settings, supervisor)
        traffic = fit_traffic(given, settings, described.info.max_model_len)
        for sentence in changes(given, traffic):
            watcher.say(sentence)
        leased = supervisor.device_uuids
        stack.enter_context(device_lease(described.info.device, leased))
        earlier = earlier_study(url, name)
        job = _job(settings, traffic, described, earlier)
        for sentence in check_knobs(job, supervisor, watcher.say):
            watcher.say(sentence)
        # A knob such as tensor_parallel_size may need further GPUs.
        further = supervisor.device_uuids - leased
        stack.enter_context(device_lease(described.info.device, further))
        stored = stack.enter_context(open_stored(url, name, settings, watcher.say))
        repository = stored.repository
        stage = Stage(supervisor)
        if earlier is None:
            check_enough(deadline, job, start_s=known_start_s(supervisor, job))
            job = first_job(job, described, stage, supervisor, listener=watcher, name=name)
            job = at_edge(job, described, stage.info, watcher.say)
        if job.classes:
            watcher.say("classes of prompt length: " + classes_text(job.classes))
        record = repository.open_study(
            name,
            fingerprint=job.fingerprint(),
            spec={**job.spec(), **held_spec(job, None if earlier is None else earlier.study)},
        )
        folder = log_folder(settings, name)
        stored.settle(record.id, folder, watcher.say)
        _judge_again(job, repository, record, earlier, watcher)
        watcher.opened(record, repository.trials(record.id))
        timekeeper = Timekeeper.of(deadline, job, stage, start_s=known_start_s(supervisor, job))
        pause = (
            supervisor.wait if isinstance(supervisor, SimulatedEngines) else _pause(watcher.alive)
        )
        with marked_when_cut_short(repository, record.id, supervisor):
            controller = Controller(
                job=job,
                study_id=record.id,
                repository=repository,
                optuna_study=_brought_up_to_date(stored.index, job, repository, record),
                engines=supervisor,
                stage=stage,
                watcher=watcher,
                log_folder=folder,
                pause=pause,
                timekeeper=timekeeper,
            )
            watcher.judging(controller.judge)
            judgement = controller.run()
            _say_if_early(controller, repository.trials(record.id), settings, watcher)
            left_out = confirm_on_held(
                job,
                judgement,
                record=record,
                repository=repository,
                engines=supervisor,
                stage=stage,
                follower=watcher,
                log_folder=folder,
                pause=pause,
                timekeeper=timekeeper,
            )
            leave_out_replays(repository, record.name, left_out)
            return Ended(judgement, controller.simulations)


def _pause(alive: Callable[[], None]) -> Callable[[float], None]:
    """Return what waits for some seconds, and tells that it does."""

    def pause(seconds: float) -> None:
        end_s = time.monotonic() + seconds
        while (left_s := end_s - time.monotonic()) > 0:
            time.sleep(min(left_s, _ALIVE_EVERY_S))
            alive()

    return pause


def plan_study(
    settings: TuneSettings, say: Callable[[str], None], *, environ: Mapping[str, str]
) -> dict[str, Any]:
    """Check all that can be checked without an engine; return what would be run.

    Nothing is made but the log of the engine host.

    Raises:
        AutotuneError, ObjectiveError, StorageError: as ``run_study`` would before its first
            engine, or later for want of room or weights.
    """
    now_s = time.time()
    limit = due(settings, environ, now_s)
    url, name = _checked_place(settings, environ)
    settings = known_load(settings, earlier_study(url, name))
    traffic = read_traffic(settings)
    say(question(settings))
    with open_supervisor(settings, name) as supervisor:
        described = describe_engine(settings, supervisor)
        traffic = fit_traffic(traffic, settings, described.info.max_model_len)
        earlier = earlier_study(url, name)
        job = _job(settings, traffic, described, earlier)
        if earlier is not None:
            check_fingerprint(earlier.study, job.fingerprint())
        for sentence in check_knobs(job, supervisor, say):
            say(sentence)
        start_s = known_start_s(supervisor, job)
        if earlier is None and limit is not None:
            check_enough(limit.by(boot_time, boot_time()), job, start_s=start_s)
        check_leases(url, name, supervisor.device_uuids)
    for sentence in [] if earlier is None else leases_elsewhere(url, name):
        say(sentence)
    check_room(job, url)
    check_weights(settings, environ)
    rows = () if earlier is None else earlier.trials
    timed = schedule(job, limit, rows, start_s=start_s)
    state, finished = ("new", 0) if earlier is None else (earlier.study.state, earlier.finished)
    study = {"name": name, "state": state, "finished_trials": finished}
    profile = job.simulated_by
    simulated = {} if profile is None else {"simulated": name_in(profile)}
    return {"study": study, **simulated, **outlook(job), "time": timed.to_json(now_s)}


def _deadline(
    limit: Due | None, begun_s: float, supervisor: AnyEngines, watcher: TalkingWatcher
) -> Deadline | None:
    """Return the deadline on the clock that the engines go by, and have it end their work.

    The watcher is told of it, and that engines are at work; what is simulated does neither by
    the time of day.
    """
    if isinstance(supervisor, SimulatedEngines):
        if limit is None:
            return None
        on_paper = limit.by(supervisor.clock, supervisor.clock())
        supervisor.pulse = on_paper.check
        watcher.say(deadline_line(on_paper, time.time(), simulated=True))
        return on_paper
    deadline = None if limit is None else limit.by(boot_time, begun_s)
    if deadline is not None:
        watcher.say(deadline_line(deadline, time.time(), simulated=False))
        watcher.due(deadline.left_s())

    def pulse() -> None:
        if deadline is not None:
            deadline.check()
        watcher.alive()

    supervisor.pulse = pulse
    return deadline


def _say_if_early(
    controller: Controller,
    rows: Sequence[TrialRecord],
    settings: TuneSettings,
    watcher: TalkingWatcher,
) -> None:
    """Say why a study ends with fewer trials than it may have."""
    finished, by = finished_trials(rows), controller.ended_by
    if by in _REASONS:
        watcher.say(f"{_REASONS[by]}: the study ends with {finished} of {settings.trials} trials")


def _checked_place(settings: TuneSettings, environ: Mapping[str, str]) -> tuple[str, str]:
    """Return database and name of the study, checked with all that takes no time to check."""
    Tiles.parse(settings.tile)
    check_size(map(len, settings.knobs.values()))
    url, name = resolve_url(settings.storage, environ), study_name(settings)
    check_storage(url, name)
    return url, name


def _job(
    settings: TuneSettings, traffic: Traffic, described: Description, earlier: Earlier | None
) -> Job:
    """Return the job; one that goes on keeps the fidelity and the calibration that it had."""
    if earlier is None:
        live = searches_live(settings, described.info)
    else:
        live = earlier.live and settings.fidelity == "auto"
    return make_job(
        settings,
        traffic.trace,
        traffic.budget,
        traffic.classes,
        described,
        peak=None if earlier is None else earlier.peak_concurrency,
        live=live,
        calibrated=None if earlier is None else earlier.calibrated,
        held=traffic.held,
    )


def _judge_again(
    job: Job,
    repository: Repository,
    record: StudyRecord,
    earlier: Earlier | None,
    watcher: TalkingWatcher,
) -> None:
    """Judge the stored trials by this budget; one that cannot be judged by is not kept."""
    yardstick = Yardstick.of(job)
    try:
        rejudged = rejudge(repository, record.id, yardstick)
    except ObjectiveError:
        if earlier is not None:
            repository.update_spec(record.id, earlier.study.spec)
            repository.set_state(record.id, "interrupted")
        raise
    if rejudged:
        budget = job.budget.text or "no budget"
        watcher.say(
            f"judged again, by {budget}: {len(rejudged)} earlier trials, all that another budget "
            "had judged"
        )


def _brought_up_to_date(
    study: optuna.Study, job: Job, repository: Repository, record: StudyRecord
) -> optuna.Study:
    """Return Optuna's index of the study as what is stored says; closing either closes both."""
    return rebuild_if_stale(
        study,
        repository,
        record.id,
        distributions=distributions(job.lattice),
        indices_of=job.lattice.indices,
    )
