"""Studies whose database is locked, full or gone while they run: nothing measured is lost."""

from __future__ import annotations

import signal
import sqlite3
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from autotune import controller, lease, tuning
from autotune.candidates.lattice import cell_key
from autotune.cli.exit_codes import exit_code_of
from storage import sqlite
from storage.errors import LeaseTaken, StorageUnavailable
from storage.events import read_events
from storage.integrity import integrity
from storage.owner import Owner
from storage.records import TrialRecord
from storage.repository import Repository, open_repository
from storage.schema import lease as lease_table
from storage.study import close_optuna_study, open_optuna_study, tell_stored
from tests.autotune.study.scripted import (
    DESCRIPTION,
    ScriptedEngines,
    settings_of,
    small_trace,
)
from tests.autotune.test_tuning import Told
from tests.storage.lease_contract import dead_process
from tests.storage.locker import lock, locked
from tests.storage.postgres import Server

pytestmark = pytest.mark.wire

TRIALS = 4


class Hooked(ScriptedEngines):
    """Engines on which something happens as each replay ends."""

    hook: Callable[[int], None] = staticmethod(lambda _number: None)

    def replay(self, *given: Any, **named: Any) -> Any:
        result = super().replay(*given, **named)
        self.hook(len(self.plans))
        return result


class Hearing(Told):
    """A watcher by whom something happens as trials begin and end."""

    def __init__(self, night: Night) -> None:
        super().__init__()
        self._night = night

    def begun(self, row: TrialRecord, position: int, total: int) -> None:
        super().begun(row, position, total)
        self._night.reach("begun", row.number)

    def finished(self, row: TrialRecord) -> None:
        super().finished(row)
        self._night.reach("finished", row.number)


