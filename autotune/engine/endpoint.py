"""A server that speaks the OpenAI API, as a replay sees an engine."""

from __future__ import annotations

import asyncio
import importlib
import os
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from autotune.endpoint_settings import EndpointSettings, Kind
from autotune.engine.endpoint_faults import (
    Answer,
    Asked,
    Fault,
    of_answer,
    of_bad_event,
    of_exception,
    of_no_stream,
    of_silence,
    of_stream,
)
from autotune.engine.endpoint_stream import EventLines, NoEvent, StreamRead
from autotune.engine.endpoint_text import Words
from autotune.errors import AutotuneError, EnvironmentFault, UsageError
from autotune.traffic.replay import RequestFailed

CONNECT_TIMEOUT_S = 10.0
# Servers close idle connections after 5 s, uvicorn and so vLLM among them: a request that meets
# that moment would fail, and is not sent again.
_KEEPALIVE_S = 4.0
_DRAIN_S = 1.0
_BODY_CHARACTERS = 2048
_PROBE_WORDS = (64, 1024)
_VLLM = "vllm"


class EndpointFailed(RequestFailed):
    """One request brought no answer, for a cause that can be told."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault


def error_of(fault: Fault, name: str) -> AutotuneError:
    """Return a cause that ends a run as the error of a command."""
    kind = UsageError if fault.by_setting else EnvironmentFault
    return kind(f"endpoint {name}: {fault.message}", hint=fault.hint)


class EndpointRefuses(Exception):
    """Every other request would meet the same fault."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault


@dataclass(frozen=True, slots=True)
class Served:
    """What a server says of the model that is asked for.

    Attributes:
        models: that it serves; () where it did not say.
        kind: of server, as set, else as ``owned_by`` says.
        max_model_len: longest request; None where it does not say.
        root: name or path of the model behind a served name; None where it does not say.
    """

    models: tuple[str, ...]
    kind: Kind
    max_model_len: int | None = None
    root: str | None = None


@dataclass(frozen=True, slots=True)
class Received:
    """What one request got.

    ``prompt_tokens`` and ``cached_tokens`` are None where the server does not say; ``exact``
    means that the tokens of every delivery are known.
    """

    prompt_tokens: int | None
    output_tokens: int
    cached_tokens: int | None
    exact: bool


