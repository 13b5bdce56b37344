from __future__ import annotations

import json

import pytest

from autotune.candidates.lattice import SEQS, TOKENS
from autotune.engine.supervisor import Description
from autotune.errors import UsageError
from autotune.settings import TooLong
from autotune.study.job import make_job, peak_concurrency
from autotune.traffic.fit import fitted
from autotune.traffic.model import Trace, TraceRequest
from objectives.limits import parse_budget
from tests.autotune.study.scripted import (
    BASELINE,
    DESCRIPTION,
    FLAGS,
    INFO,
    job_of,
    settings_of,
    small_trace,
)


def trace_of(*arrivals_s: float, output: int = 11) -> Trace:
    requests = [TraceRequest(at * 1000, 100, output, (n,)) for n, at in enumerate(arrivals_s)]
    return Trace.build(requests, block_size=512, prefixes_known=True, source="test")


def test_the_baseline_is_what_the_user_runs_today() -> None:
    job = job_of(engine_args={SEQS: 64, "enforce_eager": True})
    assert job.baseline == BASELINE
    assert job.pinned == {"enforce_eager": True, "model": "tiny"}
    assert job.engine_args({TOKENS: 512, SEQS: 8}) == {
        "enforce_eager": True, "model": "tiny", TOKENS: 512, SEQS: 8,
    }  # fmt: skip


def test_a_knob_has_a_baseline_too() -> None:
    flags = {**FLAGS, "block_size": {"flag": "--block-size", "negative": None, "default": "16"}}
    settings = settings_of(knobs={"block_size": [32]})
    job = make_job(settings, small_trace(), parse_budget(""), (), Description(INFO, flags))
    assert job.baseline == {**BASELINE, "block_size": 16}
    assert job.lattice.ladders["block_size"] == (16, 32)


def test_a_knob_that_vllm_leaves_open_needs_a_value() -> None:
    with pytest.raises(UsageError) as caught:
        job_of(knobs={"long_prefill_token_threshold": [0, 512]})
    assert "long_prefill_token_threshold has no plain default" in caught.value.message
    assert "--engine-arg long_prefill_token_threshold=" in caught.value.hint


def test_a_list_that_vllm_works_out_by_itself_needs_a_value() -> None:
    with pytest.raises(UsageError) as caught:
        job_of(knobs={"cudagraph_capture_sizes": [(1, 2), (1, 2, 4)]})
    assert "--engine-arg cudagraph_capture_sizes=" in caught.value.hint


@pytest.mark.parametrize("value", [[], [[1]], {"a": 1}])
def test_a_baseline_that_no_knob_could_have_is_none(value: object) -> None:
    with pytest.raises(UsageError, match="has no plain default"):
        job_of(knobs={"sizes": [(1, 2)]}, engine_args={"sizes": value})


def test_engines_and_records_get_plain_lists() -> None:
    job = job_of(knobs={"sizes": [[1, 2, 4]]}, engine_args={"sizes": [1, 2]})
    assert job.lattice.ladders["sizes"] == ((1, 2), (1, 2, 4))
    assert job.baseline["sizes"] == (1, 2)
    assert "sizes" not in job.pinned
    expected = {"model": "tiny", **BASELINE, "sizes": [1, 2, 4]}
    assert job.engine_args({**BASELINE, "sizes": (1, 2, 4)}) == expected
    fingerprint = job.fingerprint()
    assert json.loads(json.dumps(fingerprint)) == fingerprint
    assert fingerprint["baseline"]["sizes"] == [1, 2]
    assert fingerprint["ladders"]["sizes"] == [[1, 2], [1, 2, 4]]


def test_the_fingerprint_holds_what_may_not_change() -> None:
    same = job_of().fingerprint()
    assert job_of(trials=99, study_name="x", max_failures_in_a_row=9).fingerprint() == same
    for changed in ({"seed": 1}, {"warmup_s": 2.0}, {"tile": "256,8"}, {"engine_args": {"a": 1}}):
        assert job_of(**changed).fingerprint() != same


def test_the_spec_holds_what_may() -> None:
    spec = job_of(classes="short:0-500 long:500-").spec()
    assert spec["budget"] == "ttft_p95:300 tpot_p95:16"
    assert spec["classes"] == "short:0-500 long:500-"
    assert spec["requests"] == 80
    assert spec["trials"] == 8


@pytest.mark.parametrize("policy", ["skip", "truncate"])
def test_the_fingerprint_says_what_became_of_long_requests(policy: TooLong) -> None:
    settings = settings_of(too_long=policy)
    fit = fitted(small_trace(), 900, policy)
    job = make_job(settings, fit, parse_budget(""), (), DESCRIPTION)
    assert job.fingerprint()["too_long"] == policy
    assert job.fingerprint()["trace"] == fit.sha256 != small_trace().sha256
    assert "too_long" not in job_of(too_long=policy).fingerprint()


@pytest.mark.parametrize(
    ("budget", "arrivals", "peak"),
    [
        ("ttft_p95:500 tpot_p95:50", (0.0, 0.5, 0.9, 2.0), 3),  # Each stays for 1.05 s.
        ("ttft_p95:500 tpot_p95:50", (0.0, 1.1, 2.2), 1),
        ("ttft_p95:500", (0.0, 0.1), 0),
        ("", (0.0, 0.1), 0),
    ],
)
def test_concurrency_at_the_edge_of_the_budget(
    budget: str, arrivals: tuple[float, ...], peak: int
) -> None:
    assert peak_concurrency(trace_of(*arrivals), parse_budget(budget)) == peak


def test_ladders_that_were_frozen_stay() -> None:
    assert job_of(peak=100).lattice.ladders[SEQS][-1] == 192
    assert job_of(peak=0).lattice.ladders[SEQS][-1] == 64
