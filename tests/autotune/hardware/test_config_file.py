from __future__ import annotations

import sys
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub.errors import (
    HfHubHTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
)

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


@pytest.mark.parametrize("name", ["x" * 5000, "a b", "nul\0byte"])
def test_what_can_be_no_name_is_a_fault(name: str) -> None:
    with pytest.raises(EnvironmentFault, match="the hub has no such names"):
        load_config(name)


def test_no_name_is_no_model() -> None:
    with pytest.raises(UsageError, match="no name"):
        load_config(" ")


class Hub:
    """A hub that answers or fails, with a cache that has a file or not."""

    def __init__(self, *, answer: Exception | None = None, cached: Path | None = None) -> None:
        self._answer = answer
        self._cached = cached
        self.asked: list[str] = []
        self.downloaded: list[tuple[str, str, bool]] = []

    def metadata(self, url: str) -> None:
        self.asked.append(url)
        if self._answer is not None:
            raise self._answer

    def download(self, model: str, name: str, *, local_files_only: bool) -> str:
        self.downloaded.append((model, name, local_files_only))
        if self._cached is None:
            raise LocalEntryNotFoundError("not in the cache")
        return str(self._cached)


def with_hub(monkeypatch: pytest.MonkeyPatch, hub: Hub) -> Hub:
    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", hub.metadata)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", hub.download)
    return hub


NO_NETWORK = type("ConnectError", HfHubHTTPError.__bases__[:1], {})("no route to host")


def test_the_hub_is_asked_once_for_what_is_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder_with(tmp_path, '{"model_type": "llama"}')
    hub = with_hub(monkeypatch, Hub(cached=tmp_path / "config.json"))
    assert load_config("org/model") == {"model_type": "llama"}
    assert [url.endswith("/org/model/resolve/main/config.json") for url in hub.asked] == [True]
    assert hub.downloaded == [("org/model", "config.json", False)]


@pytest.mark.parametrize("answer", [NO_NETWORK, OfflineModeIsEnabled("offline")])
def test_where_the_hub_does_not_answer_its_cache_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Exception
) -> None:
    folder_with(tmp_path, '{"model_type": "llama"}')
    hub = with_hub(monkeypatch, Hub(answer=answer, cached=tmp_path / "config.json"))
    assert load_config("org/model") == {"model_type": "llama"}
    assert hub.downloaded == [("org/model", "config.json", True)]
    assert load_config("org/model", ask_hub=False) == {"model_type": "llama"}
    assert len(hub.asked) == 1


def test_what_neither_hub_nor_cache_has_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = with_hub(monkeypatch, Hub(answer=NO_NETWORK))
    with pytest.raises(EnvironmentFault, match="in the hub's cache or to be had") as caught:
        load_config("org/model")
    assert "HF_TOKEN" in caught.value.hint
    assert len(hub.asked) == 1


@pytest.mark.parametrize(
    "name", ["./none", "/none", "../none/x", "~/none", "none/", "here/none", "a/b/c"]
)
def test_the_hub_is_not_asked_for_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("here").mkdir()
    hub = with_hub(monkeypatch, Hub())
    with pytest.raises(EnvironmentFault, match="there is no folder") as caught:
        load_config(name)
    assert "check the path" in caught.value.hint
    assert hub.asked == []


def test_without_the_hubs_library_a_folder_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(EnvironmentFault, match="no huggingface_hub here"):
        load_config("org/model")
