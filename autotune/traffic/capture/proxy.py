"""``autotune capture``: a server that passes traffic on and has it recorded."""

from __future__ import annotations

import asyncio
import gc
import ipaddress
import logging
import signal
import socket
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import uvicorn

from autotune.errors import EnvironmentFault, UsageError
from autotune.traffic.capture.forward import Forward
from autotune.traffic.capture.observe import Observed
from autotune.traffic.capture.recorder import Counts, Recorder

REPORT_S = 60.0
GRACE_S = 30.0
"""How long requests in flight may go on after the first signal; a second one ends them."""

KEEP_ALIVE_S = 75
"""Of idle connections of clients: longer than clients keep them, so that none is closed in use."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen."""

    host: str
    port: int


def parse_listen(text: str, *, allow_remote_clients: bool) -> Address:
    """Return the address of ``HOST:PORT``; port 0 is any that is free.

    Raises:
        UsageError: it is none, or open to other machines without that being allowed.
    """
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise UsageError(
            f"--listen {text}: is no address", hint="write it as 127.0.0.1:8100, or [::1]:8100"
        )
    if not allow_remote_clients and not _is_loopback(host):
        raise UsageError(
            f"--listen {text}: clients of other machines could reach the proxy",
            hint="listen on 127.0.0.1, or add --allow-remote-clients: it neither asks for keys "
            "nor encrypts",
        )
    return Address(host, int(port))


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def bound(address: Address) -> socket.socket:
    """Return a socket that is bound, so that a taken port is told before anything else begins.

    Raises:
        EnvironmentFault: the address is taken, or is not of this machine.
    """
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    # Only where the protocol is named does asyncio switch Nagle's algorithm off, which would hold
    # small packets back for 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address.host, address.port))
    except OSError as error:
        listener.close()
        raise EnvironmentFault(
            f"cannot listen on {address.host}:{address.port}: {error.strerror}",
            hint="choose another port, or end what listens there",
        ) from error
    return listener


def run(serving: Coroutine[Any, Any, int | None]) -> int | None:
    """Return what ``serve`` returns, on the fastest event loop that is installed."""
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    with suppress(ImportError):
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(serving)


async def serve(
    listener: socket.socket,
    upstream: str,
    recorder: Recorder,
    *,
    with_text: bool,
    say: Callable[[str], None],
    heed: bool = True,
    ready: Callable[[], None] = lambda: None,
) -> int | None:
    """Pass traffic on until a signal comes; return the signal.

    Args:
        listener: bound to where clients come.
        upstream: as ``parse_upstream`` returns it.
        recorder: where sightings go; it is started.
        with_text: keep responses as a whole.
        say: takes a line for people.
        heed: answer to signals; only possible on the main thread.
        ready: called when clients can connect.
    """
    # Its errors are tracebacks of exceptions that we raise on purpose, or quote what passes.
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
    async with Forward(upstream) as forward:
        app = Observed(forward, recorder, with_text=with_text)
        server = _Server(_config(app), ready)
        got: list[int] = []
        with _heeded(server, got) if heed else _nothing():
            reporting = asyncio.ensure_future(_report(app, recorder, say))
            try:
                await server.serve(sockets=[listener])
            finally:
                gc.unfreeze()
                reporting.cancel()
                await asyncio.gather(reporting, return_exceptions=True)
    return got[0] if got else None


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen, and say so."""
        await super().startup(sockets)
        # What was imported stays: 67,000 objects, which every full collection of garbage would
        # go through, while all traffic waits for 20 ms and more.
        gc.collect()
        gc.freeze()
        self._ready()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to us, who have files to finish."""
        yield


def _config(app: Observed) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http="httptools",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=int(GRACE_S),
    )


@contextmanager
def _heeded(server: uvicorn.Server, got: list[int]) -> Iterator[None]:
    """Within the block the first signal ends the server, a second one what is in flight too."""
    loop = asyncio.get_running_loop()

    def asked(signum: int) -> None:
        server.force_exit = bool(got)
        server.should_exit = True
        got.append(signum)

    heeded = [each for each in _SIGNALS if signal.getsignal(each) is not signal.SIG_IGN]
    before = {each: signal.getsignal(each) for each in heeded}
    for each in heeded:
        loop.add_signal_handler(each, asked, int(each))
    try:
        yield
    finally:
        for each, handler in before.items():
            loop.remove_signal_handler(each)
            signal.signal(each, handler)


@contextmanager
def _nothing() -> Iterator[None]:
    yield


async def _report(app: Observed, recorder: Recorder, say: Callable[[str], None]) -> None:
    while True:
        await asyncio.sleep(REPORT_S)
        say(report(recorder.counts, app.in_flight))


def report(counts: Counts, in_flight: int) -> str:
    """Return the counts as a line."""
    return (
        f"{counts.recorded:,} recorded, {counts.cancelled:,} of them cancelled and "
        f"{counts.failed:,} failed; {in_flight:,} in flight, {counts.lost:,} unrecorded"
    )
