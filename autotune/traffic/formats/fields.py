"""Fields of rows that may hold anything. What is wrong is said without quoting it."""

from __future__ import annotations

import json
import re

from autotune.traffic.formats.base import BadLine
from autotune.traffic.formats.clock import NS_PER_MS, Clock
from autotune.traffic.formats.documents import Row, kind_of
from autotune.traffic.model import MAX_TOKENS
from autotune.traffic.well_formed import well_formed

_DIGITS = re.compile(r"(\d{1,12})(?:\.0+)?", re.ASCII)
_LONGEST = 1e12
_HINT = f"counts of tokens are whole numbers from 0 to {MAX_TOKENS}"


def first_of(row: Row, *names: str) -> tuple[str, object]:
    """Return the first of ``names`` that has a value, with that; None where none has.

    An empty text is no value: that is how CSV writes null.
    """
    for name in names:
        value = row.get(name)
        if value is not None and value != "":
            return name, value
    return names[0], None


def optional_count(row: Row, *names: str) -> int | None:
    """Return the count under the first of ``names`` that has one, None where none has.

    Raises:
        BadLine: it is no count of tokens.
    """
    name, value = first_of(row, *names)
    if value is None:
        return None
    if isinstance(value, str):
        found = _DIGITS.fullmatch(value.strip())
        value = int(found[1]) if found else value
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadLine(f"{name}: is {kind_of(value)}, not a count", hint=_HINT)
    if not 0 <= value <= MAX_TOKENS:
        raise BadLine(f"{name}: is not from 0 to {MAX_TOKENS}", hint=_HINT)
    return value


def count(row: Row, *names: str) -> int:
    """Return the count under the first of ``names`` that has one.

    Raises:
        BadLine: there is none, or it is no count of tokens.
    """
    found = optional_count(row, *names)
    if found is None:
        raise BadLine(f"{names[0]}: field required", hint=_HINT)
    return found


def optional_text(row: Row, *names: str) -> str | None:
    """Return the text under the first of ``names`` that has a value, None if it is no text."""
    value = first_of(row, *names)[1]
    return well_formed(value) if isinstance(value, str) else None


def required(row: Row, name: str, hint: str) -> object:
    """Return a field that may hold anything but null.

    Raises:
        BadLine: it is missing.
    """
    value = row.get(name)
    if value is None:
        raise BadLine(f"{name}: field required", hint=hint)
    return value


def objects_in(value: object) -> list[Row]:
    """Return the objects of a list, [] for what is none."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def object_of(value: object) -> Row:
    """Return an object, also one that a table holds as its JSON text; {} for what is none."""
    if isinstance(value, str) and value.startswith("{"):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return {}
    return value if isinstance(value, dict) else {}


def list_of(value: object) -> list[object]:
    """Return a list, also one that a table holds as its JSON text; [] for what is none."""
    if isinstance(value, str) and value.startswith("["):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return []
    return value if isinstance(value, list) else []


def is_true(value: object) -> bool:
    """Say whether a flag is set, however it was written."""
    return value is True or (isinstance(value, str) and value.strip().lower() in ("true", "t"))


def elapsed_ms(start_ns: int, row: Row, *names: str) -> float | None:
    """Return the time from a start to the time in a row, None if there is none after it."""
    name, value = first_of(row, *names)
    if value is None:
        return None
    try:
        end_ns = Clock().ns(name, value)
    except BadLine:
        return None
    return (end_ns - start_ns) / NS_PER_MS if end_ns > start_ns else None


def positive_ms(value: object, *, per_unit: float) -> float | None:
    """Return a duration in ms, None for what is none.

    Args:
        value: a number of some unit.
        per_unit: ms in that unit.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value * per_unit if 0 < value <= _LONGEST else None
