from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.traffic.capture.response import (
    MAX_FRUITLESS_BYTES,
    MAX_HEADERS,
    MAX_LINE_BYTES,
    Response,
)
from autotune.traffic.capture.upstream import NoAnswer

SIZED = b"HTTP/1.1 200 OK\r\nX: 1\r\ncontent-length: 5\r\nx: \xe4\r\n\r\n01234"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;a=b\r\n012\r\n2\r\n34\r\n0\r\n"
UNTIL_CLOSE = b"HTTP/1.1 200 OK\r\n\r\n01234"
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: <a>\r\n\r\n"


def fed(*parts: bytes, method: str = "GET") -> Response:
    response = Response(method)
    for part in parts:
        response.feed(part)
    return response


@pytest.mark.parametrize(
    ("data", "reusable"),
    [
        (SIZED, True),
        (CHUNKED + b"\r\n", True),
        (CHUNKED + b"Checksum: 1\r\nOther: 2\r\n\r\n", True),
        (INTERIM + SIZED, True),
        (SIZED.replace(b"X: 1", b"Connection: close"), False),
        (SIZED.replace(b"HTTP/1.1", b"HTTP/1.0"), False),
        (b"HTTP/1.0" + SIZED[8:].replace(b"X: 1", b"connection: keep-alive"), False),
        (SIZED + b"HTTP/1.1 200 OK\r\n\r\nmore", False),
        (SIZED + b"garbage", False),
    ],
)  # fmt: skip
def test_where_responses_end_and_what_may_follow(data: bytes, reusable: bool) -> None:
    response = fed(data)
    assert (response.status, response.taken()) == (200, b"01234")
    assert (response.complete, response.reusable) == (True, reusable)


def test_headers_are_bytes_in_their_order() -> None:
    assert fed(SIZED).headers == [(b"X", b"1"), (b"content-length", b"5"), (b"x", b"\xe4")]
    assert fed(INTERIM + CHUNKED).headers == []


@given(st.lists(st.integers(0, len(INTERIM + SIZED)), max_size=6))
@settings(max_examples=60, deadline=None)
def test_how_the_bytes_are_cut_makes_no_difference(cuts: list[int]) -> None:
    for data in (INTERIM + SIZED, INTERIM + CHUNKED + b"T: 1\r\n\r\n"):
        edges = [0, *sorted(cuts), len(data)]
        response = fed(*(data[a:b] for a, b in pairwise(edges) if a < b))
        assert (response.status, response.taken(), response.complete) == (200, b"01234", True)
        assert response.headers == fed(data).headers
        assert response.reusable


def test_a_body_until_the_connection_closes_is_complete_then() -> None:
    response = fed(UNTIL_CLOSE)
    assert (response.taken(), response.complete) == (b"01234", False)
    response.end()
    assert (response.complete, response.reusable) == (True, False)


@pytest.mark.parametrize("data", [b"", SIZED[:9], INTERIM, SIZED[:-1], CHUNKED])
def test_other_responses_are_not(data: bytes) -> None:
    response = fed(data)
    response.end()
    assert not response.complete


def test_responses_without_a_body() -> None:
    head = fed(SIZED[:-5], method="HEAD")
    # The parser waits for a body here.
    assert (head.complete, head.reusable, len(head.headers)) == (True, False, 3)
    head.feed(b"01234")
    assert head.taken() == b""
    for status in (b"204 x", b"304 x"):
        response = fed(SIZED[:-5].replace(b"200 OK", status))
        # It is the length of another response, and servers would wait for its bytes.
        assert response.headers == [(b"X", b"1"), (b"x", b"\xe4")]
        assert (response.complete, response.reusable) == (True, True)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n", "is no HTTP"),
        (b"\x15\x03\x01\x00\x02", "is no HTTP"),
        (SIZED.replace(b"5", b"5x"), "is no HTTP"),
        (SIZED.replace(b"X: 1", b"content-length: 4"), "is no HTTP"),
        (SIZED.replace(b"X: 1", b"transfer-encoding: chunked"), "is no HTTP"),
        (SIZED.replace(b"X: 1\r\n", b"X: 1\r\n folded\r\n"), "is no HTTP"),
        (SIZED.replace(b"X: 1", b"X : 1"), "is no HTTP"),
        (CHUNKED.replace(b"2\r\n34", b"-2\r\n34"), "is no HTTP"),
        (CHUNKED.replace(b"chunked", b"gzip, chunked"), "a transfer coding other than chunked"),
        (CHUNKED.replace(b"chunked", b"gzip"), "a transfer coding other than chunked"),
        (SIZED.replace(b"200", b"101"), "a status that it was not asked for"),
        (SIZED.replace(b"200", b"999"), "a status that it was not asked for"),
    ],
)
def test_what_cannot_be_passed_on_is_said_in_words(data: bytes, words: str) -> None:
    with pytest.raises(NoAnswer, match=words) as caught:
        fed(data)
    assert caught.value.status == 502


def with_headers(*headers: bytes) -> bytes:
    return SIZED.replace(b"X: 1\r\n", b"".join(each + b"\r\n" for each in headers))


def test_long_headers_and_many_pass() -> None:
    long = b"x: " + b"y" * (MAX_LINE_BYTES - 1)
    assert fed(with_headers(long)).headers[0][1] == long[3:]
    many = [b"x: %d" % number for number in range(MAX_HEADERS - 2)]
    assert len(fed(with_headers(*many)).headers) == MAX_HEADERS


@pytest.mark.parametrize(
    "data",
    [
        with_headers(b"x: " + b"y" * MAX_LINE_BYTES),
        with_headers(*[b"x: 1"] * (MAX_HEADERS - 1)),
        with_headers(b"x: " + b"y" * MAX_FRUITLESS_BYTES)[: MAX_FRUITLESS_BYTES + 20],
        INTERIM * (MAX_FRUITLESS_BYTES // len(INTERIM) + 1),
        CHUNKED + b"t: " + b"y" * (MAX_FRUITLESS_BYTES + 1000),
    ],
    ids=["line", "number", "endless", "interim", "trailer"],
)
def test_headers_beyond_are_refused_before_they_fill_the_memory(data: bytes) -> None:
    response = Response("GET")
    with pytest.raises(NoAnswer, match="headers beyond what autotune capture passes"):
        for start in range(0, len(data), 1000):
            response.feed(data[start : start + 1000])
