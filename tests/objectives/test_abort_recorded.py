"""The proof of early abort on replays recorded on an H200: none that keeps a budget is cut."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from objectives.budget import is_feasible
from objectives.limits import Budget, Limit, parse_budget
from tests.objectives.unfinished import Course, Watched, latencies, samples

DATA = Path(__file__).parent / "data" / "h200_replays.npz"
"""160 requests of conversations in 6 s, on a Llama-8B shape, by tokens a step; times in µs."""

REPLAYS = ("8192", "2048", "512")
LOOKS_S = np.arange(1.0, 12.0, 1.0)


@cache
def recorded(name: str) -> tuple[Course, ...]:
    with np.load(DATA) as arrays:
        own = {
            key.removeprefix(f"{name}_"): arrays[key]
            for key in arrays.files
            if key.startswith(f"{name}_")
        }
    gaps = np.split(own["gap_us"], np.cumsum(own["gaps"])[:-1])
    courses = []
    for row, own_gaps in enumerate(gaps):
        stamps = (own["first_us"][row] + np.concatenate([[0], np.cumsum(own_gaps)])) / 1e6
        expected = int(own["output_tokens"][row])
        tokens = np.ones(stamps.size, dtype=int)
        tokens[-1] += expected - stamps.size
        courses.append(
            Course(
                scheduled_s=own["scheduled_us"][row] / 1e6,
                deliveries=list(zip(stamps.tolist(), tokens.tolist(), strict=True)),
                expected=expected,
                prompt_tokens=int(own["prompt_tokens"][row]),
            )
        )
    return tuple(courses)


def first_loss_s(name: str, budget: Budget) -> float | None:
    watched = Watched(recorded(name), budget)
    return next((float(at_s) for at_s in LOOKS_S if watched.lost(float(at_s))), None)


@cache
def measured(name: str) -> dict[str, float | None]:
    return dict(latencies(samples(recorded(name))))


@pytest.mark.parametrize("name", REPLAYS)
def test_a_budget_that_a_recorded_replay_just_keeps_is_never_lost(name: str) -> None:
    metrics = measured(name)
    limits = [
        Limit(metric, aggregate, class_name, limit_ms=value)
        for metric in ("ttft", "tpot", "itl", "e2e")
        for aggregate in ("mean", "p50", "p95", "p99", "max")
        for class_name in (None, "short", "long")
        if (value := metrics[f"{metric}_{aggregate}{'@' + class_name if class_name else ''}"])
    ]
    budget = Budget(tuple(limits))
    assert len(limits) > 50
    assert is_feasible(budget, metrics, 0)
    assert first_loss_s(name, budget) is None


@pytest.mark.parametrize("name", REPLAYS)
@pytest.mark.parametrize("limit", ["ttft_p95", "tpot_p95", "itl_p99", "e2e_p95"])
@pytest.mark.parametrize("share", [0.999, 0.5])
def test_what_is_lost_of_a_recorded_replay_is_broken_in_the_end(
    name: str, limit: str, share: float
) -> None:
    metrics = measured(name)
    value = metrics[limit]
    assert value is not None
    budget = parse_budget(f"{limit}:{value * share}")
    lost_s = first_loss_s(name, budget)
    assert lost_s is not None
    assert not is_feasible(budget, metrics, 0)


def test_a_hopeless_replay_is_cut_in_its_first_half() -> None:
    ends_s = max(course.end_s for course in recorded("8192"))
    lost_s = first_loss_s("8192", parse_budget("itl_p99:60"))
    assert lost_s is not None
    assert lost_s < ends_s / 2
