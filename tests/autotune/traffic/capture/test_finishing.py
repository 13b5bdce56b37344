from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autotune.errors import TraceError
from autotune.traffic.capture.blocks import BlockHasher
from autotune.traffic.capture.finishing import (
    ChildFinisher,
    Finisher,
    build_trace,
    finish,
    main,
    trace_path,
)
from autotune.traffic.capture.part import Header, Missed, Part, PartFile
from autotune.traffic.capture.record import Record
from autotune.traffic.model import Trace
from autotune.traffic.recording import Gap
from autotune.traffic.trace import load_trace

HASHER = BlockHasher(b"s" * 32, pause=lambda: None)
HEADER = Header(by="proxy", block_size=16)


def record(at_s: float = 0.0, *, prompt: int | None = 20, output: int | None = 3) -> Record:
    return Record(
        arrival_s=1_700_000_000 + at_s,
        ending="completed",
        prompt_tokens=prompt,
        output_tokens=output,
        token_ids=() if prompt is None else HASHER.of_tokens(range(prompt)),
    )


def text_record(text: str, *, prompt: int | None, at_s: float = 0.0, model: str = "m") -> Record:
    return Record(
        arrival_s=1_700_000_000 + at_s,
        ending="completed",
        prompt_tokens=prompt,
        output_tokens=3,
        model=model,
        text_ids=HASHER.of_text(text.encode()),
        text_bytes=len(text),
    )


def built(*records: Record, gaps: tuple[Missed, ...] = (), torn: int = 0) -> Trace:
    part = Part(header=HEADER, records=list(records), gaps=list(gaps), torn=torn)
    trace = build_trace(part, name="a.part")
    assert trace is not None
    return trace


def written(folder: Path, *records: Record) -> Path:
    path = folder / "a.part"
    file = PartFile(path, HEADER)
    for each in records:
        file.append(each.to_line())
    file.close()
    return path


def test_a_recording_becomes_a_sorted_trace(tmp_path: Path) -> None:
    part = written(tmp_path, record(2.5), record(0.0005), record(1.0, output=7))
    trace = finish(part)
    assert trace == tmp_path / "a.jsonl"
    assert not part.exists()
    loaded = load_trace(trace)
    assert [each.timestamp_ms for each in loaded.requests] == [0.0, 999.5, 2499.5]
    assert loaded.meta.captured_at == "2023-11-14T22:13:20.000500+00:00"
    assert loaded.meta.source == "capture by proxy"
    assert (loaded.meta.prefixes, loaded.meta.block_size) == ("known", 16)
    assert loaded.notes.reordered == 0


def test_finishing_again_after_a_crash_gives_the_same(tmp_path: Path) -> None:
    unknown = replace(record(1.0), token_ids=())
    part = written(tmp_path, record(), unknown)
    kept = part.read_bytes()
    first = finish(part)
    assert first is not None
    before = first.read_bytes()
    part.write_bytes(kept)
    assert finish(part) == first
    assert first.read_bytes() == before


def test_endings_and_gaps_are_told() -> None:
    cancelled = Record(
        arrival_s=1_700_000_001.0,
        ending="cancelled",
        prompt_tokens=20,
        output_tokens=2,
        output_estimated=True,
        token_ids=HASHER.of_tokens(range(20)),
    )
    failed = Record(arrival_s=1_700_000_002.0, ending="failed")
    gap = Missed(start_s=1_700_000_003.0, end_s=1_700_000_004.5, requests=9, reason="why")
    trace = built(record(), cancelled, failed, gaps=(gap,), torn=2)
    told = trace.meta.recording
    assert told is not None
    assert (told.completed, told.cancelled, told.failed, told.torn) == (1, 1, 1, 2)
    assert (told.without_tokens, told.estimated_outputs) == (1, 1)
    assert trace.meta.gaps == (Gap(start_ms=3000.0, end_ms=4500.0, requests=9, reason="why"),)
    assert [each.outcome for each in trace.requests] == [None, "cancelled"]
    assert [each.estimated for each in trace.requests] == [None, True]


def test_prompts_are_estimated_by_the_ratio_of_their_model() -> None:
    trace = built(
        text_record("x" * 300, prompt=100),
        text_record("y" * 600, prompt=None, at_s=1),
        text_record("z" * 600, prompt=None, at_s=2, model="other"),
    )
    # 3 bytes to a token of the model that was counted, 4 elsewhere.
    assert list(trace.input_lengths) == [100, 200, 150]
    assert [each.estimated for each in trace.requests] == [None, True, True]
    assert trace.meta.prefixes == "estimated"
    told = trace.meta.recording
    assert told is not None
    assert (told.estimated_prompts, told.estimated_prefixes) == (2, 3)


def test_a_server_that_counts_otherwise_decides_the_length() -> None:
    ids = HASHER.of_tokens(range(64))
    longer = Record(
        arrival_s=1.0, ending="completed", prompt_tokens=100, output_tokens=1, token_ids=ids
    )
    shorter = Record(
        arrival_s=2.0, ending="completed", prompt_tokens=20, output_tokens=1, token_ids=ids
    )
    trace = built(longer, shorter)
    assert trace.requests[0].hash_ids[:4] == ids
    assert len(set(trace.requests[0].hash_ids)) == 7
    assert trace.requests[1].hash_ids == ids[:2]


def test_nothing_known_of_any_prefix_is_said() -> None:
    bare = [
        Record(arrival_s=float(n), ending="completed", prompt_tokens=20, output_tokens=2)
        for n in range(2)
    ]
    trace = built(*bare)
    assert trace.meta.prefixes == "unknown"
    assert set(trace.requests[0].hash_ids).isdisjoint(trace.requests[1].hash_ids)


def test_a_recording_without_tokens_makes_no_trace(tmp_path: Path) -> None:
    part = written(tmp_path, record(output=None), record(prompt=None))
    assert finish(part) is None
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_finished_stays(tmp_path: Path) -> None:
    part = written(tmp_path, record())
    trace_path(part).mkdir()
    with pytest.raises(TraceError):
        finish(part)
    assert part.exists()
    Finisher().begin(part)
    assert part.exists()


def test_a_process_of_its_own_finishes(tmp_path: Path) -> None:
    part = written(tmp_path, record())
    finisher = ChildFinisher()
    finisher.begin(part)
    finisher.wait()
    assert load_trace(trace_path(part)).meta.requests == 1


def test_the_process_says_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.nice", lambda _increment: 0)
    part = written(tmp_path, record())
    assert main([str(part)]) == 0
    part = written(tmp_path, record())
    trace_path(part).unlink()
    trace_path(part).mkdir()
    assert main([str(part)]) == 2
    assert "is no regular file" in capsys.readouterr().err
