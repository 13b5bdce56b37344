from __future__ import annotations

import hashlib
import json
import os
import stat
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.errors import EnvironmentFault, TraceError, UsageError
from autotune.traffic.formats.native import meta_path
from autotune.traffic.model import Trace, TraceRequest
from autotune.traffic.recording import Gap, Recording
from autotune.traffic.trace import load_trace, save_trace
from tests.autotune.traffic.examples import request, trace

COUNTS = st.integers(1, 10_000_000)
MAYBE_COUNTS = st.none() | COUNTS


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    block_size = draw(st.sampled_from([16, 100, 512]))
    requests = []
    for _ in range(draw(st.integers(1, 8))):
        tokens = draw(st.integers(1, 2000))
        blocks = -(-tokens // block_size)
        ids = draw(
            st.lists(st.integers(0, 2**63 - 1), min_size=blocks, max_size=blocks).map(tuple)
        )
        requests.append(
            TraceRequest(
                draw(st.floats(0, 1e9, allow_nan=False)),
                tokens,
                draw(COUNTS),
                ids,
                max_tokens=draw(MAYBE_COUNTS),
                priority=draw(st.none() | st.integers(-9, 9)),
                cached_tokens=draw(st.none() | st.integers(0, 100)),
                model=draw(st.none() | st.text(st.characters(codec="utf-8"), max_size=8)),
            )
        )
    return Trace.build(
        requests,
        block_size=block_size,
        prefixes_known=draw(st.booleans()),
        source=draw(st.text(st.characters(codec="utf-8"), max_size=8)),
        captured_at=draw(st.sampled_from([None, "2024-05-10T00:00:00.009930+00:00"])),
        with_text=draw(st.booleans()),
    )


@settings(max_examples=40)
@given(traces())
def test_what_is_saved_is_loaded(given_trace: Trace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.jsonl"
        save_trace(given_trace, path)
        assert load_trace(path) == given_trace
        assert hashlib.sha256(path.read_bytes()).hexdigest() == given_trace.sha256


def test_files_are_private_and_lie_side_by_side(tmp_path: Path) -> None:
    save_trace(trace(request(0.0)), tmp_path / "a.jsonl")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.jsonl", "a.meta.json"]
    assert {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()} == {0o600}
    assert json.loads((tmp_path / "a.meta.json").read_text()) == {
        "version": 1,
        "block_size": 512,
        "prefixes_known": True,
        "source": "test",
        "captured_at": None,
        "requests": 1,
        "sha256": trace(request(0.0)).sha256,
        "with_text": False,
    }


def test_a_failed_write_leaves_the_old_file_and_no_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.jsonl"
    old = trace(request(0.0))
    save_trace(old, path)

    def no_space(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", no_space)
    with pytest.raises(EnvironmentFault, match="cannot be written: No space left on device"):
        save_trace(trace(request(1.0)), path)
    monkeypatch.undo()
    assert load_trace(path) == old
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("name", ["a.txt", "a", "a.JSONL", "a.jsonl.old", ".jsonl"])
def test_a_description_belongs_to_one_trace(tmp_path: Path, name: str) -> None:
    path, other = tmp_path / "a.jsonl", tmp_path / name
    save_trace(trace(request(0.0)), path)
    with pytest.raises(TraceError, match=r"does not end in \.jsonl") as caught:
        save_trace(trace(request(1.0)), other)
    assert caught.value.hint == f"write to {name}.jsonl"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.jsonl", "a.meta.json"]
    # Other traffic beside it is read without that description.
    other.write_bytes(request(1.0).to_line().encode())
    assert load_trace(other).meta.source == name
    assert load_trace(path) == trace(request(0.0))


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be written: there is no folder") as caught:
        save_trace(trace(request(0.0)), tmp_path / "nowhere" / "a.jsonl")
    assert "folder" in caught.value.hint


@pytest.mark.parametrize("name", ["a.jsonl", "a.meta.json"])
def test_a_pipe_is_not_replaced(tmp_path: Path, name: str) -> None:
    pipe = tmp_path / name
    os.mkfifo(pipe)
    with pytest.raises(TraceError, match=rf"{name}: is no regular file"):
        save_trace(trace(request(0.0)), tmp_path / "a.jsonl")
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert list(tmp_path.iterdir()) == [pipe]


@pytest.mark.parametrize("target", ["pipe", "a.jsonl"])
def test_a_link_to_no_regular_file_is_not_replaced(tmp_path: Path, target: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    link = tmp_path / "a.jsonl"
    link.symlink_to(tmp_path / target)
    with pytest.raises(TraceError, match=r"a\.jsonl: is no regular file"):
        save_trace(trace(request(0.0)), link)
    assert link.is_symlink()
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("exists", [True, False])
def test_a_link_stays_one_and_its_target_is_written(tmp_path: Path, exists: bool) -> None:
    target = tmp_path / "there" / "b.jsonl"
    target.parent.mkdir()
    if exists:
        save_trace(trace(request(0.0), request(1.0)), target)
    link = tmp_path / "a.jsonl"
    link.symlink_to(target)
    saved = trace(request(0.0))
    save_trace(saved, link)
    assert link.is_symlink()
    assert list(tmp_path.glob("*.json*")) == [link]
    assert load_trace(link) == load_trace(target) == saved
    assert load_trace(link).meta.source == "test"


def test_a_description_of_other_traffic_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    save_trace(trace(request(0.0), request(1.0)), path)
    path.write_text(path.read_text().splitlines()[0] + "\n")
    with pytest.raises(TraceError, match=r"a\.meta\.json describes other traffic than a\.jsonl"):
        load_trace(path)
    meta_path(path).unlink()
    assert load_trace(path).meta.requests == 1


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "EOF"),
        ("[]", "object"),
        ('{"version": 2}', "version: must be 1"),
        ('{"version": 1, "colour": "red"}', "block_size: field required"),
    ],
)
def test_a_broken_description_is_named(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "a.jsonl"
    save_trace(trace(request(0.0)), path)
    meta_path(path).write_text(text)
    with pytest.raises(TraceError, match=rf"a\.meta\.json: .*{reason}"):
        load_trace(path)


def test_format_can_be_named(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    save_trace(trace(request(0.0)), path)
    assert load_trace(path, format="native").meta.requests == 1
    with pytest.raises(TraceError, match=r"a\.jsonl:1: the header"):
        load_trace(path, format="azure")
    with pytest.raises(UsageError, match="unknown trace format 'nativ'") as caught:
        load_trace(path, format="nativ")
    assert caught.value.hint == "did you mean 'native'?"


def test_what_a_recorder_says_is_kept(tmp_path: Path) -> None:
    gap = Gap(start_ms=-5.0, end_ms=1500.0, requests=3, reason="the queue was full")
    captured = Trace.build(
        [
            replace(request(0.0), outcome="cancelled", ttft_ms=5.5, e2e_ms=9.0, estimated=True),
            replace(request(0.007), prompt_text="Why?", output_text="Because."),
        ],
        block_size=512,
        prefixes_known=True,
        prefixes_estimated=True,
        source="capture",
        with_text=True,
        gaps=(gap,),
        recording=Recording(by="proxy", completed=1, cancelled=1, failed=2, without_tokens=2),
    )
    save_trace(captured, tmp_path / "a.jsonl")
    loaded = load_trace(tmp_path / "a.jsonl")
    assert loaded == captured
    assert loaded.meta.prefixes == "estimated"
    assert loaded.notes.sentences() == [
        "Rows without prompt or output tokens, left out: 2.",
        "Requests that passed unrecorded while the trace was captured: 3.",
        "Requests with a length that was estimated: 1.",
    ]
    window = loaded.window(0.001, 0.01)
    assert window.meta.gaps == (replace(gap, start_ms=-6.0, end_ms=1499.0),)
    assert window.meta.recording == captured.meta.recording
    assert loaded.window(0, 0.001).meta.gaps[0].requests == 3


@pytest.mark.parametrize(
    ("known", "estimated", "prefixes"),
    [(True, False, "known"), (True, True, "estimated"), (False, False, "unknown")],
)
def test_prefixes_in_a_word(known: bool, estimated: bool, prefixes: str) -> None:
    meta = replace(trace(request(0.0)).meta, prefixes_known=known, prefixes_estimated=estimated)
    assert meta.prefixes == prefixes
