from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from autotune.cli.changes import against, relative
from tests.autotune.cli.judgements import cell, judgement
from tests.autotune.study.records import limits


def test_a_latency_that_was_nothing_grows_without_a_percentage() -> None:
    """All tokens of short answers may come in one delivery: the TPOT is 0."""
    chosen = cell(limits(512), 95.0, 2.0)
    nothing = {"tpot_p95": 0.0, "itl_p99": 0.0}
    base = replace(
        cell(limits(2048), 95.0, 2.0),
        metrics={**chosen.metrics, **nothing},
        costs=np.array([95.0, 0.0, 1.0]),
    )
    worse = "which is the price: tpot_p95 0.0 → 2.0 ms, itl_p99 0.0 → 6.0 ms."
    assert worse in " ".join(against(judgement("knee", winner=1), base, chosen))
    assert relative(base, chosen) == (0.0, math.inf, 0.0)
    assert relative(base, base) == (0.0, 0.0, 0.0)


def test_work_is_utilization_where_that_was_measured() -> None:
    base, chosen = (
        replace(each, metrics={**each.metrics, "utilization": share})
        for each, share in (
            (cell(limits(2048), 95.0, 2.0), 0.412),
            (cell(limits(512), 95.0, 2.0), 0.453),
        )
    )
    assert against(judgement("knee", winner=1), base, chosen)[0] == (
        "Better than the baseline 2048/64: utilization 41.2 → 45.3 % (+10 %)."
    )
    assert "Worse" in against(judgement("knee", winner=1), chosen, base)[0]
