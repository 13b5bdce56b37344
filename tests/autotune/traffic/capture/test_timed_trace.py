"""vLLM's own bench reads what was captured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.traffic.capture.blocks import BlockHasher
from autotune.traffic.capture.finishing import finish
from autotune.traffic.capture.part import Header, PartFile
from autotune.traffic.capture.record import Record
from autotune.traffic.trace import load_trace

PROGRAM = """
import json, sys
from vllm.benchmarks.datasets.datasets import TimedTrace

class Vocabulary:
    all_special_ids = [0]
    def get_vocab(self):
        return {str(token): token for token in range(5000)}

dataset = TimedTrace(
    dataset_path=sys.argv[1],
    random_seed=0,
    timed_trace_chunk_hash_size=16,
    timed_trace_sec_multiplier=0.001,
    timed_trace_label_timestamp="timestamp",
    timed_trace_label_input_length="input_length",
    timed_trace_label_output_length="output_length",
    timed_trace_label_hash_ids="hash_ids",
)
samples = dataset.sample(Vocabulary(), 100)
print(json.dumps([[s.timestamp, s.prompt, s.expected_output_len] for s in samples]))
"""


@pytest.mark.engine
def test_arrivals_lengths_and_common_prefixes_are_those_of_the_capture(tmp_path: Path) -> None:
    hasher = BlockHasher(b"s" * 32, pause=lambda: None)
    prompts = [list(range(100)), [*range(64), *range(500, 530)], [9] * 33]
    file = PartFile(tmp_path / "a.part", Header(by="proxy", block_size=16))
    for number, prompt in enumerate(prompts):
        record = Record(
            arrival_s=1_700_000_000 + number / 4,
            ending="cancelled" if number else "completed",
            prompt_tokens=len(prompt),
            output_tokens=number + 1,
            token_ids=hasher.of_tokens(prompt),
            e2e_ms=5.0,
        )
        file.append(record.to_line())
    file.close()
    path = finish(tmp_path / "a.part")
    assert path is not None
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONHASHSEED": "0", "VLLM_LOGGING_LEVEL": "ERROR"},
        check=True,
        capture_output=True,
        text=True,
    )
    rows = json.loads(done.stdout.splitlines()[-1])
    assert [row[0] for row in rows] == [0.0, 0.25, 0.5]
    assert [len(row[1]) for row in rows] == [100, 94, 33]
    assert [row[2] for row in rows] == [1, 2, 3]
    # Four blocks of 16 are common to the first two.
    assert rows[0][1][:64] == rows[1][1][:64]
    assert rows[0][1][64:80] != rows[1][1][64:80]
    assert load_trace(path).meta.requests == 3
