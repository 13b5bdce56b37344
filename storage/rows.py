"""Rows of the tables to records and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Row

from storage import codec
from storage.errors import Difference, FingerprintMismatch
from storage.records import Json, Outcome, StudyRecord, TrialRecord


def study_record(row: Row[Any]) -> StudyRecord:
    return StudyRecord(
        id=row.id,
        name=row.name,
        created_at=row.created_at,
        updated_at=row.updated_at,
        fingerprint=codec.decode(row.fingerprint),
        spec=codec.decode(row.spec),
        state=row.state,
        verdict=codec.decode_optional(row.verdict),
    )


def trial_record(row: Row[Any]) -> TrialRecord:
    return TrialRecord(
        study_id=row.study_id,
        number=row.number,
        state=row.state,
        phase=row.phase,
        fidelity=row.fidelity,
        candidate=codec.decode(row.candidate),
        replicate_of=row.replicate_of,
        started_at=row.started_at,
        finished_at=row.finished_at,
        timings=codec.decode_optional(row.timings),
        metrics=codec.decode_optional(row.metrics),
        intervals=codec.decode_optional(row.intervals),
        engine=codec.decode_optional(row.engine),
        diagnosis=codec.decode_optional(row.diagnosis),
        failure_class=row.failure_class,
        failure_evidence=row.failure_evidence,
        outcome=outcome(row.outcome),
        told=row.told,
        log_path=row.log_path,
    )


def outcome(text: str | None) -> Outcome | None:
    if text is None:
        return None
    stored = codec.decode(text)
    values = stored["values"]
    return Outcome(
        state=stored["state"],
        values=None if values is None else tuple(values),
        constraints=stored["constraints"],
        judged_by=stored.get("judged_by"),
    )


def outcome_text(outcome: Outcome) -> str:
    return codec.encode(
        {
            "state": outcome.state,
            "values": outcome.values,
            "constraints": outcome.constraints,
            "judged_by": outcome.judged_by,
        },
        name="outcome",
    )


_UNSAID = {"engine": "real", "fidelity": "restart", "holdout": "none", "load": 1.0}
"""What a fingerprint means by having no such key."""


def check_fingerprint(study: StudyRecord, given: Json) -> None:
    """Return if a study can go on with this fingerprint.

    Raises:
        FingerprintMismatch: it was started with another one.
    """
    now = codec.decode(codec.encode(given, name="fingerprint"))
    diff = differences({**_UNSAID, **study.fingerprint}, {**_UNSAID, **now})
    if diff:
        raise FingerprintMismatch(study.name, diff)


def differences(stored: Mapping[str, Any], given: Mapping[str, Any]) -> list[Difference]:
    """Return where two decoded mappings differ, by dotted key; an absent key counts as None."""
    before, now = _flat(stored), _flat(given)
    return [
        Difference(key, before.get(key), now.get(key))
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key)
    ]


def _flat(mapping: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in mapping.items():
        if isinstance(value, Mapping):
            flat.update(_flat(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat
