"""How a message leaves: a command that is run, a URL that is posted to."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import ssl
import subprocess
import threading
from base64 import b64encode
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from typing import Protocol
from urllib.parse import unquote, urlsplit

from autotune import __version__
from autotune.watching.secrets import shown_url

EVENT_VARIABLE = "AUTOTUNE_EVENT"

COMMAND_S = 30.0
POST_S = 10.0


class DeliveryFailed(Exception):
    """A message was not delivered; the text says why, without secrets."""


class Delivery(Protocol):
    """Takes one message at a time; may take some seconds."""

    def deliver(self, message: str) -> None:
        """Deliver a message.

        Raises:
            DeliveryFailed: with the reason.
        """
        ...

    def give_up(self) -> None:
        """End the delivery that is under way, if one is; called from another thread."""
        ...


class Command:
    """Runs a command, without a shell, with the message on stdin and in ``AUTOTUNE_EVENT``.

    What it prints goes nowhere: a pipe could fill up, and a file grow.

    Args:
        argv: the command, and its arguments.
        environ: of the command.
        limit_s: after which it is killed, with all of its process group.
    """

    def __init__(
        self, argv: Sequence[str], *, environ: Mapping[str, str], limit_s: float = COMMAND_S
    ) -> None:
        self._argv = list(argv)
        self._environ = dict(environ)
        self._limit_s = limit_s
        self._process: subprocess.Popen[bytes] | None = None

    def deliver(self, message: str) -> None:
        name = self._argv[0]
        try:
            process = subprocess.Popen(
                self._argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                env={**self._environ, EVENT_VARIABLE: message},
            )
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise DeliveryFailed(f"{name} cannot be run: {reason}") from error
        self._process = process
        try:
            process.communicate(message.encode(), timeout=self._limit_s)
        except subprocess.TimeoutExpired as error:
            _end(process)
            raise DeliveryFailed(f"{name} was killed after {self._limit_s:.0f} s") from error
        finally:
            self._process = None
        if process.returncode:
            raise DeliveryFailed(f"{name} ended with {_status(process.returncode)}")

    def give_up(self) -> None:
        if (process := self._process) is not None:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill a command that runs, and its group with it."""
    # Of one that has been waited for the number may be another's.
    if process.poll() is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _status(returncode: int) -> str:
    if returncode < 0:
        return signal.Signals(-returncode).name
    return f"exit code {returncode}"


class Webhook:
    """Posts the message as JSON; follows no redirect, and asks no proxy.

    Args:
        url: http or https; a user and password in it are sent as such.
        limit_s: for all of it.
    """

    def __init__(self, url: str, *, limit_s: float = POST_S) -> None:
        self._parts = urlsplit(url)
        self._shown = shown_url(url)
        self._limit_s = limit_s
        self._socket: socket.socket | None = None

    def deliver(self, message: str) -> None:
        connection, late = self._connection(), threading.Event()

        def cut() -> None:
            late.set()
            self.give_up()

        alarm = threading.Timer(self._limit_s, cut)
        alarm.daemon = True
        alarm.start()
        try:
            with closing(connection):
                connection.connect()
                self._socket = connection.sock
                connection.request("POST", self._target(), message.encode(), self._headers())
                status = connection.getresponse().status
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise DeliveryFailed(f"{self._shown}: {self._reason(error, late)}") from error
        finally:
            self._socket = None
            alarm.cancel()
        if not 200 <= status < 300:
            what = ", and no redirect is followed" if 300 <= status < 400 else ""
            raise DeliveryFailed(f"{self._shown} answered {status}{what}")

    def give_up(self) -> None:
        if (sock := self._socket) is not None:
            # A server may send a byte now and then for ever.
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _connection(self) -> http.client.HTTPConnection:
        host, port = self._parts.hostname or "", self._parts.port
        if self._parts.scheme == "http":
            return http.client.HTTPConnection(host, port, timeout=self._limit_s)
        context = ssl.create_default_context()
        return http.client.HTTPSConnection(host, port, timeout=self._limit_s, context=context)

    def _target(self) -> str:
        query = f"?{self._parts.query}" if self._parts.query else ""
        return f"{self._parts.path or '/'}{query}"

    def _headers(self) -> dict[str, str]:
        headers = {
            "Content-Type": "application/json",
            "User-Agent": f"vllm-autotune/{__version__}",
            "Connection": "close",
        }
        user = self._parts.username
        if user is not None:
            both = f"{unquote(user)}:{unquote(self._parts.password or '')}"
            headers["Authorization"] = f"Basic {b64encode(both.encode()).decode()}"
        return headers

    def _reason(self, error: Exception, late: threading.Event) -> str:
        if isinstance(error, TimeoutError) or late.is_set():
            return f"no answer within {self._limit_s:.0f} s"
        if isinstance(error, ssl.SSLCertVerificationError):
            return f"its certificate is not accepted: {error.verify_message}"
        if isinstance(error, OSError) and error.strerror:
            return error.strerror
        return type(error).__name__
