"""From what an endpoint did, or an exception on the way to it, to the cause in words.

All of it is pure: facts in, words out. Whatever a server says is shortened and freed of secrets
before it is quoted, since servers repeat keys and prompts in their errors.
"""

from __future__ import annotations

import errno
import json
import os
import re
import socket
import ssl
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from autotune.engine.endpoint_stream import StreamRead, error_words
from autotune.engine.protocol import Failure

_SHOWN_CHARACTERS = 160
_TLS_RECORD = re.compile(r"\\x1[456]\\x03")
_NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "UNEXPECTED_MESSAGE")
_NO_HTTP = re.compile(r"illegal (status line|header)|Invalid HTTP|line too long", re.I)
_LATE = {"ConnectTimeout", "PoolTimeout", "TimeoutError"}
_HUNG_UP = {
    "RemoteProtocolError",
    "ReadError",
    "ConnectionResetError",
    "ConnectionAbortedError",
    "BrokenPipeError",
    "EndOfStream",
}
_ON_THE_WAY = "check host and port in base_url, and firewalls on the way"
_PLAIN_TO_TLS = re.compile(r"plain HTTP request was sent to HTTPS|HTTP request to an HTTPS", re.I)
_NO_MODEL = re.compile(
    r"model\W+.*(not exist|not found|unknown|invalid)|(invalid|no such) model", re.I
)
_ITS_LOG = "look into the server's log"
_CUT_OFF = "the server, or something between, cut it off: look into its log and at its timeouts"
_NOBODY_BEHIND = "the gateway answers, and no server does behind it: is it up and ready?"
_LIGHTEN = (
    "raise its limit, or lighten the load: a shorter --window, or a trace with fewer requests; "
    "failed requests are not sent again"
)
_TITLE = re.compile(r"<title[^>]*>(.*?)</title>", re.I | re.S)
_TAG = re.compile(r"<(script|style)\b.*?</\1>|<[^>]*>?", re.I | re.S)
_SECRETS = re.compile(
    r"(?<=bearer )\S+|\b(?:sk|pk|rk|hf|gsk|key)[-_][\w*-]{6,}|(?<=://)[^/\s@]+(?=@)"
    # Prompts of token ids, and what is as long and as random as keys are.
    r"|(?<=\[)\s*\d+\s*(?:,\s*\d+\s*){3,}|\b(?=\w*\d)(?=\w*[A-Za-z])[\w-]{32,}",
    re.I,
)
_PATHS = ("/chat/completions", "/completions", "/responses", "/models", "/embeddings")


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a request to an endpoint brought nothing.

    Attributes:
        message: what happened, in one line.
        hint: what to do about it.
        fatal: whether every other request would meet the same, so that the run ends at once.
        by_setting: whether what was given is wrong, and not the server or the way to it.
        silent: whether the server hung up without a word, for which TLS may be the reason.
    """

    message: str
    hint: str
    fatal: bool = False
    by_setting: bool = False
    silent: bool = False

    @property
    def words(self) -> tuple[str, str]:
        return self.message, self.hint

    @property
    def failure(self) -> Failure:
        return Failure("endpoint", self.message)


@dataclass(frozen=True, slots=True)
class Asked:
    """What was asked of whom.

    Attributes:
        base_url: of the endpoint.
        model: that was asked for.
        key_words: where the key comes from; '' if there is none.
        secrets: what may be quoted nowhere.
        served: the models that the server has, () where it did not say.
        doing: the path that was asked for.
    """

    base_url: str
    model: str
    key_words: str = ""
    secrets: tuple[str, ...] = ()
    served: tuple[str, ...] = ()
    doing: str = ""

    @property
    def host(self) -> str:
        return urlsplit(self.base_url).hostname or ""

    @property
    def place(self) -> str:
        """Host and port, as messages name them."""
        parts = urlsplit(self.base_url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        return f"{host}:{port}"

    @property
    def local(self) -> bool:
        """Whether it is on this machine, where no proxy belongs between."""
        return self.host in ("127.0.0.1", "localhost", "::1")

    @property
    def secure(self) -> bool:
        return self.base_url.startswith("https:")


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer over HTTP that was no stream of the API.

    ``body`` may be its beginning alone; ``location`` is where a redirection leads.
    """

    status: int
    content_type: str
    body: str
    location: str = ""


