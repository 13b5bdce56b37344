from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.demo import resolve_model
from autotune.engine.flops import fit, work_of
from objectives.utilization import Work

DEMO = json.loads((Path(resolve_model("demo:tiny-llama")) / "config.json").read_text())
TOKEN = 2 * 4 * (128 * 32 * (2 * 4 + 2 * 2) + 3 * 128 * 512)
PAIR = 4 * 4 * 4 * 32
SAMPLE = 2 * 128 * 4096


class Accounting:
    """Counts as vLLM does, for a model of given figures."""

    def __init__(self, parts: tuple[str, ...] = ("attn", "ffn", "unembed")) -> None:
        self.parts = parts
        self.fault: Exception | None = None
        self.window = 8192

    def __call__(self, tokens: int, context: int, prefill: bool) -> float:
        pairs = tokens * min(context, self.window)
        return float(TOKEN * tokens + PAIR * pairs + SAMPLE * (1 if prefill else tokens))

    def module(self) -> ModuleType:
        accounting = self

        class ModelMetrics:
            def __init__(self, _config: object) -> None:
                logging.getLogger("vllm.v1.metrics.perf").info("all figures of a component")
                if accounting.fault:
                    raise accounting.fault
                self.metrics = [
                    SimpleNamespace(component_type=lambda part=part: part)
                    for part in accounting.parts
                ]

            def get_num_flops(self, step: tuple[int, int, bool], per_gpu: bool) -> int:
                return int(accounting(*step)) // (8 if per_gpu else 1)

        def from_single_request(*request: object) -> tuple[object, ...]:
            return request

        module = ModuleType("vllm.v1.metrics.perf")
        context = SimpleNamespace(from_single_request=from_single_request)
        module.__dict__.update(ModelMetrics=ModelMetrics, ExecutionContext=context)
        return module


@pytest.fixture
def accounting(monkeypatch: pytest.MonkeyPatch) -> Accounting:
    found = Accounting()
    for name in ("vllm", "vllm.v1", "vllm.v1.metrics"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "vllm.v1.metrics.perf", found.module())
    return found


def config(**changes: Any) -> Any:
    hf_config = SimpleNamespace(to_dict=lambda: {**DEMO, **changes})
    return SimpleNamespace(model_config=SimpleNamespace(max_model_len=8192, hf_config=hf_config))


def test_the_account_is_vllms_over_all_gpus(
    accounting: Accounting, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    assert work_of(config()) == Work(TOKEN, PAIR, SAMPLE, "vllm")
    assert not caplog.messages


def test_a_part_that_vllm_does_not_know_is_counted_by_shape(accounting: Accounting) -> None:
    accounting.parts = ("attn", "unembed")
    assert work_of(config()) == Work(TOKEN, PAIR, SAMPLE, "shape")


def test_an_account_that_bends_is_not_taken(accounting: Accounting) -> None:
    accounting.window = 1024
    assert work_of(config()) == Work(TOKEN, PAIR, SAMPLE, "shape")


def test_an_accounting_that_fails_is_not_asked_again(accounting: Accounting) -> None:
    accounting.fault = AttributeError("no such field")
    assert work_of(config()) == Work(TOKEN, PAIR, SAMPLE, "shape")
    assert work_of(config(intermediate_size=None)) is None


def test_without_the_accounting_the_shape_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm.v1.metrics.perf", None)
    assert work_of(config()) == Work(TOKEN, PAIR, SAMPLE, "shape")


@given(
    token=st.integers(10**6, 10**12),
    pair=st.integers(0, 10**7),
    sample=st.integers(0, 10**10),
    longest=st.integers(2, 10**6),
)
def test_any_linear_account_is_found_again(
    token: int, pair: int, sample: int, longest: int
) -> None:
    def count(tokens: int, context: int, prefill: bool) -> float:
        samples = 1 if prefill else tokens
        return float(token * tokens + pair * tokens * context + sample * samples)

    found = fit(count, longest)
    assert found is not None
    assert found.flops_per_token == pytest.approx(token, rel=1e-6)
    assert found.flops_per_pair == pytest.approx(pair, rel=1e-6)
    assert found.flops_per_sample == pytest.approx(sample, rel=1e-6, abs=1e-6 * token)


@pytest.mark.parametrize("longest", [0, 1])
def test_one_context_says_nothing_of_a_pair(longest: int) -> None:
    assert fit(Accounting(), longest) is None


def test_an_account_of_nothing_is_none() -> None:
    assert fit(lambda *_: 0.0, 8192) is None
