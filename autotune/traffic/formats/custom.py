"""The ``custom`` dataset of ``vllm bench serve``: JSON Lines of texts, without times.

``{"prompt": text, "output_tokens": n}``; other fields are passed over. Source: vLLM,
``vllm/benchmarks/datasets``, ``CustomDataset``.
"""

from __future__ import annotations

from pathlib import Path

from autotune.traffic.capture.asked import Prompt
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
from autotune.traffic.formats.documents import as_row, kind_of, table_rows
from autotune.traffic.formats.fields import count, required
from autotune.traffic.formats.outline import outline
from autotune.traffic.formats.recorded import Found, Recorded, request_or_left_out
from autotune.traffic.formats.texts import Texts
from autotune.traffic.model import Trace

_HINT = 'a line is {"prompt": "…", "output_tokens": 128}'


def read(path: Path, options: ReadOptions = NO_OPTIONS) -> Trace:
    """Read prompts and how many tokens each was answered with; times are made.

    Raises:
        TraceError: a line is no such object.
        UsageError: no rate is given, or a tokenizer that cannot be loaded.
    """
    texts = Texts(options.tokenizer)

    def request(value: object) -> Found:
        row = as_row(value)
        prompt = required(row, "prompt", _HINT)
        if not isinstance(prompt, str):
            raise BadLine(f"prompt: is {kind_of(prompt)}, not a text", hint=_HINT)
        # `vllm bench serve` sends each as the only message of a chat.
        message = {"role": "user", "content": prompt}
        text = texts.prompt(Prompt(text=prompt, messages=(message,)))
        return request_or_left_out(
            Recorded(
                arrival_ns=None,
                input_length=text.tokens if prompt else 0,
                output_length=count(row, "output_tokens"),
                text=text,
                estimated=text.estimated,
            )
        )

    found = [each for _, each in parsed(path, table_rows(path), request)]
    made, remark = with_made_arrivals(path, found, options, why="a data set of prompts has")
    return assembled(
        path,
        made,
        remarks=(remark, texts.remark()),
        details=(texts.source(), made_source(options)),
        block_size=BLOCK_SIZE,
    )


def _recognises(head: str) -> bool:
    keys = outline(head).keys
    return "prompt" in keys and not keys & {"timestamp", "custom_id"}


CUSTOM = Reader(
    name="custom",
    summary="JSON Lines of vLLM's `custom` dataset, with prompt and output_tokens",
    recognises=_recognises,
    read=read,
    takes=TIMELESS | {"tokenizer"},
    read_as=read,
)
