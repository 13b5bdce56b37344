from __future__ import annotations

from pathlib import Path

import pytest

from autotune.errors import TraceError
from autotune.traffic.formats import FORMATS, detect
from tests.autotune.traffic.examples import AZURE_CONVERSATION, MOONCAKE


@pytest.mark.shared
@pytest.mark.parametrize(("path", "name"), [(AZURE_CONVERSATION, "azure"), (MOONCAKE, "native")])
def test_recorded_traces_are_recognised(path: Path, name: str) -> None:
    assert detect(path).name == name


def test_readers_are_found_by_their_names() -> None:
    assert {name: reader.name for name, reader in FORMATS.items()} == {
        name: name for name in FORMATS
    }


@pytest.mark.parametrize("content", [b"", b"\n \n", b"\xef\xbb\xbf"])
def test_an_empty_file_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=r"a\.jsonl: the file is empty"):
        detect(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"a\.jsonl: No such file"):
        detect(tmp_path / "a.jsonl")


def test_an_unknown_form_lists_the_known(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("some words\n")
    with pytest.raises(TraceError, match=r"a\.txt:1: no known trace format") as caught:
        detect(path)
    assert "native, mooncake, azure" in caught.value.hint
