"""How long texts are and where they begin alike: from a tokenizer's tokens, or from characters.

Ids of prefixes are hashed with a salt that is thrown away, and numbered in the order in which they
come: nothing of a text can be found in them, and the same file gives the same trace.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from autotune.errors import UsageError
from autotune.traffic.capture.asked import Prompt
from autotune.traffic.capture.blocks import SALT_BYTES, BlockHasher
from autotune.traffic.capture.tokenizer import HubTokenizer, Tokenizer
from autotune.traffic.formats.base import opened
from autotune.traffic.hashing import U8
from autotune.traffic.well_formed import well_formed

CHARACTERS_PER_TOKEN = 4.0
"""Of English text, roughly. Code and other languages have fewer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A prompt without its words.

    Attributes:
        tokens: how many it has.
        estimated: that was not counted.
        hash_ids: of its blocks of tokens; () where tokens are not known.
        pieces: of pieces of its text, where tokens are not known; see ``BlockHasher.of_text``.
        size_bytes: of the text.
    """

    tokens: int
    estimated: bool
    hash_ids: tuple[int, ...] = ()
    pieces: U8 | None = None
    size_bytes: int = 0


class Texts:
    """Measures the texts of one file.

    Args:
        tokenizer: name or path; None estimates.

    Raises:
        UsageError: the tokenizer cannot be loaded.
        EnvironmentFault: what loads it is not installed.
    """

    def __init__(self, tokenizer: str | None) -> None:
        self._name = tokenizer
        self._tokenizer = None if tokenizer is None else _tokenizer(tokenizer)
        self._hasher = BlockHasher(os.urandom(SALT_BYTES), pause=_no_pause)

    def prompt(self, prompt: Prompt) -> Text:
        """Return what is needed of a prompt, which is then forgotten."""
        prompt = replace(prompt, text=well_formed(prompt.text))
        tokens = prompt.tokens
        if tokens is None and self._tokenizer is not None and prompt.text:
            counted = self._tokenizer.tokens(prompt)
            tokens = None if counted is None else tuple(counted)
        if tokens is not None:
            return Text(
                tokens=len(tokens), estimated=False, hash_ids=self._hasher.of_tokens(tokens)
            )
        raw = prompt.text.encode()
        return Text(
            tokens=_estimate(prompt.text),
            estimated=True,
            pieces=np.array(self._hasher.of_text(raw), dtype=np.uint64) if raw else None,
            size_bytes=len(raw),
        )

    def answer_tokens(self, text: str) -> int:
        """Return how many tokens an answer has, counted or estimated."""
        counted = (
            self._tokenizer.tokens(Prompt(text=text))
            if self._tokenizer is not None and text
            else None
        )
        return _estimate(text) if counted is None else len(counted)

    def source(self) -> str:
        """Return in a few words where lengths come from."""
        if self._name is not None:
            return f"lengths counted with {self._name}"
        return f"lengths estimated at {CHARACTERS_PER_TOKEN:g} characters a token"

    def remark(self) -> str:
        """Return in a sentence where lengths come from."""
        if self._name is not None:
            return f"Lengths of texts were counted with the tokenizer {self._name}."
        return (
            f"Lengths of texts are estimates, {CHARACTERS_PER_TOKEN:g} characters a token: "
            "--tokenizer counts them."
        )


def chat_prompt(messages: Sequence[object]) -> Prompt:
    """Return the prompt of the messages of a chat."""
    rows = [each for each in messages if isinstance(each, Mapping)]
    plain = tuple(
        {"role": str(row.get("role", "user")), "content": content}
        for row in rows
        if isinstance(content := row.get("content"), str)
    )
    text = "\n".join(f"{row['role']}\n{row['content']}" for row in plain)
    return Prompt(text=text, messages=plain if len(plain) == len(messages) else None)


def _estimate(text: str) -> int:
    return -(-len(text) // int(CHARACTERS_PER_TOKEN))


def _no_pause() -> None:
    """Do not wait: no traffic waits for a reader of files."""


def _tokenizer(name: str) -> Tokenizer:
    path = Path(name)
    if path.exists() and not path.is_dir():
        return FileTokenizer(path)
    return HubTokenizer(name)


class FileTokenizer:
    """A ``tokenizer.json`` alone, which has no chat template.

    Raises:
        UsageError: the file is no tokenizer.
    """

    def __init__(self, file: Path) -> None:
        from tokenizers import Tokenizer as Encoder

        try:
            with opened(file) as source:
                text = source.read().decode()
            json.loads(text)
            self._encoder = Encoder.from_str(text)
        # The library raises the base class itself for a file that is no tokenizer.
        except Exception as error:
            raise UsageError(
                f"--tokenizer {file}: is no tokenizer",
                hint="name a tokenizer.json, a folder with a tokenizer, or a model of the hub",
            ) from error

    def tokens(self, prompt: Prompt) -> Sequence[int] | None:
        """Return the tokens of a prompt's text."""
        if prompt.tokens is not None:
            return prompt.tokens
        ids: list[int] = self._encoder.encode(prompt.text, add_special_tokens=False).ids
        return ids
