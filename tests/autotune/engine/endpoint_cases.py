"""Everything that an endpoint does wrong, with what the command must answer."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tests.autotune.engine.faulty_server import (
    DONE,
    KEY,
    Body,
    FaultyServer,
    Script,
    Whole,
    choice,
    chunk,
    event,
    good,
    usage_of,
)

PAGE = (
    "<!DOCTYPE html><html><head><title>Sign in to continue</title>"
    f"<script>var token = '{KEY}';</script></head><body><h1>Sign in</h1></body></html>"
)
BAD_GATEWAY = "<html>\r\n<head><title>502 Bad Gateway</title></head><body>nginx</body></html>"
HTML = "text/html; charset=utf-8"
KEYED = {"api_key_env": "PLANTED_KEY"}
OTHERS = {"served-1": {"owned_by": "vllm"}, "served-2": {"owned_by": "vllm"}}

Settings = Callable[[FaultyServer], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class FaultCase:
    """One fault.

    Attributes:
        what: is wrong, as the first column of the table says it.
        code: exit code.
        error: part of the line of that name, or with 0 of any line on stderr.
        hint: part of the line of that name.
        script: of the server.
        settings: of the endpoint that differ, given the server.
        failed: requests that failed where the exit code is 0.
        asked: requests for tokens that the server must have seen at most; None for any number.
        environ: variables that differ.
        tls: whether the server speaks it.
        addresses: in place of the system's resolver; None for that.
    """

    what: str
    code: int
    error: str = ""
    hint: str = ""
    script: Script = field(default_factory=Script)
    settings: Settings = lambda _server: {}
    failed: int = 0
    asked: int | None = None
    environ: Mapping[str, str] = field(default_factory=dict)
    tls: bool = False
    addresses: Callable[..., Any] | None = None


def said(status: int, message: str) -> Whole:
    return Whole(status, json.dumps({"error": {"message": message, "code": status}}))


def answers(status: int, body: str, content_type: str = HTML) -> Script:
    """Answer every request for tokens in one piece."""
    return Script(whole={"/completions": Whole(status, body, content_type)})


def streams(*packets: bytes, **more: Any) -> Script:
    return Script(stream=lambda _body, _chat: iter(packets), **more)


def at(path: str) -> Settings:
    """Let base_url end with another path."""
    return lambda server: {"base_url": server.base_url.removesuffix("/v1") + path}


def no_address(*_: object, **__: object) -> None:
    raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")


def unused_port(_server: FaultyServer) -> Mapping[str, Any]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return {"base_url": f"http://127.0.0.1:{probe.getsockname()[1]}/v1"}


def other_scheme(server: FaultyServer) -> Mapping[str, Any]:
    scheme = "http" if server.scheme == "https" else "https"
    return {"base_url": server.base_url.replace(server.scheme, scheme, 1)}


def echo(body: Body, _chat: bool) -> Iterator[bytes]:
    """Repeat the prompt in an error, as servers do."""
    yield event({"error": {"message": f"cannot take {body['prompt']} with {KEY}"}})


def early(body: Body, chat: bool) -> Iterator[bytes]:
    yield chunk(choice(chat, "secret-answer", token_ids=[7]) | {"finish_reason": "stop"})
    yield chunk(usage=usage_of(body, chat, 1))
    yield DONE


def commented(body: Body, chat: bool) -> Iterator[bytes]:
    for packet in good(body, chat):
        yield b": keep-alive\n\n"
        yield packet


def by_bytes(body: Body, chat: bool) -> Iterator[bytes]:
    for packet in good(body, chat):
        yield from (packet[place : place + 1] for place in range(len(packet)))


def with_bare_chunks(body: Body, chat: bool) -> Iterator[bytes]:
    yield chunk()
    yield chunk(choice(chat, ""))
    yield from good(body, chat)


def thinking(body: Body, _chat: bool) -> Iterator[bytes]:
    yield chunk({"index": 0, "delta": {"role": "assistant", "content": ""}})
    for name in ("reasoning", "reasoning_content", "content"):
        yield chunk({"index": 0, "delta": {name: "secret-answer"}})
    call = {"index": 0, "function": {"name": "f", "arguments": "{"}}
    yield chunk({"index": 0, "delta": {"tool_calls": [call]}})
    yield chunk({"index": 0, "delta": {}, "finish_reason": "tool_calls"})
    yield chunk(usage=usage_of(body, True, 4))
    yield DONE


def only_every_other(server_calls: list[int], body: Body, chat: bool) -> Iterator[bytes]:
    server_calls.append(1)
    if len(server_calls) % 2:
        return iter([b"data: {cut"])
    return good(body, chat)


TOKEN = chunk(choice(False, "secret-answer", token_ids=[7]))

CASES: Mapping[str, tuple[FaultCase, ...]] = {
    "Keys": (
        FaultCase(
            "a wrong key", 2, "HTTP 401: the server refuses the key", "the variable PLANTED_KEY",
            Script(key="another"), lambda _: KEYED, asked=0,
        ),
        FaultCase(
            "no key, where one is asked for", 2, "HTTP 401", "no key is set",
            Script(key="another"), asked=0,
        ),
        FaultCase(
            "a key that may not use the model", 2, "HTTP 403: the server refuses the key",
            "may use the model 'm'",
            Script(whole={"/completions": said(403, "no access for this key")}),
            lambda _: KEYED,
        ),
        FaultCase(
            "a key that is refused later on", 2, "HTTP 401", "PLANTED_KEY",
            Script(whole={"/completions": said(401, f"Incorrect API key: {KEY}")}),
            lambda _: KEYED,
        ),
        FaultCase(
            "an empty variable", 2, "the variable EMPTY_KEY, which should have the key, is empty",
            "put the key there", settings=lambda _: {"api_key_env": "EMPTY_KEY"},
            environ={"EMPTY_KEY": ""}, asked=0,
        ),
        FaultCase(
            "a variable that is not set", 2,
            "the variable NO_SUCH_KEY, which has the key, is not set",
            "export NO_SUCH_KEY=", settings=lambda _: {"api_key_env": "NO_SUCH_KEY"}, asked=0,
        ),
        FaultCase(
            "a key with a line break", 2, "holds no key", "nothing else",
            settings=lambda _: {"api_key_env": "TWO_KEYS"},
            environ={"TWO_KEYS": f"{KEY}\n{KEY}"}, asked=0,
        ),
        FaultCase(
            "a key in the file of settings", 2, "a key does not belong into a file of settings",
            settings=lambda _: {"api_key": KEY}, asked=0,
        ),
        FaultCase(
            "a key in the URL", 2, "must be without user and password",
            settings=lambda _: {"base_url": f"http://me:{KEY}@127.0.0.1/v1"}, asked=0,
        ),
    ),
    "Paths and models": (
        FaultCase(
            "base_url without /v1", 2, "HTTP 404", "base_url lacks /v1", settings=at(""), asked=0
        ),
        FaultCase(
            "base_url with /v1 twice", 2, "HTTP 404", "base_url has /v1 twice",
            settings=at("/v1/v1"), asked=0,
        ),
        FaultCase(
            "base_url with the path of a request", 2, "HTTP 404",
            "/chat/completions would come twice", settings=at("/v1/chat/completions"), asked=0,
        ),
        FaultCase(
            "a redirection", 2, "HTTP 301: /models is redirected to https://example.com/v1/models",
            "as base_url",
            Script(
                whole={"": Whole(301, "", HTML, f"https://example.com/v1/models?key={KEY}")}
            ),
            asked=0,
        ),
        FaultCase(
            "a model that is not served", 2, "HTTP 404: the server has no model 'm'",
            "it serves served-1, served-2", Script(models=OTHERS),
        ),
        FaultCase(
            "a server that refuses the request", 4, "HTTP 400: the server refuses the request",
            "its own words say why",
            Script(whole={"/completions": said(400, f"cannot take [1, 2, 3, 4, 5] with {KEY}")}),
            lambda _: KEYED,
        ),
    ),
    "Servers that fail": (
        FaultCase(
            "too many requests", 4, "all of 4 requests failed: HTTP 429", "are not sent again",
            Script(whole={"/completions": said(429, "Rate limit reached")}), asked=4,
        ),
        FaultCase(
            "a server that fails", 4, "HTTP 500: the server failed: boom", "log",
            Script(whole={"/completions": said(500, "boom")}), asked=4,
        ),
        FaultCase(
            "a gateway with no server behind", 4, "HTTP 502: the server failed with text/html",
            "no server does behind it", answers(502, BAD_GATEWAY),
        ),
        FaultCase(
            "every other request fails", 0, failed=2,
            script=Script(stream=partial(only_every_other, [])),
        ),
    ),
    "Connections": (
        FaultCase(
            "nothing that listens", 4, "the connection was refused", "start the server",
            settings=unused_port,
        ),
        FaultCase(
            "a name that is not resolved", 4, "the name nowhere.invalid is not resolved", "DNS",
            settings=lambda _: {"base_url": "http://nowhere.invalid:8000/v1"},
            addresses=no_address,
        ),
        FaultCase(
            "https to a server without TLS", 4, "does not speak TLS", "write http://",
            settings=other_scheme,
        ),
        FaultCase(
            "http to a server with TLS", 4, "closed the connection without an answer", "https://",
            settings=other_scheme, tls=True,
        ),
        FaultCase(
            "http to a port that says so", 4, "speaks TLS, and base_url begins with http://",
            "write https://",
            Script(whole={"": Whole(400, "The plain HTTP request was sent to HTTPS port", HTML)}),
        ),
        FaultCase(
            "a certificate that nobody has signed", 4, "is not accepted: self-signed certificate",
            "SSL_CERT_FILE",
            settings=lambda server: {"base_url": f"https://localhost:{server.port}/v1"}, tls=True,
        ),
        FaultCase(
            "a connection that is closed at once", 4, "closed the connection without an answer",
            "log", Script(raw=b""),
        ),
        FaultCase(
            "an answer that is no HTTP", 4, "is no HTTP", "host and port",
            Script(raw=b"220 mail.example.com ESMTP\r\n\r\n"),
        ),
    ),
    "Answers that are none": (
        FaultCase(
            "a login page", 4,
            "HTTP 200 with text/html, no answer of the API: 'Sign in to continue'",
            "a login page", Script(whole={"": Whole(200, PAGE, HTML)}), lambda _: KEYED,
        ),
        FaultCase(
            "a page in place of a stream", 4, "'Sign in to continue'", "a login page",
            answers(200, PAGE), lambda _: KEYED,
        ),
        FaultCase(
            "an answer in one piece", 4, "it does not stream", "no token has a time",
            answers(200, '{"choices": [{"text": "secret-answer"}]}', "application/json"),
        ),
        FaultCase("an empty answer", 4, "the answer was empty", "log", streams()),
        FaultCase("a stream that ends at once", 4, "without a token", "log", streams(DONE)),
    ),
    "Streams": (
        FaultCase(
            "no [DONE]", 4, "the stream ended without [DONE], after 2 tokens", "timeouts",
            streams(TOKEN, TOKEN),
        ),
        FaultCase(
            "a connection that breaks off", 4, "broke off, after 1 token", "timeouts",
            streams(TOKEN, b"data: {", cut=True),
        ),
        FaultCase(
            "no token", 4, "the stream ended without a token", "log",
            streams(chunk(choice(False, "") | {"finish_reason": "stop"}), DONE),
        ),
        FaultCase(
            "bad JSON", 4, "event 2 of the stream is no JSON, after 1 token", "changed or cut",
            streams(TOKEN, b'data: {"choices": [{"text": "secret-answer\n\n', DONE),
        ),
        FaultCase(
            "an error within the stream", 4, "broke off with an error: cannot take [***] with ***",
            "log", Script(stream=echo), lambda _: KEYED,
        ),
        FaultCase(
            "fewer tokens than are forced", 4, "1 token came where 5 were forced", "kind: openai",
            Script(stream=early),
        ),
        FaultCase(
            "nothing for too long", 4, "no token for 1 s, after 1 token", "silence_timeout_s",
            streams(TOKEN, then_hang=True), lambda _: {"silence_timeout_s": 1},
        ),
        FaultCase(
            "comments in place of tokens, for too long", 4, "no token for 1 s, after 0 tokens",
            "silence_timeout_s",
            streams(b": keep-alive\n\n" * 3, then_hang=True),
            lambda _: {"silence_timeout_s": 1},
        ),
    ),
    "No faults": (
        FaultCase("comments that keep alive", 0, script=Script(stream=commented)),
        FaultCase("packets of one byte", 0, script=Script(stream=by_bytes)),
        FaultCase("chunks without choices", 0, script=Script(stream=with_bare_chunks)),
        FaultCase("a body that ends by closing", 0, script=Script(chunked=False)),
        FaultCase(
            "reasoning and tool calls", 0, "lengths not forced",
            script=Script(stream=thinking), settings=lambda _: {"kind": "openai"},
        ),
    ),
}  # fmt: skip
