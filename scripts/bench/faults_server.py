"""Faults of a PostgreSQL server in mid-study."""

from __future__ import annotations

import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from faults_ours import POSTGRESQL, Fault, seen
from faulty import Seen, Study, full, mounted

from tests.storage.postgres import Server, running

AWAY_S = 5.0
DISK_MIB = 1500


def restarted(study: Study, server: Server) -> Seen:
    return away(study, server, signal.SIGINT)


def crashed(study: Study, server: Server) -> Seen:
    """All of its processes are killed, as if it had run out of memory."""
    return away(study, server, signal.SIGKILL)


def away(study: Study, server: Server, how: signal.Signals) -> Seen:
    run = study.begin(hold="store:2")
    run.reach()
    server.stop(how)
    run.go()
    time.sleep(AWAY_S)
    start(server)
    return seen(run.end(), "again", code=0)


def gone(study: Study, server: Server) -> Seen:
    """It stays away for longer than the study is patient."""
    run = study.begin(hold="store:2", database_patience_s=3.0)
    run.reach()
    server.stop()
    run.go()
    ended = run.end()
    start(server)
    return seen(ended, "error:", code=4)


def cut(study: Study, server: Server) -> Seen:
    """All connections are cut while a trial runs."""
    run = study.begin(hold="store:2")
    run.reach()
    server.cut_connections()
    run.go()
    return seen(run.end(), code=0)


def disk_full(study: Study, _server: Server) -> Seen:
    """The disk of the server fills up while a trial runs."""
    run = study.begin(hold="store:2")
    run.reach()
    # It has one of its own, above the folder with its socket.
    with full(Path(study.url.rpartition("host=")[2]).parent):
        run.go()
        return seen(run.end(), "error:", code=4)


@contextmanager
def running_on_disk() -> Iterator[Server]:
    """Have a server within the block whose disk may be filled."""
    folder = Path(tempfile.mkdtemp(prefix="faults-server-"))
    folder.chmod(0o711)
    before = tempfile.gettempdir()
    try:
        with mounted(folder, mib=DISK_MIB):
            tempfile.tempdir = str(folder)
            try:
                with running() as server:
                    yield server
            finally:
                tempfile.tempdir = before
    finally:
        folder.rmdir()


def start(server: Server) -> None:
    """Start it again; what was killed may still be on its way out."""
    for _ in range(10):
        with suppress(AssertionError):
            return server.start()
        time.sleep(1.0)
    raise TimeoutError("the server does not start again")


SERVER_FAULTS = (
    Fault("PostgreSQL restarted in mid-study", serve=restarted, databases=POSTGRESQL),
    Fault("PostgreSQL killed with SIGKILL in mid-study", serve=crashed, databases=POSTGRESQL),
    Fault("PostgreSQL away for longer than its patience", serve=gone, databases=POSTGRESQL),
    Fault("disk full: the server's own", serve=disk_full, databases=POSTGRESQL),
    Fault("connections to PostgreSQL cut", serve=cut, databases=POSTGRESQL),
)
