"""What opens a database is never shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.masking import hide_secrets, mask_url

PLANTED = "hunter2"
ODD = st.text("@:/?#%[]&=+;. ab0", max_size=4)
HOSTS = st.sampled_from(["db", "db:5432", "[::1]:5432", "[::1", "db:port", ""])
DRIVERS = st.sampled_from(["postgresql", "postgresql+psycopg", "mysql", "no-such", "sqlite"])


@pytest.mark.parametrize(
    ("url", "masked"),
    [
        ("postgresql://me:hunter2@db/x", "postgresql://me:***@db/x"),
        ("postgresql://me:h%40nter2@db/x", "postgresql://me:***@db/x"),
        ("postgresql://me:hunter2@[::1]:5432/x", "postgresql://me:***@[::1]:5432/x"),
        ("postgresql://db/x?password=hunter2&port=1", "postgresql://db/x?password=***&port=1"),
        ("postgresql://db/x?auth=hunter2", "postgresql://db/x?auth=***"),
        ("postgresql:/me:hunter2@db", "postgresql:/me:***@db"),
        ("postgresql+psycopg://me:hunter2@h:abc/d", "postgresql+psycopg://me:***@h:abc/d"),
        ("postgresql://me:hun:ter/2@h:abc/d", "postgresql://me:***@h:abc/d"),
        (
            "postgresql://h:abc/d?password=hunter2&port=1",
            "postgresql://h:abc/d?password=***&port=1",
        ),
        ("sqlite:///autotune.db", "sqlite:///autotune.db"),
    ],
)
def test_passwords_are_masked(url: str, masked: str) -> None:
    assert mask_url(url) == masked


@given(DRIVERS, st.sampled_from(["me", "", "me@corp", "m e"]), ODD, ODD, HOSTS)
def test_a_password_is_never_shown(
    driver: str, user: str, before: str, after: str, host: str
) -> None:
    url = f"{driver}://{user}:{before}{PLANTED}{after}@{host}/x"
    assert PLANTED not in mask_url(url)
    assert mask_url(mask_url(url)) == mask_url(url)


@given(DRIVERS, st.sampled_from(["password", "token", "sslkey", "x"]), HOSTS)
def test_a_parameter_is_never_shown(driver: str, key: str, host: str) -> None:
    assert PLANTED not in mask_url(f"{driver}://{host}/x?a=1&{key}={PLANTED}&b=2")


def test_words_of_others_are_masked() -> None:
    url = "postgresql://me:p%20ss@db/x?sslpassword=hunter2"
    said = "no login for me with 'p ss' (p%20ss), hunter2; see https://u:pw@h/d and a.b/c?"
    shown = "no login for me with '***' (***), ***; see https://u:***@h/d and a.b/c?"
    assert hide_secrets(said, url) == shown


def test_addresses_without_a_secret_stay_as_they_are() -> None:
    text = "Cannot use sqlite:////data/a%b c.db: see http://example.org/x:."
    assert hide_secrets(text, "sqlite:////data/a%b c.db") == text


def test_a_long_word_is_read_once() -> None:
    """Tried from every letter, this would take hours."""
    word = "a" * 1_000_000
    assert hide_secrets(f"{word} x://u:hunter2@h") == f"{word} x://u:***@h"
