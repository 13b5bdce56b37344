from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from autotune.traffic.capture import upstream
from autotune.traffic.capture.upstream import Target
from tests.autotune.engine.certificate import write_certificate
from tests.autotune.traffic.capture.scripted import (
    CLOSES,
    GET,
    OK,
    POST,
    Client,
    Scripted,
    asked,
    status_of,
)

pytestmark = pytest.mark.wire

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nT: 1\r\n\r\n"
EARLY = b"POST /early HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhalf"
Case = Callable[[Scripted, Client], Awaitable[None]]


def scripted(case: Case, *answers: bytes, host: str = "http://127.0.0.1") -> None:
    async def run() -> None:
        server = Scripted(answers)
        async with asked(server, host=host) as client:
            await case(server, client)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("http://h", Target("h", 80, False, b"h", b"")),
        ("http://h:80/a", Target("h", 80, False, b"h", b"/a")),
        ("https://h", Target("h", 443, True, b"h", b"")),
        ("https://h:80", Target("h", 80, True, b"h:80", b"")),
        ("http://[::1]:8000", Target("::1", 8000, False, b"[::1]:8000", b"")),
        ("http://[fe80::1%eth0]", Target("fe80::1%eth0", 80, False, b"[fe80::1]", b"")),
        ("http://bü.example", Target("bü.example", 80, False, b"xn--b-eha.example", b"")),
    ],
)  # fmt: skip
def test_who_is_asked(url: str, target: Target) -> None:
    assert Target.of(url) == target


@pytest.mark.parametrize(
    ("request_", "answer", "connections"),
    [
        (POST, OK, 1),
        (POST, CHUNKED, 1),
        (GET, b"HTTP/1.1 103 Early\r\nLink: <a>\r\n\r\n" + OK, 1),
        (GET, b"HTTP/1.1 204 x\r\n\r\n", 1),
        (GET, b"HTTP/1.1 304 x\r\nContent-Length: 9\r\n\r\n", 1),
        (GET.replace(b"GET", b"HEAD"), OK[:-2], 2),
        (GET, OK.replace(b"OK", b"OK\r\nConnection: close"), 2),
        (GET, OK.replace(b"/1.1", b"/1.0"), 2),
        (GET, OK + b"HTTP/1.1 200 OK\r\n\r\n", 2),
        (EARLY, OK, 2),
    ],
)
def test_a_connection_is_used_again_where_nothing_is_left_on_it(
    request_: bytes, answer: bytes, connections: int
) -> None:
    async def case(server: Scripted, client: Client) -> None:
        first = await client.ask(request_)
        assert status_of(first) in (200, 204, 304)
        assert (await client.ask(POST)).endswith(b"\r\n\r\nok")
        assert len(server.heads) == connections

    scripted(case, answer)


def test_bytes_that_nobody_asked_for_answer_nothing() -> None:
    async def case(server: Scripted, client: Client) -> None:
        await client.ask(GET)
        server.writers[0].write(OK.replace(b"ok", b"no"))
        await server.gone.wait()
        assert (await client.ask(GET)).endswith(b"ok")
        assert len(server.heads) == 2

    scripted(case)


def test_a_connection_that_the_server_closed_is_not_used() -> None:
    async def case(server: Scripted, client: Client) -> None:
        await client.ask(GET)
        server.writers[0].write_eof()
        await server.gone.wait()
        assert (await client.ask(POST)).endswith(b"ok")
        assert len(server.heads) == 2

    scripted(case)


def test_an_idle_connection_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "KEEP_ALIVE_S", 0.01)

    async def case(server: Scripted, client: Client) -> None:
        await client.ask(GET)
        await server.gone.wait()
        assert len(server.heads) == 1

    scripted(case)


@pytest.mark.parametrize(
    ("request_", "answer", "status", "sent"),
    [
        (GET, CLOSES, 200, 2),
        (GET, b"HTTP/1.1 2" + CLOSES, 502, 1),
        # It may have been begun, and no client asked for it twice.
        (POST, CLOSES, 502, 1),
    ],
)
def test_what_may_do_something_is_sent_once(
    request_: bytes, answer: bytes, status: int, sent: int
) -> None:
    async def case(server: Scripted, client: Client) -> None:
        await client.ask(GET.replace(b"models", b"first"))
        assert status_of(await client.ask(request_)) == status
        heads = [head for each in server.heads for head in each if b"first" not in head]
        assert len(heads) == sent

    scripted(case, OK, answer)


def test_a_new_connection_that_gives_no_answer_is_not_tried_again() -> None:
    async def case(server: Scripted, client: Client) -> None:
        answer = await client.ask(GET)
        assert status_of(answer) == 502
        assert b"gave no answer: it closed the connection" in answer
        assert len(server.heads) == 1

    scripted(case, CLOSES)


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\nuntil close" + CLOSES, b"b\r\nuntil close\r\n0\r\n\r\n"),
        (OK[:-1] + CLOSES, b"o"),
        (CHUNKED[:-6] + CLOSES, b"2\r\nok\r\n"),
    ],
)
def test_half_an_answer_never_looks_like_a_whole_one(answer: bytes, body: bytes) -> None:
    async def case(_server: Scripted, client: Client) -> None:
        got = (await client.ask(GET)).partition(b"\r\n\r\n")[2]
        # Two parts may have come as one.
        assert got == body or got in body

    scripted(case, answer)


