"""A fresh database file for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from storage.repository import Repository, open_repository


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'study.db'}"


@pytest.fixture
def repository(url: str) -> Iterator[Repository]:
    with open_repository(url) as opened:
        yield opened
