from __future__ import annotations

from typing import Any

import pytest

from autotune.traffic.capture.headers import Headers
from autotune.traffic.capture.request import Request
from autotune.traffic.capture.upstream import Refused, Target

TARGET = Target.of("https://gateway.example/openai")
SIZED: Headers = [(b"content-length", b"5")]
CHUNKED: Headers = [(b"transfer-encoding", b"chunked")]


def request(headers: Headers, *, method: str = "POST", query: bytes = b"") -> Request:
    scope = {"method": method, "raw_path": b"/v1/x%20y", "query_string": query}
    return Request({**scope, "headers": headers}, TARGET)


def part(data: bytes, *, more: bool = False) -> dict[str, Any]:
    return {"type": "http.request", "body": data, "more_body": more}


def test_the_head_is_that_of_the_client_for_another_host() -> None:
    headers = [
        (b"host", b"127.0.0.1:8100"),
        (b"x", b"\xe4 1"),
        (b"content-length", b"5"),
        (b"connection", b"content-length"),
        (b"x", b"2"),
    ]
    assert request(headers, query=b"a=%2F").head == (
        b"POST /openai/v1/x%20y?a=%2F HTTP/1.1\r\nhost: gateway.example\r\n"
        b"x: \xe4 1\r\ncontent-length: 5\r\nx: 2\r\n\r\n"
    )


def test_a_body_without_length_is_chunked_and_has_no_length_besides() -> None:
    chunked = request([*SIZED, *CHUNKED])
    assert chunked.head.endswith(b"gateway.example\r\ntransfer-encoding: chunked\r\n\r\n")
    assert chunked.framed(part(b"0123456789abcdef", more=True)) == b"10\r\n0123456789abcdef\r\n"
    assert chunked.framed(part(b"", more=True)) == b""
    assert chunked.framed(part(b"x")) == b"1\r\nx\r\n0\r\n\r\n"
    assert request(CHUNKED).framed(part(b"")) == b"0\r\n\r\n"


def test_a_body_with_a_length_is_written_as_it_is() -> None:
    sized = request(SIZED)
    assert sized.framed(part(b"one", more=True)) == b"one"
    assert sized.framed(part(b"23")) == b"23"
    assert request([], method="GET").framed(part(b"")) == b""


@pytest.mark.parametrize(
    ("headers", "parts"),
    [
        (SIZED, [part(b"123456")]),
        (SIZED, [part(b"1234")]),
        (SIZED, [part(b"1234", more=True), part(b"56", more=True)]),
        ([], [part(b"GET / HTTP/1.1\r\n\r\n")]),
    ],
)
def test_no_body_reaches_into_the_next_request(
    headers: Headers, parts: list[dict[str, Any]]
) -> None:
    asked = request(headers)
    *before, last = parts
    for each in before:
        asked.framed(each)
    with pytest.raises(Refused, match="not as long as its header says") as caught:
        asked.framed(last)
    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([(b"transfer-encoding", b"gzip, chunked")], 501),
        ([(b"transfer-encoding", b"identity")], 501),
        ([*SIZED, *SIZED], 400),
        ([(b"content-length", b"+5")], 400),
        ([(b"content-length", b"")], 400),
    ],
)
def test_what_could_be_framed_in_two_ways_is_refused(headers: Headers, status: int) -> None:
    with pytest.raises(Refused) as caught:
        request(headers)
    assert caught.value.status == status


@pytest.mark.parametrize(
    ("method", "repeatable"), [("GET", True), ("PUT", True), ("POST", False), ("PATCH", False)]
)
def test_what_may_be_sent_again(method: str, repeatable: bool) -> None:
    assert request([], method=method).repeatable is repeatable