def quoted(text: str, secrets: Sequence[str] = ()) -> str:
    """Return the first characters of what a server said, without secrets, on one line."""
    # Of one or two characters the text would be full.
    for secret in sorted((s for s in secrets if len(s) > 2), key=len, reverse=True):
        text = text.replace(secret, "***")
        # A long one may have been repeated in part.
        if len(secret) > 64:
            text = re.sub(re.escape(secret[:24]) + r".*", "***", text, flags=re.S)
    text = _SECRETS.sub("***", text)
    plain = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    if len(plain) <= _SHOWN_CHARACTERS:
        return plain
    return plain[:_SHOWN_CHARACTERS].rstrip() + " …"


def of_answer(answer: Answer, asked: Asked) -> Fault:
    """Return the cause of an answer with a status of 400 and more."""
    said = _said(answer, asked)
    status = f"HTTP {answer.status}"
    if 300 <= answer.status < 400:
        # What follows a ? may be a secret.
        where = quoted(answer.location.partition("?")[0], asked.secrets) or "nowhere"
        message = f"{status}: {asked.doing} is redirected to {where}"
        return Fault(message, f"write that, without {asked.doing}, as base_url", by_setting=True)
    if answer.status in (401, 403):
        message = f"{status}: the server refuses the key{said}"
        return Fault(message, _key_hint(asked), fatal=True, by_setting=True)
    if answer.status == 404:
        return _not_found(answer, asked, said)
    if _PLAIN_TO_TLS.search(answer.body):
        return speaks_tls(asked)
    for holds, words, hint in (
        (answer.status == 405, f"nothing to POST to at {asked.doing}", _path_hint(asked)),
        (answer.status == 429, "the server limits how much it is asked", _LIGHTEN),
        (answer.status in (502, 503, 504), "the server failed", _NOBODY_BEHIND),
        (answer.status >= 500, "the server failed", _ITS_LOG),
    ):
        if holds:
            return Fault(f"{status}: {words}{said}", hint)
    served = ", ".join(asked.served)
    hint = "its own words say why; autotune doctor --endpoint tries a request of one token"
    if served and _NO_MODEL.search(_words(answer)):
        hint = f"it serves {served}"
    return Fault(f"{status}: the server refuses the request{said}", hint)


def of_no_stream(answer: Answer, asked: Asked) -> Fault:
    """Return the cause where all seemed well, and what came was no stream of events."""
    if not answer.body.strip():
        return Fault(
            f"HTTP {answer.status}, and then nothing: the answer was empty",
            "look into the server's log; something between may have cut it off",
        )
    if _parsed(answer) is not None and "choices" in answer.body:
        return Fault(
            "the server answers in one piece: it does not stream",
            "without a stream no token has a time; let the server, or the gateway, stream",
        )
    return Fault(
        f"HTTP {answer.status}{_said(answer, asked)}",
        "something that is not the API answers at base_url: a proxy, a login page or another "
        "service; autotune doctor --endpoint shows where",
    )


