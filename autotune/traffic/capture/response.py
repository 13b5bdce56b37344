"""Responses as they come from the server."""

from __future__ import annotations

from typing import Any

import httptools

from autotune.traffic.capture.headers import Headers, coding, passed_on
from autotune.traffic.capture.upstream import NoAnswer

MAX_LINE_BYTES = 64 * 2**10
MAX_HEADERS = 1000
MAX_FRUITLESS_BYTES = 256 * 2**10
"""Without a byte of a body among them: bounds heads, trailers, and what precedes a response."""

_WITHOUT_BODY = (204, 304)
_NO_HTTP = "the upstream server's answer is no HTTP/1.1"
_TOO_LARGE = (
    "the upstream server's answer has headers beyond what autotune capture passes: "
    f"{MAX_LINE_BYTES // 2**10} KiB each, {MAX_HEADERS:,} and "
    f"{MAX_FRUITLESS_BYTES // 2**10} KiB in all"
)


class Response:
    """Parses one response.

    Attributes:
        status: None until the head is complete.
        headers: those of the message.
        complete: all of it has come.
        reusable: the server takes another request on the connection.
    """

    def __init__(self, method: str) -> None:
        self._parser: Any = httptools.HttpResponseParser(self)
        self._of_head = method == "HEAD"
        self._parts: list[bytes] = []
        self._refusal = _NO_HTTP
        self._interim = False
        self._until_close = False
        self._fruitless_bytes = 0
        self.status: int | None = None
        self.headers: Headers = []
        self.complete = False
        self.reusable = False

    def feed(self, data: bytes) -> None:
        """Take bytes.

        Raises:
            NoAnswer: they are no response that can be passed on.
        """
        self._fruitless_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            # What comes after the end spoils the connection and not the response.
            self.reusable = False
            if not self.complete:
                raise NoAnswer(self._refusal) from error
        if self._fruitless_bytes > MAX_FRUITLESS_BYTES and not self.complete:
            raise NoAnswer(_TOO_LARGE)

    def end(self) -> None:
        """Take the end of the connection, which may be that of the response."""
        self.complete = self.complete or self._until_close
        self.reusable = False

    def taken(self) -> bytes:
        """Return what has come of the body since the last call."""
        parts, self._parts = self._parts, []
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        """Let go of the parser, which holds this object as this holds it."""
        self._parser = None

    def on_message_begin(self) -> None:
        """Called by the parser: for each interim response, the response, and what follows it."""
        if self.complete:
            self.reusable = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by the parser: for each header or trailer."""
        if self.status is not None:
            return
        if len(name) + len(value) > MAX_LINE_BYTES or len(self.headers) == MAX_HEADERS:
            self._refuse(_TOO_LARGE)
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Called by the parser."""
        if self.complete:
            return
        status = self._parser.get_status_code()
        if 100 <= status < 200 and status != 101:
            # ASGI has no way to pass these on.
            self._interim = True
            self.headers = []
            return
        if not 200 <= status < 600:
            self._refuse("the upstream server's answer has a status that it was not asked for")
        self._frame(status)
        self.status = status

    def on_body(self, data: bytes) -> None:
        """Called by the parser: for each part of the body."""
        if not self.complete:
            self._fruitless_bytes = 0
            self._parts.append(data)

    def on_message_complete(self) -> None:
        """Called by the parser."""
        if self._interim:
            self._interim = False
        elif not self.complete:
            self.complete = True
            self.reusable = (
                self._parser.should_keep_alive() and self._parser.get_http_version() == "1.1"
            )

    def _frame(self, status: int) -> None:
        """Find where the body ends."""
        transfer_coding = coding(self.headers)
        if transfer_coding not in (b"", b"chunked"):
            self._refuse("the upstream server's answer has a transfer coding other than chunked")
        kept = passed_on(self.headers)
        sized = any(name.lower() == b"content-length" for name, _ in kept)
        self._until_close = not (transfer_coding or sized)
        # The parser does not know that answers to HEAD have no body; so their connections end.
        self.complete = self._of_head
        if status in _WITHOUT_BODY and sized:
            # It is that of another response, and servers would wait for as many bytes.
            kept = [(name, value) for name, value in kept if name.lower() != b"content-length"]
        self.headers = kept

    def _refuse(self, words: str) -> None:
        self._refusal = words
        raise NoAnswer(words)
