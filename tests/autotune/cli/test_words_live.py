"""The exact sentences that verdicts over live trials add."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.cli.steadiness import steadiness_lines
from autotune.cli.words import verdict_lines
from autotune.study.drift import Difference, Faithfulness, Spread, Steadiness, Trend
from objectives.limits import Budget
from tests.autotune.cli.judgements import BUDGET, CELLS, FULL, UNREPEATED, cell, judgement
from tests.autotune.study.records import limits

LIVE = replace(CELLS[1], fidelity="live")
ONLY_BASELINE = (CELLS[0], LIVE, replace(CELLS[2], fidelity="live"))


def test_the_baseline_alone_is_confirmed() -> None:
    verdict = judgement(
        "not_converged", winner=0, cells=ONLY_BASELINE, unconfirmed=1, scores=(0.9, 0.2, 0.5)
    )
    lines = verdict_lines(verdict)
    assert lines[0] == (
        "Not converged: 512/64 seems better than 2048/64, but was measured live only; not "
        "confirmed by a restart."
    )
    assert lines[-3:] == [
        "How sure: not at all, as no other candidate was confirmed by a restart.",
        UNREPEATED,
        (
            "Next: the same command with --trials raised by 8: it keeps these trials and has time "
            "to restart 512/64."
        ),
    ]


def test_a_baseline_that_looks_best_is_not_confirmed_either() -> None:
    verdict = judgement(
        "not_converged", winner=0, cells=ONLY_BASELINE, unconfirmed=1, scores=(0.1, 0.2, 0.5)
    )
    assert verdict_lines(verdict)[0] == (
        "Not converged: 2048/64 is the best so far, and next to it 512/64, which was measured "
        "live only; not confirmed by a restart."
    )


@pytest.mark.parametrize("budget", [BUDGET, Budget()])
def test_nothing_that_keeps_the_budget_was_restarted(budget: Budget) -> None:
    cells = (replace(CELLS[0], feasible=False), LIVE)
    verdict = judgement("not_converged", winner=None, cells=cells, unconfirmed=1, budget=budget)
    said = "By its live trials: ttft_p95 180.0 ms, within 300.0; tpot_p95 9.4 ms, within 16.0."
    assert verdict_lines(verdict) == [
        (
            "Not converged: 512/64 is the best so far, but was measured live only; not confirmed "
            "by a restart."
        ),
        *([said] if budget.limits else []),
        ("How sure: not at all, as no restart has confirmed a candidate that meets the budget."),
        UNREPEATED,
        (
            "Next: the same command with --trials raised by 8: it keeps these trials and has time "
            "to restart 512/64."
        ),
    ]


def test_a_live_candidate_that_takes_the_verdict_back() -> None:
    cells = (*CELLS[:2], replace(CELLS[2], fidelity="live"))
    verdict = judgement(
        "not_converged", winner=1, cells=cells, unconfirmed=2, scores=(0.9, 0.5, 0.2)
    )
    lines = verdict_lines(verdict)
    assert lines[0].startswith("Not converged: 768/64 seems better than 512/64, but was measured")
    assert lines[-2:] == [
        (
            "Next: the same command with --trials raised by 8: it keeps these trials and has time "
            "to restart 768/64."
        ),
        (
            "Or take 512/64 now, with autotune best --output serve.yaml: what is at stake is said "
            "above."
        ),
    ]


def test_a_rival_that_was_measured_live_was_in_question() -> None:
    cells = (replace(CELLS[0], feasible=False), CELLS[1], replace(CELLS[2], fidelity="live"))
    assert (
        "How sure: in 72% of 300 resamples 512/64 is best, and 512/64 or 768/64 (measured live "
        "only) in 90 % of them."
    ) in verdict_lines(judgement("knee", winner=1, cells=cells))


def test_the_only_candidate_that_meets_the_budget() -> None:
    live = replace(CELLS[2], fidelity="live", feasible=False)
    cells = (replace(CELLS[0], feasible=False), CELLS[1], live)
    assert (
        "How sure: 512/64 is the only candidate that meets the budget, so no other was in "
        "question."
    ) in verdict_lines(judgement("knee", winner=1, cells=cells))


def test_a_neighbour_that_was_measured_live_is_named_so() -> None:
    cells = (
        CELLS[0],
        cell(limits(512), 180.0, 9.4, diagnosis=FULL),
        cell(limits(768), 150.0, 11.0, fidelity="live"),
    )
    assert (
        "Raising max_num_batched_tokens, as at 768/64 (measured live): ttft_p95 -17 %, but "
        "tpot_p95 +17 %."
    ) in verdict_lines(judgement("knee", winner=1, cells=cells))


def faithful(beyond: bool | None, *reasons: str, change: float = 0.12) -> Faithfulness:
    low, high = (None, None) if beyond is None else (change - 0.04, change + 0.04)
    differences = {
        "ttft_p95": Difference(change, low, high, beyond),
        "tpot_p95": Difference(0.001, low, high, None if beyond is None else False),
    }
    return Faithfulness(limits(512), (4,), (2,), differences, reasons)


def test_what_repeats_show() -> None:
    steadiness = Steadiness(
        spread={"ttft_p95": Spread(0.021, 4), "tokens_per_busy_s": Spread(0.004, 4)},
        drift={
            "ttft_p95": Trend(0.12, 2.333, 0.003, True),
            "tokens_per_busy_s": Trend(0.01, 2.333, 0.4, False),
        },
        faithfulness=(
            faithful(True, "kv_cache_tokens", "capture_sizes"),
            replace(faithful(False), candidate=limits(768)),
            replace(faithful(True, "unknown", change=0.002), candidate=limits(1024)),
        ),
    )
    lines = [
        (
            "Sentinels: 4 live trials of the baseline differ by 2.1 % in ttft_p95 and by 0.4 % in "
            "work (one standard deviation)."
        ),
        (
            "Drift: within 2 h 20 min the baseline changed in ttft_p95 by +12 %, which is more "
            "than noise, so trials far apart in time compare badly."
        ),
        (
            "Live trials differ from restarts by more than noise at 512/64: ttft_p95 +12 % (90 % "
            "interval +8 % to +16 %); their KV caches have different sizes and their engines "
            "captured different graphs. Restarts alone decide."
        ),
        "Live trials and restarts agree within 1 % or the noise at 768/64 and 1024/64.",
    ]
    assert list(steadiness_lines(steadiness)) == lines
    shown = verdict_lines(judgement("knee", winner=1, steadiness=steadiness))
    assert [line for line in shown if line in lines] == lines


def test_several_candidates_share_a_sentence() -> None:
    cells = tuple(
        replace(faithful(True, reason, change=change), candidate=limits(tokens))
        for tokens, change, reason in (
            (512, 0.12, "unknown"), (768, 0.07, "kv_cache_tokens"), (1024, 0.09, "unknown"),
        )
    )  # fmt: skip
    (line,) = steadiness_lines(Steadiness(faithfulness=cells))
    assert line == (
        "Live trials differ from restarts by more than noise at 512/64, 768/64 and 1024/64: "
        "ttft_p95 +7 % to +12 %; their KV caches have different sizes. Restarts alone decide."
    )


def test_a_machine_that_stood_still() -> None:
    steadiness = Steadiness(drift={"ttft_p95": Trend(0.02, 1.0, 0.2, False)})
    assert list(steadiness_lines(steadiness)) == [
        "No drift: the baseline did not change by more than noise within 60 min."
    ]


TWICE = "nothing was measured twice in one way to say whether that is noise"


def test_where_noise_is_unknown_the_difference_is_said() -> None:
    cells = (
        faithful(None),
        replace(faithful(None, change=4.02), candidate=limits(768)),
        replace(faithful(None, change=-0.1), candidate=limits(1024)),
        replace(faithful(None, change=-0.21), candidate=limits(256)),
    )
    assert list(steadiness_lines(Steadiness(faithfulness=cells))) == [
        (
            f"Live trials differ from restarts at 768/64: ttft_p95 by +402 %; {TWICE}. Restarts "
            "alone decide."
        ),
        (
            f"Live trials differ from restarts at 256/64: ttft_p95 by -21 %; {TWICE}. Restarts "
            "alone decide."
        ),
        (
            "Live trials and restarts are within 25 % of each other at 512/64 and 1024/64; "
            f"{TWICE}."
        ),
    ]


def test_noise_that_is_known_in_part() -> None:
    """Of one objective there are repeats, of the other none has a value."""
    mixed = replace(
        faithful(True, "unknown"),
        differences={
            "ttft_p95": Difference(0.12, 0.08, 0.16, True),
            "tpot_p95": Difference(0.1, None, None, None),
        },
    )
    (line,) = steadiness_lines(Steadiness(faithfulness=(mixed,)))
    assert line.startswith("Live trials differ from restarts by more than noise at 512/64: ttft")


def test_both_ways_once_is_not_measured_twice() -> None:
    lines = verdict_lines(
        judgement("knee", winner=1, steadiness=Steadiness(faithfulness=(faithful(None),)))
    )
    assert (
        "No candidate was measured twice in the same way, live or by a restart, so the noise "
        "between replays is not known."
    ) in lines
    assert UNREPEATED not in lines
