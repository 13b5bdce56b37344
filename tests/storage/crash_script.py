"""Runs controllers that kill themselves, and writers that race; started by the tests.

``python crash_script.py FOLDER WRITERS TRIALS POINT...`` runs one controller a point, each on its
own ``FOLDER/POINT.db``, and lets so many processes write to ``FOLDER/race.db``. Each is a fork,
so that imports are paid for once.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import optuna
from optuna.samplers import TPESampler
from optuna.storages import RDBStorage
from sqlalchemy import event

from storage.records import Outcome
from storage.repository import Repository, open_repository
from storage.study import open_optuna_study, tell_stored

DONE: Final = Outcome("complete", (812.5, 41.0), {"ttft_p95": 0.5, "failed": 0.0})
SAMPLES: Final = {"ttft_ms": np.arange(5000.0)}


def die(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def controller(url: str, point: str) -> None:
    def reach(name: str) -> None:
        if point == name:
            die()

    repository = open_repository(url)
    record = repository.open_study("night", fingerprint={}, spec={})
    reach("open")
    study = open_optuna_study(url, "night", directions=2, sampler=TPESampler(seed=1))
    for values in ([8, 1], [8, 2]):
        study.enqueue_trial(dict(zip(("budget", "seqs"), values, strict=True)))
    reach("enqueued")
    for _ in range(2):
        run_trial(repository, study, record.id, point, reach)


def run_trial(
    repository: Repository,
    study: optuna.Study,
    study_id: int,
    point: str,
    reach: Callable[[str], None],
) -> None:
    trial = study.ask()
    reach("asked")
    trial.suggest_int("budget", 0, 9)
    trial.suggest_int("seqs", 0, 9)
    repository.begin_trial(
        study_id, trial.number, phase="search", fidelity="restart", candidate={"seqs": 1}
    )
    reach("begun")
    if point == "finishing":
        event.listen(repository._engine, "commit", die)
    repository.finish_trial(
        study_id, trial.number, state="complete", outcome=DONE, samples=SAMPLES
    )
    reach("finished")
    if point == "telling":
        study.tell = die  # type: ignore[method-assign,assignment]
    if point == "told":
        repository.mark_told = die  # type: ignore[method-assign]
    tell_stored(study, repository, study_id, trial.number)
    if trial.number == 1:
        reach("done")


def writer(url: str, index: int, trials: int) -> None:
    with open_repository(url) as repository:
        record = repository.open_study("race", fingerprint={}, spec={})
        for number in range(index * trials, (index + 1) * trials):
            repository.begin_trial(
                record.id, number, phase="search", fidelity="live", candidate={"writer": index}
            )
            repository.finish_trial(
                record.id,
                number,
                state="complete",
                outcome=Outcome("complete", (float(number),)),
                samples={"n": np.array([number])},
            )


def forked(work: Callable[[], None]) -> int:
    pid = os.fork()
    if pid:
        return pid
    work()
    os._exit(0)


def main(folder: Path, writers: int, trials: int, points: Sequence[str]) -> None:
    url = f"sqlite:///{folder / 'race.db'}"
    RDBStorage("sqlite://").engine.dispose()  # Optuna imports alembic when it is first used.
    pids = [forked(lambda p=p: controller(f"sqlite:///{folder / p}.db", p)) for p in points]  # type: ignore[misc]
    pids += [forked(lambda i=i: writer(url, i, trials)) for i in range(writers)]  # type: ignore[misc]
    sys.stdout.write(" ".join(str(os.waitpid(pid, 0)[1]) for pid in pids))


if __name__ == "__main__":
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
