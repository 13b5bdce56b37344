"""One request that has ended, as the recorder keeps it until its file is finished."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config

from autotune.errors import AutotuneError
from autotune.traffic.model import MAX_HASH_ID, MAX_PRIORITY, MAX_TOKENS, MIN_PRIORITY

Ending = Literal["completed", "cancelled", "failed"]
Moment = Annotated[float, Field(ge=0, le=253_402_300_799, allow_inf_nan=False)]
"""Seconds since 1970, up to the year 9999."""

_Count = Annotated[int, Field(ge=0, le=MAX_TOKENS)]
_Elapsed = Annotated[float, Field(allow_inf_nan=False)]
_Priority = Annotated[int, Field(ge=MIN_PRIORITY, le=MAX_PRIORITY)]
_Ids = tuple[Annotated[int, Field(ge=0, le=MAX_HASH_ID)], ...]


class TornLine(AutotuneError):
    """A line of a recording that a crash or a full disk cut off."""


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A request that has ended, without its texts unless they were asked for.

    Attributes:
        arrival_s: when it came, in seconds since 1970.
        ending: how it ended.
        prompt_tokens: tokens of the prompt, None if nobody counted them.
        output_tokens: tokens generated, None if unknown.
        cached_tokens: prompt tokens that the server found in its prefix cache, None if unknown.
        max_tokens: the limit that the client asked for, None if there was none.
        priority: the scheduling priority that the client gave, None if there was none.
        model: the model that was asked for, None if there was none.
        ttft_ms: from arrival to the first token, None if there was none.
        e2e_ms: from arrival to the end.
        output_estimated: the output was counted in packets instead of tokens.
        token_ids: an id for each block of prompt tokens; empty if unknown.
        text_ids: an id for each piece of the prompt's text, where tokens are unknown.
        text_bytes: length of that text.
        prompt_text: the prompt, where texts were asked for.
        output_text: the answer, likewise.
    """

    arrival_s: Moment
    ending: Ending
    prompt_tokens: _Count | None = None
    output_tokens: _Count | None = None
    cached_tokens: _Count | None = None
    max_tokens: _Count | None = None
    priority: _Priority | None = None
    model: str | None = None
    ttft_ms: _Elapsed | None = None
    e2e_ms: _Elapsed | None = None
    output_estimated: bool = False
    token_ids: _Ids = ()
    text_ids: _Ids = ()
    text_bytes: Annotated[int, Field(ge=0)] = 0
    prompt_text: str | None = None
    output_text: str | None = None

    def to_line(self) -> bytes:
        """Return the record as a line of JSON, with its line break."""
        row = {name: value for name in _NAMES if (value := getattr(self, name)) != _UNSAID[name]}
        return json.dumps(row, separators=(",", ":")).encode() + b"\n"

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> Record:
        """Return the record of a line that was read.

        Raises:
            TornLine: it is none.
        """
        try:
            return _ROW.validate_python(row)
        except ValidationError as error:
            raise TornLine("a line of the recording is no request") from error


_ROW = TypeAdapter(Record)
_NAMES = tuple(field.name for field in fields(Record))
_UNSAID = {field.name: field.default for field in fields(Record)}
