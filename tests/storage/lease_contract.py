"""What a lease promises on any database: subclass with a ``url`` fixture of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Row, select, update

from storage import leases, owner
from storage.errors import LeaseTaken, StorageUnavailable
from storage.leases import Held, held_lease
from storage.records import StudyRecord
from storage.repository import Repository, open_repository
from storage.schema import lease
from tests.storage.contract import begin, finish

WHAT = "study 'night'"


def held_by(repository: Repository, **named: float) -> AbstractContextManager[Held]:
    """Hold the lease of the study; no heartbeat comes in the time of a test."""
    return held_lease(repository, "study/night", WHAT, **{"heartbeat_s": 1000.0, **named})


class LeaseContract:
    @pytest.fixture
    def repository(self, url: str) -> Iterator[Repository]:
        with open_repository(url) as opened:
            yield opened

    @pytest.fixture
    def other(self, url: str) -> Iterator[Repository]:
        with open_repository(url) as opened:
            yield opened

    @pytest.fixture
    def study(self, repository: Repository) -> StudyRecord:
        return repository.open_study("night", fingerprint={}, spec={})

    @pytest.fixture
    def elsewhere(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
        """Go to another machine."""
        return lambda: monkeypatch.setattr(owner, "machine", lambda: "another machine")

    def test_a_lease_is_a_row_for_as_long_as_it_is_held(self, repository: Repository) -> None:
        with held_by(repository, expiry_s=60.0) as held:
            (row,) = rows(repository)
            assert (row.resource, row.owner, row.pid) == (
                "study/night",
                held.owner.owner,
                os.getpid(),
            )
            assert row.expiry_s - row.heartbeat_s == pytest.approx(60)
            assert held.predecessor is None
        assert rows(repository) == []

    def test_a_second_owner_is_told_who_the_first_is(
        self, repository: Repository, other: Repository, elsewhere: Callable[[], None]
    ) -> None:
        with held_by(repository) as held:
            elsewhere()
            with pytest.raises(LeaseTaken) as caught, held_by(other):
                pass
            host, since = held.owner.host, rows(repository)[0].since
            assert caught.value.message == (
                f"{WHAT} is in use by process {os.getpid()} on {host} since {since}"
            )
            assert (caught.value.host, caught.value.pid) == (host, os.getpid())
            assert "last heard of 0 s ago" in caught.value.hint
        assert rows(repository) == []

    def test_a_lease_that_could_not_be_given_back_is_taken_by_the_same_process(
        self, repository: Repository
    ) -> None:
        with held_by(repository) as first:
            pass
        insert_row(repository, first.owner)
        with held_by(repository) as held:
            assert held.predecessor is not None

    @pytest.mark.parametrize("reused", [True, False])
    def test_of_a_process_that_is_gone_here_it_is_taken_at_once(
        self, repository: Repository, reused: bool
    ) -> None:
        gone = dead_process()
        if reused:
            gone = replace(gone, pid=os.getpid())
        insert_row(repository, gone)
        with held_by(repository) as held:
            assert held.predecessor is not None
            assert held.predecessor.words(WHAT) == (
                f"took over {WHAT} from process {gone.pid} on {gone.host}, there since then: "
                "it runs no more"
            )
            assert [row.owner for row in rows(repository)] == [held.owner.owner]

    def test_of_one_elsewhere_it_is_taken_when_it_has_expired(
        self, repository: Repository
    ) -> None:
        away = replace(dead_process(), host="far", machine="another machine")
        insert_row(repository, away)
        with pytest.raises(LeaseTaken, match="on far since then"), held_by(repository):
            pass
        shift(repository, -61.0)
        with held_by(repository) as held:
            assert held.predecessor is not None
            assert held.predecessor.why == "it has not been heard of for 61 s"

    def test_who_lost_it_writes_nothing_more(
        self,
        repository: Repository,
        other: Repository,
        study: StudyRecord,
        elsewhere: Callable[[], None],
    ) -> None:
        with held_by(repository):
            begin(repository, study.id)
            shift(repository, -61.0)
            elsewhere()
            with held_by(other) as successor:
                other.interrupt_running(study.id)
                before = other.trial(study.id, 0)
                tried: list[Callable[[], object]] = [
                    lambda: finish(repository, study.id),
                    lambda: begin(repository, study.id, 1),
                    lambda: repository.mark_told(study.id, 0),
                    lambda: repository.set_state(study.id, "interrupted"),
                    lambda: repository.interrupt_running(study.id),
                    lambda: repository.steadily(lambda: pytest.fail("Optuna was written")),
                ]
                for write in tried:
                    with pytest.raises(LeaseTaken, match="was taken over by process") as caught:
                        write()
                    assert caught.value.hint.startswith("Nothing was overwritten.")
                assert repository.trials(study.id) == (before,)
                assert [row.owner for row in rows(other)] == [successor.owner.owner]
        assert rows(repository) == []

    def test_who_finds_no_row_writes_nothing_more(
        self, repository: Repository, study: StudyRecord
    ) -> None:
        with held_by(repository):
            with repository.writing() as connection:
                connection.execute(lease.delete())
            with pytest.raises(
                LeaseTaken,
                match="took it over, since this one had not been heard of, and has ended",
            ):
                begin(repository, study.id)

    def test_without_a_successor_an_expired_lease_is_still_ours(
        self, repository: Repository, study: StudyRecord
    ) -> None:
        with held_by(repository):
            shift(repository, -1000.0)
            begin(repository, study.id)
        assert [row.number for row in repository.trials(study.id)] == [0]

    def test_heartbeats_go_on_when_the_database_is_back(
        self, repository: Repository, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real = leases._say_that_we_live
        came, faults = threading.Event(), iter([StorageUnavailable("locked", passing=True)] * 3)

        def breaking(database: Repository, held: Held) -> None:
            if (fault := next(faults, None)) is not None:
                raise fault
            real(database, held)
            came.set()

        monkeypatch.setattr(leases, "_say_that_we_live", breaking)
        with held_by(repository, heartbeat_s=0.01):
            shift(repository, -1000.0)
            assert came.wait(10)
            (row,) = rows(repository)
            assert row.expiry_s > row.heartbeat_s > 1000
        assert next(faults, None) is None


def rows(repository: Repository) -> list[Row[Any]]:
    with repository._reading() as connection:
        return list(connection.execute(select(lease)).all())


def shift(repository: Repository, seconds: float) -> None:
    """Have the last heartbeat come so much later."""
    with repository.writing() as connection:
        connection.execute(
            update(lease).values(
                heartbeat_s=lease.c.heartbeat_s + seconds, expiry_s=lease.c.expiry_s + seconds
            )
        )


def insert_row(repository: Repository, holder: owner.Owner) -> None:
    """Have a lease of 60 s be taken just now."""
    with repository.writing() as connection:
        now_s = leases._now_s(connection)
        row = leases.row_of(holder, since="then", now_s=now_s, expiry_s=60.0)
        connection.execute(lease.insert().values(resource="study/night", **row))


def dead_process() -> owner.Owner:
    """Return a process of this machine that has ended."""
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=-1) as child:
        ticks = owner.started_ticks(child.pid)
        assert ticks is not None
        child.communicate(b"\n")
    assert owner.started_ticks(child.pid) is None
    return owner.Owner("0" * 32, "here", owner.machine(), child.pid, ticks)
