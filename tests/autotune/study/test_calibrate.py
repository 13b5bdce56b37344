from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.candidates.lattice import SEQS, TOKENS
from autotune.candidates.live import THRESHOLD
from autotune.engine.protocol import EngineInfo, Failure, TrialFailed
from autotune.engine.supervisor import Description, Started
from autotune.errors import EnvironmentFault, UsageError
from autotune.forecast.grid import sweep_plan
from autotune.forecast.sweep import Calibrated
from autotune.study import calibrate as calibrate_module
from autotune.study.calibrate import Measured, calibrate, calibrate_once, sweep
from autotune.study.stage import Stage
from objectives.utilization import Work
from tests.autotune.study.scripted import (
    BASELINE,
    FLAGS,
    GROUND,
    INFO,
    ScriptedEngines,
    job_of,
    settings_of,
)
from tests.autotune.study.test_beginning import Heard

GRAPHS = replace(INFO, capture_sizes=(8, 16, 512), work=Work(1e9, 2e4, 3e8, "vllm"))


def once(
    engines: ScriptedEngines,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    heard: Heard | None = None,
    **changes: Any,
) -> Measured:
    """Calibrate an engine on its own, as the command does."""
    described = Description(replace(INFO, model="/models/tiny"), FLAGS)
    monkeypatch.setattr(calibrate_module, "open_supervisor", lambda _settings, _name: engines)
    monkeypatch.setattr(
        calibrate_module, "describe_engine", lambda _settings, _supervisor: described
    )
    monkeypatch.setattr(calibrate_module, "end_earlier_runs", lambda _say: None)
    settings = settings_of(
        **{"trace": "", "log_folder": folder / "logs", "engine_args": BASELINE, **changes}
    )
    return calibrate_once(settings, heard or Heard())


def running(engines: ScriptedEngines) -> ScriptedEngines:
    engines.start({"model": "tiny", **BASELINE}, Path("log"))
    return engines


def swept(engines: ScriptedEngines, info: EngineInfo = INFO) -> Calibrated:
    started = Started(info, 1.0, GROUND)
    return sweep(started, engines, tile=128, on_progress=lambda _: None)


def test_a_sweep_covers_the_limits_of_the_engine() -> None:
    engines = running(ScriptedEngines())
    found = swept(engines, GRAPHS)
    assert engines.swept == [
        sweep_plan(
            max_tokens=2048,
            max_seqs=64,
            max_model_len=8192,
            capture_sizes=(8, 16, 512),
            kv_cache_tokens=65536,
            tile=128,
        )
    ]
    assert found.whole
    assert found.calibration.capture_sizes == (8, 16, 512)
    assert found.calibration.best_flops_per_s is not None


def test_an_engine_that_does_not_say_how_much_it_holds_holds_one_request() -> None:
    engines = running(ScriptedEngines())
    swept(engines, replace(INFO, kv_cache_tokens=None))
    assert all(probe.requests * probe.context_tokens < 8192 for probe in engines.swept[0].kv)


def test_limits_that_cannot_change_make_no_sweep() -> None:
    engines = running(ScriptedEngines())
    with pytest.raises(TrialFailed, match="no step times: it is busy"):
        swept(engines, replace(INFO, live_obstacle="it is busy"))
    assert engines.swept == []


def test_a_study_is_calibrated_at_its_envelope() -> None:
    engines, job = ScriptedEngines(), job_of(engine_args={THRESHOLD: 256, "enforce_eager": True})
    stage, heard = Stage(engines), Heard()
    found = calibrate(
        job, stage, engines, tile=128, log_path=Path("log"), on_progress=heard.progress
    )
    assert engines.started == [{"model": "tiny", "enforce_eager": True, **BASELINE}]
    assert heard.stages == ["calibrate"]
    assert [point.tokens for point in found.calibration.points][-1] == BASELINE[TOKENS]
    assert engines.alive


def test_an_engine_is_calibrated_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engines, heard = ScriptedEngines(), Heard()
    found = once(engines, tmp_path, monkeypatch, heard)
    assert engines.started == [{**BASELINE, "model": "/models/tiny"}]
    assert engines.logs[0].is_relative_to(tmp_path / "logs")
    assert heard.said == ["asking vLLM for its defaults", "starting an engine"]
    assert not engines.alive
    assert found.start_s == 1.0
    assert found.calibrated.seconds >= found.start_s
    assert found.ladders[TOKENS][-1] == 2048
    assert all(rung % 128 == 0 for rung in found.ladders[TOKENS])
    assert found.ladders[SEQS] == (8, 16, 24, 32, 48, 64)


def test_as_json_it_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = once(ScriptedEngines(), tmp_path, monkeypatch)
    body = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert (body["device"], body[TOKENS], body[SEQS]) == ("scripted", 2048, 64)
    assert body["ladders"][SEQS] == list(found.ladders[SEQS])
    assert body["work"] is None
    assert Calibrated.from_json(body).calibration == found.calibrated.calibration
    with_work = replace(found, info=GRAPHS).to_json()["work"]
    assert Work.from_json(with_work) == GRAPHS.work


def test_a_tile_beyond_the_limits_leaves_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = once(ScriptedEngines(), tmp_path, monkeypatch, tile="4096,8")
    assert found.ladders[TOKENS] == (2048,)


@pytest.mark.parametrize("stage", ["start", "sweep"])
def test_an_engine_that_fails_is_a_fault_with_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    failure = TrialFailed(Failure("oom_start", "CUDA out of memory"))
    engines = ScriptedEngines(faults={(stage, 0): failure})
    with pytest.raises(EnvironmentFault) as caught:
        once(engines, tmp_path, monkeypatch)
    assert caught.value.message == "oom_start: CUDA out of memory"
    assert str(engines.logs[0]) in caught.value.hint
    assert not engines.alive


def test_an_engine_that_cannot_be_measured_is_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines = ScriptedEngines(obstacle="its scheduler is another one")
    with pytest.raises(EnvironmentFault, match="no step times: its scheduler is another one"):
        once(engines, tmp_path, monkeypatch)
    assert not engines.alive


def test_what_was_measured_counts_though_the_engine_will_not_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines = ScriptedEngines(faults={("stop", 0): TrialFailed(Failure("hang", "silence"))})
    assert once(engines, tmp_path, monkeypatch).calibrated.whole
    assert not engines.alive


def test_a_tile_that_is_none_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines = ScriptedEngines()
    with pytest.raises(UsageError, match="--tile"):
        once(engines, tmp_path, monkeypatch, tile="0,8")
    assert engines.started == []
