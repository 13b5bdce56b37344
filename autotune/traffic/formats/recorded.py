"""What a reader finds in a row of a log: a request, or why there is none."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from autotune.traffic.formats.texts import Text
from autotune.traffic.recording import Outcome


class LeftOut(Enum):
    """Why a row is no request to replay; see ``ReadNotes``, which counts each."""

    FAILED = auto()
    WITHOUT_TOKENS = auto()
    NOT_REQUESTS = auto()
    FROM_CACHE = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """One request of a log.

    Attributes:
        arrival_ns: since 1970 or the file's own zero; None in a form without times.
        input_length: tokens of the prompt.
        output_length: tokens generated.
        hash_ids: of the blocks of the prompt, () if unknown.
        text: of the prompt, None if the file has none.
        estimated: a length was not counted in tokens.

    The others are as in ``TraceRequest``.
    """

    arrival_ns: int | None
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...] = ()
    text: Text | None = None
    estimated: bool = False
    max_tokens: int | None = None
    cached_tokens: int | None = None
    model: str | None = None
    outcome: Outcome | None = None
    ttft_ms: float | None = None
    e2e_ms: float | None = None


Found = Recorded | LeftOut


def request_or_left_out(recorded: Recorded) -> Found:
    """Return a request that has prompt and output tokens as it is."""
    if recorded.input_length and recorded.output_length:
        return recorded
    return LeftOut.WITHOUT_TOKENS
