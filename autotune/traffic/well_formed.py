"""Text that a trace can hold."""

from __future__ import annotations


def well_formed(text: str) -> str:
    """Return a text whose halves of characters, which JSON allows, are none any more.

    Two that follow each other become their character, as in a stream that was cut between them.
    One that is alone becomes a mark.
    """
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
