"""Trial records made by hand, with the samples that belong to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from autotune.candidates.lattice import SEQS, TOKENS, Candidate
from autotune.forecast.calibration import Batch, Calibration, Point
from autotune.forecast.edges import Edge
from objectives.classes import parse_classes
from objectives.limits import parse_budget
from objectives.measurement import measure
from storage.records import FinishedState, StudyRecord, TrialRecord
from tests.autotune.study.scripted import (
    BASELINE,
    Speed,
    job_of,
    samples_of,
    small_trace,
    steps_of,
)

Samples = dict[int, Mapping[str, NDArray[Any]]]


def limits(tokens: int, seqs: int = 64) -> Candidate:
    return {TOKENS: tokens, SEQS: seqs}


def record(
    number: int,
    candidate: Candidate = BASELINE,
    *,
    state: FinishedState = "complete",
    phase: str = "search",
    **changes: Any,
) -> TrialRecord:
    values: dict[str, Any] = {
        "study_id": 1,
        "number": number,
        "state": state,
        "phase": phase,
        "fidelity": "restart",
        "candidate": candidate,
        "replicate_of": None,
        "started_at": "2026-11-01T10:00:00+00:00",
        "finished_at": "2026-11-01T10:01:00+00:00",
        "timings": None,
        "metrics": None,
        "intervals": None,
        "engine": None,
        "diagnosis": None,
        "failure_class": None,
        "failure_evidence": None,
        "outcome": None,
        "told": True,
        "log_path": None,
        **changes,
    }
    return TrialRecord(**values)


def with_best(best_flops_per_s: float | None) -> Calibration:
    """A calibration with CUDA graphs up to 512 tokens that repeats its edges every 128."""
    return Calibration(
        points=(Point(1, 5.0, 0.1, 5), Point(512, 8.0, 0.1, 5), Point(513, 9.2, 0.1, 5)),
        batches=(Batch(8, 800.0, 6.0, 0.1, 5),),
        edges=(Edge(512, 513, 1.2, 0.15, "capture"),),
        quantum=128,
        capture_sizes=(256, 512),
        kv_token_ns=1.0,
        pair_ns=None,
        best_flops_per_s=best_flops_per_s,
    )


def study_record(
    *,
    window_s: float = 60.0,
    knobs: Mapping[str, list[Any]] | None = None,
    calibration: Calibration | None = None,
    **settings: Any,
) -> StudyRecord:
    """A study of the scripted job with these settings and knobs, as it stands in the database."""
    job = job_of(**settings)
    fingerprint = job.fingerprint()
    return StudyRecord(
        id=1,
        name="study",
        created_at="2026-11-01T10:00:00+00:00",
        updated_at="2026-11-01T10:00:00+00:00",
        fingerprint={**fingerprint, "ladders": {**fingerprint["ladders"], **(knobs or {})}},
        spec={
            **job.spec(),
            "duration_s": window_s,
            "calibration": calibration and {"calibration": calibration.to_json()},
        },
        state="running",
        verdict=None,
    )


class Measured:
    """Trials of known speeds on the small trace, and their samples.

    Args:
        budget: decides which intervals are computed.
        classes: of prompt length.
    """

    def __init__(self, *, budget: str = "", classes: str = "") -> None:
        self.budget = parse_budget(budget)
        self.classes = parse_classes(classes)
        self.trials: list[TrialRecord] = []
        self.samples: Samples = {}

    def add(
        self, candidate: Candidate, speed: Speed, *, seed: int | None = None, **changes: Any
    ) -> TrialRecord:
        """Add a complete trial, with ``changes`` of its record; equal seeds give equal jitter."""
        number = len(self.trials)
        samples = samples_of(speed, small_trace(), seed=number if seed is None else seed)
        measurement = measure(samples, classes=self.classes, budget=self.budget)
        trial = record(
            number,
            candidate,
            metrics=measurement.metrics,
            intervals={name: [i.low, i.high] for name, i in measurement.intervals.items()},
            engine={
                "failed_requests": measurement.failed_requests,
                "load": {"peak_running": 8, "steps": 10},
                "capture_sizes": [],
            },
            **changes,
        )
        self.trials.append(trial)
        self.samples[number] = {
            **samples.to_arrays(),
            **steps_of(candidate).to_arrays(),
        }
        return trial
