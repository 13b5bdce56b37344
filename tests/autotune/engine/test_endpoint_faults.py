"""Causes that a server on loopback cannot make; the others are in the table of the command."""

from __future__ import annotations

import errno
import json
import socket
import ssl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.engine.endpoint_faults import (
    Answer,
    Asked,
    of_answer,
    of_exception,
    of_no_stream,
    of_silence,
    of_stream,
    quoted,
)
from autotune.engine.endpoint_stream import StreamRead, Usage
from tests.autotune.engine.faulty_server import KEY

ASKED = Asked("http://box:8000/v1", "m", secrets=(KEY,), doing="/completions")


class ConnectTimeout(Exception):
    """Named as that of the client."""


class RemoteProtocolError(Exception):
    """Likewise."""


def test_the_cause_is_found_within_groups() -> None:
    refused = ConnectionRefusedError(errno.ECONNREFUSED, "no")
    group = ExceptionGroup("several addresses", [OSError("odd"), refused])
    error = RuntimeError("Connection error.")
    error.__cause__ = OSError("All connection attempts failed")
    error.__cause__.__cause__ = group
    assert of_exception(error, ASKED).message.startswith("nothing listens at box:8000")


def test_a_chain_that_ends_in_itself_ends() -> None:
    first, second = OSError("a"), OSError("b")
    first.__cause__, second.__cause__ = second, first
    assert "no connection to box:8000" in of_exception(first, ASKED).message


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (socket.gaierror(socket.EAI_AGAIN, "Temporary failure"), "the name box is not resolved"),
        (OSError(errno.EMFILE, "Too many open files"), "allows no more open connections"),
        (OSError(errno.EHOSTUNREACH, "x"), "no way to box:8000: no route to host"),
        (ConnectTimeout(), "no connection to box:8000 in time"),
        (TimeoutError(), "no connection to box:8000 in time"),
        (RemoteProtocolError(r"illegal status line: bytearray(b'\x15\x03\x03')"), "speaks TLS"),
        (RemoteProtocolError("illegal status line: b'SSH-2.0'"), "is no HTTP"),
        (RemoteProtocolError("Server disconnected"), "closed the connection without an answer"),
        (ssl.SSLError(1, "[SSL: NO_PROTOCOLS] x"), "no TLS connection to box:8000"),
    ],
)
def test_causes_on_the_way(error: Exception, message: str) -> None:
    fault = of_exception(error, ASKED)
    assert message in fault.message
    assert fault.hint
    assert not fault.fatal


@pytest.mark.parametrize(
    ("status", "fatal", "by_setting"),
    [
        (301, False, True), (400, False, False), (401, True, True), (403, True, True),
        (404, True, True), (405, False, False), (408, False, False), (422, False, False),
        (429, False, False), (500, False, False), (503, False, False), (529, False, False),
    ],
)  # fmt: skip
def test_which_statuses_end_a_run(status: int, fatal: bool, by_setting: bool) -> None:
    fault = of_answer(Answer(status, "application/json", "{}"), ASKED)
    assert fault.message.startswith(f"HTTP {status}")
    assert (fault.fatal, fault.by_setting) == (fatal, by_setting)
    assert fault.hint
    assert fault.failure.failure_class == "endpoint"


def test_an_unknown_model_by_any_status_leads_to_those_that_are_served() -> None:
    asked = Asked("http://box/v1", "m", served=("n", "o"))
    body = json.dumps({"error": {"message": "Invalid model name passed in model=m"}})
    assert of_answer(Answer(400, "application/json", body), asked).hint == "it serves n, o"


def test_prefixes_of_a_gateway_are_no_lack_of_v1() -> None:
    asked = Asked("https://api.example.com/openai/v1/team", "m", doing="/models")
    assert "check the path" in of_answer(Answer(404, "", ""), asked).hint


def test_hidden_reasoning_explains_an_answer_without_tokens() -> None:
    read = StreamRead(events=2, done=True, usage=Usage(9, 8, None, 8))
    fault = of_stream(read, ASKED, wanted=None)
    assert fault is not None
    assert "8 tokens went into reasoning" in fault.hint


def test_a_whole_answer_is_no_fault() -> None:
    whole = StreamRead(events=2, tokens=3, done=True, usage=Usage(9, 5))
    assert of_stream(whole, ASKED, wanted=5) is None
    assert of_stream(whole, ASKED, wanted=None) is None
    uncounted = StreamRead(events=2, tokens=3, done=True, finish_reason="length")
    assert of_stream(uncounted, ASKED, wanted=5) is None
    stopped = StreamRead(events=2, tokens=3, done=True, finish_reason="stop")
    assert of_stream(stopped, ASKED, wanted=5) is not None


def test_an_ipv6_address_is_written_as_one() -> None:
    assert Asked("http://[::1]:8000/v1", "m").place == "[::1]:8000"
    assert Asked("https://example.com/v1", "m").place == "example.com:443"


def test_silence_tells_how_far_it_was() -> None:
    assert of_silence(120.0, 1).message == "no token for 120 s, after 1 token"


@pytest.mark.parametrize(
    "text",
    [
        f"Incorrect API key provided: {KEY}",
        "Authorization: Bearer abcdef0123",
        "key sk-proj-abcdef",
        "https://me:hunter2@proxy/ failed",
        "input [101, 102, 103, 104, 105]",
        "token eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9",
    ],
)
def test_what_looks_like_a_secret_is_not_quoted(text: str) -> None:
    shown = quoted(text, (KEY,))
    assert "***" in shown
    secrets = (KEY, "abcdef", "hunter2", "102", "eyJ")
    assert [secret for secret in secrets if secret in shown] == []


def test_a_prompt_that_is_repeated_in_part_is_not_quoted() -> None:
    prompt = "bada bade badi bado badu baka bake baki bako baku bala bale bali balo"
    assert quoted(f"too long: '{prompt[:50]}", (prompt,)) == "too long: '***"


@given(st.text(), st.text("abcXYZ019", min_size=3, max_size=20))
def test_quotes_are_short_printable_and_without_the_secret(text: str, secret: str) -> None:
    shown = quoted(f"{text}{secret}{text}", (secret,))
    assert len(shown) <= 162
    assert shown.isprintable()
    assert secret not in shown


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        ("<html><head><title> Sign in </title></head></html>", "'Sign in'"),
        ("<p>Proxy <b>error</b></p>", "'Proxy error'"),
        ("plain words", "'plain words'"),
        ("<script>secret()</script>welcome", "'welcome'"),
    ],
)
def test_of_a_page_what_a_reader_would_see(body: str, shown: str) -> None:
    fault = of_no_stream(Answer(200, "text/html; charset=utf-8", body), ASKED)
    assert fault.message == f"HTTP 200 with text/html, no answer of the API: {shown}"


def test_of_an_object_only_the_keys() -> None:
    body = json.dumps({"output": "secret-answer", "id": 7})
    fault = of_no_stream(Answer(200, "application/json", body), ASKED)
    assert fault.message.endswith("no answer of the API: an object with output, id")
