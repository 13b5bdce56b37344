"""What is stored of a study before a run begins, found out without making anything."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.forecast.sweep import Calibrated
from autotune.study.costs import OBJECTIVES
from autotune.study.plan import finished_trials
from storage.database import check_database
from storage.errors import UnknownStudy
from storage.names import check_name
from storage.records import StudyRecord, TrialRecord
from storage.repository import open_repository


@dataclass(frozen=True, slots=True)
class Earlier:
    """A stored study and its trials."""

    study: StudyRecord
    trials: tuple[TrialRecord, ...]

    @property
    def finished(self) -> int:
        """How many of the trials have a result."""
        return finished_trials(self.trials)

    @property
    def peak_concurrency(self) -> int | None:
        """What the ladders were made for, so that another budget leaves them as they are."""
        return self.study.fingerprint.get("peak_concurrency")

    @property
    def live(self) -> bool:
        """Whether its search changes limits on a running engine."""
        return self.study.fingerprint.get("fidelity") == "live"

    @property
    def calibrated(self) -> Calibrated | None:
        """The step times of which its ladders were made, None if they were not measured."""
        stored = self.study.spec.get("calibration")
        return None if stored is None else Calibrated.from_json(stored)


def check_storage(url: str, name: str) -> None:
    """Return if a study of this name can be kept in the database, and make nothing.

    Asking vLLM takes seconds and engines take hours; what is wrong here is known before.

    Raises:
        StorageError: the name or the database cannot be used, or the name is another program's.
    """
    from storage.study import check_optuna_study  # Optuna takes 0.4 s to import.

    check_name(name)
    contents = check_database(url)
    if contents.optuna and earlier_study(url, name) is None:
        check_optuna_study(url, name, directions=OBJECTIVES)


def earlier_study(url: str, name: str) -> Earlier | None:
    """Return the stored study, None if there is none of this name."""
    if not check_database(url).ours:
        return None
    with open_repository(url, create=False) as repository:
        try:
            study = repository.study(name)
        except UnknownStudy:
            return None
        return Earlier(study, repository.trials(study.id))
