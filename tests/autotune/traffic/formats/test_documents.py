from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.errors import TraceError
from autotune.traffic.formats import base, documents
from autotune.traffic.formats.base import BadLine
from autotune.traffic.formats.documents import as_row, json_values, kind_of, table_rows
from autotune.traffic.formats.outline import outline

VALUES = st.lists(
    st.dictionaries(
        st.text(max_size=4),
        st.integers() | st.text(max_size=9) | st.lists(st.floats(allow_nan=False), max_size=3),
        max_size=3,
    ),
    max_size=6,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.json"


@pytest.fixture
def tiny_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "_CHUNK_BYTES", 3)


@settings(max_examples=60)
@given(VALUES, st.sampled_from([None, 1]), st.integers(1, 40))
def test_a_list_is_read_whatever_its_layout_and_the_chunks(
    tmp_path_factory: pytest.TempPathFactory, values: list[object], indent: int | None, chunk: int
) -> None:
    path = tmp_path_factory.mktemp("list") / "a.json"
    path.write_text(json.dumps(values, indent=indent, ensure_ascii=False))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documents, "_CHUNK_BYTES", chunk)
        assert [value for _, value in json_values(path)] == values


@pytest.mark.usefixtures("tiny_chunks")
def test_elements_know_their_lines(path: Path) -> None:
    path.write_text('\n[\n  {"a": 1},\n  {\n    "b": 2\n  },\n  12345\n]\n')
    assert list(json_values(path)) == [(3, {"a": 1}), (4, {"b": 2}), (7, 12345)]


@pytest.mark.usefixtures("tiny_chunks")
def test_documents_may_follow_one_another(path: Path) -> None:
    path.write_text('{"a": 1}\n{"a": "ü"}{"a": 3}')
    assert [value["a"] for _, value in json_values(path)] == [1, "ü", 3]


@pytest.mark.usefixtures("tiny_chunks")
@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ('[\n{"a": 1},\n{"a": SECRET}\n]', 3, "invalid JSON: expecting value"),
        ('[\n{"a": "SECRET', 2, "invalid JSON: unterminated string"),
        ('[{"a": 1}, {"a"', 1, "invalid JSON"),
        ("[" + '{"a":' * 100_000, 1, "invalid JSON: nested too deeply"),
        ('[{"a": ' + "9" * 5000 + "}]", 1, "thousands of digits"),
    ],
)
def test_what_is_no_json_is_named_by_its_line_and_not_quoted(
    path: Path, text: str, line: int, reason: str
) -> None:
    path.write_text(text)
    with pytest.raises(TraceError) as caught:
        list(json_values(path))
    assert caught.value.message.startswith(f"{path}:{line}: ")
    assert reason in caught.value.message
    assert "SECRET" not in caught.value.message + caught.value.hint


def test_bytes_that_are_no_text_are_named(path: Path) -> None:
    path.write_bytes(b'[\n"\xff"]')
    with pytest.raises(TraceError, match="not UTF-8"):
        list(json_values(path))


def test_a_value_without_an_end_is_not_read_into_memory(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "MAX_VALUE_CHARACTERS", 2**20)
    path.write_text('["' + "x" * 2**22)
    with pytest.raises(TraceError, match="a JSON value of more than"):
        list(json_values(path))


@pytest.mark.parametrize(
    "text",
    [
        '[{"a": "1"}, {"a": "2"}]',
        '{"a": "1"}\n\n{"a": "2"}\n',
        '{\n"a": "1"\n}\n{\n"a": "2"\n}',
        '{"data": [{"a": "1"}, {"a": "2"}], "total": 2}',
        '\ufeffa,b\n1,"x\ny"\n\n2,\n',
    ],
)
def test_a_table_is_a_list_lines_documents_or_csv(path: Path, text: str) -> None:
    path.write_text(text)
    assert [row["a"] for _, row in table_rows(path, wrapped_in=("data",))] == ["1", "2"]


def test_bad_lines_are_passed_on_to_be_counted(path: Path) -> None:
    path.write_bytes(b'{"a": 1}\n{"a": \n\xff{}\n' + b"[" * 100_000 + b"\n")
    rows = [row for _, row in table_rows(path)]
    assert rows[0] == {"a": 1}
    assert all(isinstance(row, BadLine) for row in rows[1:])
    with pytest.raises(BadLine, match="invalid JSON"):
        as_row(rows[1])


def test_cells_must_fit_the_header(path: Path) -> None:
    path.write_text("a,b\n1\n")
    with pytest.raises(BadLine, match="1 columns instead of 2"):
        as_row(next(table_rows(path))[1])
    path.write_text('a,b\n"1"x,2\n')
    with pytest.raises(TraceError, match="is no CSV"):
        list(table_rows(path))
    path.write_bytes(b"a,b\n\xff,2\n")
    with pytest.raises(TraceError, match="not UTF-8"):
        list(table_rows(path))


@pytest.mark.parametrize(
    ("value", "words"),
    [("abc", "a text of 3 characters"), (True, "true or false"), (1.5, "a number"),
     ([], "a list"), ({}, "an object"), (None, "null")],
)  # fmt: skip
def test_a_value_is_described_and_not_quoted(value: object, words: str) -> None:
    assert kind_of(value) == words


def test_a_list_on_one_line_may_be_longer_than_a_line(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "MAX_LINE_BYTES", 100)
    path.write_text(json.dumps([{"a": "x" * 80}] * 9))
    assert outline(base.first_lines(path)).keys == {"a"}
    assert len(list(table_rows(path))) == 9
    path.write_text(json.dumps({"data": [{"a": "x" * 80}] * 9}))
    assert len(list(table_rows(path, wrapped_in=("data",)))) == 9
