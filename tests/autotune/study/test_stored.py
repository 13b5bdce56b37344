"""Studies whose database is locked, full or gone while they run: nothing measured is lost."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from autotune import lease, tuning
from autotune.candidates.lattice import cell_key
from autotune.cli.exit_codes import exit_code_of
from storage import sqlite
from storage.errors import LeaseTaken, StorageUnavailable
from storage.events import read_events
from storage.owner import Owner
from storage.records import TrialRecord
from storage.repository import open_repository
from storage.schema import lease as lease_table
from storage.study import close_optuna_study, open_optuna_study
from tests.autotune.study.scripted import (
    DESCRIPTION,
    ScriptedEngines,
    settings_of,
    small_trace,
)
from tests.autotune.test_tuning import Told
from tests.storage.lease_contract import dead_process
from tests.storage.locker import lock, locked

pytestmark = pytest.mark.wire

TRIALS = 4


class Hooked(ScriptedEngines):
    """Engines on which something happens as each replay ends."""

    hook: Callable[[int], None] = staticmethod(lambda _number: None)

    def replay(self, *given: Any, **named: Any) -> Any:
        result = super().replay(*given, **named)
        self.hook(len(self.plans))
        return result


class Night:
    """A study in a folder, begun and gone on with by the same command."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.database = folder / "study.db"
        self.url = f"sqlite:///{self.database}"
        self.trace = folder / "small.jsonl"
        self.trace.write_bytes(b"".join(small_trace().lines()))
        self.engines = Hooked()
        patch.setattr(lease, "LOCKS", folder)
        patch.setattr(sqlite, "SHORT_BUSY_TIMEOUT_S", 0.02)
        patch.setattr(tuning, "open_supervisor", lambda _settings, _name: self.engines)
        patch.setattr(tuning, "describe_engine", lambda _settings, _supervisor: DESCRIPTION)

    def tune(self, **changes: Any) -> list[str]:
        """Return what was said."""
        watcher = Told()
        given = {
            "trace": str(self.trace),
            "storage": self.url,
            "study_name": "night",
            "log_folder": self.folder / "logs",
            "trials": TRIALS,
            "classes": "",
            **changes,
        }
        tuning.run_study(settings_of(**given), watcher, environ={})
        return watcher.said

    def rows(self) -> tuple[TrialRecord, ...]:
        with open_repository(self.url, create=False) as repository:
            return repository.trials(repository.study("night").id)

    def spools(self) -> list[Path]:
        return list((self.folder / "logs").glob("*/*.spool"))

    def told(self) -> list[str]:
        """Return the states of Optuna's trials that belong to one of ours."""
        import optuna

        study = open_optuna_study(
            self.url, "night", directions=3, sampler=optuna.samplers.RandomSampler()
        )
        states = [study.trials[row.number].state.name for row in self.rows()]
        close_optuna_study(study)
        return states


@pytest.fixture
def night(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Night:
    return Night(tmp_path, monkeypatch)


def test_a_database_locked_for_a_while_costs_nothing_but_time(night: Night) -> None:
    with ExitStack() as stack:

        def hold(replays: int) -> None:
            if replays == 2:
                stack.enter_context(lock(night.database, for_s=0.4))

        night.engines.hook = hold
        said = night.tune()
    assert [row.state for row in night.rows()] == ["complete"] * TRIALS
    assert all(row.told for row in night.rows())
    assert len(night.engines.plans) == TRIALS
    waited = [line for line in said if "the database" in line]
    assert waited[0].startswith("the database cannot be used for now, and is tried again")
    assert waited[-1].startswith("the database is back after")
    assert night.spools() == []


def test_beyond_the_patience_the_measurement_waits_for_the_same_command(night: Night) -> None:
    with ExitStack() as stack:

        def hold(replays: int) -> None:
            if replays == 2:
                stack.enter_context(locked(night.database))

        night.engines.hook = hold
        with pytest.raises(StorageUnavailable, match="is locked") as caught:
            night.tune(database_patience_s=0.3)
    (spool,) = night.spools()
    assert f"What trial 1 measured waits in {spool}" in caught.value.hint
    assert [row.state for row in night.rows()] == ["complete", "running"]
    night.engines = Hooked()
    said = night.tune()
    rows = night.rows()
    assert [row.state for row in rows] == ["complete"] * TRIALS
    assert len(night.engines.plans) == TRIALS - 2
    assert len({cell_key(row.candidate) for row in rows}) == TRIALS
    assert any("stored what trial 1 had measured" in line for line in said)
    assert night.told() == ["COMPLETE"] * TRIALS
    assert list((night.folder / "logs").glob("*/*.part")) == []


def test_a_trial_marked_as_interrupted_meanwhile_is_told_anew(night: Night) -> None:
    def end(replays: int) -> None:
        if replays == 2:
            # The database is back just as the controller gives up.
            raise KeyboardInterrupt

    night.engines.hook = end
    with pytest.raises(KeyboardInterrupt):
        night.tune()
    assert [row.state for row in night.rows()] == ["complete", "interrupted"]
    night.engines = Hooked()
    night.tune()
    states = [row.state for row in night.rows()]
    assert states == ["complete", "interrupted", *["complete"] * (TRIALS - 1)]
    assert night.told() == ["FAIL" if each == "interrupted" else "COMPLETE" for each in states]


def replace_owner(url: str, holder: Owner) -> None:
    """Have another take the study over, as it does of one that was not heard of."""
    with open_repository(url) as repository, repository.writing() as connection:
        connection.execute(lease_table.update().values(**asdict(holder)))


def test_a_study_taken_over_meanwhile_is_left_as_it_is(night: Night) -> None:
    def lose(replays: int) -> None:
        if replays == 2:
            replace_owner(night.url, replace(dead_process(), host="far", machine="another"))

    night.engines.hook = lose
    with pytest.raises(LeaseTaken, match=r"was taken over by process .* on far") as caught:
        night.tune()
    assert exit_code_of(caught.value) == 75
    assert [row.state for row in night.rows()] == ["complete", "running"]
    night.engines = Hooked()
    with pytest.raises(LeaseTaken, match=r"is in use by process .* on far since") as second:
        night.tune()
    assert exit_code_of(second.value) == 75
    assert night.engines.plans == []


def test_the_study_of_a_killed_controller_goes_on_at_once_and_says_so(night: Night) -> None:
    def lose(replays: int) -> None:
        if replays == 2:
            replace_owner(night.url, dead_process())
            raise KeyboardInterrupt

    night.engines.hook = lose
    with pytest.raises(KeyboardInterrupt):
        night.tune()
    night.engines = Hooked()
    said = night.tune()
    (line,) = [line for line in said if "it runs no more" in line]
    assert line.startswith("took over study 'night' from process ")
    (taken,) = [each for each in read_events(night.url, 1) if each.kind == "taken_over"]
    assert taken.detail["why"] == "it runs no more"
