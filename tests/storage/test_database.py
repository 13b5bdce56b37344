from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from storage.database import (
    Contents,
    check_database,
    engine_options,
    open_database,
    parse_url,
    resolve_url,
    sqlite_path,
)
from storage.errors import NewerSchema, StorageUnavailable


@pytest.mark.parametrize(
    ("option", "environ", "expected"),
    [
        ("sqlite:///a.db", {"AUTOTUNE_STORAGE": "b", "OPTUNA_STORAGE": "c"}, "sqlite:///a.db"),
        (None, {"AUTOTUNE_STORAGE": "b", "OPTUNA_STORAGE": "c"}, "b"),
        (None, {"AUTOTUNE_STORAGE": "", "OPTUNA_STORAGE": "c"}, "c"),
        (None, {}, "sqlite:///autotune.db"),
    ],
)
def test_the_option_comes_before_the_variables(
    option: str | None, environ: dict[str, str], expected: str
) -> None:
    assert resolve_url(option, environ) == expected


def test_sqlite_survives_power_cuts_and_waits_for_others(url: str) -> None:
    engine = open_database(url)
    with engine.connect() as connection:
        pragmas = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar_one()
            for name in ("journal_mode", "synchronous", "busy_timeout", "foreign_keys")
        }
    engine.dispose()
    assert pragmas == {
        "journal_mode": "wal",
        "synchronous": 2,
        "busy_timeout": 60_000,
        "foreign_keys": 1,
    }


def test_what_optuna_commits_reaches_the_disk_with_our_next_commit(url: str) -> None:
    engine = create_engine(url, **engine_options(parse_url(url), index=True))
    with engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar_one() == 1
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar_one() == "wal"
    engine.dispose()


def test_servers_are_pinged_before_use() -> None:
    assert engine_options(parse_url("postgresql://db/x"))["pool_pre_ping"] is True


@pytest.mark.parametrize("name", ["100%.db", "a b.db", "{SCHEMA}.db", "ünï.db"])
def test_odd_file_names(tmp_path: Path, name: str) -> None:
    open_database(f"sqlite:///{tmp_path / name}").dispose()
    assert (tmp_path / name).is_file()


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("autotune.db", "For an SQLite file write sqlite:///autotune.db."),
        ("/data/a b.db", "For an SQLite file write sqlite:////data/a b.db."),
        ("", "Write sqlite:///PATH or"),
        ("me:hunter2@host", "Write sqlite:///PATH or"),
    ],
)
def test_the_name_of_a_file_is_turned_into_a_url(url: str, hint: str) -> None:
    with pytest.raises(StorageUnavailable) as caught:
        parse_url(url)
    assert caught.value.hint.startswith(hint)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("autotune.db", "no database URL"),
        ("mysql://me:hunter2@db/x", r"kind 'mysql' are not supported: mysql://me:\*\*\*@db"),
        ("redis://db", "kind 'redis'"),
        ("sqlite://", "not a plain file"),
        ("sqlite:///:memory:", "not a plain file"),
        ("sqlite:///file:x?mode=memory&uri=true", "not a plain file"),
        ("postgresql+psycopg://u:hunter2@h:abc/d", r"//u:\*\*\*@h:abc/d' is no database URL"),
        ("sqlite://host/autotune.db", "Invalid SQLite URL"),
        ("sqlite:///autotune.db?timeout=abc", "has parameters"),
        ("sqlite:///autotune.db?check_same_thread=maybe", "has parameters"),
        ("sqlite:///autotune.db?mode=ro&uri=true", "has parameters"),
        ("sqlite:///autotune.db?foo=bar", "has parameters"),
        ("sqlite:///autotune.db?foo", "has parameters"),
        ("sqlite:///" + "x" * 300, "File name too long"),
        ("postgresql+nodriver://me:hunter2@db/x", r"driver for postgresql\+nodriver://me:\*\*\*"),
    ],
)
@pytest.mark.parametrize("create", [True, False])
def test_urls_that_cannot_hold_a_study(
    url: str, reason: str, create: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "autotune.db").touch()
    with pytest.raises(StorageUnavailable, match=reason) as caught:
        open_database(url, create=create)
    assert caught.value.hint
    assert "hunter2" not in caught.value.message
    assert [path.name for path in tmp_path.iterdir()] == ["autotune.db"]


@pytest.mark.parametrize("driver", ["aiosqlite", "pysqlcipher", "nodriver"])
def test_only_the_synchronous_sqlite_driver(driver: str) -> None:
    with pytest.raises(StorageUnavailable, match=rf"sqlite\+{driver}:///x.db is not") as caught:
        parse_url(f"sqlite+{driver}:///x.db")
    assert "synchronous sqlite driver" in caught.value.hint
    assert "psycopg" not in caught.value.hint


def test_a_file_has_one_path_however_its_url_is_spelt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "link").symlink_to(folder)
    monkeypatch.chdir(folder)
    spellings = [
        f"sqlite:///{folder}/a%b.db",
        f"sqlite+pysqlite:///{folder}/a%b.db",
        f"sqlite:////{folder}/../folder/a%b.db",
        f"sqlite:///{tmp_path}/link/a%b.db",
        "sqlite:///a%b.db",
        "sqlite+pysqlite:///../link/./a%b.db",
    ]
    assert {sqlite_path(url) for url in spellings} == {folder.resolve() / "a%b.db"}


