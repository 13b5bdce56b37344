"""An endpoint tried step by step, from its settings to a token, so that the first fault shows."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import urllib.request
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from autotune.endpoint_settings import EndpointSettings, Kind
from autotune.engine.endpoint import (
    CONNECT_TIMEOUT_S,
    Endpoint,
    EndpointFailed,
    EndpointRefuses,
    Served,
    client_tls,
)
from autotune.engine.endpoint_faults import Asked, Fault, of_exception, speaks_tls
from autotune.engine.endpoint_stream import StreamRead
from autotune.errors import UsageError

CheckName = Literal[
    "settings", "name", "connection", "tls", "models", "model", "token", "usage", "token_ids"
]
CheckState = Literal["ok", "warn", "failed", "skipped"]

_PROMPT = range(1000, 1016)
_TEXT = "bada bade badi bado"


@dataclass(frozen=True, slots=True)
class Check:
    """One step: what it found, and if it failed why.

    A replay can do without what is no more than a ``warn``. ``fault`` is there where the rest
    could not work, or would mean nothing, after it.
    """

    name: CheckName
    state: CheckState
    sentence: str
    hint: str = ""
    fault: Fault | None = None


async def check_endpoint(
    name: str, settings: EndpointSettings, environ: Mapping[str, str] = os.environ
) -> AsyncIterator[Check]:
    """Yield each step as it is done, the last one being the first that has a ``fault``, if any."""
    try:
        key = settings.key(environ)
    except UsageError as error:
        fault = Fault(error.message, error.hint, by_setting=True)
        yield Check("settings", "failed", error.message, error.hint, fault)
        return
    of_key = f"with the key in {settings.key_words}" if settings.key_words else "without a key"
    yield Check("settings", "ok", f"{settings.base_url}, {of_key}")
    endpoint = Endpoint(name, settings, key)
    try:
        broken = False
        async for check in _way_to(endpoint.asked):
            broken = check.fault is not None
            yield check
        if not broken:
            async for check in _answers_of(endpoint):
                yield check
    finally:
        await endpoint.close()


async def _way_to(asked: Asked) -> AsyncIterator[Check]:
    """Resolve the name, connect, and agree on TLS."""
    parts = urlsplit(asked.base_url)
    host, port = asked.host, parts.port or (443 if asked.secure else 80)
    if not asked.local and _proxied(parts.scheme, host):
        for step in ("name", "connection", "tls"):
            yield Check(step, "skipped", "the environment names a proxy, which does this")
        return
    try:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        yield _failed("name", of_exception(error, asked))
        return
    addresses = ", ".join(dict.fromkeys(str(each[4][0]) for each in found))
    words = "an address, not a name" if addresses == host else f"{host} is {addresses}"
    yield Check("name", "ok", words)
    try:
        await _connect(host, port)
    except OSError as error:
        yield _failed("connection", of_exception(error, asked))
        return
    yield Check("connection", "ok", f"something listens at {asked.place}")
    if not asked.secure:
        yield Check("tls", "skipped", "base_url begins with http://")
        return
    try:
        version = await _connect(host, port, client_tls())
    except (OSError, EOFError) as error:
        yield _failed("tls", of_exception(error, asked))
        return
    yield Check("tls", "ok", f"{version}, with a certificate that is accepted")


async def _answers_of(endpoint: Endpoint) -> AsyncIterator[Check]:
    """Ask for the list of models, and for a token."""
    try:
        served = await endpoint.served()
    except EndpointRefuses as refusal:
        yield _failed("models", await _blamed(refusal.fault, endpoint.asked))
        return
    if served.models:
        count = len(served.models)
        listed = f"{count} {'model' if count == 1 else 'models'}, kind {served.kind}"
        yield Check("models", "ok", f"/models lists {listed}")
        yield _model(endpoint.settings.model, served)
    else:
        yield Check("models", "skipped", "/models is not there; some gateways have none")
        yield Check("model", "skipped", "a token will tell")
    read = StreamRead()
    try:
        async for _, so_far in _asked_for_a_token(endpoint, served.kind):
            read = so_far
    except (EndpointFailed, EndpointRefuses) as error:
        yield _failed("token", error.fault)
        return
    yield Check("token", "ok", "one token was streamed")
    yield _usage(read)
    yield _token_ids(read, served.kind)


def _asked_for_a_token(endpoint: Endpoint, kind: Kind) -> AsyncIterator[tuple[int, StreamRead]]:
    if kind == "vllm":
        return endpoint.complete(_PROMPT, 1, salt="autotune-doctor", priority=0)
    return endpoint.chat(_TEXT, 1)


def _model(model: str, served: Served) -> Check:
    if model in served.models:
        longest = served.max_model_len
        length = "" if longest is None else f", for requests of up to {longest:,} tokens"
        return Check("model", "ok", f"{model} is served{length}")
    return Check(
        "model",
        "warn",
        f"{model} is not among the models that are listed",
        f"it serves {', '.join(served.models)}",
    )


def _usage(read: StreamRead) -> Check:
    if read.usage is None:
        return Check(
            "usage",
            "warn",
            "the stream ends without usage",
            "tokens will be counted by chunks, and marked as estimated",
        )
    cached = "" if read.usage.cached_tokens is None else ", cached tokens included"
    return Check("usage", "ok", f"the server counts its tokens{cached}")


def _token_ids(read: StreamRead, kind: Kind) -> Check:
    if kind == "openai":
        return Check(
            "token_ids", "skipped", "prompts are text, and lengths are not forced: kind openai"
        )
    if read.by_ids:
        return Check("token_ids", "ok", "token ids are taken and given, and lengths are forced")
    return Check(
        "token_ids",
        "warn",
        "token ids are taken, and none are given",
        "tokens will be counted by chunks, as with any vLLM that is too old to give ids",
    )


async def _blamed(fault: Fault, asked: Asked) -> Fault:
    """Return the fault of a server that said nothing; whether it wants TLS can be tried."""
    if asked.secure or not fault.silent:
        return fault
    parts = urlsplit(asked.base_url)
    unverified = ssl.create_default_context()
    unverified.check_hostname = False
    unverified.verify_mode = ssl.CERT_NONE
    with suppress(OSError, EOFError):
        await _connect(asked.host, parts.port or 80, unverified)
        return speaks_tls(asked)
    return fault


async def _connect(host: str, port: int, tls: ssl.SSLContext | None = None) -> str:
    """Connect and hang up; return the version of TLS, '' without it.

    Raises:
        OSError: it did not work, or took too long.
    """
    async with asyncio.timeout(CONNECT_TIMEOUT_S):
        _, writer = await asyncio.open_connection(host, port, ssl=tls)
    version = "" if tls is None else str(writer.get_extra_info("ssl_object").version())
    writer.close()
    # Whoever hangs up first is no matter here.
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            await writer.wait_closed()
    return version


def _proxied(scheme: str, host: str) -> bool:
    proxies = urllib.request.getproxies()
    named = scheme in proxies or "all" in proxies
    return named and not urllib.request.proxy_bypass(host)


def _failed(name: CheckName, fault: Fault) -> Check:
    return Check(name, "failed", fault.message, fault.hint, fault)
