from __future__ import annotations

import json
from pathlib import Path

import pytest

from autotune.errors import TraceError
from autotune.traffic.formats import detect

NEEDED = "the arrival, the prompt tokens and the output tokens of every request"


@pytest.mark.parametrize(
    ("content", "what", "hint"),
    [
        ("<!DOCTYPE html>\n<title>SECRET</title>", "is an HTML page", "download it once more"),
        ("<html lang=de>SECRET", "is an HTML page", "download it once more"),
        ("<?xml version='1.0'?>", "is XML", NEEDED),
        ("# HELP vllm:e2e SECRET\n# TYPE", "Prometheus metrics: sums", "autotune capture"),
        ("time,cpu,gpu\n1,2,3", "is a table with time, cpu, gpu, and has no col", NEEDED),
        ("timestamp,input_length,output_length\n0,1,1", "but is a table", '{"timestamp": 0'),
        ('[{"timestamp":0,"input_length":1,"output_length":1}]', "but is a list", "a line of"),
        ("a;b;c;d;e;f;g\n", "is a table with a, b, c, d, e, f …, and", NEEDED),
        ("INFO 11-30 08:15:00 [api_server.py:1] SECRET", "is a log", "usage records"),
        ("(APIServer pid=7) INFO 11-30 08:15:00 SECRET", "is a log", "usage records"),
        ("2026-11-30 08:15:00,123 SECRET", "is a log", "usage records"),
        ('127.0.0.1 - - [30/Nov/2026] "POST SECRET"', "is a log", "usage records"),
        ("[]", "is an empty list or object: no requests", NEEDED),
        ("[\n {}\n]", "is an empty list or object: no requests", NEEDED),
        (json.dumps({"b": "SECRET", "a": 1}, indent=1), "is JSON with a, b, not requests", NEEDED),
        ('[{"SECRET words": 1}]', "is JSON with fields of other names", NEEDED),
        ("SECRET, and 7 words of prose", "no known trace format", "known are native, mooncake"),
        ("[1, 2]", "no known trace format", "known are native, mooncake"),
    ],
)
def test_what_is_no_trace_is_called_by_its_name(
    tmp_path: Path, content: str, what: str, hint: str
) -> None:
    path = tmp_path / "a.txt"
    path.write_text(content)
    with pytest.raises(TraceError) as caught:
        detect(path)
    assert what in caught.value.message
    assert hint in caught.value.hint
    assert "SECRET" not in caught.value.message + caught.value.hint


def test_rows_that_are_nobodys_are_ours_to_explain(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"time": 1, "n_prompt": 2}\n')
    assert detect(path).name == "native"