def test_links_in_a_circle_have_a_path(tmp_path: Path) -> None:
    (tmp_path / "a.db").symlink_to(tmp_path / "b.db")
    (tmp_path / "b.db").symlink_to(tmp_path / "a.db")
    assert sqlite_path(f"sqlite:///{tmp_path}/a.db") is not None


def test_other_databases_have_no_path() -> None:
    assert sqlite_path("postgresql+psycopg://me:hunter2@db/x") is None


def test_readers_do_not_create_a_database(url: str, tmp_path: Path) -> None:
    with pytest.raises(StorageUnavailable, match="no study database at sqlite:///"):
        open_database(url, create=False)
    assert list(tmp_path.iterdir()) == []


def test_readers_leave_a_database_of_others_as_it_is(url: str, tmp_path: Path) -> None:
    path = tmp_path / "study.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    before = path.read_bytes()
    with pytest.raises(StorageUnavailable, match="holds no study of autotune"):
        open_database(url, create=False)
    assert path.read_bytes() == before


def test_readers_open_what_exists(url: str) -> None:
    open_database(url).dispose()
    open_database(url, create=False).dispose()


def test_a_folder_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(StorageUnavailable, match="is no folder") as caught:
        open_database(f"sqlite:///{tmp_path}/none/study.db")
    assert caught.value.hint.startswith("Create the folder")


def test_a_path_under_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    with pytest.raises(StorageUnavailable, match="is no folder"):
        open_database(f"sqlite:///{tmp_path}/file/study.db")


def test_a_folder_in_place_of_the_file(tmp_path: Path) -> None:
    with pytest.raises(StorageUnavailable, match="no regular file") as caught:
        open_database(f"sqlite:///{tmp_path}")
    assert caught.value.hint


def test_a_file_that_is_no_database(url: str, tmp_path: Path) -> None:
    (tmp_path / "study.db").write_text("a shopping list\n" * 100)
    with pytest.raises(StorageUnavailable, match="not a database") as caught:
        open_database(url)
    assert caught.value.hint == "Choose another file with --storage."


def test_a_truncated_database(url: str, tmp_path: Path) -> None:
    open_database(url).dispose()
    path = tmp_path / "study.db"
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(StorageUnavailable, match="malformed") as caught:
        open_database(url)
    assert caught.value.hint.startswith("Restore it from a copy")


def test_writers_hold_the_lock_from_their_start(url: str) -> None:
    engine = open_database(url)
    with (
        engine.execution_options(autotune_write=True).begin(),
        closing(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=0)) as other,
        pytest.raises(sqlite3.OperationalError, match="locked"),
    ):
        other.execute("BEGIN IMMEDIATE")
    engine.dispose()


def test_readers_are_not_held_up_by_a_writer(url: str) -> None:
    engine = open_database(url)
    with (
        engine.execution_options(autotune_write=True).begin(),
        engine.connect() as reader,
    ):
        assert reader.execute(text("SELECT count(*) FROM autotune_trial")).scalar_one() == 0
    engine.dispose()


# Checks before anything is made


def with_tables(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


def test_a_place_for_a_new_database_is_left_empty(url: str, tmp_path: Path) -> None:
    assert check_database(url) == Contents()
    assert list(tmp_path.iterdir()) == []


def test_a_database_of_ours_is_known(url: str, tmp_path: Path) -> None:
    open_database(url).dispose()
    before = (tmp_path / "study.db").read_bytes()
    assert check_database(url) == Contents(ours=True)
    assert (tmp_path / "study.db").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["study.db"]


def test_an_empty_file_and_one_of_optuna_can_be_used(url: str, tmp_path: Path) -> None:
    (tmp_path / "study.db").touch()
    assert check_database(url) == Contents()
    names = ("studies", "trials", "version_info", "alembic_version")
    with_tables(tmp_path / "study.db", *(f"CREATE TABLE {name} (x)" for name in names))
    assert check_database(url) == Contents(optuna=True)


def test_a_file_of_another_program_is_refused(url: str, tmp_path: Path) -> None:
    with_tables(tmp_path / "study.db", "CREATE TABLE bookmarks (x)")
    with pytest.raises(StorageUnavailable, match="belongs to another program") as caught:
        check_database(url)
    assert caught.value.hint == "Choose another file with --storage."


def test_a_later_schema_is_refused(url: str, tmp_path: Path) -> None:
    open_database(url).dispose()
    with_tables(tmp_path / "study.db", "UPDATE autotune_alembic_version SET version_num = '9999'")
    with pytest.raises(NewerSchema, match="schema '9999', which this version does not know"):
        check_database(url)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("nonsense", "no database URL"),
        ("sqlite:////proc/none/study.db", "is no folder"),
        ("sqlite:////proc", "no regular file"),
        ("postgresql+nodriver://me:hunter2@db/x", "is not installed"),
    ],
)
def test_what_cannot_be_opened_is_known_beforehand(url: str, reason: str) -> None:
    with pytest.raises(StorageUnavailable, match=reason) as caught:
        check_database(url)
    assert caught.value.hint
