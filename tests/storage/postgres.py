"""A PostgreSQL server of the tests' own, which they may stop and start."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import psycopg
from optuna.storages import RDBStorage
from psycopg import sql

from storage.repository import open_repository

_ROLE = "autotune"
_TEMPLATE = "prepared"
_COME_UP_S = 30.0
_POLL_S = 0.02


class Server:
    """A server on a socket in a folder of its own.

    Nothing of it is brought to the disk: what is killed here are processes, and never a machine.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._data = folder / "data"
        user = _unprivileged()
        self._user = None if user is None else user.pw_uid
        self._group = None if user is None else user.pw_gid
        self._process: subprocess.Popen[bytes] | None = None
        self._names = count(1)
        for made in (folder, self._data):
            made.mkdir(exist_ok=True)
            made.chmod(0o700)
            if self._user is not None:
                shutil.chown(made, self._user)
        self._run("initdb", "-D", str(self._data), "-U", _ROLE, "-A", "trust", "--no-sync")

    def start(self) -> None:
        """Start the server, and return when it can be asked."""
        settings = {
            "listen_addresses": "",
            "unix_socket_directories": self._folder,
            "fsync": "off",
        }
        options = [word for key, value in settings.items() for word in ("-c", f"{key}={value}")]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [_program("postgres"), "-D", str(self._data), *options],
                stdout=log,
                stderr=log,
                cwd=self._folder,
                start_new_session=True,
                user=self._user,
                group=self._group,
                extra_groups=None if self._user is None else (),
            )
        deadline = time.monotonic() + _COME_UP_S
        while not self._answers():
            assert self._process.poll() is None, (self._folder / "log").read_text()
            assert time.monotonic() < deadline, (self._folder / "log").read_text()
            time.sleep(_POLL_S)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop the server: SIGINT cuts its connections, SIGQUIT is a crash."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(_COME_UP_S)
            self._process = None

    def prepare(self) -> None:
        """Make the database that all others are copies of, with the tables of both."""
        self._ask(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(_TEMPLATE)))
        open_repository(self._url(_TEMPLATE)).close()
        storage = RDBStorage(self._url(_TEMPLATE))
        storage.remove_session()
        storage.engine.dispose()

    def database(self, *, prepared: bool = True) -> str:
        """Make a database and return its URL; ``prepared`` for one with the tables of both."""
        name = f"test_{next(self._names)}"
        template = _TEMPLATE if prepared else "template0"
        self._ask(
            sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY file_copy").format(
                sql.Identifier(name), sql.Identifier(template)
            )
        )
        return self._url(name)

    def cut_connections(self) -> None:
        """End all connections, as an idle one is ended by what lies between."""
        self._ask(
            sql.SQL(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE pid <> pg_backend_pid() AND datname LIKE 'test%'"
            )
        )

    def _url(self, name: str) -> str:
        return f"postgresql+psycopg://{_ROLE}@/{name}?host={self._folder}"

    def _ask(self, statement: sql.Composed | sql.SQL) -> None:
        with psycopg.connect(
            host=str(self._folder), user=_ROLE, dbname="postgres", autocommit=True
        ) as connection:
            connection.execute(statement)

    def _answers(self) -> bool:
        try:
            self._ask(sql.SQL("SELECT 1"))
        except psycopg.OperationalError:
            return False
        return True

    def _run(self, name: str, *words: str) -> None:
        subprocess.run(
            [_program(name), *words],
            check=True,
            capture_output=True,
            cwd=self._folder,
            user=self._user,
            group=self._group,
            extra_groups=None if self._user is None else (),
        )


def _unprivileged() -> pwd.struct_passwd | None:
    """Return whom the server runs as; None for ourselves, whom it refuses if we are root."""
    if os.geteuid() != 0:
        return None
    known = {each.pw_name: each for each in pwd.getpwall()}
    return known.get("postgres") or known["nobody"]


def _program(name: str) -> str:
    """Return the path of a program of the server; Debian has them apart from the others."""
    places = [
        Path(shutil.which(name) or "/nowhere"),
        *Path("/usr/lib/postgresql").glob(f"*/bin/{name}"),
    ]
    found = [each for each in places if each.exists()]
    assert found, "PostgreSQL is not installed: apt-get install postgresql"
    return str(found[-1])


@contextmanager
def running() -> Iterator[Server]:
    """Have a server within the block."""
    # Where a socket's path is short, and whom it runs as may go.
    folder = Path(tempfile.mkdtemp(prefix="autotune-pg-"))
    server = Server(folder)
    try:
        server.start()
        server.prepare()
        yield server
    finally:
        server.stop(signal.SIGQUIT)
        shutil.rmtree(folder)