class Endpoint:
    """A client of one server; close it with ``open_endpoint``.

    Attributes:
        name: in the settings.
        settings: as given.
        asked: what faults are told by.
    """

    def __init__(self, name: str, settings: EndpointSettings, key: str) -> None:
        import openai

        http = _http()
        self.name = name
        self.settings = settings
        self.asked = Asked(
            base_url=settings.base_url,
            model=settings.model,
            key_words=settings.key_words,
            secrets=(key,) if settings.key_words else (),
        )
        self._lost = (openai.APIConnectionError, http.HTTPError, OSError, EOFError)
        self._refused = openai.APIStatusError
        self._client = openai.AsyncOpenAI(
            base_url=settings.base_url,
            api_key=key,
            max_retries=0,
            timeout=http.Timeout(settings.silence_timeout_s, connect=CONNECT_TIMEOUT_S),
            # Waiting for a connection of a pool would be measured as the server's slowness.
            http_client=openai.DefaultAsyncHttpxClient(
                limits=http.Limits(
                    max_connections=None,
                    max_keepalive_connections=None,
                    keepalive_expiry=_KEEPALIVE_S,
                ),
                trust_env=not self.asked.local,
                # Where no TLS is spoken no authority need be loaded, which takes a while.
                verify=self._verify(),
                # A redirected POST becomes a GET, and loses its key on the way.
                follow_redirects=False,
            ),
        )

    def _verify(self) -> ssl.SSLContext | bool:
        plain = self.asked.local and not self.asked.secure
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if plain else True

    async def close(self) -> None:
        await self._client.close()

    async def served(self) -> Served:
        """Ask ``/models``.

        Raises:
            EndpointRefuses: the key or the path is wrong, or nobody answers.
        """
        asked = replace(self.asked, doing="/models")
        try:
            async with asyncio.timeout(self.settings.silence_timeout_s):
                raw = await self._client.models.with_raw_response.list()
                body = raw.http_response.text
        except TimeoutError:
            raise EndpointRefuses(of_silence(self.settings.silence_timeout_s, 0)) from None
        except self._refused as error:
            if error.status_code == 404 and self.settings.kind is not None:
                # Some gateways do not list what they serve.
                return Served((), self.settings.kind)
            raise EndpointRefuses(of_answer(_answer(error), asked)) from None
        except self._lost as error:
            raise EndpointRefuses(of_exception(error, asked)) from None
        answer = Answer(
            raw.http_response.status_code,
            raw.http_response.headers.get("content-type", ""),
            body[:_BODY_CHARACTERS],
        )
        listed = _models(body)
        if listed is None:
            raise EndpointRefuses(of_no_stream(answer, asked))
        self.asked = replace(self.asked, served=tuple(listed))
        ours = listed.get(self.settings.model, {})
        by_vllm = any(each.get("owned_by") == _VLLM for each in listed.values())
        longest, root = ours.get("max_model_len"), ours.get("root")
        return Served(
            models=tuple(listed),
            kind=self.settings.kind or ("vllm" if by_vllm else "openai"),
            max_model_len=longest if isinstance(longest, int) else None,
            root=root if isinstance(root, str) else None,
        )

    async def complete(
        self, prompt: Sequence[int], output_tokens: int, *, salt: str, priority: int
    ) -> AsyncIterator[tuple[int, StreamRead]]:
        """Stream a completion of token ids whose length is forced, as vLLM alone does.

        Yields:
            The new tokens of each delivery, and all that was read so far.

        Raises:
            EndpointFailed: the request failed.
            EndpointRefuses: and so would every other.
        """
        extra = {
            # As an argument it would be looked at id by id, 11 µs each, while other requests
            # wait to be sent.
            "prompt": list(prompt),
            "ignore_eos": True,
            "min_tokens": output_tokens,
            "cache_salt": salt,
            "return_token_ids": True,
        }
        opened = self._client.completions.with_streaming_response.create(
            model=self.settings.model,
            prompt="",
            max_tokens=output_tokens,
            temperature=0.0,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={**extra, **({"priority": priority} if priority else {})},
        )
        asked = replace(self.asked, doing="/completions")
        async for delivery in self._deliveries(opened, asked, wanted=output_tokens):
            yield delivery

    async def chat(self, text: str, output_tokens: int) -> AsyncIterator[tuple[int, StreamRead]]:
        """Stream a chat about a text, of at most so many tokens; see ``complete``."""
        opened = self._client.chat.completions.with_streaming_response.create(
            model=self.settings.model,
            messages=[{"role": "user", "content": text}],
            max_tokens=output_tokens,
            stream=True,
            stream_options={"include_usage": True},
        )
        secrets = (*self.asked.secrets, text)
        asked = replace(self.asked, doing="/chat/completions", secrets=secrets)
        async for delivery in self._deliveries(opened, asked, wanted=None):
            yield delivery

    async def _deliveries(
        self, opened: Any, asked: Asked, *, wanted: int | None
    ) -> AsyncIterator[tuple[int, StreamRead]]:
        response = await self._opened(opened, asked)
        read, lines = StreamRead(), EventLines()
        silence_s = self.settings.silence_timeout_s
        loop = asyncio.get_running_loop()
        try:
            packets = response.iter_bytes()
            until_s = loop.time() + silence_s
            while not read.done:
                # Comments keep a connection alive, and bring no token.
                async with asyncio.timeout_at(until_s):
                    packet = await anext(packets, None)
                events = lines.finish() if packet is None else lines.feed(packet)
                for data in events:
                    if new := read.take(data):
                        yield new, read
                        until_s = loop.time() + silence_s
                if packet is None or read.error is not None:
                    break
            if read.done:
                await self._drain(packets)
        except TimeoutError:
            raise EndpointFailed(of_silence(silence_s, read.tokens)) from None
        except NoEvent as error:
            raise EndpointFailed(of_bad_event(str(error), read.tokens)) from None
        except self._lost as error:
            raise _raised(of_exception(error, asked, tokens=read.tokens)) from None
        finally:
            await opened.__aexit__(None, None, None)
        if not read.events and not read.done:
            body = lines.head.decode(errors="replace")
            kind = response.headers.get("content-type", "")
            raise _raised(of_no_stream(Answer(response.status_code, kind, body), asked))
        if (fault := of_stream(read, asked, wanted=wanted)) is not None:
            raise _raised(fault)

    async def _drain(self, packets: AsyncIterator[bytes]) -> None:
        """Read what follows the end, which is nothing but the end of the body.

        Else the connection would be closed, and the next request would have to open another.
        """
        with suppress(TimeoutError, *self._lost):
            async with asyncio.timeout(_DRAIN_S):
                while await anext(packets, None) is not None:
                    pass

    async def _opened(self, opened: Any, asked: Asked) -> Any:
        """Send the request and return its answer once that has begun."""
        try:
            async with asyncio.timeout(self.settings.silence_timeout_s):
                return await opened.__aenter__()
        except TimeoutError:
            raise EndpointFailed(of_silence(self.settings.silence_timeout_s, 0)) from None
        except self._refused as error:
            raise _raised(of_answer(_answer(error), asked)) from None
        except self._lost as error:
            raise _raised(of_exception(error, asked)) from None


