"""Make a profile for ``--engine sim:PROFILE`` of a calibrated study and its replays.

``autotune calibrate --save`` has a sweep alone. Here the steps of replays refine it, and what a
client had of them says how late tokens are delivered.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from autotune.engine.protocol import EngineInfo
from autotune.forecast.delivery import delivery_s
from autotune.forecast.sweep import Calibrated
from autotune.simulated.profile import Noise, Profile, profile_of
from objectives.samples import RequestSamples
from objectives.steps import Steps
from storage.repository import open_repository


def main(arguments: Sequence[str] | None = None) -> None:
    given = _parser().parse_args(arguments)
    replays: list[tuple[Steps, RequestSamples]] = []
    if given.engine is not None:
        stored = json.loads(given.engine.read_text(encoding="utf-8"))
        info, sweep = EngineInfo.from_json(stored["info"]), None
    else:
        info, sweep, replays = _stored(given)
    if given.sweep is not None:
        sweep = json.loads(given.sweep.read_text(encoding="utf-8"))["calibration"]
        sweep = {**sweep, "seconds": sweep["seconds_with_start"]}
    if sweep is None:
        raise SystemExit("there is no sweep")
    profile = profile_of(
        Calibrated.from_json(sweep),
        info,
        name=given.output.stem,
        model=given.model,
        start_s=given.start_s,
        date=given.date,
    )
    result = refined(profile, replays, overlapping=bool(info.resolved.get("async_scheduling")))
    result = replace(
        result,
        measured_on=replace(result.measured_on, words=given.words),
        noise=Noise(run=given.run_noise, step=given.step_noise),
    )
    given.output.write_text(result.to_text(), encoding="utf-8")
    errors = profile.step_times.error, result.step_times.error
    print("error {:.3f}, refined {:.3f}".format(*errors))
    print(f"delivery {1e3 * result.delivery_s:.2f} ms")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path, help="NAME.json")
    parser.add_argument("--model", required=True, help="a name without a path")
    parser.add_argument("--engine", type=Path, help="profile that has the engine, not a study")
    parser.add_argument("--storage")
    parser.add_argument("--study-name")
    parser.add_argument("--engine-of", type=int, help="trial that has the engine")
    parser.add_argument("--replays", type=int, nargs="*", default=[], help="trials to refine by")
    parser.add_argument("--sweep", type=Path, help="output of scripts/bench/trials, not the study")
    parser.add_argument("--date", required=True)
    parser.add_argument("--words", required=True)
    parser.add_argument("--start-s", type=float, required=True)
    parser.add_argument("--run-noise", type=float, required=True)
    parser.add_argument("--step-noise", type=float, required=True)
    return parser


def _stored(
    given: argparse.Namespace,
) -> tuple[EngineInfo, Mapping[str, Any] | None, list[tuple[Steps, RequestSamples]]]:
    """Return engine, sweep and replays of a study."""
    with open_repository(given.storage, create=False) as repository:
        study = repository.study(given.study_name)
        engine = repository.trial(study.id, given.engine_of).engine or {}
        stored = [Steps.split(repository.samples(study.id, number)) for number in given.replays]
    info = EngineInfo.of_trial(engine)
    replays = [(steps, RequestSamples.from_arrays(arrays)) for steps, arrays in stored]
    return info, study.spec["calibration"], replays


def refined(
    profile: Profile, replays: Sequence[tuple[Steps, RequestSamples]], *, overlapping: bool
) -> Profile:
    """Return a profile corrected by replays on its engine."""
    if not replays:
        return profile
    times = profile.step_times.refined([steps for steps, _ in replays], overlapping=overlapping)
    late_s = [delivery_s(steps, samples) for steps, samples in replays]
    return replace(profile, step_times=times, delivery_s=float(np.median(late_s)))


if __name__ == "__main__":
    main()
