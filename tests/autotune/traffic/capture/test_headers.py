from __future__ import annotations

import pytest

from autotune.traffic.capture.headers import Headers, coding, passed_on


def test_headers_keep_their_order_their_case_and_their_duplicates() -> None:
    headers = [(b"B", b"2"), (b"Set-Cookie", b"\xe4"), (b"set-cookie", b""), (b"a", b"1")]
    assert passed_on(headers) == headers


@pytest.mark.parametrize(
    "name",
    [b"Connection", b"Keep-Alive", b"TE", b"Trailer", b"Transfer-Encoding", b"Upgrade", b"X-Mine"],
)
def test_those_of_one_connection_are_left_out(name: bytes) -> None:
    headers = [(name, b"1"), (b"connection", b"close, x-MINE"), (b"kept", b"1")]
    assert passed_on(headers) == [(b"kept", b"1")]


def test_a_length_is_kept_whatever_is_said_of_it() -> None:
    headers = [(b"Content-Length", b"5"), (b"Connection", b"content-length")]
    assert passed_on(headers) == [(b"Content-Length", b"5")]


@pytest.mark.parametrize(
    ("headers", "named"),
    [
        ([], b""),
        ([(b"Transfer-Encoding", b" Chunked")], b"chunked"),
        ([(b"transfer-encoding", b"gzip"), (b"TRANSFER-ENCODING", b"chunked")], b"gzip,chunked"),
    ],
)
def test_the_transfer_coding(headers: Headers, named: bytes) -> None:
    assert coding(headers) == named
