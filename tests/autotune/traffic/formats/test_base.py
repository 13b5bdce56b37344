from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from autotune.errors import TraceError
from autotune.traffic.formats import base
from autotune.traffic.formats.base import BadLine, numbered_lines, parsed_lines, shown
from autotune.traffic.trace import load_trace

GOOD = b'{"timestamp": 0, "input_length": 600, "output_length": 5}\n'


def refused(path: Path) -> TraceError:
    with pytest.raises(TraceError) as caught:
        load_trace(path)
    assert caught.value.exit_code == 2
    assert caught.value.message.startswith(str(path))
    assert caught.value.hint
    return caught.value


@pytest.mark.parametrize(
    ("content", "what", "hint"),
    [
        (gzip.compress(GOOD, mtime=0), "is compressed with gzip", "gunzip -k "),
        (b"BZh91AY", "is compressed with bzip2", "bunzip2 -k "),
        (b"\xfd7zXZ\x00\x00", "is compressed with xz", "xz -dk "),
        (b"\x28\xb5\x2f\xfd\x00", "is compressed with zstd", "zstd -d "),
        (b"PK\x03\x04\x14", "is a zip archive", "unzip"),
        (b"PAR1\x15", "is a Parquet file", "JSON Lines"),
        ("{}".encode("utf-16"), "is in UTF-16", "iconv -f UTF-16"),
        (b"SQLite format 3\x00", "is a binary file", "UTF-8"),
        (b"", "the file is empty", "demo:mixed"),
        (b"\xef\xbb\xbf\r\n \n", "the file is empty", "demo:mixed"),
    ],
)
def test_what_is_no_text_is_named(tmp_path: Path, content: bytes, what: str, hint: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)
    error = refused(path)
    assert what in error.message
    assert hint in error.hint


def test_a_folder_and_a_device_are_no_trace(tmp_path: Path) -> None:
    assert refused(tmp_path).message.endswith(": is a folder")
    assert refused(Path("/dev/zero")).message.endswith(": is no regular file")


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.jsonl")
    assert refused(tmp_path / "a.jsonl").message.endswith(": is no regular file")


def test_a_description_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(GOOD)
    os.mkfifo(tmp_path / "a.meta.json")
    with pytest.raises(TraceError, match=r"a\.meta\.json: is no regular file"):
        load_trace(path)


@pytest.mark.parametrize("name", ["a\0b", "x" * 300])
def test_no_name_of_a_file(tmp_path: Path, name: str) -> None:
    refused(tmp_path / name)


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(GOOD)

    def denied(_path: Path, _mode: str) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", denied)
    assert refused(path).message.endswith("a.jsonl: Permission denied")


def test_a_line_without_an_end_is_not_read_into_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "MAX_LINE_BYTES", 2**20)
    path = tmp_path / "a.jsonl"
    path.write_bytes(GOOD + b"[" * (2**20 + 1))
    assert refused(path).message.endswith("a.jsonl:2: the line is longer than 1 MiB")


def test_lines_keep_their_numbers(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbf a \r\n\r\n\nb")
    assert list(numbered_lines(path)) == [(1, b"a"), (4, b"b")]


def test_the_first_bad_line_is_named_and_all_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"1\nx\n\n\xff\n" + b"2\n" * 1200)

    def parse(text: str) -> int:
        if not text.isdigit():
            raise BadLine("no digits", hint="write digits")
        return int(text)

    found = []
    with pytest.raises(TraceError) as caught:
        for each in parsed_lines(path, numbered_lines(path), parse):
            found.append(each)  # noqa: PERF402  # It ends with an error.
    assert found == [(1, 1)]
    assert caught.value.message == f"{path}:2: no digits; 2 of 1,203 lines cannot be read"
    assert caught.value.hint == "write digits"


def test_what_is_quoted_is_short_and_cannot_drive_a_terminal() -> None:
    assert shown("a\x1b[31mé\n") == r"'a\x1b[31m\xe9\n'"
    assert shown("x" * 99) == f"'{'x' * 40}'…"
