from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.cli.trial_table import TrialTable
from autotune.study.view import absolute_budget
from objectives.limits import parse_budget
from storage.records import TrialRecord
from tests.autotune.study.records import limits, record, study_record, with_best

BUDGET = parse_budget("ttft_p95:300 tpot_p95:16")
METRICS = {
    "ttft_p95": 151.46,
    "tpot_p95": 11.6,
    "itl_p99": 47.7,
    "tokens_per_busy_s": 12867.4,
}
BOUND = {"code": "budget_bound", "reason": "", "next_knob": "raise max_num_batched_tokens"}


def measured(number: int = 0, **changes: Any) -> TrialRecord:
    values: dict[str, Any] = {"metrics": METRICS, "diagnosis": BOUND, "phase": "baseline"}
    return record(number, **{**values, **changes})


def failed(evidence: str = "CUDA out of memory") -> TrialRecord:
    return record(
        3, limits(512, 8), state="infeasible", failure_class="oom_start", failure_evidence=evidence
    )


def shown(width: int, *trials: TrialRecord, **settings: Any) -> list[str]:
    table = TrialTable(study_record(**settings), width=width)
    rows = [table.row(trial, BUDGET, winner=trial.number == 5) for trial in trials]
    return [*table.heading(), *(line for row in rows for line in row)]


def test_a_wide_table_has_everything() -> None:
    figures = "2048/64     151.5      11.6      47.7    12867"
    assert shown(120, measured(), measured(5, phase="confirm"), failed()) == [
        "trial   phase     tokens/seqs  ttft_p95  tpot_p95   itl_p99     work  budget  diagnosis",
        "                                     ms        ms        ms    tok/s",
        "─" * 104,
        f"    0   baseline      {figures}  met     step budget: raise tokens",
        f"    5*  confirm       {figures}  met     step budget: raise tokens",
        f"    3   search          512/8{3 * '         -'}        -  broken  infeasible: oom_start",
        "       CUDA out of memory",
    ]


def test_a_calibrated_study_shows_utilization() -> None:
    shares = (0.4567, None)
    trials = [measured(n, metrics={**METRICS, "utilization": u}) for n, u in enumerate(shares)]
    lines = shown(120, *trials, calibration=with_best(6e14))
    assert lines[0].index("    util") == lines[1].index("       %")
    assert ["45.7  met" in lines[3], "-  met" in lines[4]] == [True, True]
    stacked = shown(40, trials[0], calibration=with_best(6e14))
    assert "  util 45.7 %" in stacked


@pytest.mark.parametrize(
    ("budget", "remark"),
    [
        ("itl_p99:40", "broken  step budget"),
        ("tpot_p95:11 ttft_p95:100", "broken  step budget"),
        ("ttft_p95:100 itl_p99:60", "broken  step budget: raise tokens"),
    ],
)
def test_larger_steps_are_no_advice_where_gaps_are_too_long(budget: str, remark: str) -> None:
    table = TrialTable(study_record(), width=120)
    (line,) = table.row(measured(), parse_budget(budget))
    assert line.endswith(remark)


def test_80_columns_have_codes_alone() -> None:
    assert shown(80, measured(), failed()) == [
        "trial  phase    tokens/seqs ttft_p95 tpot_p95  itl_p99 budget diagnosis",
        "                                  ms       ms       ms",
        "─" * 78,
        "    0  baseline     2048/64    151.5     11.6     47.7 met    step budget",
        "    3  search         512/8        -        -        - broken oom_start",
        "       CUDA out of memory",
    ]


def test_60_columns_have_two_latencies() -> None:
    assert shown(60, measured()) == [
        "trial  tokens/seqs ttft_p95 tpot_p95 budget diagnosis",
        "                         ms       ms",
        "─" * 60,
        "    0      2048/64    151.5     11.6 met    step budget",
    ]


@pytest.mark.parametrize("width", [20, 40])
def test_narrower_still_a_trial_is_a_few_lines(width: int) -> None:
    lines = shown(width, measured(5, phase="search"), failed())
    assert all(len(line) <= width for line in lines)
    text = " ".join(" ".join(lines).split())
    assert text == (
        "5* search 2048/64 met ttft_p95 151.5 ms tpot_p95 11.6 ms itl_p99 47.7 ms "
        "work 12867 tok/s step budget 3 search 512/8 broken oom_start CUDA out of memory"
    )


