"""Conversations as ShareGPT has them: a JSON list, or JSON Lines, without times.

``{"conversations": [{"from": "human", "value": text}, {"from": "gpt", "value": text}]}``, or
OpenAI's ``{"messages": [{"role": "user", "content": text}, …]}``. As in ``vllm bench serve``,
a request is the first exchange of a conversation: when later turns came is not known.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from autotune.traffic.capture.blocks import BLOCK_SIZE
from autotune.traffic.formats.arrivals import made_source, with_made_arrivals
from autotune.traffic.formats.assembly import assembled
from autotune.traffic.formats.base import (
    NO_OPTIONS,
    TIMELESS,
    BadLine,
    Reader,
    ReadOptions,
    parsed,
)
from autotune.traffic.formats.documents import Row, as_row, table_rows
from autotune.traffic.formats.fields import objects_in, optional_text
from autotune.traffic.formats.outline import outline
from autotune.traffic.formats.recorded import Found, LeftOut, Recorded, request_or_left_out
from autotune.traffic.formats.texts import Texts, chat_prompt
from autotune.traffic.model import Trace

_TURNS = ("conversations", "conversation", "messages")
_ROLES = {
    **dict.fromkeys(("gpt", "assistant", "chatgpt", "bing", "bard", "model"), "assistant"),
    "system": "system",
}
_HINT = 'a conversation is {"conversations": [{"from": "human", "value": "…"}, …]}'


def read(path: Path, options: ReadOptions = NO_OPTIONS) -> Trace:
    """Read the first exchange of each conversation; times are made.

    What stands before the first answer is its prompt. Conversations without an answer are left
    out and counted, and so are turns after the first exchange.

    Raises:
        TraceError: an element is no conversation.
        UsageError: no rate is given, or a tokenizer that cannot be loaded.
    """
    texts = Texts(options.tokenizer)
    later = 0

    def request(value: object) -> Found:
        nonlocal later
        turns = _turns(as_row(value))
        asked, answer = _first_exchange(turns)
        if answer is None:
            return LeftOut.WITHOUT_TOKENS
        later += len(turns) - len(asked) - 1
        text = texts.prompt(chat_prompt(asked))
        return request_or_left_out(
            Recorded(
                arrival_ns=None,
                input_length=text.tokens if any(each["content"] for each in asked) else 0,
                output_length=texts.answer_tokens(answer),
                text=text,
                estimated=text.estimated,
            )
        )

    rows = table_rows(path)
    found = [each for _, each in parsed(path, rows, request, kind="conversations")]
    made, remark = with_made_arrivals(path, found, options, why="conversations have")
    remarks = [remark, texts.remark()]
    if later:
        remarks.append(f"Turns after the first exchange of a conversation, left out: {later}.")
    return assembled(
        path,
        made,
        remarks=remarks,
        details=(texts.source(), made_source(options)),
        block_size=BLOCK_SIZE,
    )


def _turns(row: Row) -> list[Row]:
    for name in _TURNS:
        if isinstance(row.get(name), list):
            return objects_in(row[name])
    raise BadLine(f"{_TURNS[0]}: field required", hint=_HINT)


def _first_exchange(turns: Sequence[Row]) -> tuple[list[dict[str, str]], str | None]:
    """Return the messages before the first answer, and that; None where nobody answered."""
    asked: list[dict[str, str]] = []
    for turn in turns:
        text = optional_text(turn, "value", "content", "text") or ""
        speaker = (optional_text(turn, "from", "role", "user") or "").lower()
        role = _ROLES.get(speaker, "user")
        # Without names, turns take turns.
        if asked and (role == "assistant" or not speaker):
            return asked, text
        asked.append({"role": role, "content": text})
    return asked, None


def _recognises(head: str) -> bool:
    keys = outline(head).keys
    if keys & {"conversations", "conversation"}:
        return True
    return "messages" in keys and not keys & {"startTime", "timestamp", "custom_id"}


SHAREGPT = Reader(
    name="sharegpt",
    summary="JSON list of conversations, as ShareGPT has them",
    recognises=_recognises,
    read=read,
    takes=TIMELESS | {"tokenizer"},
    read_as=read,
)
