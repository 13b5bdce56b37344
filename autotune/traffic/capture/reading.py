"""From an exchange that was seen to records: off the path of the traffic."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from autotune.traffic.capture.answered import Answer, read_answer
from autotune.traffic.capture.asked import Asked, Prompt, read_asked
from autotune.traffic.capture.blocks import BlockHasher
from autotune.traffic.capture.record import Ending, Record
from autotune.traffic.capture.sighting import Sighting
from autotune.traffic.capture.tokenizer import Tokenizer
from autotune.traffic.well_formed import well_formed

MAX_SEQUENCES = 1024
"""Of one request: a body of 8 MiB could ask for half a billion, each of which would be a row."""

_DECIMALS = 3
"""Of milliseconds."""


class TooManySequences(Exception):
    """A request asked for more sequences than are recorded of one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """Reads exchanges.

    Attributes:
        hasher: makes the ids of prefixes.
        tokenizer: counts prompts in tokens; None leaves them to be estimated.
        with_text: keep prompts and answers.
    """

    hasher: BlockHasher
    tokenizer: Tokenizer | None = None
    with_text: bool = False

    def __call__(self, seen: Sighting) -> list[Record]:
        """Return a record for each sequence that the exchange asked for, mostly one.

        Raises:
            TooManySequences: it asked for more than ``MAX_SEQUENCES``.
        """
        answer = read_answer(seen)
        ending = _ending(seen, answer)
        record = Record(
            arrival_s=seen.arrival_s,
            ending=ending,
            ttft_ms=_rounded(answer.ttft_ms),
            e2e_ms=_rounded(seen.e2e_ms),
        )
        if seen.status is None or seen.status >= 400:
            return [record]
        asked = read_asked(seen.api, seen.body) if seen.body else None
        record = replace(
            record,
            prompt_tokens=answer.prompt_tokens,
            output_tokens=answer.output_tokens,
            output_estimated=answer.estimated,
            cached_tokens=answer.cached_tokens,
            output_text=well_formed(answer.text) if self.with_text else None,
        )
        return [record] if asked is None else list(self._each(record, asked))

    def _each(self, record: Record, asked: Asked) -> Iterator[Record]:
        sequences = len(asked.prompts) * asked.copies
        if sequences > MAX_SEQUENCES:
            raise TooManySequences
        record = replace(
            record,
            model=asked.model,
            max_tokens=asked.max_tokens,
            priority=asked.priority,
        )
        prompts = [
            self._prompted(record, prompt, asked, alone=len(asked.prompts) == 1)
            for prompt in asked.prompts
        ]
        if sequences == 1:
            yield prompts[0]
            return
        # How the tokens fell on several sequences is not said.
        outputs = _shares(record.output_tokens, sequences)
        for number, output in enumerate(outputs):
            yield replace(
                prompts[number // asked.copies],
                output_tokens=output,
                output_estimated=True,
                cached_tokens=None,
                output_text=record.output_text if number == 0 else None,
            )

    def _prompted(self, record: Record, prompt: Prompt, asked: Asked, *, alone: bool) -> Record:
        """Return the record with the ids of its prompt."""
        context = f"{asked.model or ''}\0{asked.cache_salt}"
        kept = prompt.text if self.with_text else None
        tokens = prompt.tokens
        if tokens is None and self.tokenizer is not None:
            found = self.tokenizer.tokens(prompt)
            tokens = None if found is None else tuple(found)
        told = record.prompt_tokens if alone else None
        if tokens:
            ids = self.hasher.of_tokens(tokens, context=context)
            counted = told if told is not None else len(tokens)
            return replace(record, prompt_tokens=counted, token_ids=ids, prompt_text=kept)
        text = prompt.text.encode()
        ids = self.hasher.of_text(text, context=context)
        return replace(
            record, prompt_tokens=told, text_ids=ids, text_bytes=len(text), prompt_text=kept
        )


def _ending(seen: Sighting, answer: Answer) -> Ending:
    """Return how a request ended; a client that leaves after the last token had all of it."""
    if answer.failed:
        return "failed"
    if answer.finished or seen.way == "ended":
        return "completed"
    return "cancelled" if seen.way == "cancelled" else "failed"


def _shares(tokens: int | None, parts: int) -> list[int | None]:
    if tokens is None:
        return [None] * parts
    least, more = divmod(tokens, parts)
    return [(least + (number < more)) or None for number in range(parts)]


def _rounded(moment_ms: float | None) -> float | None:
    return None if moment_ms is None else round(moment_ms, _DECIMALS)
