from __future__ import annotations

import pytest
from sqlalchemy.exc import IntegrityError, OperationalError

from storage.errors import StorageError
from storage.faults import translated_errors, unavailable

URL = "postgresql://me:hunter2@db/x"


def test_the_driver_s_words_are_masked_too() -> None:
    error = OperationalError("", {}, Exception("no login for me with hunter2"))
    fault = unavailable(URL, error)
    assert fault.message == "Cannot use postgresql://me:***@db/x: no login for me with ***."
    assert fault.url == URL


def test_a_refused_record_is_no_unavailable_database() -> None:
    error = IntegrityError("", {}, Exception("duplicate of hunter2"))
    with (
        pytest.raises(StorageError, match=r"refused a record: duplicate of \*\*\*\.$"),
        translated_errors(URL),
    ):
        raise error


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        ("database or disk is full", "Free some disk space"),
        ("could not extend file: No space left on device", "Free some disk space"),
        ("database is locked", "Another program holds the database"),
        ('could not translate host name "fullmoon.locked"', "Check that the database"),
        ("value too long for type character varying(512)", "Check that the database"),
    ],
)
def test_the_hint_is_about_the_fault_and_not_about_a_name(said: str, hint: str) -> None:
    fault = unavailable(URL, OperationalError("", {}, Exception(said)))
    assert fault.hint.startswith(hint)
