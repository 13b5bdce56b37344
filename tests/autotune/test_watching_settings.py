from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autotune.errors import UsageError
from autotune.settings import load_settings
from autotune.watching_settings import is_webhook, words_of_command

GIVEN = {"model": "tiny", "trace": "small.jsonl"}


def test_what_follows_a_study_can_be_given() -> None:
    settings = load_settings(
        None,
        {
            **GIVEN,
            "status_file": "s.json",
            "log_file": "night.log",
            "notify": "tell 'the room' --now",
            "notify_url": "https://me:s3cret@example.com/hook",
        },
    )
    assert (settings.status_file, settings.log_file) == (Path("s.json"), Path("night.log"))
    assert words_of_command(settings.notify or "") == ["tell", "the room", "--now"]
    assert "s3cret" not in repr(settings)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"status_file": ""}, "--status-file: must name a file"),
        ({"log_file": "a\nb"}, "--log-file: must be without control characters"),
        ({"log_format": "xml"}, "--log-format: must be 'text' or 'json'"),
        ({"log_keep": 0}, "--log-keep: must be at least 1"),
        ({"notify": "it's"}, "--notify: must name a command"),
        ({"notify": "  "}, "--notify: must name a command"),
        ({"notify_url": "ftp://s3cret"}, "--notify-url: must be an http or https URL"),
    ],
)
def test_what_cannot_be_meant_is_refused_and_no_secret_shown(
    wrong: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError) as caught:
        load_settings(None, {**GIVEN, **wrong})
    assert caught.value.message.startswith(said)
    assert "s3cret" not in caught.value.message


@pytest.mark.parametrize(
    ("url", "usable"),
    [
        ("https://example.com/hook?a=b", True),
        ("http://[::1]:8080", True),
        ("https://", False),
        ("http://example.com:0/", False),
        ("http://example.com:port/", False),
        ("http://exa mple.com/", False),
        ("http://example.com/\n", False),
        ("http://exämple.com/", False),
        ("file:///etc/passwd", False),
    ],
)
def test_what_can_be_posted_to(url: str, usable: bool) -> None:
    assert is_webhook(url) is usable