class EndpointSource:
    """A ``TokenSource`` over HTTP.

    Attributes:
        endpoint: whom it asks.
        served: what that says of itself.
        words: how text is made where token ids are not taken.
        received: what each request got, by its id; failed ones are not there.
        faults: of single requests, in order.
    """

    def __init__(self, endpoint: Endpoint, served: Served, words: Words) -> None:
        self.endpoint = endpoint
        self.served = served
        self.words = words
        self.received: dict[str, Received] = {}
        self.faults: list[Fault] = []

    @property
    def forced(self) -> bool:
        """Whether answers have the lengths of the trace."""
        return self.served.kind == "vllm"

    async def generate(
        self,
        prompt: Sequence[int],
        output_tokens: int,
        *,
        request_id: str,
        salt: str,
        priority: int,
    ) -> AsyncIterator[int]:
        """See ``TokenSource.generate``; where lengths are not forced, fewer tokens may come."""
        if self.forced:
            stream = self.endpoint.complete(prompt, output_tokens, salt=salt, priority=priority)
        else:
            # There is no salt: another beginning keeps replays out of each other's cache.
            text = f"{salt} {self.words.text(prompt)}"
            stream = self.endpoint.chat(text, output_tokens)
        try:
            async for new, read in stream:
                yield new
                last = read
        except EndpointFailed as error:
            self.faults.append(error.fault)
            raise
        usage = last.usage
        self.received[request_id] = Received(
            prompt_tokens=None if usage is None else usage.prompt_tokens,
            output_tokens=last.output_tokens,
            cached_tokens=None if usage is None else usage.cached_tokens,
            exact=last.exact,
        )

    def cached_tokens(self, request_id: str) -> int:
        received = self.received.get(request_id)
        return 0 if received is None else received.cached_tokens or 0


@asynccontextmanager
async def open_endpoint(
    name: str, settings: EndpointSettings, environ: Mapping[str, str] = os.environ
) -> AsyncIterator[EndpointSource]:
    """Yield a source of tokens, once its server has said what it is.

    Raises:
        UsageError: key, path or model is wrong.
        EnvironmentFault: nobody answers.
    """
    endpoint = Endpoint(name, settings, settings.key(environ))
    try:
        try:
            served = await endpoint.served()
            words = Words() if served.kind == "vllm" else await _measured_words(endpoint)
        except EndpointRefuses as refusal:
            raise error_of(refusal.fault, name) from None
        yield EndpointSource(endpoint, served, words)
    finally:
        await endpoint.close()


async def _measured_words(endpoint: Endpoint) -> Words:
    """Ask for a token each of a short and a long prompt, and see what they are counted as."""
    counted = []
    for words in _PROBE_WORDS:
        text = Words(tokens_per_word=1.0).text(range(words))
        try:
            async for _, read in endpoint.chat(text, 1):
                last = read
        except EndpointFailed:
            return Words()
        if last.usage is None:
            return Words()
        counted.append((words, last.usage.prompt_tokens))
    return Words.measured_by(*counted)


def client_tls() -> ssl.SSLContext:
    """Return TLS as the client has it, with the authorities that it trusts."""
    context: ssl.SSLContext = _http().create_ssl_context()
    return context


def _http() -> Any:
    """Return what the client is built on: httpx, or from openai 3 on its successor."""
    import openai

    base = openai.DefaultAsyncHttpxClient.__mro__[1]
    return importlib.import_module(base.__module__.partition(".")[0])


def _raised(fault: Fault) -> EndpointFailed | EndpointRefuses:
    return EndpointRefuses(fault) if fault.fatal else EndpointFailed(fault)


def _answer(error: Any) -> Answer:
    """Return what came with an exception of the client for a status."""
    response = error.response
    return Answer(
        response.status_code,
        response.headers.get("content-type", ""),
        response.text[:_BODY_CHARACTERS],
        response.headers.get("location", ""),
    )


def _models(body: str) -> dict[str, Mapping[str, Any]] | None:
    """Return the models of a list by name, None if it is no such list."""
    import json

    try:
        listed = json.loads(body)["data"]
        return {str(each["id"]): each for each in listed}
    except (ValueError, RecursionError, KeyError, TypeError):
        return None
