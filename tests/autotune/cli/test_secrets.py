"""A secret in a database URL is shown nowhere, whatever is wrong with the URL."""

from __future__ import annotations

import pytest

from storage import database
from tests.autotune.cli.conftest import Autotune

PLANTED = "hunter2"
URLS = (
    f"postgresql+nodriver://me:{PLANTED}@[::1]:5432/x",
    f"postgresql+nodriver://me@db/x?sslpassword={PLANTED}",
    f"postgresql://me:a@{PLANTED}@db:port/x",
    f"postgresql://me:%40{PLANTED}/%@db:port/x?token={PLANTED}",
    f"postgresql:/me:{PLANTED}@db/x",
    f"mysql://me@corp:{PLANTED}@db/x",
    f"sqlite:///study.db?key={PLANTED}",
    f"me:{PLANTED}@db/x",
)
TUNE = ("tune", "--model", "demo:tiny-llama", "--trace", "demo:mixed")
COMMANDS = (("best",), ("studies", "--format", "json"), (*TUNE, "--dry-run"))


@pytest.mark.parametrize("url", URLS)
def test_a_planted_secret_never_appears(autotune: Autotune, url: str) -> None:
    said = []
    for command in COMMANDS:
        for arguments in ((*command, "--storage", url), ("--debug", *command, f"--storage={url}")):
            ran = autotune(*arguments)
            assert (ran.code, ran.out) == (4, "")
            said.append(ran.err)
    assert [text for text in said if PLANTED in text] == []
    assert all(text.splitlines()[-1].startswith("hint: ") for text in said)


@pytest.mark.parametrize("url", [url for url in URLS if ":/" in url])
def test_nor_where_no_url_belongs(autotune: Autotune, url: str) -> None:
    for arguments in ((url,), ("best", url), ("show", f"--stroage={url}", url)):
        ran = autotune(*arguments)
        assert (ran.code, ran.out) == (2, "")
        assert PLANTED not in ran.err


def test_nor_from_the_environment(autotune: Autotune, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPTUNA_STORAGE", URLS[0])
    ran = autotune("--debug", "studies")
    assert ran.code == 4
    assert "Traceback" in ran.err
    assert PLANTED not in ran.err


def test_nor_in_the_words_of_a_driver(autotune: Autotune, monkeypatch: pytest.MonkeyPatch) -> None:
    def speak(*_: object, **__: object) -> None:
        raise ValueError(f"no login with {PLANTED}")

    monkeypatch.setattr(database, "create_engine", speak)
    ran = autotune("--debug", "studies", "--storage", f"postgresql://me:{PLANTED}@db/x")
    assert ran.code == 4
    assert "ValueError: no login with ***" in ran.err
    assert PLANTED not in ran.err