def of_stream(read: StreamRead, asked: Asked, *, wanted: int | None) -> Fault | None:
    """Return why a stream that has ended is no answer, None if it is one.

    Args:
        read: all of it.
        asked: of whom.
        wanted: tokens that were forced; None if the model may stop before.
    """
    if read.error is not None:
        return Fault(
            f"the stream broke off with an error: {quoted(read.error, asked.secrets)}",
            _ITS_LOG,
        )
    if not read.done:
        return Fault(
            f"the stream ended without [DONE], after {_tokens(read.tokens)}",
            _CUT_OFF,
        )
    if not read.tokens:
        hidden = read.usage.hidden_tokens if read.usage is not None else 0
        return Fault(
            "the stream ended without a token",
            f"{hidden} tokens went into reasoning that the server keeps to itself"
            if hidden
            else "look into the server's log; some servers stream an error as an empty answer",
        )
    if wanted is None or read.output_tokens >= wanted:
        return None
    if read.usage is None and read.finish_reason == "length":
        return None
    return Fault(
        f"{_tokens(read.output_tokens)} came where {wanted} were forced",
        "the server ignores ignore_eos and min_tokens: write kind: openai for this endpoint",
    )


def of_silence(seconds: float, tokens: int) -> Fault:
    """Return the cause of a wait for a token that was given up."""
    return Fault(
        f"no token for {seconds:g} s, after {_tokens(tokens)}",
        "the server hangs, or is far behind the load; silence_timeout_s of the endpoint says how "
        "long to wait",
    )


def of_bad_event(words: str, tokens: int) -> Fault:
    """Return the cause where an event could not be read; ``words`` quote nothing of it."""
    return Fault(
        f"{words}, after {_tokens(tokens)}",
        "something between has changed or cut the stream, or the server is no OpenAI API",
    )


def of_exception(error: BaseException, asked: Asked, *, tokens: int = 0) -> Fault:
    """Return the cause of a request that was not answered, or not to the end."""
    chain = list(_chain(error))
    for each in chain:
        if (found := _of_system(each, asked)) is not None:
            return found
    names = {type(each).__name__ for each in chain}
    text = " ".join(map(str, chain))
    broke_off = f"the connection broke off, after {_tokens(tokens)}"
    other_place = "correct host and port in base_url"
    for holds, message, hint in (
        (_TLS_RECORD.search(text), *speaks_tls(asked).words),
        (_NO_HTTP.search(text), f"what listens at {asked.place} is no HTTP", other_place),
        (tokens or "incomplete" in text, broke_off, _CUT_OFF),
        (names & _LATE, f"no connection to {asked.place} in time", _ON_THE_WAY),
    ):
        if holds:
            return Fault(message, hint)
    if not names & _HUNG_UP:
        message = f"no connection to {asked.place}: {type(chain[-1]).__name__}"
        return Fault(message, "check base_url, and that the server runs")
    message = f"{asked.place} closed the connection without an answer"
    hint = "" if asked.secure else "; if it speaks TLS, base_url begins with https://"
    return Fault(message, f"{_ITS_LOG}{hint}", silent=True)


def _of_system(error: BaseException, asked: Asked) -> Fault | None:
    """Return the cause where the system, or TLS, says it."""
    if isinstance(error, ssl.SSLError):
        return _tls(error, asked)
    if isinstance(error, socket.gaierror):
        return Fault(
            f"the name {asked.host} is not resolved: {error.strerror}",
            "check the host in base_url, and whether this machine has DNS",
        )
    if isinstance(error, ConnectionRefusedError):
        return Fault(
            f"nothing listens at {asked.place}: the connection was refused",
            "start the server, or correct host and port in base_url",
        )
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return Fault(
            "this machine allows no more open connections",
            "raise the limit: ulimit -n 65536; each request that runs has one",
        )
    if isinstance(error, OSError) and error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH):
        return Fault(f"no way to {asked.place}: {os.strerror(error.errno).lower()}", _ON_THE_WAY)
    return None


def _not_found(answer: Answer, asked: Asked, said: str) -> Fault:
    by_model = _NO_MODEL.search(_words(answer)) is not None
    if by_model or (asked.served and asked.model not in asked.served):
        served = ", ".join(asked.served)
        return Fault(
            f"HTTP 404: the server has no model {asked.model!r}",
            f"it serves {served}" if served else "its /models says what it serves",
            fatal=True,
            by_setting=True,
        )
    return Fault(
        f"HTTP 404: there is no {asked.doing or 'such path'} at {asked.base_url}{said}",
        _path_hint(asked),
        fatal=True,
        by_setting=True,
    )


