"""Sockets: engines speak over files in /tmp and, with several GPUs, over this machine's ports."""

from __future__ import annotations

import resource
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from autotune.engine.run_folder import RUNS
from autotune.study.doctor.results import Result

LEAST_DESCRIPTORS = 4096
_TIMEOUT_S = 2.0


def socket_results(folder: Path = RUNS) -> Iterator[Result]:
    """Try both kinds, each with a byte that goes through, and how many may be open."""
    yield _tried("loopback", _loopback, "see to the interface lo, and to firewalls on it")
    hint = f"engines need {folder} for their sockets: mount it where sockets are allowed"
    yield _tried("socket files", lambda: _file(folder), hint)
    yield descriptors_result(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def descriptors_result(most: int) -> Result:
    """Judge how many files and sockets a process may have open at once."""
    if most == resource.RLIM_INFINITY or most >= LEAST_DESCRIPTORS:
        shown = "no limit" if most == resource.RLIM_INFINITY else f"up to {most}"
        return Result("descriptors", "ok", shown)
    hint = "ulimit -n 65536: each request over HTTP has one"
    return Result("descriptors", "warn", f"only {most} files and sockets at once", hint)


def _tried(name: str, exchange: Callable[[], None], hint: str) -> Result:
    try:
        exchange()
    except OSError as error:
        return Result(name, "fail", error.strerror or str(error), hint)
    return Result(name, "ok", "a byte went through")


def _loopback() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(_TIMEOUT_S)
        with socket.create_connection(server.getsockname(), timeout=_TIMEOUT_S) as client:
            _exchange(server, client)


def _file(folder: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="autotune-doctor-", dir=folder) as own:
        path = str(Path(own) / "s")
        with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
            for each in (server, client):
                each.settimeout(_TIMEOUT_S)
            server.bind(path)
            server.listen(1)
            client.connect(path)
            _exchange(server, client)


def _exchange(server: socket.socket, client: socket.socket) -> None:
    accepted, _ = server.accept()
    with accepted:
        accepted.settimeout(_TIMEOUT_S)
        client.sendall(b"a")
        if accepted.recv(1) != b"a":
            raise OSError("the byte that was sent did not arrive")
