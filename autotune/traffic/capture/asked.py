"""What a client asked for, read from the body of its request."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, Literal

from autotune.traffic.model import MAX_PRIORITY, MAX_TOKENS, MIN_PRIORITY
from autotune.traffic.well_formed import well_formed

Api = Literal["chat", "completions", "responses", "messages"]

_PATHS: tuple[tuple[str, Api], ...] = (
    ("/chat/completions", "chat"),
    ("/completions", "completions"),
    ("/responses", "responses"),
    ("/messages", "messages"),
)
_LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
_MAX_COPIES = 128
_MAX_MODEL_CHARACTERS = 512
"""No server has a model of a longer name, and it stands in every row."""

_WRITTEN = (None, "function", "function_call", "function_call_output", "tool_use", "tool_result")
"""Kinds of parts that reach the model as they are written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One prompt of a request.

    Attributes:
        text: all that it is made of, in an order in which equal beginnings stay equal.
        raw: the text goes to the model as it is, without a chat template.
        tokens: its token ids, where the client gave these.
        messages: of a chat, for the chat template; None where they do not fit one.
        template: further arguments of the chat template.
    """

    text: str
    raw: bool = False
    tokens: tuple[int, ...] | None = None
    messages: tuple[Mapping[str, Any], ...] | None = None
    template: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the body of a request says; its model and the texts of its prompts are well formed.

    Attributes:
        prompts: at least one; several where a completion was asked of several.
        copies: answers to each prompt.
        model: cut to a length that names have; None where none was named.
        max_tokens: None where there is no limit.
        priority: None where none was given.
        cache_salt: what keeps this client's prefixes apart from those of others.
    """

    prompts: tuple[Prompt, ...]
    copies: int = 1
    model: str | None = None
    max_tokens: int | None = None
    priority: int | None = None
    cache_salt: str = ""


def api_of(method: str, path: str) -> Api | None:
    """Return which interface a request is for, None if it is none that makes tokens."""
    if method != "POST":
        return None
    plain = path.rstrip("/")
    return next((api for end, api in _PATHS if plain.endswith("/v1" + end)), None)


def read_asked(api: Api, body: bytes) -> Asked | None:
    """Return what a body asks for, None if it is none that the interface could mean."""
    try:
        row = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict):
        return None
    try:
        prompts = _PROMPTS[api](row)
    except RecursionError:
        # What is nested as deeply as JSON may be is too deep for what reads it.
        return None
    if not prompts:
        return None
    limits = (_whole(row.get(name), 1, MAX_TOKENS) for name in _LIMITS)
    model, salt = row.get("model"), row.get("cache_salt")
    return Asked(
        prompts=tuple(replace(each, text=well_formed(each.text)) for each in prompts),
        copies=_whole(row.get("n"), 1, _MAX_COPIES) or 1,
        model=well_formed(model[:_MAX_MODEL_CHARACTERS]) if isinstance(model, str) else None,
        max_tokens=next((limit for limit in limits if limit is not None), None),
        priority=_whole(row.get("priority"), MIN_PRIORITY, MAX_PRIORITY),
        cache_salt=salt if isinstance(salt, str) else "",
    )


def _whole(value: Any, least: int, most: int) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        return None
    return value


def _completions(row: Mapping[str, Any]) -> list[Prompt]:
    given = row.get("prompt")
    if isinstance(given, str):
        return [Prompt(text=given, raw=True)]
    if not isinstance(given, list) or not given:
        return []
    if all(isinstance(each, str) for each in given):
        return [Prompt(text=each, raw=True) for each in given]
    if _are_tokens(given):
        return [Prompt(text="", tokens=tuple(given))]
    if all(isinstance(each, list) and each and _are_tokens(each) for each in given):
        return [Prompt(text="", tokens=tuple(each)) for each in given]
    return []


def _are_tokens(given: Sequence[Any]) -> bool:
    return all(isinstance(each, int) and 0 <= each < 2**31 for each in given)


def _chat(row: Mapping[str, Any]) -> list[Prompt]:
    messages = row.get("messages")
    if not isinstance(messages, list):
        return []
    extra = row.get("chat_template_kwargs")
    template = dict(extra) if isinstance(extra, dict) else {}
    for name in ("tools", "documents", "add_generation_prompt", "continue_final_message"):
        if row.get(name) is not None:
            template[name] = row[name]
    return _conversation(messages, tools=row.get("tools"), template=template)


def _responses(row: Mapping[str, Any]) -> list[Prompt]:
    given, instructions = row.get("input"), row.get("instructions")
    messages = [{"role": "system", "content": instructions}] if instructions else []
    if isinstance(given, str):
        messages.append({"role": "user", "content": given})
    elif isinstance(given, list):
        messages.extend(given)
    # Of an earlier answer that the server keeps, only the name is here.
    before = row.get("previous_response_id")
    start = [{"role": "previous", "content": before}, *messages] if before else messages
    return _conversation(start, tools=row.get("tools"), exact=not before)


def _messages(row: Mapping[str, Any]) -> list[Prompt]:
    given, system = row.get("messages"), row.get("system")
    if not isinstance(given, list):
        return []
    start = [{"role": "system", "content": system}] if system else []
    return _conversation([*start, *given], tools=row.get("tools"))


def _conversation(
    messages: Sequence[Any],
    *,
    tools: Any,
    template: Mapping[str, Any] | None = None,
    exact: bool = True,
) -> list[Prompt]:
    """Return the one prompt of a conversation; tools come first, as in most templates."""
    if not messages:
        return []
    plain = [_plain(each) for each in messages]
    fits = exact and all(each is not None for each in plain)
    parts = [_canonical(tools)] if tools else []
    parts += [_canonical(each) for each in messages]
    return [
        Prompt(
            text="\n".join(parts),
            messages=tuple(each for each in plain if each is not None) if fits else None,
            template=template or {},
        )
    ]


def _plain(message: Any) -> Mapping[str, Any] | None:
    """Return a message with its content as one text, None if it has more than text."""
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        return None
    content = message.get("content")
    if content is None or isinstance(content, str):
        return message
    if not isinstance(content, list):
        return None
    given = (part.get("text") for part in content if isinstance(part, dict))
    texts = [text for text in given if isinstance(text, str)]
    if len(texts) != len(content):
        return None
    return {**message, "content": "\n".join(texts)}


def _canonical(value: Any) -> str:
    """Return the text of a message or a tool, with what is no text as a short hash of it."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "\n".join(_canonical(each) for each in value)
    return _of_object(value) if isinstance(value, dict) else json.dumps(value)


def _of_object(value: Mapping[str, Any]) -> str:
    if isinstance(value.get("role"), str):
        rest = {key: each for key, each in value.items() if key not in ("role", "content")}
        further = json.dumps(rest, sort_keys=True) if rest else ""
        return f"{value['role']}\n{_canonical(value.get('content') or '')}{further}"
    if isinstance(value.get("text"), str):
        return str(value["text"])
    written = json.dumps(value, sort_keys=True)
    if value.get("type") in _WRITTEN:
        return written
    # An image of a megabyte is some hundred tokens, not a quarter of a million.
    return blake2b(written.encode(), digest_size=16).hexdigest()


_PROMPTS = {
    "chat": _chat,
    "completions": _completions,
    "responses": _responses,
    "messages": _messages,
}