def _path_hint(asked: Asked) -> str:
    path = urlsplit(asked.base_url).path
    for end in _PATHS:
        if path.endswith(end):
            whole = asked.base_url.removesuffix(end)
            return f"base_url ends where the API begins, so that {end} would come twice: {whole}"
    if path.count("/v1") > 1:
        return f"base_url has /v1 twice: {asked.base_url.replace('/v1/v1', '/v1')}"
    if "/v1" not in path:
        return f"base_url lacks /v1: {asked.base_url}/v1"
    return "check the path of base_url: the server does not have the API there"


def _key_hint(asked: Asked) -> str:
    if not asked.key_words:
        return (
            "no key is set: write api_key_env: NAME of a variable, or api_key_file: PATH, for "
            "this endpoint"
        )
    return (
        f"check the key in {asked.key_words}, that it belongs to {asked.place}, and that it may "
        f"use the model {asked.model!r}"
    )


def speaks_tls(asked: Asked) -> Fault:
    """Return the fault of asking a server in the clear that speaks TLS."""
    return Fault(
        f"{asked.place} speaks TLS, and base_url begins with http://",
        "write https:// in base_url",
    )


def _tls(error: ssl.SSLError, asked: Asked) -> Fault:
    if isinstance(error, ssl.SSLCertVerificationError):
        reason = error.verify_message.replace("self signed", "self-signed")
        return Fault(
            f"the certificate of {asked.place} is not accepted: {reason}",
            "use the name that the certificate is for, or set SSL_CERT_FILE to the authority "
            "that signed it",
        )
    # It has one only where OpenSSL itself gave it.
    reason = getattr(error, "reason", None) or "NO_REASON_GIVEN"
    if reason in _NO_TLS:
        return Fault(
            f"{asked.place} does not speak TLS, and base_url begins with https://",
            "write http:// in base_url, or the port that has TLS",
        )
    words = reason.replace("_", " ").lower()
    return Fault(
        f"no TLS connection to {asked.place}: {words}",
        "check host and port in base_url, and what the server supports",
    )


def _said(answer: Answer, asked: Asked) -> str:
    """Return what an answer says, as the end of a message."""
    if words := _words(answer):
        return f": {quoted(words, asked.secrets)}"
    kind = answer.content_type.partition(";")[0].strip() or "no content type"
    parsed = _parsed(answer)
    if isinstance(parsed, dict):
        # Of an object that is no error the values may be somebody's words.
        keys = quoted(", ".join(map(str, parsed)), asked.secrets) or "nothing"
        return f" with {kind}, no answer of the API: an object with {keys}"
    body = quoted(_visible(answer.body), asked.secrets)
    return f" with {kind}, no answer of the API: {body!r}" if body else f" with {kind} and no body"


def _visible(body: str) -> str:
    """Return what a reader of a page would see first; all else as it is."""
    if "<" not in body[:200]:
        return body
    found = _TITLE.search(body)
    return found[1] if found and found[1].strip() else _TAG.sub(" ", body)


def _words(answer: Answer) -> str:
    return error_words(_parsed(answer))


def _parsed(answer: Answer) -> object:
    try:
        return json.loads(answer.body)
    except (ValueError, RecursionError):
        return None


def _tokens(count: int) -> str:
    return "1 token" if count == 1 else f"{count} tokens"


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and what caused it, the members of groups included."""
    to_do, seen = [error], set[int]()
    while to_do:
        each = to_do.pop(0)
        if id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        if isinstance(each, BaseExceptionGroup):
            to_do += each.exceptions
        to_do += [cause for cause in (each.__cause__, each.__context__) if cause is not None]
