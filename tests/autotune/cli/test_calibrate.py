"""The calibrate command, from its options to its output; the engine is scripted."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.candidates.lattice import SEQS, TOKENS
from autotune.cli import files
from autotune.engine.protocol import Failure, TrialFailed
from autotune.engine.supervisor import Description
from autotune.errors import EnvironmentFault
from autotune.settings import TuneSettings
from autotune.simulated.profile import load_profile
from autotune.study import calibrate as calibrate_module
from tests.autotune.cli.conftest import Autotune
from tests.autotune.cli.forked import Ran
from tests.autotune.study.scripted import BASELINE, FLAGS, INFO, ScriptedEngines

LIMITS = [word for name in BASELINE for word in ("--engine-arg", f"{name}={BASELINE[name]}")]

Calibrate = Callable[..., Ran]


@pytest.fixture
def given() -> list[TuneSettings]:
    """The settings of each call."""
    return []


@pytest.fixture
def calibrate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autotune: Autotune, given: list[TuneSettings]
) -> Calibrate:
    """Run ``autotune calibrate`` in a fresh folder, on the given engine."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(calibrate_module, "end_earlier_runs", lambda _say: None)

    def command(
        engines: ScriptedEngines, *arguments: str, forecast_obstacle: str | None = None
    ) -> Ran:
        def described(settings: TuneSettings, _supervisor: object) -> Description:
            given.append(settings)
            info = replace(INFO, device="A B200 ", forecast_obstacle=forecast_obstacle)
            return Description(info, FLAGS)

        monkeypatch.setattr(calibrate_module, "open_supervisor", lambda _s, _name: engines)
        monkeypatch.setattr(calibrate_module, "describe_engine", described)
        return autotune("calibrate", "--model", "tiny", *LIMITS, *arguments)

    return command


def test_table_plot_and_ladders(calibrate: Calibrate) -> None:
    ran = calibrate(ScriptedEngines())
    assert ran.code == 0
    lines = ran.out.splitlines()
    assert lines[0] == "scripted, vLLM 0.32.0"
    ladders = lines.index("Ladders that follow:")
    assert lines[ladders + 1].startswith(f"{TOKENS}: 128, ")
    assert lines[ladders + 1].endswith(", 2048")
    assert lines[ladders + 2 :] == [f"{SEQS}: 8, 16, 24, 32, 48, 64"]
    assert lines[2:ladders]
    assert "starting an engine" in ran.err
    assert list(Path("autotune-logs").parent.glob("*.json")) == []


