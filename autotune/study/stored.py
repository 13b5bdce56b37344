"""The database of a study, for as long as a controller works on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import optuna

from autotune.lease import database_lock, lease
from autotune.settings import TuneSettings
from autotune.study.costs import OBJECTIVES
from autotune.study.engines import AnyEngines
from autotune.study.session import log_folder
from storage.backup import Backups
from storage.errors import StorageError
from storage.keeping import Keeper
from storage.leases import Predecessor, held_lease, study_resource
from storage.repository import Repository, open_repository
from storage.spool import Spool
from storage.steady import Patience
from storage.study import close_optuna_study, open_optuna_study


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """An open database whose study is leased to this process.

    Attributes:
        repository: our tables; whoever writes there has the lease.
        index: Optuna's study.
        predecessor: whose lease was taken over, None if it was nobody's.
    """

    repository: Repository
    index: optuna.Study
    predecessor: Predecessor | None

    def settle(self, study_id: int, folder: Path, say: Callable[[str], None]) -> None:
        """Store what happened to the study before: a lease taken over, what waits in files.

        Args:
            study_id: of the study, which is open.
            folder: of its logs.
            say: told what was stored.
        """
        if self.predecessor is not None:
            self.repository.add_event(study_id, "taken_over", asdict(self.predecessor))
        Keeper(self.repository, study_id, folder, say).store_waiting()


@contextmanager
def open_stored(
    url: str, name: str, settings: TuneSettings, say: Callable[[str], None]
) -> Iterator[Stored]:
    """Open the database, with all tables made, ours and Optuna's, and take the study's lease.

    Optuna makes its tables without a lock; two first studies at once would trip each other up.

    Args:
        url: of the database.
        name: of the study.
        settings: say how long a database that is locked or down is waited for.
        say: told when it is, and whose lease was taken over.

    Raises:
        LeaseTaken: another controller works on the study, on whatever machine.
        StorageError: the database cannot be used.
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
        what = f"study {name!r}"
        held = stack.enter_context(
            held_lease(
                repository,
                study_resource(name),
                what,
                heartbeat_s=settings.lease_heartbeat_s,
                expiry_s=settings.lease_expiry_s,
            )
        )
        if held.predecessor is not None:
            say(held.predecessor.words(what))
        repository.backups = Backups(repository.path, settings.backup_every_s, say)
        stack.callback(Spool(log_folder(settings, name)).release)
        yield Stored(repository, study, held.predecessor)


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
