"""PostgreSQL keeps every promise that SQLite keeps."""

from __future__ import annotations

import pytest
from sqlalchemy import create_engine

from storage import migrate, postgresql, schema
from storage.database import check_database, open_database
from storage.errors import StorageUnavailable
from storage.repository import open_repository
from tests.storage.contract import RepositoryContract
from tests.storage.integrity_contract import IntegrityContract
from tests.storage.lease_contract import LeaseContract
from tests.storage.postgres import Server
from tests.storage.test_migrate import as_first_released, differences

pytestmark = pytest.mark.wire


@pytest.fixture
def url(postgres: Server) -> str:
    return postgres.database()


class TestPostgresRepository(RepositoryContract):
    pass


class TestPostgresLeases(LeaseContract):
    pass


class TestPostgresIntegrity(IntegrityContract):
    pass


def test_the_tables_are_made_and_upgraded(postgres: Server) -> None:
    url = postgres.database(prepared=False)
    engine = create_engine(url)
    as_first_released(engine)
    assert check_database(url).ours
    with open_repository(url, create=False) as repository:
        assert [trial.number for trial in repository.trials(1)] == [0]
    with open_repository(url) as repository:
        assert [trial.number for trial in repository.trials(1)] == [0]
    with engine.connect() as connection:
        assert migrate.stored_revision(connection) == schema.HEAD_REVISION
        assert differences(connection) == []
    engine.dispose()


def test_a_server_that_will_never_let_us_in_is_not_waited_for(postgres: Server) -> None:
    url = postgres.database(prepared=False)
    nowhere = url.replace("/test_", "/none_")
    with pytest.raises(StorageUnavailable, match="does not exist") as caught:
        open_repository(nowhere)
    assert not caught.value.passing


@pytest.mark.parametrize(("patient", "timeout"), [(True, "2s"), (False, "1min")])
def test_a_lock_is_not_waited_for_for_ever(postgres: Server, patient: bool, timeout: str) -> None:
    engine = open_database(postgres.database(), patient=patient)
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SHOW lock_timeout").scalar_one() == timeout
        connection.rollback()
        assert connection.exec_driver_sql("SHOW lock_timeout").scalar_one() == timeout
    engine.dispose()


def test_what_another_transaction_has_locked_may_be_free_later(
    postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres.database()
    monkeypatch.setattr(postgresql, "LOCK_TIMEOUT_S", 1)
    other = create_engine(url)
    with open_repository(url) as repository, other.connect() as connection:
        connection.exec_driver_sql("LOCK TABLE autotune_study")
        with pytest.raises(StorageUnavailable, match="lock timeout") as caught:
            repository.open_study("night", fingerprint={}, spec={})
        connection.rollback()
        assert caught.value.passing
        assert repository.open_study("night", fingerprint={}, spec={}).name == "night"
    other.dispose()


def test_a_server_that_is_down_may_be_back(postgres: Server) -> None:
    url = postgres.database()
    postgres.stop()
    try:
        with pytest.raises(StorageUnavailable, match="connection is bad") as caught:
            open_repository(url)
    finally:
        postgres.start()
    assert caught.value.passing
    open_repository(url).close()
