from __future__ import annotations

import json
from dataclasses import replace

from autotune.candidates.lattice import SEQS, TOKENS
from autotune.study.outlook import outlook
from autotune.traffic.fit import fitted
from tests.autotune.study.scripted import BASELINE, job_of, small_trace


def test_the_plan_of_a_job() -> None:
    plan = outlook(job_of(budget="ttft_p95:300 tpot_p99:16", classes="short:0-500 long:500-"))
    assert json.loads(json.dumps(plan, allow_nan=False)) == plan
    assert plan["requests"] == 80
    assert plan["classes"] == "short:0-500 long:500-"
    assert plan["budget"] == "ttft_p95:300 tpot_p99:16"
    assert plan["baseline"] == BASELINE
    assert plan["starts"] == [{TOKENS: 512, SEQS: 64}, {TOKENS: 128, SEQS: 64}]
    assert plan["ladders"][SEQS] == [8, 16, 24, 32, 48, 64]
    assert plan["cells"] == 48
    assert plan["trials"] == 8
    assert plan["longest_request"] == 1004
    assert (plan["too_long"], plan["too_long_requests"]) == ("error", 0)


def test_a_window_too_short_for_a_bound_is_named() -> None:
    plan = outlook(job_of(budget="ttft_p95:300 tpot_p99:16 itl_max:99"))
    assert "p99" in plan["too_few_requests_for"]
    assert "p95" not in plan["too_few_requests_for"]


def test_no_budget_and_no_classes_are_said_in_words() -> None:
    plan = outlook(job_of(budget=""))
    assert (plan["budget"], plan["classes"]) == ("none", "one")


def test_requests_that_are_too_long_are_counted() -> None:
    job = replace(job_of(too_long="skip"), trace=fitted(small_trace(), 900, "skip"))
    plan = outlook(job)
    assert (plan["too_long"], plan["too_long_requests"], plan["requests"]) == ("skip", 10, 70)
    assert plan["notes"] == ["Requests longer than max_model_len 900, left out: 10."]
