from __future__ import annotations

from pathlib import Path

import pytest

import autotune.demo
from autotune.demo import resolve_model, resolve_trace
from autotune.errors import UsageError
from autotune.traffic.inspect import describe
from autotune.traffic.trace import load_trace

FOLDER = Path(autotune.demo.__file__).parent


def test_demo_names_are_the_shipped_files() -> None:
    assert resolve_trace("demo:mixed") == FOLDER / "mixed.jsonl"
    assert resolve_model("demo:tiny-llama") == FOLDER / "tiny-llama"


def test_other_names_stay_as_they_are() -> None:
    assert resolve_trace("traffic/a.jsonl") == Path("traffic/a.jsonl")
    assert resolve_model("meta-llama/Llama-3.1-8B") == "meta-llama/Llama-3.1-8B"


def test_unknown_demo_names_are_refused_with_a_hint() -> None:
    with pytest.raises(UsageError, match="no demo trace 'demo:mix'") as caught:
        resolve_trace("demo:mix")
    assert caught.value.hint == "did you mean 'demo:mixed'?"
    with pytest.raises(UsageError, match="no demo model 'demo:405b'") as caught:
        resolve_model("demo:405b")
    assert caught.value.hint == "there is demo:tiny-llama"


def test_the_demo_trace_suits_a_processor() -> None:
    summary = describe(load_trace(resolve_trace("demo:mixed")))
    assert summary.duration_s <= 40
    assert summary.recommended_max_model_len <= 4096
    assert [each.name for each in summary.classes] == ["short", "long"]
