from __future__ import annotations

import sys
from importlib.metadata import entry_points

import pytest

from autotune.engine.capture_plugin import offer_stat_logger

GROUP = "vllm.stat_logger_plugins"


@pytest.fixture(autouse=True)
def _finders_are_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))


def ours() -> list[str]:
    return [each.value for each in entry_points(group=GROUP) if "autotune" in each.value]


def test_the_stat_logger_is_offered_where_it_is_asked_for() -> None:
    offer_stat_logger({"AUTOTUNE_CAPTURE": "folder"})
    offer_stat_logger({"AUTOTUNE_CAPTURE": "folder"})
    assert ours() == ["autotune.engine.stat_logger:CaptureStatLogger"]


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"AUTOTUNE_CAPTURE": ""},
        # What a study replays is not captured.
        {"AUTOTUNE_CAPTURE": "folder", "AUTOTUNE_ENGINE_HOST": "1"},
    ],
)
def test_vllm_finds_nothing_elsewhere(environ: dict[str, str]) -> None:
    offer_stat_logger(environ)
    assert ours() == []
