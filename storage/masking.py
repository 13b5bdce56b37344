"""Database URLs as they may be shown: without what opens the database."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

MASK: Final = "***"

# Of all else that drivers take as a parameter, a secret may be the value.
_HARMLESS: Final = frozenset(
    ("application_name", "connect_timeout", "dbname", "host", "port", "sslmode")
)

# In texts that are no URL: better too much than too little.
_PASSWORD = re.compile(r"^([\w+.-]+:/+[^:/]*:|[^:/@]*:(?!//)).+@", re.DOTALL)
_PARAMETER = re.compile(r"([?&#;])([^=?&#;]*)=[^?&#;]*")
# Begins where a word does: to try every letter of a long one would take its square in time.
_IN_TEXT = re.compile(r"(?<![\w+.-])[\w+.-]+:/+[^\s'\"`]+")


def mask_url(url: str) -> str:
    """Return the URL with its password, and parameters that may be secret, as ``***``."""
    # An argument that is no UTF-8 has characters that no URL can be written with.
    url = url.encode(errors="backslashreplace").decode()
    parsed = _parsed(url)
    if parsed is None:
        return _masked_as_text(url)
    secret = {key: MASK for key in parsed.query if key not in _HARMLESS}
    masked = parsed.update_query_dict(secret).render_as_string(hide_password=True)
    return masked.replace("%2A%2A%2A", MASK)


def hide_secrets(text: str, url: str | None = None) -> str:
    """Return ``text`` with every URL in it masked, and what is secret in ``url`` wherever it is.

    For messages of others, which may quote what they were given.
    """
    for secret in () if url is None else _secrets(url):
        text = text.replace(secret, MASK)
    return _IN_TEXT.sub(lambda found: _masked_as_text(found[0]), text)


def _secrets(url: str) -> list[str]:
    """Return what may not be shown of a URL, as written there and as meant, the longest first."""
    parsed = _parsed(url)
    if parsed is None:
        return []
    values = [str(parsed.password or "")]
    for key, value in parsed.query.items():
        if key not in _HARMLESS:
            values.extend([value] if isinstance(value, str) else value)
    # Of one or two characters the text would be full.
    spelt = {each for value in values for each in _spellings(value) if len(each) > 2}
    return sorted(spelt, key=len, reverse=True)


def _spellings(value: str) -> tuple[str, ...]:
    return value, quote(value, safe=""), quote(value, safe=" +")


def _parsed(url: str) -> URL | None:
    """Return the parsed URL; None for what is none, or has a password that ends at its first @."""
    if url.count("@") > 1:
        return None
    try:
        return make_url(url)
    except (ArgumentError, ValueError):  # ValueError: a port that is no number.
        return None


def _masked_as_text(url: str) -> str:
    """Leave all else as it is written: a full stop or a bracket may follow."""
    return _PARAMETER.sub(_masked_parameter, _PASSWORD.sub(rf"\1{MASK}@", url))


def _masked_parameter(found: re.Match[str]) -> str:
    sign, key = found[1], found[2]
    return found[0] if key in _HARMLESS else f"{sign}{key}={MASK}"
