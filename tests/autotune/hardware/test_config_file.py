from __future__ import annotations

import json
import sys
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

from autotune.errors import EnvironmentFault, UsageError
from autotune.hardware.config_file import load_config
from autotune.user_files import MAX_BYTES


def folder_with(folder: Path, text: str) -> str:
    (folder / "config.json").write_text(text, encoding="utf-8")
    return str(folder)


def test_a_folder_is_read(tmp_path: Path) -> None:
    assert load_config(folder_with(tmp_path, '{"model_type": "llama"}')) == {"model_type": "llama"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no valid JSON"),
        ('{"model_type": "ll', "no valid JSON"),
        ("[" * 100_000, "no valid JSON"),
        ("[1, 2]", "no JSON object"),
        (" " * (MAX_BYTES + 1), "larger than 16 MiB"),
    ],
)
def test_what_is_no_config_is_a_fault(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(EnvironmentFault, match=message) as caught:
        load_config(folder_with(tmp_path, text))
    assert caught.value.hint


def test_bytes_that_are_no_text_are_a_fault(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b"\xff\xfe{}")
    with pytest.raises(EnvironmentFault, match="no valid JSON"):
        load_config(str(tmp_path))


def test_a_folder_without_a_config_is_a_fault(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match=r"has no config\.json") as caught:
        load_config(str(tmp_path))
    assert caught.value.hint == "is it the folder of a model?"


def test_a_file_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match="is a file"):
        load_config(str(Path(folder_with(tmp_path, "{}")) / "config.json"))


@pytest.mark.parametrize("name", ["x" * 5000, "a/b/c/d", "nul\0byte"])
def test_what_can_be_no_name_is_a_fault(name: str) -> None:
    with pytest.raises(EnvironmentFault, match="the hub has no such names"):
        load_config(name)


def test_no_name_is_no_model() -> None:
    with pytest.raises(UsageError, match="no name"):
        load_config(" ")


def test_the_hub_is_asked_for_what_is_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "llama"}), encoding="utf-8")
    asked = []

    def download(model: str, name: str) -> str:
        asked.append((model, name))
        return str(path)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    assert load_config("org/model") == {"model_type": "llama"}
    assert asked == [("org/model", "config.json")]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (LocalEntryNotFoundError("not in the cache"), "in the hub's cache"),
        (HFValidationError("two slashes"), "the hub has no such names"),
    ],
)
def test_what_the_hub_does_not_have_is_a_fault(
    monkeypatch: pytest.MonkeyPatch, error: Exception, message: str
) -> None:
    def download(model: str, name: str) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    with pytest.raises(EnvironmentFault, match=message) as caught:
        load_config("org/model")
    assert caught.value.hint


def test_without_the_hubs_library_a_folder_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(EnvironmentFault, match="no huggingface_hub here"):
        load_config("org/model")
