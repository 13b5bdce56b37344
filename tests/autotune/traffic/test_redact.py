from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.errors import UsageError
from autotune.traffic.model import Trace, TraceRequest
from autotune.traffic.recording import Gap
from autotune.traffic.redact import read_salt, redacted
from autotune.traffic.trace import save_trace
from tests.autotune.traffic.examples import request, trace

SALT = b"0123456789abcdef"


def with_text(*hash_ids: tuple[int, ...]) -> Trace:
    requests = [
        replace(
            request(n, prompt=16 * len(ids), hash_ids=ids),
            model="SECRET-model", prompt_text="SECRET prompt", output_text="SECRET answer",
            max_tokens=7, ttft_ms=5.0,
        )
        for n, ids in enumerate(hash_ids)
    ]  # fmt: skip
    return Trace.build(
        requests, block_size=16, prefixes_known=True, source="a", with_text=True,
        captured_at="2026-11-30T08:15:00+00:00", prefixes_estimated=True,
        gaps=(Gap(start_ms=0.0, end_ms=9.0, requests=1, reason="the disk was full"),),
    )  # fmt: skip


@settings(max_examples=40)
@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=4), min_size=1, max_size=6))
def test_equal_ids_stay_equal_and_others_differ(rows: list[list[int]]) -> None:
    before = with_text(*map(tuple, rows))
    after = redacted(before)
    pairs = {
        (old, new)
        for one, other in zip(before.requests, after.requests, strict=True)
        for old, new in zip(one.hash_ids, other.hash_ids, strict=True)
    }
    assert len(pairs) == len({old for old, _ in pairs}) == len({new for _, new in pairs})


def test_texts_go_and_the_traffic_stays(tmp_path: Path) -> None:
    before = with_text((1, 2), (1, 3))
    after = redacted(before, drop_models=True)
    save_trace(after, tmp_path / "a.jsonl")
    written = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"SECRET" not in written
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in tmp_path.iterdir())
    assert after.meta == replace(before.meta, sha256=after.sha256, with_text=False)
    kept = [(r.timestamp_ms, r.input_length, r.max_tokens, r.ttft_ms) for r in after.requests]
    assert kept == [(0.0, 32, 7, 5.0), (1000.0, 32, 7, 5.0)]
    assert (
        after.notes.sentences()[-1] == "Texts removed from 2 requests, 3 ids of blocks replaced."
    )


def test_models_stay_unless_they_are_dropped() -> None:
    assert redacted(with_text((1,))).requests[0].model == "SECRET-model"


def test_the_same_salt_gives_the_same_ids_and_a_random_one_others() -> None:
    before = with_text((1, 2))
    assert redacted(before, salt=SALT).sha256 == redacted(before, salt=SALT).sha256
    assert redacted(before, salt=SALT).sha256 != redacted(before, salt=SALT[::-1]).sha256
    assert redacted(before).sha256 != redacted(before).sha256


def test_a_trace_without_texts_is_salted_all_the_same() -> None:
    plain: TraceRequest = redacted(trace(request(0, hash_ids=(5,)))).requests[0]
    assert plain.hash_ids != (5,)


def test_a_salt_must_not_be_guessed(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the salt has 3 bytes"):
        redacted(with_text((1,)), salt=b"abc")
    with pytest.raises(UsageError, match="No such file"):
        read_salt(tmp_path / "salt")
    path = tmp_path / "salt"
    path.write_bytes(bytes(2**16 + 1))
    with pytest.raises(UsageError, match="more than 64 KiB"):
        read_salt(path)
    path.write_bytes(SALT)
    assert read_salt(path) == SALT
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(UsageError, match="is no regular file"):
        read_salt(pipe)