def test_a_knob_has_a_column_of_its_own() -> None:
    knobs = {"long_prefill_token_threshold": [0, 512]}
    candidate = {**limits(512), "long_prefill_token_threshold": 512}
    lines = shown(120, measured(candidate=candidate), knobs=knobs)
    assert "tokens/seqs  long_prefill_  ttft_p95" in lines[0]
    assert "                  token_        ms" in lines[1]
    assert "               threshold" in lines[2]
    assert "     512/64            512     151.5" in lines[4]


def test_before_the_budget_is_known_nothing_is_met_or_broken() -> None:
    table = TrialTable(study_record(), width=120)
    (line,) = table.row(measured(), None)
    assert "12867  -       step budget" in line


def test_a_trial_without_result_or_failure_shows_its_state() -> None:
    assert shown(120, record(0, state="interrupted"))[-1].endswith("-  -       interrupted")


def test_an_invalid_trial_shows_what_it_measured_and_why_it_does_not_count() -> None:
    late = measured(state="invalid", failure_class="client_bound", failure_evidence="9 ms late")
    row, evidence = shown(120, late)[-2:]
    assert "151.5" in row
    assert row.endswith("-       invalid: client_bound")
    assert evidence == "       9 ms late"


def test_a_replay_that_was_cut_short_says_when_and_why() -> None:
    cut = {
        "limit": "ttft_p95", "bound_ms": 1234.5, "at_s": 12.3, "sent": 100, "requests": 400,
        "bounds": {"ttft_p95": 1234.5},
    }  # fmt: skip
    lost = record(4, state="infeasible", fidelity="live", engine={"censored": cut})
    row, evidence = shown(120, lost)[-2:]
    assert row.endswith("-  broken  cut short")
    assert evidence == "       cut short at 12 s: ttft_p95 at least 1234.5 ms for certain"
    failed_requests = {"censored": {**cut, "bound_ms": None}}
    *_, evidence = shown(120, record(4, state="infeasible", engine=failed_requests))
    assert evidence == "       cut short at 12 s: ttft_p95 without bound for certain"
    open_again = record(4, state="interrupted", fidelity="live", engine={"censored": cut})
    row, evidence = shown(120, open_again)[-2:]
    assert row.endswith("-  -       interrupted")
    assert evidence == "       cut short at 12 s under a stricter budget"


def test_other_work_beside_a_replay_is_noted_under_it() -> None:
    machine = {"cpu_busy_ratio": {"mean": 1.0}, "own_cpu_ratio": {"mean": 0.4}}
    beside = measured(engine={"hardware": {"machine": machine}})
    note = "beside other work, which had 60 % of the processors"
    assert shown(120, beside)[-2:] == [shown(120, measured())[-1], f"       {note}"]
    assert note in " ".join(" ".join(shown(40, beside)).split())


def test_a_sentinel_fits_its_column() -> None:
    line = shown(80, measured(2, phase="sentinel", fidelity="live"))[-1]
    assert line.startswith("    2  sentinel     2048/64 ")


def test_evidence_is_no_wall_of_text_and_drives_no_terminal() -> None:
    lines = shown(80, failed("\x1b[31m" + "no room " * 90))
    assert len(lines[3:]) == 3
    assert lines[-1].endswith(" …")
    assert "\x1b" not in "".join(lines)


@given(width=st.integers(-5, 200), evidence=st.text(max_size=300))
def test_no_line_is_wider_than_the_terminal(width: int, evidence: str) -> None:
    lines = shown(width, measured(), measured(5), failed(evidence))
    assert lines
    assert all(len(line) <= max(width, 12) for line in lines)


def test_a_relative_budget_is_known_once_the_baseline_is() -> None:
    study = study_record(budget="ttft_p95:0.5x")
    assert absolute_budget(study, [record(0, limits(512), metrics=METRICS)]) is None
    known = absolute_budget(study, [record(0, state="failed"), record(1, metrics=METRICS)])
    assert known is not None
    assert known.limits[0].limit_ms == 151.46 / 2
    absolute = absolute_budget(study_record(), [])
    assert absolute is not None
    assert absolute.text == "ttft_p95:300 tpot_p95:16"
