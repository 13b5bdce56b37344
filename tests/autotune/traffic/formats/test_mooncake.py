from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.errors import TraceError
from autotune.traffic.formats import mooncake, native
from autotune.traffic.trace import load_trace, save_trace
from tests.autotune.traffic.examples import MOONCAKE, request, trace

GOOD = '{"timestamp": 27482, "input_length": 600, "output_length": 52, "hash_ids": [46, 47]}'


def written(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(lines))
    return path


@pytest.mark.shared
def test_it_reads_what_native_infers() -> None:
    assert mooncake.read(MOONCAKE) == native.read(MOONCAKE)


@pytest.mark.shared
def test_a_recorded_trace_is_saved_and_loaded(tmp_path: Path) -> None:
    recorded = load_trace(MOONCAKE, format="mooncake")
    save_trace(recorded, tmp_path / "a.jsonl")
    assert load_trace(tmp_path / "a.jsonl") == recorded


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 10**8), st.integers(1, 5000)), min_size=1, max_size=6))
def test_what_is_saved_is_read(rows: list[tuple[int, int]]) -> None:
    requests = [
        request(at_ms / 1e3, prompt=tokens, hash_ids=tuple(range(-(-tokens // 512))))
        for at_ms, tokens in rows
    ]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.jsonl"
        save_trace(trace(*requests), path)
        assert mooncake.read(path).requests == load_trace(path).requests


def test_nothing_is_inferred(tmp_path: Path) -> None:
    short = '{"timestamp": 0, "input_length": 16, "output_length": 5, "hash_ids": [1]}'
    assert mooncake.read(written(tmp_path, short)).meta.block_size == 512
    blocks_of_16 = '{"timestamp": 0, "input_length": 32, "output_length": 5, "hash_ids": [1, 2]}'
    assert native.read(written(tmp_path, blocks_of_16)).meta.block_size == 16
    with pytest.raises(TraceError, match=r"a\.jsonl:1: hash_ids: 2 ids for 32 prompt tokens"):
        mooncake.read(written(tmp_path, blocks_of_16))


def test_every_row_needs_its_ids(tmp_path: Path) -> None:
    bare = '{"timestamp": 0, "input_length": 600, "output_length": 5}'
    with pytest.raises(TraceError, match=r"a\.jsonl:3: hash_ids: field required") as caught:
        mooncake.read(written(tmp_path, GOOD, "", bare))
    assert "--format native" in caught.value.hint


def test_a_description_is_not_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    save_trace(trace(request(0.0, prompt=600, hash_ids=(1, 2))), path)
    path.write_text(GOOD)
    assert mooncake.read(path).meta.source == "a.jsonl"