class Night:
    """A study in a folder, begun and gone on with by the same command."""

    def __init__(self, url: str, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.url = url
        self.reach: Callable[[str, int], None] = lambda _moment, _number: None
        self.trace = folder / "small.jsonl"
        self.trace.write_bytes(b"".join(small_trace().lines()))
        self.engines = Hooked()
        patch.setattr(lease, "LOCKS", folder)
        patch.setattr(sqlite, "SHORT_BUSY_TIMEOUT_S", 0.02)
        patch.setattr(tuning, "open_supervisor", lambda _settings, _name: self.engines)
        patch.setattr(tuning, "describe_engine", lambda _settings, _supervisor: DESCRIPTION)

    def tune(self, **changes: Any) -> list[str]:
        """Return what was said."""
        watcher = Hearing(self)
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


@pytest.fixture(params=["sqlite", "postgresql"])
def night(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Night:
    """A study on either database."""
    if request.param == "sqlite":
        return Night(f"sqlite:///{tmp_path / 'study.db'}", tmp_path, monkeypatch)
    server: Server = request.getfixturevalue("postgres")
    return Night(server.database(), tmp_path, monkeypatch)


@pytest.fixture
def file_night(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Night:
    return Night(f"sqlite:///{tmp_path / 'study.db'}", tmp_path, monkeypatch)


@pytest.fixture
def served_night(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, postgres: Server) -> Night:
    return Night(postgres.database(), tmp_path, monkeypatch)


def require_whole(night: Night) -> None:
    """Check that a study has each trial once, here and with Optuna, and nothing waits."""
    rows = night.rows()
    assert [row.state for row in rows] == ["complete"] * TRIALS
    assert all(row.told for row in rows)
    assert len({cell_key(row.candidate) for row in rows}) == TRIALS
    assert night.told() == ["COMPLETE"] * TRIALS
    assert integrity(night.url).faults == ()
    assert [path.name for path in night.folder.glob("logs/*/*") if path.suffix != ".log"] in (
        [],
        ["status.json"],
    )


def test_a_file_locked_for_a_while_costs_nothing_but_time(file_night: Night) -> None:
    night, database = file_night, file_night.folder / "study.db"
    with ExitStack() as stack:

        def hold(replays: int) -> None:
            if replays == 2:
                stack.enter_context(lock(database, for_s=0.4))

        night.engines.hook = hold
        said = night.tune()
    require_whole(night)
    assert len(night.engines.plans) == TRIALS
    waited = [line for line in said if "the database" in line]
    assert waited[0].startswith("the database cannot be used for now, and is tried again")
    assert waited[-1].startswith("the database is back after")


def test_beyond_the_patience_the_measurement_waits_for_the_same_command(
    file_night: Night,
) -> None:
    night, database = file_night, file_night.folder / "study.db"
    with ExitStack() as stack:

        def hold(replays: int) -> None:
            if replays == 2:
                stack.enter_context(locked(database))

        night.engines.hook = hold
        with pytest.raises(StorageUnavailable, match="is locked") as caught:
            night.tune(database_patience_s=0.3)
    require_waiting(night, caught.value)


def test_the_same_with_a_server_that_stays_down(served_night: Night, postgres: Server) -> None:
    def stop(replays: int) -> None:
        if replays == 2:
            postgres.stop()

    served_night.engines.hook = stop
    try:
        with pytest.raises(StorageUnavailable, match=r"tried again for 0 s\.") as caught:
            served_night.tune(database_patience_s=0.3)
    finally:
        postgres.start()
    require_waiting(served_night, caught.value)


def test_on_a_full_disk_the_measurement_waits_until_there_is_room(
    file_night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    night, connections = file_night, list[sqlite3.Connection]()
    configure = sqlite._configure

    def remember(connection: sqlite3.Connection, synchronous: str) -> None:
        connections.append(connection)
        configure(connection, synchronous)

    def fill(replays: int) -> None:
        # What SQLite says of the file's size it says of the disk's as well.
        for each in connections if replays == 2 else []:
            each.execute("PRAGMA max_page_count = 1")

    monkeypatch.setattr(sqlite, "_configure", remember)
    night.engines.hook = fill
    with pytest.raises(
        StorageUnavailable, match=r"is full, .* MiB are free in /.*, 0\.\d MiB are need"
    ) as caught:
        night.tune()
    assert caught.value.hint.endswith("nothing that was stored before is lost.")
    monkeypatch.setattr(sqlite, "_configure", configure)
    require_waiting(night, caught.value, then="interrupted")


def require_waiting(night: Night, error: StorageUnavailable, *, then: str = "running") -> None:
    """Check that the second trial waits in a file, and is not measured again."""
    (spool,) = night.spools()
    assert exit_code_of(error) == 4
    assert f"What trial 1 measured waits in {spool}" in error.hint
    assert [row.state for row in night.rows()] == ["complete", then]
    night.engines = Hooked()
    said = night.tune()
    assert any("stored what trial 1 had measured" in line for line in said)
    assert len(night.engines.plans) == TRIALS - 2
    require_whole(night)


@pytest.mark.parametrize(
    ("moment", "how"),
    [
        ("begun", signal.SIGINT),
        ("measured", signal.SIGQUIT),
        ("stored", signal.SIGINT),
        ("told", signal.SIGQUIT),
        ("finished", signal.SIGINT),
    ],
)
def test_a_server_restarted_in_mid_study(
    served_night: Night,
    postgres: Server,
    monkeypatch: pytest.MonkeyPatch,
    moment: str,
    how: signal.Signals,
) -> None:
    timers: list[threading.Timer] = []

    def reach(name: str, number: int) -> None:
        if (name, number) == (moment, 1):
            postgres.stop(how)
            timers.append(threading.Timer(0.3, postgres.start))
            timers[0].start()

    hear_of(served_night, monkeypatch, reach)
    said = served_night.tune()
    timers[0].join()
    assert len(served_night.engines.plans) == TRIALS
    assert any(line.startswith("the database is back after") for line in said)
    require_whole(served_night)


def hear_of(night: Night, patch: pytest.MonkeyPatch, reach: Callable[[str, int], None]) -> None:
    """Have each moment of each trial reached."""
    night.reach = reach
    night.engines.hook = lambda replays: reach("measured", replays - 1)
    mark_told = Repository.mark_told

    def telling(study: Any, repository: Repository, study_id: int, number: int) -> bool:
        reach("stored", number)
        return tell_stored(study, repository, study_id, number)

    def marking(repository: Repository, study_id: int, number: int) -> None:
        reach("told", number)
        mark_told(repository, study_id, number)

    patch.setattr(controller, "tell_stored", telling)
    patch.setattr(Repository, "mark_told", marking)


def test_connections_that_are_cut_between_calls_are_not_even_noticed(
    served_night: Night, postgres: Server
) -> None:
    served_night.engines.hook = lambda _replays: postgres.cut_connections()
    said = served_night.tune()
    assert [line for line in said if "the database" in line] == []
    require_whole(served_night)


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
    (spool,) = night.spools()
    assert f"What trial 1 measured waits in {spool}" in caught.value.hint
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
