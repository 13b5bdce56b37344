"""What a JSON file looks like at its beginning, which may be cut off anywhere."""

from __future__ import annotations

import re
from dataclasses import dataclass

_PART = re.compile(r'"((?:[^"\\]|\\.)*)"\s*(:?)|[\[\]{}]|"', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Outline:
    """Keys of the first object of a JSON file.

    Attributes:
        is_list: the file is a list, and the object its first element.
        keys: of the object itself.
        inner: of the objects inside it.
    """

    is_list: bool
    keys: frozenset[str]
    inner: frozenset[str]


def outline(head: str) -> Outline:
    """Return the keys of the first object in ``head``, as far as it goes."""
    is_list = head.startswith("[")
    keys: set[str] = set()
    inner: set[str] = set()
    depth = -1 if is_list else 0
    for found in _PART.finditer(head):
        part = found[0]
        if part in "[{":
            depth += 1
        elif part in "]}":
            depth -= 1
            if depth <= 0:
                break
        elif found[2]:
            (keys if depth == 1 else inner).add(found[1])
    return Outline(is_list, frozenset(keys), frozenset(inner))
