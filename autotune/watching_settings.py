"""The settings of who follows a study that nobody sits before."""

from __future__ import annotations

import shlex
import unicodedata
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, Field, field_validator

LogFormat = Literal["text", "json"]
"""Of the lines of a log file."""


class WatchingSettings(BaseModel):
    """Part of ``TuneSettings``; none of it belongs to a study's fingerprint.

    Attributes:
        status_file: where the study says how far it is; None for ``status.json`` in its own folder
            within ``log_folder``.
        log_file: what the study says is written there too; None for nowhere.
        log_format: of its lines.
        log_rotate_bytes: size beyond which it is moved away and begun anew.
        log_keep: how many of those moved away are kept.
        notify: a command that is run at events, without a shell; None for none.
        notify_url: an http or https URL that events are posted to; None for none. May hold a
            secret.
    """

    status_file: Path | None = None
    log_file: Path | None = None
    log_format: LogFormat = "text"
    log_rotate_bytes: int = Field(default=10_000_000, ge=1_000)
    log_keep: int = Field(default=5, ge=1, le=1_000)
    notify: str | None = None
    notify_url: str | None = Field(default=None, repr=False)

    @field_validator("status_file", "log_file", mode="before")
    @classmethod
    def _a_file(cls, path: object) -> object:
        # As a path it would be the current folder.
        if path == "":
            raise ValueError("must name a file")
        # YAML's escapes can write what no file has in its name.
        if any(unicodedata.category(each) == "Cc" for each in str(path)):
            raise ValueError("must be without control characters")
        return path

    @field_validator("notify")
    @classmethod
    def _a_command(cls, command: str | None) -> str | None:
        if command is not None and not words_of_command(command):
            raise ValueError("must name a command, quoted as for a shell")
        return command

    @field_validator("notify_url")
    @classmethod
    def _a_webhook(cls, url: str | None) -> str | None:
        if url is not None and not is_webhook(url):
            raise ValueError("must be an http or https URL")
        return url


def words_of_command(command: str) -> list[str]:
    """Return a command as a shell would split it, nothing if it cannot be split."""
    try:
        return shlex.split(command)
    except ValueError:
        return []


def is_webhook(url: str) -> bool:
    """Whether messages can be posted to a URL."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return False
    plain = url.isascii() and url.isprintable() and " " not in url
    return plain and parts.scheme in ("http", "https") and bool(parts.hostname) and port != 0
