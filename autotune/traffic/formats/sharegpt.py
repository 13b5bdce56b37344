"""Conversations as ShareGPT has them: a JSON list, or JSON Lines, without times.

``{"conversations": [{"from": "human", "value": text}, {"from": "gpt", "value": text}]}``, or
OpenAI's ``{"messages": [{"role": "user", "content": text}, …]}``. As in ``vllm bench serve``,
a request is the first exchange of a conversation: when later turns came is not known.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from autotune.traffic.formats.assembly import (
    Found,
    LeftOut,
    Recorded,
    assembled,
    made_source,
    request_or_left_out,
    with_made_arrivals,
)
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
from autotune.traffic.formats.lengths import TextLengths
from autotune.traffic.formats.outline import outline
from autotune.traffic.model import Trace

_TURNS = ("conversations", "conversation", "messages")
_ANSWERS = frozenset({"gpt", "assistant", "chatgpt", "bing", "bard", "model"})
_HINT = 'a conversation is {"conversations": [{"from": "human", "value": "…"}, …]}'


def read(path: Path, options: ReadOptions = NO_OPTIONS) -> Trace:
    """Read the first exchange of each conversation; times are made.

    What stands before the first answer is its prompt. Conversations without an answer are left
    out and counted, and so are turns after the first exchange.

    Raises:
        TraceError: an element is no conversation.
        UsageError: no rate is given, or a tokenizer that cannot be loaded.
    """
    lengths = TextLengths(options.tokenizer)
    later = 0

    def request(value: object) -> Found:
        nonlocal later
        turns = _turns(as_row(value))
        exchange = _first_exchange(turns)
        if exchange is None:
            return LeftOut.WITHOUT_TOKENS
        prompt, answer, used = exchange
        later += len(turns) - used
        return request_or_left_out(
            Recorded(
                arrival_ns=None,
                input_length=lengths.tokens(prompt),
                output_length=lengths.tokens(answer),
            )
        )

    rows = table_rows(path)
    found = [each for _, each in parsed(path, rows, request, kind="conversations")]
    made, remark = with_made_arrivals(path, found, options, why="conversations have")
    remarks = [remark, lengths.remark()]
    if later:
        remarks.append(f"Turns after the first exchange of a conversation, left out: {later}.")
    return assembled(
        path,
        made,
        remarks=remarks,
        details=(lengths.source(), made_source(options)),
        lengths_estimated=lengths.estimated,
    )


def _turns(row: Row) -> list[Row]:
    for name in _TURNS:
        if isinstance(row.get(name), list):
            return objects_in(row[name])
    raise BadLine(f"{_TURNS[0]}: field required", hint=_HINT)


def _first_exchange(turns: Sequence[Row]) -> tuple[str, str, int] | None:
    """Return prompt, answer and how many turns they take; None where nobody answered."""
    prompt: list[str] = []
    for used, turn in enumerate(turns, start=1):
        text = optional_text(turn, "value", "content", "text") or ""
        speaker = (optional_text(turn, "from", "role", "user") or "").lower()
        # Without names, turns take turns.
        if prompt and (speaker in _ANSWERS or not speaker):
            return "\n".join(prompt), text, used
        prompt.append(text)
    return None


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
