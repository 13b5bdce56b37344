from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from autotune.export import Export
from autotune.export.header import header, printable


def test_the_header_tells_the_evidence(export: Export) -> None:
    assert header(export, {"disable_log_stats": False}, use="vllm serve …") == [
        "# use: vllm serve …",
        "# study: night",
        "# trial: 17",
        "# trace_sha256: ab12",
        '# budget: {"ttft_p95": 800}',
        "# repeats: 3",
        "# device: not recorded",
        "# verdict: knee",
        "# verdict confidence: 0.93",
        "# ttft_p95: 712.346, interval 690 to unbounded, baseline 950",
        "# tpot_p95: 31.5, baseline not recorded",
        "# left out: disable_log_stats=false, the default of vllm serve, has no option",
    ]


@given(key=st.text(), value=st.text())
def test_no_text_leaves_its_comment_line(key: str, value: str) -> None:
    export = Export("m", {}, {}, provenance={key: value}, verdict={key: value})
    lines = "\n".join(header(export, {}, use="")).splitlines()
    assert len(lines) == 3
    assert all(line.startswith("# ") and line.isprintable() for line in lines)


def test_invisible_characters_are_written_as_escapes(export: Export) -> None:
    assert printable("é\x1b[31m\u202e\n\u2028\ud800") == "é\\x1b[31m\\u202e\\n\\u2028\\ud800"
    hostile = replace(export, metrics={"a\nb": 1.0}, intervals={}, verdict=None)
    assert "# a\\nb: 1" in header(hostile, {}, use="")


def test_kept_is_said_of_the_budget_and_not_of_the_default(export: Export) -> None:
    kept = replace(export, verdict={"code": "keep_default", "kept": False})
    lines = header(kept, {}, use="x")
    assert "# verdict: keep_default" in lines
    assert "# upper bounds keep the budget: false" in lines
