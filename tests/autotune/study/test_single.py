from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.candidates.lattice import SEQS, TOKENS
from autotune.engine.protocol import Failure, TrialFailed
from autotune.engine.supervisor import Description
from autotune.errors import EnvironmentFault, TraceError
from autotune.study import single
from autotune.study.single import replay_once
from tests.autotune.study.scripted import (
    BASELINE,
    DESCRIPTION,
    FLAGS,
    INFO,
    ScriptedEngines,
    Speed,
    settings_of,
    small_trace,
)

ARGUMENTS = {**BASELINE, "enforce_eager": True}


class Followed:
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.stages: list[str] = []

    def progress(self, body: Mapping[str, Any]) -> None:
        self.stages.append(body["stage"])

    def say(self, text: str) -> None:
        self.said.append(text)


def replayed(
    engines: ScriptedEngines,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    follower: Followed | None = None,
    description: Description = DESCRIPTION,
    **changes: Any,
) -> dict[str, Any]:
    trace = folder / "small.jsonl"
    trace.write_bytes(b"".join(small_trace().lines()))
    monkeypatch.setattr(single, "open_supervisor", lambda _settings, _name: engines)
    monkeypatch.setattr(single, "describe_engine", lambda _settings, _supervisor: description)
    settings = settings_of(
        **{
            "trace": str(trace),
            "log_folder": folder / "logs",
            "engine_args": ARGUMENTS,
            "classes": "",
            **changes,
        }
    )
    return replay_once(settings, follower or Followed())


def test_a_replay_has_the_names_of_vllm_bench_serve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines = ScriptedEngines(lambda _: Speed(100, 10))
    follower = Followed()
    result = replayed(engines, tmp_path, monkeypatch, follower)
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    assert result["num_prompts"] == result["completed"] == 80
    assert result["failed"] == 0
    assert result["total_output_tokens"] == 320
    assert result["median_ttft_ms"] == pytest.approx(100, rel=0.02)
    assert result["p99_tpot_ms"] == pytest.approx(10, rel=0.05)
    assert result["mean_e2el_ms"] == pytest.approx(130, rel=0.02)
    assert result["request_throughput"] == pytest.approx(80 / result["duration"])
    assert result["request_goodput"] == pytest.approx(result["request_throughput"])
    assert len(result["ttfts"]) == len(result["itls"]) == 80
    assert [len(gaps) for gaps in result["itls"]] == [3] * 80
    assert (result[TOKENS], result[SEQS]) == (2048, 64)
    assert result["gaps_beside_prefill"] == 1.0
    assert result["start_s"] == 1.0
    assert engines.started == [{**ARGUMENTS, "model": "tiny"}]
    assert not engines.alive
    assert follower.stages == ["replay"]


def test_failed_requests_are_no_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engines = ScriptedEngines(lambda _: Speed(100, 10, failed=20))
    result = replayed(engines, tmp_path, monkeypatch)
    assert (result["completed"], result["failed"]) == (60, 20)
    assert result["total_output_tokens"] == 240
    assert result["p99_ttft_ms"] == "inf"


def test_a_client_that_sent_late_is_said_aloud(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = Followed()
    engines = ScriptedEngines(lambda _: Speed(100, 10, send_lag_s=0.2))
    replayed(engines, tmp_path, monkeypatch, follower)
    assert follower.said[-1].startswith("client_bound: ")
    assert follower.said[-1].endswith("do not trust these figures")


def test_an_engine_that_does_not_start_is_a_fault_with_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failure = TrialFailed(Failure("oom_start", "CUDA out of memory"))
    engines = ScriptedEngines(faults={("start", 0): failure})
    with pytest.raises(EnvironmentFault) as caught:
        replayed(engines, tmp_path, monkeypatch)
    assert caught.value.message == "oom_start: CUDA out of memory"
    assert str(tmp_path / "logs") in caught.value.hint
    assert not engines.alive


def test_an_empty_window_starts_no_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engines = ScriptedEngines()
    with pytest.raises(TraceError, match="no request between"):
        replayed(engines, tmp_path, monkeypatch, window="90:99")
    assert engines.started == []


def test_requests_that_are_too_long_are_cut_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = replace(INFO, resolved={**INFO.resolved, "max_model_len": 900})
    follower = Followed()
    result = replayed(
        ScriptedEngines(), tmp_path, monkeypatch, follower,
        description=Description(info, FLAGS), too_long="truncate",
    )  # fmt: skip
    assert max(result["input_lens"]) + 4 == 900
    assert "Requests longer than max_model_len 900, cut to it: 10." in follower.said


def test_requests_that_are_too_long_start_no_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = replace(INFO, resolved={**INFO.resolved, "max_model_len": 900})
    engines = ScriptedEngines()
    with pytest.raises(TraceError, match="10 of 80 requests are longer"):
        replayed(engines, tmp_path, monkeypatch, description=Description(info, FLAGS))
    assert engines.started == []


def test_one_request_is_replayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = replayed(
        ScriptedEngines(lambda _: Speed(100, 10)), tmp_path, monkeypatch, window="0:0.04"
    )
    assert (result["num_prompts"], result["completed"]) == (1, 1)
    assert result["p99_ttft_ms"] == pytest.approx(100, rel=0.05)
    assert json.loads(json.dumps(result, allow_nan=False)) == result
