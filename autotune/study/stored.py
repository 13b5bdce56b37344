"""The database of a study, for as long as a controller works on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

import optuna

from autotune.lease import database_lock, lease
from autotune.settings import TuneSettings
from autotune.study.costs import OBJECTIVES
from autotune.study.engines import AnyEngines
from autotune.study.session import log_folder
from storage.errors import StorageError
from storage.repository import Repository, open_repository
from storage.spool import Spool
from storage.steady import Patience
from storage.study import close_optuna_study, open_optuna_study


@contextmanager
def open_stored(
    url: str, name: str, settings: TuneSettings, say: Callable[[str], None]
) -> Iterator[tuple[Repository, optuna.Study]]:
    """Open the database, with all tables made: ours and Optuna's.

    Optuna makes its tables without a lock; two first studies at once would trip each other up.

    Args:
        url: of the database.
        name: of the study.
        settings: say how long a database that is locked or down is waited for.
        say: told when it is.
    """
    patience = Patience(settings.database_patience_s, say)
    with ExitStack() as stack:
        with lease(database_lock(url), "the database", wait=True):
            repository = stack.enter_context(open_repository(url, patience=patience))
            # The controller brings its own sampler.
            sampler = optuna.samplers.RandomSampler()
            study = patience.steadily(
                lambda: open_optuna_study(
                    url, name, directions=OBJECTIVES, sampler=sampler, patient=patience.waits
                )
            )
            stack.callback(close_optuna_study, study)
        stack.callback(Spool(log_folder(settings, name)).release)
        yield repository, study


@contextmanager
def marked_when_cut_short(
    repository: Repository, study_id: int, supervisor: AnyEngines
) -> Iterator[None]:
    """Whatever ends us early, no engine may run on, and no row may claim that it does."""
    try:
        yield
    except BaseException:
        supervisor.kill()
        repository.patience.end()
        # A database that is gone must not hide why we end; the next run marks the rows.
        with suppress(StorageError):
            repository.interrupt_running(study_id)
            repository.set_state(study_id, "interrupted")
        raise
