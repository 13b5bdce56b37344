"""Which prompts of a log begin alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

from autotune.traffic.capture.blocks import scaled, unlike_any
from autotune.traffic.formats.recorded import Recorded
from autotune.traffic.formats.texts import Text
from autotune.traffic.model import blocks_of


@dataclass(frozen=True, slots=True)
class Prefixes:
    """Ids of the blocks of each prompt, () for one of which nothing is known.

    Attributes:
        hash_ids: one tuple a request.
        estimated: some stand for blocks of text, or were fitted to another count of tokens.
    """

    hash_ids: list[tuple[int, ...]]
    estimated: bool


def prefixes_of(requests: Sequence[Recorded], block_size: int) -> Prefixes:
    """Return the prefixes of requests: those that they have, else those of their texts."""
    with_pieces = [
        (each.text, each.input_length)
        for each in requests
        if each.text is not None and each.text.pieces is not None
    ]
    tokens = sum(length for _, length in with_pieces)
    bytes_per_token = sum(text.size_bytes for text, _ in with_pieces) / tokens if tokens else 1.0
    estimated = bool(with_pieces)
    found: list[tuple[int, ...]] = []
    of_texts = False
    for seed, each in enumerate(requests):
        ids = each.hash_ids
        if each.text is not None and not ids:
            of_texts = True
            ids = _of_text(each.text, each.input_length, bytes_per_token, block_size, seed)
            estimated |= len(each.text.hash_ids) not in (0, len(ids))
        found.append(ids)
    return Prefixes(_numbered(found) if of_texts else found, estimated)


def _of_text(
    text: Text, tokens: int, bytes_per_token: float, block_size: int, seed: int
) -> tuple[int, ...]:
    blocks = blocks_of(tokens, block_size)
    if text.pieces is not None:
        return scaled(
            text.pieces.tolist(),
            tokens=tokens,
            bytes_per_token=bytes_per_token,
            block_size=block_size,
        )
    if not text.hash_ids:
        return ()
    # A server counts its template as well: what is more than the text is nobody else's.
    missing = blocks - len(text.hash_ids)
    return text.hash_ids[:blocks] + unlike_any(max(missing, 0), seed)


def _numbered(found: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Number ids in the order in which they come."""
    numbers: dict[int, int] = {}
    fresh = count()
    return [
        tuple(
            numbers[each] if each in numbers else numbers.setdefault(each, next(fresh))
            for each in ids
        )
        for ids in found
    ]