def test_a_narrow_screen_has_no_plot_and_no_broken_line(
    calibrate: Calibrate, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "Step time in ms against tokens" in calibrate(ScriptedEngines()).out
    monkeypatch.setenv("COLUMNS", "40")
    lines = calibrate(ScriptedEngines()).out.splitlines()
    assert not any(line.startswith("Step time in ms against tokens") for line in lines)
    assert max(map(len, lines[: lines.index("Ladders that follow:")])) == 40
    assert any(line.endswith("…") for line in lines)


def test_json_and_a_file_of_it(calibrate: Calibrate, given: list[TuneSettings]) -> None:
    ran = calibrate(
        ScriptedEngines(), "--format", "json", "--output", "steps.json", "--tile", "256,16",
        "--log-folder", "logs",
    )  # fmt: skip
    assert ran.code == 0
    body = json.loads(ran.out)
    assert json.loads(Path("steps.json").read_text()) == body
    assert body["ladders"][SEQS] == [16, 32, 48, 64]
    assert len(body["steps"]["done_s"]) > 0
    (settings,) = given
    assert (settings.tile, settings.log_folder) == ("256,16", Path("logs"))
    assert settings.engine_args == BASELINE


def test_a_sweep_that_was_cut_short_says_so(
    calibrate: Calibrate, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = ScriptedEngines.sweep
    monkeypatch.setattr(
        ScriptedEngines, "sweep", lambda *given: (whole(*given)[0], False), raising=True
    )
    ran = calibrate(ScriptedEngines())
    assert ran.out.splitlines()[-1] == (
        "Not all was measured: the time was up, or the engine ran other batches than planned."
    )


def test_an_engine_that_does_not_start_exits_with_4(calibrate: Calibrate) -> None:
    failure = TrialFailed(Failure("oom_start", "CUDA out of memory"))
    ran = calibrate(ScriptedEngines(faults={("start", 0): failure}), "--output", "steps.json")
    assert (ran.code, ran.out) == (4, "")
    assert "error: oom_start: CUDA out of memory" in ran.err
    assert "hint: the engine's log is autotune-logs/" in ran.err
    assert not Path("steps.json").exists()


def test_no_profile_is_made_of_what_no_simulation_knows(calibrate: Calibrate) -> None:
    engines, why = ScriptedEngines(), "speculative decoding changes the schedule"
    ran = calibrate(engines, "--save", "mine.json", forecast_obstacle=why)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.splitlines()[-2:] == [
        f"error: an engine like this cannot be simulated: {why}",
        "hint: without --save its step times are measured all the same",
    ]
    assert engines.started == []
    assert not Path("mine.json").exists()
    assert calibrate(engines, forecast_obstacle=why).code == 0


def test_bad_options_start_no_engine(calibrate: Calibrate) -> None:
    for arguments in (("--tile", "x"), ("--output", "none/steps.json")):
        engines = ScriptedEngines()
        ran = calibrate(engines, *arguments)
        assert (ran.code, ran.out) == (2, "")
        assert engines.started == []


@pytest.mark.parametrize("form", ["table", "json"])
def test_a_result_that_cannot_be_written_is_on_stdout(
    calibrate: Calibrate, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """Its steps too, which no table has; and the profile is written all the same."""

    def full(path: Path, _text: str, *, hint: str) -> None:
        if path.suffix == ".steps":
            raise EnvironmentFault("no space left on device", hint=hint)
        path.touch()

    monkeypatch.setattr(files, "write_text", full)
    arguments = ("--output", "a.steps", "--save", "mine.json", "--format", form)
    ran = calibrate(ScriptedEngines(), *arguments)
    assert ran.code == 4
    assert "no space left on device" in ran.err
    assert "the result is on stdout" in ran.err
    assert Path("mine.json").exists()
    in_json = [line for line in ran.out.splitlines() if line.startswith("{")]
    assert [len(json.loads(line)["steps"]["done_s"]) > 0 for line in in_json] == [True]


def test_an_obstacle_starts_no_engine(
    calibrate: Calibrate, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines = ScriptedEngines()
    monkeypatch.setattr(f"{__name__}.INFO", replace(INFO, live_obstacle="it is so"))
    ran = calibrate(engines)
    assert (ran.code, ran.out) == (2, "")
    assert "step times cannot be measured: it is so" in ran.err
    assert engines.started == []


def test_a_profile_is_saved_that_can_be_simulated(calibrate: Calibrate) -> None:
    ran = calibrate(ScriptedEngines(), "--save", "mine.json")
    assert ran.code == 0
    assert ran.err.splitlines()[-1] == "wrote mine.json: autotune tune --engine sim:mine.json"
    profile = load_profile("sim:mine.json")
    assert (profile.name, profile.measured_on.model) == ("mine", "tiny")
    assert profile.info.resolved[TOKENS] == BASELINE[TOKENS]
    times = profile.step_times
    prompt_s = times.mixed_s[-1] + times.request_s + times.pair_s * 2048 * 2049 / 2
    assert prompt_s == pytest.approx(0.257, rel=0.02)


def test_a_profile_that_cannot_be_written_is_refused_at_once(calibrate: Calibrate) -> None:
    engines = ScriptedEngines()
    ran = calibrate(engines, "--save", "none/mine.json")
    assert ran.code == 2
    assert engines.started == []