def test_what_is_no_http_is_told_in_words() -> None:
    async def case(_server: Scripted, client: Client) -> None:
        answer = await client.ask(POST)
        assert status_of(answer) == 502
        assert b"is no HTTP/1.1" in answer
        assert b"secret" not in answer

    scripted(case, b"220 mail.example ESMTP secret\r\n")


def test_another_host_that_a_client_names_is_not_asked() -> None:
    async def case(server: Scripted, client: Client) -> None:
        request = GET.replace(b"/v1/models", b"http://other.example/v1/models")
        assert status_of(await client.ask(request)) == 200
        head = server.heads[0][0]
        assert head.startswith(b"GET /v1/models HTTP/1.1\r\nhost: 127.0.0.1:%d\r\n" % server.port)

    scripted(case)


def test_a_client_that_leaves_before_the_answer_closes_the_connection() -> None:
    async def case(server: Scripted, client: Client) -> None:
        _, writer = await client.opened()
        writer.write(POST)
        await server.came.wait()
        writer.close()
        await server.gone.wait()

    scripted(case, b"")


def test_names_with_several_addresses_are_tried_one_after_another() -> None:
    async def case(_server: Scripted, client: Client) -> None:
        assert status_of(await client.ask(GET)) == 200

    # It may be ::1 first, where nobody listens.
    scripted(case, host="http://localhost")


@pytest.mark.parametrize(
    ("host", "trusted", "words"),
    [
        ("https://localhost", True, b"ok"),
        ("https://localhost", False, b"its certificate is not trusted: self-signed certificate"),
        ("https://127.0.0.1", True, b"its certificate is not trusted: IP address mismatch"),
        ("http://localhost", True, b"gave no answer"),
    ],
)
def test_tls_is_checked_against_the_name(
    host: str, trusted: bool, words: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = tmp_path / "localhost.pem"
    write_certificate(certificate)
    if trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)

    async def run() -> None:
        async with asked(Scripted(tls=context), host=host) as client:
            for _ in range(2):
                assert words in await client.ask(POST)

    asyncio.run(run())


def test_a_server_that_takes_no_connection_is_told_in_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(upstream, "CONNECT_S", 0.05)

    async def case(_server: Scripted, client: Client) -> None:
        # It waits for a request, where the proxy waits for it to speak TLS.
        assert b"did not take a connection within 0.05 s" in await client.ask(POST)

    scripted(case, host="https://127.0.0.1")


SIZED = b"Content-Length: 4\r\n"
GZIP = GET.replace(b"\r\n\r\n", b"\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n")
BOTH = POST.replace(SIZED, SIZED + b"Transfer-Encoding: chunked\r\n")


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (BOTH, 400),
        (POST.replace(SIZED, b"Transfer-Encoding: chunked\r\n" + SIZED), 400),
        (POST.replace(SIZED, SIZED + SIZED), 400),
        (POST.replace(SIZED, b"Content-Length: +4\r\n"), 400),
        (POST.replace(SIZED, b"Content-Length : 4\r\n"), 400),
        (POST.replace(SIZED, SIZED + b" folded\r\n"), 400),
        (POST.replace(SIZED, b"Transfer-Encoding: xchunked\r\n"), 400),
        (POST.replace(SIZED, b"Transfer-Encoding: chunked, identity\r\n"), 400),
        (GZIP, 501),
        (POST.replace(SIZED, b"X: 1\rContent-Length: 4\r\n"), 400),
        (POST.replace(b"\r\n", b"\n"), 400),
        (POST.replace(SIZED, b"Upgrade: x\r\nConnection: upgrade\r\n" + SIZED), 400),
        (GET.replace(b"GET /v1/models", b"CONNECT h:1"), 400),
        (GET.replace(b"/models", b"/models\tx"), 400),
        (GET.replace(b"/models", b"/m\xe4"), 400),
    ],
)
def test_nothing_reaches_the_server_that_it_could_read_in_two_ways(
    request_: bytes, status: int
) -> None:
    async def case(server: Scripted, client: Client) -> None:
        assert status_of(await client.ask(request_)) == status
        assert server.heads == []

    scripted(case)


def test_a_length_that_is_named_as_one_of_the_connection_is_kept() -> None:
    async def case(server: Scripted, client: Client) -> None:
        request = POST.replace(SIZED, SIZED + b"Connection: content-length\r\n")
        assert status_of(await client.ask(request)) == 200
        assert b"\r\ncontent-length: 4\r\n" in server.heads[0][0]

    scripted(case)
