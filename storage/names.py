"""Which names a study can have: what a person can see, in one line."""

from __future__ import annotations

import hashlib
import unicodedata
from typing import Final

from storage.codec import clean
from storage.errors import UnusableName
from storage.schema import MAX_NAME_LENGTH

_MAX_OPTUNA_NAME: Final = 512
_LINE_BREAKING: Final = {"Cc", "Zl", "Zp"}


def check_name(name: str) -> None:
    """Return if a study can have this name.

    Raises:
        UnusableName: It is empty, blank, too long or more than one line, or holds what no
            database stores.
    """
    if len(name) > MAX_NAME_LENGTH:
        raise UnusableName(
            f"A study name has at most {MAX_NAME_LENGTH} characters, this one {len(name)}.",
            hint="Give another --study-name.",
        )
    if not name.strip():
        raise UnusableName(
            f"The study name {name!r} cannot be seen.", hint="Give another --study-name."
        )
    check_characters(name)
    if any(unicodedata.category(each) in _LINE_BREAKING for each in name):
        raise UnusableName(
            f"The study name {name!r} has a line break or another control character.",
            hint="Give another --study-name, of one line.",
        )


def check_characters(name: str) -> None:
    """Return if a database can be asked for this name.

    Raises:
        UnusableName: It holds what no database stores.
    """
    if clean(name) != name:
        raise UnusableName(
            "The study name holds a character that no database stores.",
            hint="Give another study name, in valid Unicode and without NUL.",
        )


def optuna_name(name: str) -> str:
    """Return the study's name in Optuna: the same, or its start and a hash if over 512."""
    if len(name) <= _MAX_OPTUNA_NAME:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()
    return f"{name[: _MAX_OPTUNA_NAME - len(digest) - 1]}-{digest}"
