"""Headers of messages, and those that concern one connection only."""

from __future__ import annotations

from collections.abc import Iterable

Headers = list[tuple[bytes, bytes]]

_HOP_BY_HOP = frozenset(
    (
        b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization",
        b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade",
    )
)  # fmt: skip
"""Headers that concern one connection and not the message: RFC 9110, section 7.6.1."""


def passed_on(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Return the headers of the message, as they are and in their order.

    A length is kept even where ``Connection`` names it: without it the body would end elsewhere.
    """
    pairs = [(name, value, name.lower()) for name, value in headers]
    left_out: set[bytes] | frozenset[bytes] = _HOP_BY_HOP
    for _, value, lowered in pairs:
        if lowered == b"connection":
            named = {each.strip().lower() for each in value.split(b",")}
            left_out = (left_out | named) - {b"content-length"}
    return [(name, value) for name, value, lowered in pairs if lowered not in left_out]


def coding(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the transfer coding, empty if there is none."""
    return b",".join(
        value.strip().lower() for name, value in headers if name.lower() == b"transfer-encoding"
    )
