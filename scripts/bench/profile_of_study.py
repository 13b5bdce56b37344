"""Make a profile for ``--engine sim:PROFILE`` of a calibrated study and its replays.

``autotune calibrate --save`` has a sweep alone. Here the steps of replays refine it, and what a
client had of them says how late tokens are delivered.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from autotune.engine.protocol import EngineInfo
from autotune.forecast.profile import Noise, Origin, Profile, neutral, profile_of
from autotune.forecast.sweep import Calibrated
from objectives.samples import RequestSamples
from objectives.steps import Steps
from storage.repository import open_repository

_OF_AN_ENGINE = (
    "vllm_version",
    "torch_version",
    "device",
    "device_uuids",
    "model",
    "resolved",
    "vocab_size",
    "kv_cache_tokens",
    "capture_sizes",
    "live_obstacle",
    "work",
)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("--name", required=True)
    parser.add_argument("--model", required=True, help="a name without a path")
    parser.add_argument("--storage", required=True)
    parser.add_argument("--study-name", required=True)
    parser.add_argument("--sweep", type=Path, help="output of scripts/bench/trials, not the study")
    parser.add_argument("--engine-of", type=int, required=True, help="trial that has the engine")
    parser.add_argument("--replays", type=int, nargs="*", default=[], help="trials to refine by")
    parser.add_argument("--date", required=True)
    parser.add_argument("--words", required=True)
    parser.add_argument("--start-s", type=float, required=True)
    parser.add_argument("--run-noise", type=float, required=True)
    parser.add_argument("--step-noise", type=float, required=True)
    given = parser.parse_args(arguments)

    with open_repository(given.storage, create=False) as repository:
        study = repository.study(given.study_name)
        engine = repository.trial(study.id, given.engine_of).engine or {}
        stored = [Steps.split(repository.samples(study.id, number)) for number in given.replays]
    sweep = study.spec["calibration"]
    if given.sweep is not None:
        sweep = json.loads(given.sweep.read_text(encoding="utf-8"))["calibration"]
        sweep = {**sweep, "seconds": sweep["seconds_with_start"]}
    info = EngineInfo.from_json({name: engine[name] for name in _OF_AN_ENGINE})
    profile = profile_of(
        Calibrated.from_json(sweep),
        info,
        name=given.name,
        model=given.model,
        start_s=given.start_s,
        date=given.date,
    )
    replays = [(steps, RequestSamples.from_arrays(arrays)) for steps, arrays in stored]
    result = refined(profile, replays, overlapping=bool(info.resolved.get("async_scheduling")))
    result = replace(
        result,
        info=neutral(info, given.model),
        measured_on=Origin(info.device, info.vllm_version, given.model, given.date, given.words),
        noise=Noise(run=given.run_noise, step=given.step_noise),
    )
    given.output.write_text(result.to_text(), encoding="utf-8")
    print(f"error {profile.step_times.error:.3f}, refined {result.step_times.error:.3f}")
    print(
        f"delivery {1e3 * result.delivery_s:.2f} ms, host {1e3 * result.step_times.host_s:.2f} ms"
    )


def refined(
    profile: Profile, replays: Sequence[tuple[Steps, RequestSamples]], *, overlapping: bool
) -> Profile:
    """Return a profile corrected by replays on its engine."""
    if not replays:
        return profile
    times = profile.step_times.refined([steps for steps, _ in replays], overlapping=overlapping)
    late_s = [delivery_s(steps, samples) for steps, samples in replays]
    return replace(profile, step_times=times, delivery_s=float(np.median(late_s)))


def delivery_s(steps: Steps, samples: RequestSamples) -> float:
    """Return how long after the end of a step first tokens came, in the middle."""
    first_s = samples.first_token_s[~np.isnan(samples.first_token_s)]
    before = np.searchsorted(steps.done_s, first_s, side="right") - 1
    return float(np.median(first_s[before >= 0] - steps.done_s[before[before >= 0]]))


if __name__ == "__main__":
    main()
