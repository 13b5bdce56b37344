"""A server on loopback that answers what it is told, and keeps what it was asked."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer

Answer = Callable[[BaseHTTPRequestHandler], None]


@dataclass(slots=True)
class Asked:
    """What was posted to a server."""

    port: int
    paths: list[str] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)


def status(code: int, **headers: str) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(code)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.end_headers()

    return answer


def nothing_until(event: threading.Event) -> Answer:
    def answer(_handler: BaseHTTPRequestHandler) -> None:
        event.wait()

    return answer


@contextmanager
def serving(answer: Answer, *, tls: ssl.SSLContext | None = None) -> Iterator[Asked]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.paths.append(self.path)
            asked.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            asked.headers.append(dict(self.headers.items()))
            answer(self)

        def log_message(self, *_: object) -> None:
            """Nothing is said of it."""

    class Quiet(HTTPServer):
        def handle_error(self, *_: object) -> None:
            """A client that goes is no fault."""

    server = Quiet(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    asked = Asked(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
