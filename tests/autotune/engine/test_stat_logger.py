from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from autotune.traffic.capture.record import Record
from autotune.traffic.trace import load_trace
from tests.autotune.engine.tiny import ENVIRONMENT

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(name="stat_logger")
def _stat_logger(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Give the module, with a class of its own in place of vLLM's."""
    loggers = ModuleType("vllm.v1.metrics.loggers")
    loggers.StatLoggerBase = object  # type: ignore[attr-defined]
    for name in ("vllm", "vllm.v1", "vllm.v1.metrics"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, loggers.__name__, loggers)
    name = "autotune.engine.stat_logger"
    monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module(name)
    sys.modules.pop(name, None)


class Kept:
    def __init__(self) -> None:
        self.records: list[Record] = []

    def put(self, record: Record) -> None:
        self.records.append(record)


CONFIG = SimpleNamespace(model_config=SimpleNamespace(served_model_name=["chat"], model="x/y"))


def finished(reason: str = "length", **more: Any) -> SimpleNamespace:
    values = {
        "finish_reason": reason,
        "e2e_latency": 2.5,
        "num_prompt_tokens": 40,
        "num_generation_tokens": 6,
        "num_cached_tokens": 16,
        "max_tokens_param": 6,
        "queued_time": 0.25,
        "prefill_time": 0.5,
    }
    return SimpleNamespace(**{**values, **more})


def step(*requests: Any) -> SimpleNamespace:
    return SimpleNamespace(iteration_timestamp=1000.0, finished_requests=list(requests))


def test_what_ends_in_a_step_is_recorded(stat_logger: Any) -> None:
    kept = Kept()
    logger = stat_logger.CaptureStatLogger(CONFIG, 0, open_recorder=lambda: kept)
    logger.record(None, None)
    logger.record(None, step())
    logger.record(None, step(finished(), finished("abort"), finished("error")), engine_idx=0)
    logger.log_engine_initialized()
    assert [each.ending for each in kept.records] == ["completed", "cancelled", "failed"]
    assert kept.records[0] == Record(
        arrival_s=997.5,
        ending="completed",
        prompt_tokens=40,
        output_tokens=6,
        cached_tokens=16,
        max_tokens=6,
        model="chat",
        ttft_ms=750.0,
        e2e_ms=2500.0,
    )


def test_a_request_without_tokens_has_no_first_one(stat_logger: Any) -> None:
    record = stat_logger.record_of(
        finished("abort", num_generation_tokens=0), now_s=1000.0, model=None
    )
    assert (record.output_tokens, record.ttft_ms) == (None, None)


def test_nothing_that_goes_wrong_reaches_vllm(
    stat_logger: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    logger = stat_logger.CaptureStatLogger(None, 0, open_recorder=Kept)
    for _ in range(3):
        logger.record(None, SimpleNamespace(finished_requests=[object()]))

    def broken() -> None:
        raise RuntimeError

    another = stat_logger.CaptureStatLogger(CONFIG, 0, open_recorder=broken)
    another.record(None, step(finished()))
    assert capsys.readouterr().err.splitlines() == [
        "capture: requests pass unrecorded: AttributeError",
        "capture: requests pass unrecorded: RuntimeError",
    ]


def test_the_recorder_is_that_of_the_process(
    stat_logger: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOTUNE_CAPTURE", str(tmp_path))
    first = stat_logger.CaptureStatLogger(CONFIG, 0)
    second = stat_logger.CaptureStatLogger(CONFIG, 1)
    for logger in (first, second):
        logger.record(None, step(finished()))
    (server,) = stat_logger._of_process
    server.close()
    (path,) = tmp_path.glob("*.jsonl")
    trace = load_trace(path)
    assert (trace.meta.requests, trace.meta.prefixes) == (2, "unknown")
    assert trace.meta.source == "capture by stat-logger"


def test_a_middleware_records_alone(
    stat_logger: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(stat_logger, "in_place", lambda: True)
    stat_logger.CaptureStatLogger(CONFIG, 0).record(None, step(finished()))
    assert "the middleware records" in capsys.readouterr().err
    assert stat_logger._of_process == []


PROGRAM = """
from vllm.v1.engine import FinishReason
from vllm.v1.metrics.loggers import load_stat_logger_plugin_factories
from vllm.v1.metrics.stats import IterationStats, RequestStateStats

from autotune.engine.capture_plugin import offer_stat_logger

assert load_stat_logger_plugin_factories() == []
import os
os.environ["AUTOTUNE_CAPTURE"] = "captures"
offer_stat_logger()
(factory,) = load_stat_logger_plugin_factories()
logger = factory(None, 0)
stats = IterationStats()
for number, reason in enumerate(FinishReason):
    state = RequestStateStats(num_generation_tokens=6, arrival_time=stats.iteration_timestamp - 2)
    state.queued_ts, state.scheduled_ts = 10.0, 10.25
    state.first_token_ts, state.last_token_ts = 10.75, 11.5
    stats.update_from_finished_request(reason, str(number), 40, 6, state, num_cached_tokens=16)
logger.record(scheduler_stats=None, iteration_stats=stats, mm_cache_stats=None, engine_idx=0)
"""


@pytest.mark.engine
def test_vllm_finds_the_logger_and_its_statistics_are_read(tmp_path: Path) -> None:
    """No engine is started: the statistics are vLLM's own classes."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        env={
            **os.environ, **ENVIRONMENT, "PYTHONPATH": str(ROOT), "VLLM_LOGGING_LEVEL": "ERROR",
        },
        check=True,
        capture_output=True,
        text=True,
    )  # fmt: skip
    assert "the stat-logger records into captures" in done.stderr
    (path,) = (tmp_path / "captures").glob("*.jsonl")
    trace = load_trace(path)
    told = trace.meta.recording
    assert told is not None
    assert (told.completed, told.cancelled, told.failed) == (3, 1, 1)
    first = trace.requests[0]
    assert (first.input_length, first.output_length, first.cached_tokens) == (40, 6, 16)
    assert (first.ttft_ms, first.e2e_ms, first.max_tokens) == (750.0, 2000.0, 6)
