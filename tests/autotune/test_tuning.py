from __future__ import annotations

from pathlib import Path

import pytest

from autotune import lease, tuning
from autotune.cli.watch import ScreenWatcher
from autotune.errors import LeaseHeld
from autotune.study.job import Job
from autotune.study.session import device_lease
from tests.autotune.study.scripted import DESCRIPTION, ScriptedEngines, settings_of, small_trace


def test_gpus_that_only_a_knob_uses_are_leased_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def checked(_job: Job, engines: ScriptedEngines, _say: object) -> list[str]:
        engines.device_uuids |= {"GPU-2"}
        return []

    engines = ScriptedEngines(device_uuids=frozenset({"GPU-1"}))
    monkeypatch.setattr(lease, "LOCKS", tmp_path)
    monkeypatch.setattr(tuning, "open_supervisor", lambda _settings, _name: engines)
    monkeypatch.setattr(tuning, "describe_engine", lambda _settings, _supervisor: DESCRIPTION)
    monkeypatch.setattr(tuning, "end_earlier_runs", lambda _say: None)
    monkeypatch.setattr(tuning, "check_knobs", checked)
    trace = tmp_path / "small.jsonl"
    trace.write_bytes(b"".join(small_trace().lines()))
    settings = settings_of(
        trace=str(trace), storage=f"sqlite:///{tmp_path / 'study.db'}", study_name="night"
    )
    with (
        device_lease("H200", ["GPU-2"]),
        ScreenWatcher() as watcher,
        pytest.raises(LeaseHeld, match="GPU-2 is in use"),
    ):
        tuning.run_study(settings, watcher, environ={})
    assert engines.started == []
