"""Optuna on the same database: a derived index of our trials, for its sampler to learn from.

Our row is the truth. A trial goes ask (Optuna), ``begin_trial``, ``finish_trial`` (ours, with
the outcome to be told), ``tell`` (Optuna), ``mark_told`` (ours). A controller may be killed
between any two of them; ``reconcile`` brings Optuna to what our rows say. Where these were
judged anew, or Optuna's study was lost, ``rebuild_if_stale`` makes the index again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final
from weakref import WeakKeyDictionary

import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState, create_trial

from storage import codec
from storage.database import engine_options, parse_url
from storage.errors import StorageError, StorageUnavailable
from storage.faults import missing_driver, translated_errors, unavailable
from storage.masking import mask_url
from storage.names import optuna_name
from storage.records import Json, Outcome, TrialRecord
from storage.repository import Repository

logger = logging.getLogger(__name__)

_OWNER_KEY: Final = "autotune"
_FINISHED: Final = {"complete": TrialState.COMPLETE, "fail": TrialState.FAIL}
_storages: WeakKeyDictionary[optuna.Study, RDBStorage] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class Reconciled:
    """What ``reconcile`` did, as trial numbers.

    Attributes:
        told: Finished measurements of which Optuna was told now.
        interrupted: Trials of ours that a killed controller left running.
        orphaned: Trials that Optuna had begun and we had not.
        cleared: Trials that waited in Optuna's queue.
    """

    told: tuple[int, ...] = ()
    interrupted: tuple[int, ...] = ()
    orphaned: tuple[int, ...] = ()
    cleared: tuple[int, ...] = ()


def open_optuna_study(
    url: str, name: str, *, directions: int, sampler: BaseSampler, patient: bool = False
) -> optuna.Study:
    """Create or load the Optuna study, all of whose objectives are minimised.

    Call ``close_optuna_study`` in the end.

    Args:
        directions: The number of objectives.
        patient: As in ``storage.database.open_database``.

    Raises:
        StorageUnavailable: If the database cannot be used, or Optuna's tables in it have the
            schema of another version.
        StorageError: If the study of this name is another program's or has other objectives.
    """
    storage = _open_storage(url, patient=patient)
    try:
        with _translated(url):
            study = optuna.create_study(
                storage=storage,
                study_name=optuna_name(name),
                directions=["minimize"] * directions,
                sampler=sampler,
                load_if_exists=True,
            )
            _claim(study, directions)
    except StorageError:
        _dispose(storage)
        raise
    _storages[study] = storage
    return study


def check_optuna_study(url: str, name: str, *, directions: int) -> None:
    """Return if ``open_optuna_study`` would create or load this study; change nothing.

    Optuna's tables must be there.

    Raises:
        StorageUnavailable, StorageError: As ``open_optuna_study`` does.
    """
    storage = _open_storage(url, write=False)
    try:
        with _translated(url), suppress(KeyError):  # No such study.
            _require_claimable(
                optuna.load_study(study_name=optuna_name(name), storage=storage), directions
            )
    finally:
        _dispose(storage)


def close_optuna_study(study: optuna.Study) -> None:
    """Close the connections of a study from ``open_optuna_study``; twice is harmless."""
    storage = _storages.pop(study, None)
    if storage is not None:
        _dispose(storage)


def tell(
    study: optuna.Study,
    number: int,
    outcome: Outcome,
    *,
    phase: str | None = None,
    candidate: Json | None = None,
) -> bool:
    """Tell Optuna the outcome of a running trial; repeating is harmless.

    Phase, feasibility and candidate become user attributes, which optuna-dashboard shows; it
    does not read constraints.

    Returns:
        Whether Optuna holds this outcome now. False if the trial had been finished with
        another one, which Optuna does not let anybody change.

    Raises:
        StorageError: If Optuna has no such trial, or another number of objectives.
    """
    if outcome.values is not None and len(outcome.values) != len(study.directions):
        raise StorageError(
            f"Trial {number} has {len(outcome.values)} objective values, "
            f"the study {len(study.directions)} objectives."
        )
    frozen = _frozen_trial(study, number)
    if frozen.state.is_finished():
        return _agrees(frozen, outcome)
    with _translated(_url(study)):
        _annotate(study, frozen, outcome, phase=phase, candidate=candidate)
        study.tell(number, values=outcome.values, state=_FINISHED[outcome.state])
    return True


def tell_stored(study: optuna.Study, repository: Repository, study_id: int, number: int) -> bool:
    """Tell the outcome that our row of the trial holds, and mark it told.

    Returns:
        As ``tell`` does.

    Raises:
        StorageError: If the trial is unknown or has no outcome.
    """
    record = repository.trial(study_id, number)
    if record.outcome is None:
        raise StorageError(f"Trial {number} has no outcome that could be told.")
    phase, candidate = record.phase, record.candidate
    said = partial(tell, study, number, record.outcome, phase=phase, candidate=candidate)
    agreed = repository.steadily(said)
    if not agreed:
        logger.warning("Trial %d ended otherwise in Optuna; its record here counts.", number)
    repository.mark_told(study_id, number)
    return agreed


def reconcile(study: optuna.Study, repository: Repository, study_id: int) -> Reconciled:
    """Bring Optuna to what our rows say, at the start of a controller and before it enqueues.

    Rows left running become interrupted; every outcome that is stored and not known to be told
    is told; a trial that Optuna has begun and we have not is failed. Afterwards Optuna has no
    running trial, which would repel the sampler for ever, and an empty queue: trials that
    waited there are failed, since the controller enqueues anew what our rows lack, and a resume
    so depends on our rows alone. Such trials take up numbers and do not count as trials.

    Raises:
        StorageError: If Optuna lacks a trial of ours: its study was deleted or renamed.
    """
    interrupted = repository.interrupt_running(study_id)
    untold = [record.number for record in repository.untold(study_id)]
    numbers = {record.number for record in repository.trials(study_id)}
    _require_trials(study, repository.steadily(lambda: _trials(study)), numbers)
    # A trial that is told and yet runs: Optuna's tables were restored from an older copy.
    found = repository.steadily(lambda: _trials(study, TrialState.RUNNING))
    running = [trial.number for trial in found]
    orphaned = [number for number in running if number not in numbers]
    for number in sorted({*untold, *running} - {*orphaned}):
        tell_stored(study, repository, study_id, number)
    for number in orphaned:
        repository.steadily(partial(tell, study, number, Outcome("fail")))
    done = Reconciled(
        told=tuple(number for number in untold if number not in interrupted),
        interrupted=interrupted,
        orphaned=tuple(orphaned),
        cleared=repository.steadily(lambda: _clear_queue(study)),
    )
    if done != Reconciled():
        repository.add_event(study_id, "reconciled", asdict(done))
    return done


def drop_unbegun(study: optuna.Study) -> None:
    """Fail what runs or waits in Optuna, where nothing of ours runs: a beginning that failed.

    Such trials take up numbers and do not count as trials.
    """
    for frozen in _trials(study, TrialState.RUNNING):
        tell(study, frozen.number, Outcome("fail"))
    _clear_queue(study)


def rebuild_if_stale(
    study: optuna.Study,
    repository: Repository,
    study_id: int,
    *,
    distributions: Mapping[str, BaseDistribution],
    indices_of: Callable[[Json], Mapping[str, int]],
) -> optuna.Study:
    """Make Optuna's study anew from our rows if it contradicts or lacks one of them.

    Optuna lets nobody change a finished trial, so its study is deleted, created under the same
    name and filled in the order of the numbers. Trials of ours that have no outcome yet run
    there too, for ``reconcile`` to settle; numbers that none of ours has are failed trials
    without parameters. A rebuild that is killed leaves a study which lacks rows, and so is
    rebuilt by the next call; our rows are only read.

    Args:
        study: From ``open_optuna_study``.
        distributions: Optuna's parameters.
        indices_of: Gives the parameters of a candidate.

    Returns:
        ``study``, or its successor with the same sampler. They share their connections, so
        that closing either is enough.
    """
    records = repository.trials(study_id)
    if _mirrors(repository.steadily(lambda: _trials(study)), records):
        return study
    logger.info("Making Optuna's study %r anew from %d trials.", study.study_name, len(records))
    fresh = _recreated(study)
    by_number = {record.number: record for record in records}
    with _translated(_url(fresh)):
        for number in range(max(by_number, default=-1) + 1):
            record = by_number.get(number)
            if record is None:
                fresh.add_trial(create_trial(state=TrialState.FAIL))
            else:
                indices = dict(indices_of(record.candidate))
                fresh.add_trial(_mirrored(record, indices, dict(distributions)))
    return fresh


def _mirrors(trials: Sequence[FrozenTrial], records: Sequence[TrialRecord]) -> bool:
    """Return whether Optuna has each of our trials, and nothing of another outcome."""
    if records and records[-1].number >= len(trials):
        return False
    told = [
        (trials[record.number], record.outcome) for record in records if record.outcome is not None
    ]
    return all(
        _agrees(frozen, outcome)
        if frozen.state.is_finished()
        # Constraints are told first, and cannot be told again.
        else frozen.constraints.items() <= outcome.constraints.items()
        for frozen, outcome in told
    )


def _recreated(study: optuna.Study) -> optuna.Study:
    storage = _storages[study]
    name, sampler, directions = study.study_name, study.sampler, study.directions
    with _translated(storage.url):
        optuna.delete_study(study_name=name, storage=storage)
        fresh = optuna.create_study(
            storage=storage, study_name=name, directions=directions, sampler=sampler
        )
        _claim(fresh, len(directions))
    _storages[fresh] = storage
    return fresh


def _mirrored(
    record: TrialRecord, indices: dict[str, int], distributions: dict[str, BaseDistribution]
) -> FrozenTrial:
    """Return what Optuna would hold of a trial, had it been told of it as it is stored."""
    outcome = record.outcome
    if outcome is None:
        return create_trial(state=TrialState.RUNNING, params=indices, distributions=distributions)
    attributes = _attributes(outcome, phase=record.phase, candidate=record.candidate)
    trial = create_trial(
        state=_FINISHED[outcome.state],
        values=outcome.values,
        params=indices,
        distributions=distributions,
        user_attrs=dict(attributes),
        constraints=dict(outcome.constraints),
    )
    trial.datetime_start = _local_time(record.started_at)
    trial.datetime_complete = _local_time(record.finished_at or record.started_at)
    return trial


def _local_time(text: str) -> datetime:
    """Return a time of ours as Optuna keeps it: local, without an offset."""
    return datetime.fromisoformat(text).astimezone().replace(tzinfo=None)


def _open_storage(url: str, *, write: bool = True, patient: bool = False) -> RDBStorage:
    # Optuna formats the URL with its schema version, so braces would count as fields.
    escaped = url.replace("{", "{{").replace("}", "}}")
    options = engine_options(parse_url(url), write=write, index=True, patient=patient)
    try:
        with _translated(url):
            storage = RDBStorage(
                escaped,
                engine_kwargs=options,
                skip_compatibility_check=True,
                skip_table_creation=not write,
            )
    except ImportError as error:
        raise missing_driver(url) from error
    stored, known = storage.get_current_version(), storage.get_head_version()
    if stored != known:
        _dispose(storage)
        raise StorageUnavailable(
            f"Optuna's tables in {mask_url(url)} have schema {stored}, this Optuna has {known}.",
            hint="Run `optuna storage upgrade`, or choose another database with --storage.",
        )
    return storage


def _dispose(storage: RDBStorage) -> None:
    storage.remove_session()
    storage.engine.dispose()


def storing(study: optuna.Study) -> AbstractContextManager[None]:
    """Return a context in which what Optuna says of its database is said as ``StorageError``."""
    return _translated(_url(study))


def _url(study: optuna.Study) -> str:
    storage = _storages.get(study)
    return "sqlite://" if storage is None else storage.url


@contextmanager
def _translated(url: str) -> Iterator[None]:
    try:
        with translated_errors(url):
            yield
    except optuna.exceptions.StorageInternalError as error:
        cause = error.__cause__
        raise unavailable(url, cause if isinstance(cause, Exception) else error) from error


def _claim(study: optuna.Study, directions: int) -> None:
    """Mark the study as ours; a database may hold studies of other programs."""
    _require_claimable(study, directions)
    if _OWNER_KEY not in study.user_attrs:
        study.set_user_attr(_OWNER_KEY, 1)


def _require_claimable(study: optuna.Study, directions: int) -> None:
    name = study.study_name
    if _OWNER_KEY not in study.user_attrs and study.trials:
        raise StorageError(
            f"The Optuna study {name!r} in this database belongs to another program.",
            hint="Give another --study-name, or another database with --storage.",
        )
    if len(study.directions) != directions:
        raise StorageError(
            f"The Optuna study {name!r} has {len(study.directions)} objectives, not {directions}.",
            hint="Give another --study-name.",
        )


def _trials(study: optuna.Study, *states: TrialState) -> list[FrozenTrial]:
    with _translated(_url(study)):
        return study.get_trials(deepcopy=False, states=states or None)


def _frozen_trial(study: optuna.Study, number: int) -> FrozenTrial:
    trials = _trials(study)
    _require_trials(study, trials, {number})
    return trials[number]


def _require_trials(study: optuna.Study, trials: Sequence[FrozenTrial], numbers: set[int]) -> None:
    missing = numbers - {trial.number for trial in trials}
    if missing:
        raise StorageError(
            f"Optuna's study {study.study_name!r} has no trial {min(missing)}: "
            "it was deleted or renamed.",
            hint="The results here can still be read; tune on under another --study-name.",
        )


def _agrees(frozen: FrozenTrial, outcome: Outcome) -> bool:
    values = None if outcome.values is None else list(outcome.values)
    return (
        frozen.state == _FINISHED[outcome.state]
        and frozen.values == values
        and frozen.constraints == dict(outcome.constraints)
    )


def _annotate(
    study: optuna.Study,
    frozen: FrozenTrial,
    outcome: Outcome,
    *,
    phase: str | None,
    candidate: Json | None,
) -> None:
    # Only a live trial takes constraints, and Optuna has no public way to one by number.
    trial = optuna.Trial(study, frozen._trial_id)
    known = trial.constraints
    for key, value in outcome.constraints.items():
        if key not in known:
            trial.set_constraint(key, value)
    for key, value in _attributes(outcome, phase=phase, candidate=candidate).items():
        if key not in frozen.user_attrs or frozen.user_attrs[key] != value:
            trial.set_user_attr(key, value)


def _attributes(
    outcome: Outcome, *, phase: str | None, candidate: Json | None
) -> Mapping[str, Any]:
    plain = codec.plain(candidate or {}, name="candidate")
    shown = {**plain, "phase": phase, "feasible": outcome.feasible}
    return {key: value for key, value in shown.items() if value is not None}


def _clear_queue(study: optuna.Study) -> tuple[int, ...]:
    cleared = []
    with _translated(_url(study)):
        for _ in _trials(study, TrialState.WAITING):
            # Waiting trials cannot be told; `ask` takes them from the queue, oldest first.
            number = study.ask().number
            study.tell(number, state=TrialState.FAIL)
            cleared.append(number)
    return tuple(cleared)
