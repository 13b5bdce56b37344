"""What forecasts of an engine are made of: its sweep, and one replay of the baseline.

    scripts/bench/forecast_study OUT.json --storage URL --study-name S [--trial 0] --words WORDS

keeps that of a stored study in a file of JSON, so that forecasts can be made anew whenever their
model changes.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from autotune.engine.protocol import EngineInfo
from autotune.forecast.delivery import delivery_s
from autotune.forecast.simulation import EngineShape
from autotune.forecast.step_times import StepTimes
from autotune.forecast.sweep import Calibrated
from autotune.simulated.profile import neutral
from autotune.simulated.shape import shape_of
from objectives.samples import RequestSamples
from objectives.steps import Steps
from storage.repository import open_repository


@dataclass(frozen=True, eq=False)
class Study:
    """Attributes:
    words: what was measured, for people.
    info: of the engine of the baseline.
    calibrated: the sweep.
    steps: of the baseline's replay.
    delivery_s: from the end of a step until that replay's client had its tokens.
    """

    words: str
    info: EngineInfo
    calibrated: Calibrated
    steps: Steps
    delivery_s: float

    @cached_property
    def times(self) -> StepTimes:
        """The sweep's, corrected by the replay, as a study has them after its first trial."""
        limits = self.info.resolved
        swept = StepTimes.fit(
            self.calibrated.steps,
            capture_sizes=self.info.capture_sizes,
            max_tokens=int(limits["max_num_batched_tokens"]),
            max_seqs=int(limits["max_num_seqs"]),
        )
        return swept.refined([self.steps], overlapping=self.shape.in_flight > 1)

    @cached_property
    def shape(self) -> EngineShape:
        return shape_of(self.info, delivery_s=self.delivery_s)

    def to_json(self) -> dict[str, Any]:
        return {
            "words": self.words,
            "delivery_s": self.delivery_s,
            "info": self.info.to_json(),
            "calibrated": self.calibrated.to_json(),
            "baseline_steps": replace(self.calibrated, steps=self.steps).to_json()["steps"],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        sweep = data["calibrated"]
        replayed = Calibrated.from_json({**sweep, "steps": data["baseline_steps"]})
        return cls(
            words=data["words"],
            info=EngineInfo.from_json(data["info"]),
            calibrated=Calibrated.from_json(sweep),
            steps=replayed.steps,
            delivery_s=data["delivery_s"],
        )

    @classmethod
    def of(
        cls,
        words: str,
        info: EngineInfo,
        calibrated: Calibrated,
        steps: Steps,
        samples: RequestSamples,
    ) -> Self:
        """Return it with nothing in it that names the machine."""
        model = info.model.rsplit("/", 1)[-1]
        return cls(words, neutral(info, model), calibrated, steps, delivery_s(steps, samples))

    @classmethod
    def stored(cls, url: str, name: str, *, trial: int, words: str) -> Self:
        """Return a study's, of a database."""
        with open_repository(url, create=False) as repository:
            study = repository.study(name)
            engine = repository.trial(study.id, trial).engine or {}
            steps, arrays = Steps.split(repository.samples(study.id, trial))
        info = EngineInfo.of_trial(engine)
        calibrated = Calibrated.from_json(study.spec["calibration"])
        return cls.of(words, info, calibrated, steps, RequestSamples.from_arrays(arrays))


def write_lines(data: Mapping[str, Any], file: Path) -> None:
    """Write JSON with a line for each key, and of lists of mappings one for each of these."""
    file.write_text(f"{_lines(data)}\n", encoding="utf-8")


def _lines(value: Any, indent: str = "") -> str:
    inner = f"{indent} "
    if isinstance(value, Mapping) and any(isinstance(v, list | Mapping) for v in value.values()):
        parts = [f"{inner}{json.dumps(k)}: {_lines(v, inner)}" for k, v in value.items()]
        return "{\n" + ",\n".join(parts) + f"\n{indent}}}"
    if isinstance(value, list) and value and isinstance(value[0], Mapping):
        parts = [f"{inner}{_lines(each, inner)}" for each in value]
        return "[\n" + ",\n".join(parts) + f"\n{indent}]"
    return json.dumps(value)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("--storage", required=True)
    parser.add_argument("--study-name", required=True)
    parser.add_argument("--trial", type=int, default=0, help="of the baseline")
    parser.add_argument("--words", required=True)
    given = parser.parse_args(arguments)
    study = Study.stored(given.storage, given.study_name, trial=given.trial, words=given.words)
    write_lines(study.to_json(), given.output)


if __name__ == "__main__":
    main()
