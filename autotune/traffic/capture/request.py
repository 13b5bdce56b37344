"""Requests as they are written to the server."""

from __future__ import annotations

from autotune.traffic.capture.headers import coding, passed_on
from autotune.traffic.capture.observe import Message, Scope
from autotune.traffic.capture.upstream import Refused, Target

_REPEATABLE = frozenset(("GET", "HEAD", "OPTIONS", "PUT", "DELETE", "TRACE"))
"""Twice is the same as once: RFC 9110, section 9.2.2."""


class Request:
    """One request, whose body is framed as the client framed it.

    Attributes:
        method: of the request.
        repeatable: it may be sent again to a server that may have begun it.

    Raises:
        Refused: it cannot be passed on as it is.
    """

    def __init__(self, scope: Scope, target: Target) -> None:
        self.method: str = scope["method"]
        self.repeatable = self.method in _REPEATABLE
        headers = scope["headers"]
        self._chunked = _is_chunked(coding(headers))
        self._remaining = 0 if self._chunked else _length(headers)
        query = scope["query_string"]
        place = target.base + scope["raw_path"] + (b"?" + query if query else b"")
        head = [self.method.encode(), b" ", place, b" HTTP/1.1\r\nhost: ", target.named, b"\r\n"]
        for name, value in passed_on(headers):
            if name != b"host" and not (self._chunked and name == b"content-length"):
                head += (name, b": ", value, b"\r\n")
        if self._chunked:
            head.append(b"transfer-encoding: chunked\r\n")
        head.append(b"\r\n")
        self.head = b"".join(head)

    def framed(self, message: Message) -> bytes:
        """Return a part of the body as it is written.

        Raises:
            Refused: the body is not as long as its header says, so that the server would take
                the next request for a part of it.
        """
        data: bytes = message.get("body", b"")
        more: bool = message.get("more_body", False)
        if self._chunked:
            part = b"%x\r\n%b\r\n" % (len(data), data) if data else b""
            return part if more else part + b"0\r\n\r\n"
        self._remaining -= len(data)
        if self._remaining < 0 or (self._remaining and not more):
            raise Refused(400, "the body of the request is not as long as its header says")
        return data


def _is_chunked(transfer_coding: bytes) -> bool:
    if transfer_coding not in (b"", b"chunked"):
        raise Refused(501, "autotune capture knows no transfer coding but chunked")
    return bool(transfer_coding)


def _length(headers: list[tuple[bytes, bytes]]) -> int:
    lengths = [value for name, value in headers if name == b"content-length"]
    if not lengths:
        return 0
    if len(lengths) > 1 or not lengths[0].isdigit():
        raise Refused(400, "the request has no valid Content-Length")
    return int(lengths[0])
