"""Salted ids of prefixes: equal ids mean equal prefixes, and nobody can tell which.

An id is a keyed BLAKE2b hash of the id before it and of the next block, so that it stands for all
that came before as well. Without the salt it cannot be guessed even for a prompt that one knows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from autotune.traffic.model import blocks_of
from objectives.arrays import I8

BLOCK_SIZE = 16
"""Tokens of a block, as vLLM has them."""

PIECE_BYTES = 64
"""Text that one id stands for where tokens are unknown: about a block of English."""

SALT_BYTES = 32

_ID_BYTES = 8
_TURN = 128
"""Ids between two moments in which other threads may run: about 0.2 ms of work."""


def give_way() -> None:
    """Let a thread that waits for the interpreter run: that of the traffic."""
    time.sleep(1e-6)


class BlockHasher:
    """Makes ids of prompts.

    Args:
        salt: the key; ids of different salts have nothing to do with each other.
        block_size: tokens of a block.
        pause: called now and then within long prompts.
    """

    def __init__(
        self,
        salt: bytes,
        *,
        block_size: int = BLOCK_SIZE,
        pause: Callable[[], None] = give_way,
    ) -> None:
        self._salt = salt
        self._pause = pause
        self.block_size = block_size

    def of_tokens(self, tokens: Sequence[int] | I8, *, context: str = "") -> tuple[int, ...]:
        """Return an id for each block of tokens, the last one perhaps in part.

        Args:
            tokens: of the prompt.
            context: what else keeps caches apart, such as the model.
        """
        data = np.asarray(tokens, dtype=np.int64).tobytes()
        return self._chain(data, self.block_size * 8, b"tokens", context)

    def of_text(self, text: bytes, *, context: str = "") -> tuple[int, ...]:
        """Return an id for each piece of ``PIECE_BYTES``, the last one perhaps in part."""
        return self._chain(text, PIECE_BYTES, b"text", context)

    def _chain(self, data: bytes, step: int, person: bytes, context: str) -> tuple[int, ...]:
        return tuple(self._ids(data, step, person, context))

    def _ids(self, data: bytes, step: int, person: bytes, context: str) -> Iterator[int]:
        previous = self._digest(context.encode("utf-8", "surrogatepass"), person)
        view = memoryview(data)
        for number, start in enumerate(range(0, len(data), step), start=1):
            previous = self._digest(previous + view[start : start + step], person)
            # 63 bits, which JSON readers hold as a signed integer.
            yield int.from_bytes(previous, "big") >> 1
            if number % _TURN == 0:
                self._pause()

    def _digest(self, data: bytes, person: bytes) -> bytes:
        return blake2b(data, digest_size=_ID_BYTES, key=self._salt, person=person).digest()


def scaled(
    text_ids: Sequence[int], *, tokens: int, bytes_per_token: float, block_size: int
) -> tuple[int, ...]:
    """Return an id for each block of tokens, of ids for pieces of text.

    All prompts are cut at the same places of their text, whatever their own ratio of bytes to
    tokens, so that equal beginnings have equal ids in equal places. The last block stands for the
    whole text.

    Args:
        text_ids: as ``BlockHasher.of_text`` gives them, at least one.
        tokens: how many the prompt has.
        bytes_per_token: of all prompts together.
        block_size: tokens of a block.
    """
    blocks = blocks_of(tokens, block_size)
    ends = np.arange(1, blocks + 1) * (block_size * bytes_per_token)
    pieces = np.clip((ends // PIECE_BYTES).astype(np.int64), 1, len(text_ids)) - 1
    pieces[-1] = len(text_ids) - 1
    chosen = np.asarray(text_ids, dtype=np.uint64)[pieces]
    return tuple(int(each) for each in _mixed(chosen, np.arange(blocks, dtype=np.uint64)))


def unlike_any(blocks: int, seed: int) -> tuple[int, ...]:
    """Return ids for a prompt of which nothing is known; another seed gives others."""
    places = np.arange(blocks, dtype=np.uint64)
    return tuple(int(each) for each in _mixed(np.full(blocks, seed, dtype=np.uint64), places))


def _mixed(ids: NDArray[np.uint64], places: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return 63-bit ids of ids and places: SplitMix64's finaliser, a bijection of 64 bits.

    One piece of text may stand for several blocks, which have different tokens all the same.
    """
    mixed: NDArray[np.uint64] = ids + (places + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    mixed >>= np.uint64(1)
    return mixed
