from __future__ import annotations

import json
from typing import Any

import pytest

from autotune.traffic.capture.asked import Api, Asked, api_of, read_asked


def asked(api: Api, **row: Any) -> Asked:
    found = read_asked(api, json.dumps(row).encode())
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("method", "path", "api"),
    [
        ("POST", "/v1/chat/completions", "chat"),
        ("POST", "/v1/completions", "completions"),
        ("POST", "/gateway/v1/responses/", "responses"),
        ("POST", "/v1/messages", "messages"),
        ("POST", "/v1/embeddings", None),
        ("POST", "/v1/messages/count_tokens", None),
        ("POST", "/v1/responses/resp_1/cancel", None),
        ("GET", "/v1/chat/completions", None),
        ("HEAD", "/v1/models", None),
        ("POST", "/chat/completions", None),
    ],
)
def test_only_what_makes_tokens_is_recorded(method: str, path: str, api: str | None) -> None:
    assert api_of(method, path) == api


def test_a_chat_says_what_it_limits_and_how_urgent_it_is() -> None:
    found = asked(
        "chat",
        model="m",
        messages=[{"role": "user", "content": "Why?"}],
        max_completion_tokens=7,
        max_tokens=9,
        priority=-3,
        n=2,
        cache_salt="mine",
        tools=[{"type": "function", "function": {"name": "look"}}],
        chat_template_kwargs={"enable_thinking": False},
    )
    (prompt,) = found.prompts
    assert (found.model, found.max_tokens, found.priority, found.copies) == ("m", 7, -3, 2)
    assert found.cache_salt == "mine"
    assert prompt.messages == ({"role": "user", "content": "Why?"},)
    assert prompt.template["enable_thinking"] is False
    assert prompt.template["tools"][0]["function"] == {"name": "look"}
    # Tools come first, where templates put them, so that chats with the same tools begin alike.
    assert prompt.text.index("look") < prompt.text.index("user\nWhy?")


def test_a_name_that_no_model_has_is_cut() -> None:
    found = asked("completions", prompt="x", model="\ud800" * 2**20)
    assert found.model == "\ufffd" * 512


@pytest.mark.parametrize("api", ["chat", "messages", "responses"])
def test_half_characters_of_a_conversation_are_replaced(api: Api) -> None:
    messages = [{"role": "us\udfffer", "content": [{"type": "text", "text": "\ud83d"}]}]
    (prompt,) = asked(api, messages=messages, input=messages, tools=["\ud800"]).prompts
    assert prompt.text == "\ufffd\nus\ufffder\n\ufffd"


@pytest.mark.parametrize(
    ("limits", "expected"),
    [({"max_tokens": True}, None), ({"max_tokens": 0}, None), ({"max_tokens": "9"}, None)],
)
def test_limits_that_are_none_are_left_out(limits: dict[str, Any], expected: None) -> None:
    assert asked("completions", prompt="x", **limits).max_tokens is expected


@pytest.mark.parametrize(
    ("prompt", "texts", "tokens"),
    [
        ("once", ["once"], [None]),
        (["once", "twice"], ["once", "twice"], [None, None]),
        ([5, 6, 7], [""], [(5, 6, 7)]),
        ([[5], [6, 7]], ["", ""], [(5,), (6, 7)]),
    ],
)
def test_completions_take_texts_and_tokens(
    prompt: Any, texts: list[str], tokens: list[tuple[int, ...] | None]
) -> None:
    prompts = asked("completions", prompt=prompt).prompts
    assert [each.text for each in prompts] == texts
    assert [each.tokens for each in prompts] == tokens
    assert all(each.raw == (each.tokens is None) for each in prompts)


def test_a_later_turn_begins_with_the_earlier_one() -> None:
    turns = [{"role": "system", "content": "S"}, {"role": "user", "content": "one"}]
    later = [*turns, {"role": "assistant", "content": "1"}, {"role": "user", "content": "two"}]
    first = asked("chat", messages=turns).prompts[0].text
    assert asked("chat", messages=later).prompts[0].text.startswith(first)


def test_parts_of_text_are_one_text_and_images_are_short() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 9999}}
    text = {"type": "text", "text": "Look:"}
    plain = asked("chat", messages=[{"role": "user", "content": [text, text]}]).prompts[0]
    assert plain.messages == ({"role": "user", "content": "Look:\nLook:"},)
    seen = asked("chat", messages=[{"role": "user", "content": [text, image]}]).prompts[0]
    assert seen.messages is None
    assert seen.text.startswith("user\nLook:\n")
    assert len(seen.text) < 60
    other = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "B" * 9999}}
    assert (
        asked("chat", messages=[{"role": "user", "content": [text, other]}]).prompts[0].text
        != seen.text
    )


def test_responses_and_messages_become_conversations() -> None:
    (prompt,) = asked("responses", instructions="Be brief.", input="Hi").prompts
    assert prompt.text == "system\nBe brief.\nuser\nHi"
    (prompt,) = asked(
        "responses", input=[{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}]
    ).prompts
    assert prompt.messages is not None
    assert prompt.messages[0]["content"] == "Hi"
    (prompt,) = asked("responses", input="And?", previous_response_id="resp_1").prompts
    assert prompt.messages is None
    (prompt,) = asked(
        "messages",
        system=[{"type": "text", "text": "Be brief."}],
        messages=[{"role": "user", "content": "Hi"}],
        max_tokens=5,
    ).prompts
    assert prompt.text == "system\nBe brief.\nuser\nHi"
    call = {"type": "function_call", "name": "look", "arguments": "{}"}
    assert '"look"' in asked("responses", input=[call]).prompts[0].text


@pytest.mark.parametrize(
    ("api", "body"),
    [
        ("chat", b""),
        ("chat", b"{"),
        ("chat", b"[1]"),
        ("chat", b'{"messages": []}'),
        ("chat", b'{"messages": "x"}'),
        ("chat", b"\xff\xfe"),
        ("chat", b"[" * 100_000),
        ("completions", b'{"prompt": []}'),
        ("completions", b'{"prompt": [true, "x"]}'),
        ("completions", b'{"prompt": [[]]}'),
        ("responses", b'{"input": 5}'),
        ("messages", b"{}"),
    ],
)
def test_what_no_server_could_mean_is_nothing(api: Api, body: bytes) -> None:
    assert read_asked(api, body) is None


@pytest.mark.parametrize("depth", [900, 100_000])
def test_what_is_nested_too_deeply_says_nothing(depth: int) -> None:
    body = '{"messages": [' + "[" * depth + "]" * depth + "]}"
    assert read_asked("chat", body.encode()) is None
