"""Prompts as text for servers that take no token ids: made-up words, as many as are wanted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from autotune.traffic.prompts import FIRST_ORDINARY_ID

_CONSONANTS = "bdfgklmnprstvz"
_VOWELS = "aeiou"
_SYLLABLES = tuple(first + second for first in _CONSONANTS for second in _VOWELS)

WORDS = len(_SYLLABLES) ** 2
"""How many words there are; prompts that become text are made of as many token ids."""

VOCABULARY = range(FIRST_ORDINARY_ID, FIRST_ORDINARY_ID + WORDS)

CHARACTERS_PER_WORD = 5
"""Four letters and a blank."""

TYPICAL_TOKENS_PER_WORD = 2.0
"""Where no server said how many tokens its tokenizer makes of a word."""


def word(token_id: int) -> str:
    """Return the word that stands for a token id; equal ids have equal words."""
    first, second = divmod((token_id - VOCABULARY.start) % WORDS, len(_SYLLABLES))
    return _SYLLABLES[first] + _SYLLABLES[second]


@dataclass(frozen=True, slots=True)
class Words:
    """How many words of text make a prompt of so many tokens.

    Attributes:
        tokens_per_word: of the server's tokenizer.
        around: tokens that a chat template and the like put around every prompt.
        measured: whether a server's usage said so.
    """

    tokens_per_word: float = TYPICAL_TOKENS_PER_WORD
    around: float = 0.0
    measured: bool = False

    @classmethod
    def measured_by(cls, fewer: tuple[int, int], more: tuple[int, int]) -> Self:
        """Return it from two prompts, each the words sent and the tokens that a server counted.

        Figures that cannot be, such as fewer tokens for more words, are not believed.
        """
        slope = (more[1] - fewer[1]) / (more[0] - fewer[0])
        around = fewer[1] - slope * fewer[0]
        if not 0.2 <= slope <= 8.0 or around < -slope:
            return cls()
        return cls(slope, max(0.0, around), measured=True)

    def text(self, prompt: Sequence[int]) -> str:
        """Return a text of about as many tokens as ``prompt`` has ids.

        Prompts that begin alike have texts that begin alike, up to the word.
        """
        wanted = round((len(prompt) - self.around) / self.tokens_per_word)
        # Words of less than a token each: the ids begin again.
        count = max(1, wanted)
        ids = (prompt[place % len(prompt)] for place in range(count))
        return " ".join(map(word, ids))
