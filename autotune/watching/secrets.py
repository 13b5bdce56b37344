"""Texts without the secrets of the URLs that a study was given."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import SplitResult, unquote, urlsplit

from storage.masking import MASK, hide_secrets

_TELLING = 12
"""Characters from which a part of a webhook's path may be a secret and no word."""
_LEAST = 3


class Secrets:
    """Masks what must not be shown.

    Args:
        urls: of databases, models and traces; their passwords and parameters are secret.
        webhook: of which all but scheme and host is secret; None without one.
        tokens: secret as they are.
    """

    def __init__(
        self, urls: Iterable[str] = (), *, webhook: str | None = None, tokens: Iterable[str] = ()
    ) -> None:
        self._urls = tuple(url for url in urls if "://" in url)
        self._plain = {token: MASK for token in tokens if len(token) >= _LEAST}
        if webhook is not None:
            parts = urlsplit(webhook)
            self._plain |= dict.fromkeys(_of_webhook(parts), MASK)
            self._plain[webhook] = shown_url(webhook)

    def mask(self, text: str) -> str:
        """Return the text with every secret as ``***``."""
        for secret in sorted(self._plain, key=len, reverse=True):
            text = text.replace(secret, self._plain[secret])
        for url in self._urls:
            text = hide_secrets(text, url)
        return hide_secrets(text)


def shown_url(url: str) -> str:
    """Return a webhook's URL as it may be shown: its scheme and host."""
    parts = urlsplit(url)
    rest = f"/{MASK}" if parts.path.strip("/") or parts.query else ""
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{rest}"


def _of_webhook(parts: SplitResult) -> set[str]:
    words = [word for word in parts.path.split("/") if len(word) >= _TELLING]
    words += [part.rpartition("=")[2] for part in parts.query.split("&")]
    words += [parts.netloc.rpartition("@")[0], parts.password or "", parts.fragment]
    if len(parts.path) >= _TELLING:
        words.append(parts.path)
    spelt = {*words, *map(unquote, words)}
    return {word for word in spelt if len(word) >= _LEAST}
