from __future__ import annotations

from dataclasses import replace

from autotune.study.outcomes import Yardstick
from objectives.limits import parse_budget
from objectives.measurement import measure
from tests.autotune.study.records import Measured, limits
from tests.autotune.study.scripted import BASELINE, clear_knee, samples_of, small_trace

BUDGET = "ttft_p95:400 tpot_p95:0.6x ttft_p90@short:0.9x"
CLASSES = "short:0-512 long:512-"


def test_the_baseline_is_measured_like_the_others() -> None:
    study = Measured(budget=BUDGET, classes=CLASSES)
    yardstick = Yardstick(study.budget, study.classes, BASELINE)
    samples = samples_of(clear_knee(limits(256)), small_trace())
    first = yardstick.measure(samples)
    study.add(BASELINE, clear_knee(BASELINE))
    assert yardstick.absolute_budget(()) != yardstick.absolute_budget(study.trials)
    assert yardstick.measure(samples) == first
    assert study.trials[0].intervals is not None
    assert first.intervals.keys() == study.trials[0].intervals.keys()
    assert "ttft_p90@short" in first.intervals


def test_goodput_counts_by_absolute_limits_alone() -> None:
    samples = samples_of(clear_knee(limits(256)), small_trace())
    strict = Yardstick(parse_budget("ttft_p95:400 ttft_p50:0.001x"), (), BASELINE)
    plain = measure(samples, classes=(), budget=parse_budget("ttft_p95:400"))
    assert plain.metrics["goodput"]
    assert strict.measure(samples).metrics == plain.metrics


def test_without_a_baseline_that_counts_relative_limits_are_left_out() -> None:
    study = Measured(budget="ttft_p95:50 tpot_p95:0.6x")
    yardstick = Yardstick(study.budget, study.classes, BASELINE)
    study.add(BASELINE, clear_knee(BASELINE))
    late = replace(study.trials[0], state="invalid", failure_class="client_bound")
    measurement = yardstick.measure(samples_of(clear_knee(limits(256)), small_trace()))
    told = yardstick.measured(measurement, [late], limits(256))
    assert told.constraints.keys() == {"ttft_p95", "failed_requests"}
    again = yardstick.measured(measurement, [late], BASELINE)
    assert again.constraints["tpot_p95"] > 0
    assert yardstick.measured(measurement, study.trials, limits(256)).constraints.keys() == (
        again.constraints.keys()
    )
