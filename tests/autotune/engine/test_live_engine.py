"""One real engine whose limits change while it runs, whose steps are swept and replays cut."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from autotune.candidates.lattice import SEQS, TOKENS
from autotune.candidates.live import THRESHOLD
from autotune.demo import resolve_trace
from autotune.engine.protocol import EngineInfo, ReplayPlan, ReplayResult, TrialFailed
from autotune.engine.supervisor import Supervisor, Watchdogs
from autotune.forecast.grid import DECODE_STEPS, ContextProbe, KvProbe, SweepPlan
from autotune.forecast.sweep import Calibrated
from autotune.traffic.model import Trace, TraceRequest
from autotune.traffic.trace import load_trace
from objectives.censoring import unfinished
from objectives.steps import Steps
from tests.autotune.engine.tiny import ENGINE_ARGS, ENVIRONMENT

pytestmark = [pytest.mark.engine, pytest.mark.timeout(240)]

ENVELOPE: Mapping[str, Any] = {TOKENS: 1024, SEQS: 32}
WIDE: Mapping[str, int] = {**ENVELOPE, THRESHOLD: 0}
NARROW: Mapping[str, int] = {TOKENS: 128, SEQS: 2, THRESHOLD: 0}
SWEEP = SweepPlan(
    coarse=(64, 512, 1024),
    decodes=(16, 8, 1),
    contexts=(ContextProbe(256, 1024),),
    # One step has no room for all of these prompts.
    kv=(KvProbe(4, 600),),
    fine=(128, 129),
)


@dataclass(frozen=True, slots=True)
class Live:
    """The engine that the tests share."""

    supervisor: Supervisor
    info: EngineInfo

    def replay(self, trace: Trace, **plan: Any) -> ReplayResult:
        full = ReplayPlan(seed=1, **{"warmup_requests": 0, **plan})
        return self.supervisor.replay(trace, full, lambda _: None)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("live")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        with Supervisor(log_folder=folder, watchdogs=Watchdogs(180.0, 60.0)) as supervisor:
            started = supervisor.start({**ENGINE_ARGS, **ENVELOPE}, folder / "engine.log")
            yield Live(supervisor, started.info)


@pytest.fixture(scope="module")
def window() -> Trace:
    return load_trace(resolve_trace("demo:mixed")).window(0.0, 2.0)


def longest_share(result: ReplayResult) -> int:
    """Most tokens of one request in a step that has others too; alone it may have all."""
    assert result.schedule is not None
    shared = result.steps.requests[result.schedule.step] > 1
    return int(result.schedule.tokens[shared].max())


def test_nothing_stands_in_the_way_of_live_limits(live: Live) -> None:
    assert live.info.live_obstacle is None


def test_vllm_accounts_for_the_work_of_the_model(live: Live) -> None:
    work = live.info.work
    assert work is not None
    assert work.source == "vllm"
    # Each token reads keys and values of 4 layers of 2 heads of 32: a product with each.
    assert work.flops_per_token > work.flops_per_sample > work.flops_per_pair > 0


def test_limits_hold_from_the_replay_after_they_were_set(live: Live, window: Trace) -> None:
    live.supervisor.limit(NARROW)
    narrow = live.replay(window, salt="narrow")
    assert narrow.steps.tokens.max() == NARROW[TOKENS]
    assert narrow.steps.running.max() == NARROW[SEQS]
    assert not narrow.samples.lost.any()
    live.supervisor.limit({**WIDE, THRESHOLD: 100})
    chunked = live.replay(window, salt="chunked", detail=True)
    live.supervisor.limit(WIDE)
    wide = live.replay(window, salt="wide", detail=True)
    assert NARROW[SEQS] < wide.steps.running.max() <= WIDE[SEQS]
    assert longest_share(chunked) <= 100 < longest_share(wide)
    prompts = window.input_lengths.sum()
    assert [s.prefill_tokens.sum() for s in (narrow.steps, wide.steps)] == [prompts, prompts]


def test_who_computed_what_is_recorded_where_it_is_wanted(live: Live, window: Trace) -> None:
    result = live.replay(window, salt="detail", detail=True)
    schedule, steps = result.schedule, result.steps
    assert schedule is not None
    assert len(schedule.names) == len(window.requests)
    assert all(name.startswith("detail-") for name in schedule.names)
    in_step = np.bincount(schedule.step, weights=schedule.tokens, minlength=len(steps))
    np.testing.assert_array_equal(in_step, steps.tokens)
    np.testing.assert_array_equal(np.bincount(schedule.step), steps.requests)
    computed = np.bincount(schedule.request, weights=schedule.tokens)
    rows = [int(name.removeprefix("detail-").partition("-")[0]) for name in schedule.names]
    wanted = (window.input_lengths + window.output_lengths - 1)[rows]
    np.testing.assert_array_equal(computed, wanted)
    assert (schedule.arrival_step >= 0).all()
    assert live.replay(window.window(0.0, 0.5), salt="plain").schedule is None


def test_a_warm_up_is_repeated_until_the_pace_stands_still(live: Live, window: Trace) -> None:
    plan = {"warmup_requests": 10, "first_warmup_requests": 15, "warmup_passes": 3}
    warmup = live.replay(window, salt="first", **plan).warmup
    assert 2 <= warmup.passes <= 3
    assert warmup.requests == 15 + 10 * (warmup.passes - 1)
    result = live.replay(window, salt="warm", **plan)
    warmup = result.warmup
    assert 1 <= warmup.passes <= 3
    assert warmup.requests == 10 * warmup.passes
    assert warmup.seconds > 0
    assert result.began_at < result.ended_at
    assert result.replay_s < result.ended_at - result.began_at


def test_a_warm_up_that_cannot_keep_up_comes_to_an_end(live: Live) -> None:
    """Forty documents at once, one token a step of 64 at a time, would take minutes."""
    rows = [TraceRequest(float(n), 4000, 64, (1000 + n,) * 8) for n in range(40)]
    window = Trace.build(rows, block_size=512, prefixes_known=True, source="heavy")
    live.supervisor.limit({**NARROW, TOKENS: 64})
    plan = {"warmup_requests": 40, "warmup_passes": 1}
    result = live.replay(window, salt="heavy", budget="ttft_p50:1", classes="", **plan)
    live.supervisor.limit(WIDE)
    assert result.warmup.passes == 1
    assert result.censored is not None
    # A pass of rows that arrive at once ends at its first look after 5 s.
    assert result.warmup.seconds > 5.0


def test_a_replay_without_hope_is_cut_short_and_the_engine_lives_on(live: Live) -> None:
    window = load_trace(resolve_trace("demo:mixed")).window(0.0, 8.0)
    result = live.replay(window, salt="hopeless", budget="ttft_p50:0.1", classes="all:0-")
    cut = result.censored
    assert cut is not None
    assert cut.lost.key == "ttft_p50"
    assert cut.lost.at_least_ms > cut.lost.limit_ms == 0.1
    assert cut.sent < cut.requests == len(window.requests)
    assert unfinished(result.samples).sum() == cut.requests - cut.ended
    # Limits are taken only by an engine that is drained.
    live.supervisor.limit(WIDE)
    after = live.replay(window.window(0.0, 1.0), salt="after", budget="ttft_p50:60000")
    assert after.censored is None
    assert not unfinished(after.samples).any()
    assert not after.samples.lost.any()


@pytest.fixture(scope="module")
def swept(live: Live) -> Steps:
    steps, whole = live.supervisor.sweep(SWEEP, WIDE, lambda _: None)
    assert whole
    return steps


def test_a_sweep_computes_what_was_planned(swept: Steps) -> None:
    prefills = swept.prefill_tokens[(swept.decode_requests == 0) & (swept.requests == 1)]
    assert prefills[:3].tolist() == [64, 512, 1024]
    assert prefills[-2:].tolist() == [128, 129]
    chunks = swept.prefill_tokens[swept.prefill_tokens == 256]
    assert chunks.size == 4
    pairs = swept.prefill_pairs[swept.prefill_tokens == 256]
    assert (np.diff(pairs) == 256 * 256).all()
    decodes = swept.decode_requests[swept.prefill_tokens == 0]
    for size in (16, 8, 1):
        assert (decodes == size).sum() == DECODE_STEPS
    long = swept.decode_kv_tokens[(swept.prefill_tokens == 0) & (swept.decode_requests == 4)]
    assert long.size == DECODE_STEPS
    assert long.min() >= 4 * 600


def test_a_sweep_has_one_step_in_flight(swept: Steps) -> None:
    assert (swept.begun_s[1:] >= swept.done_s[:-1]).all()


def test_a_sweep_makes_a_calibration(live: Live, swept: Steps) -> None:
    calibrated = Calibrated.of(
        swept, plan=SWEEP, whole=True, capture_sizes=(), work=live.info.work
    )
    assert calibrated.whole
    found = calibrated.calibration
    assert {point.tokens for point in found.points} >= {64, 128, 129, 512, 1024}
    assert {batch.requests for batch in found.batches} >= {16, 8, 1}
    assert found.best_flops_per_s is not None
    assert found.capture_limit is None


def test_after_a_sweep_the_limits_are_those_of_the_start(live: Live, window: Trace) -> None:
    result = live.replay(window, salt="swept")
    assert NARROW[TOKENS] < result.steps.tokens.max() <= WIDE[TOKENS]


def test_a_limit_beyond_the_start_is_refused(live: Live) -> None:
    """The last: a command that fails costs the host its life."""
    with pytest.raises(TrialFailed, match="2048 tokens a step, of at most 1024"):
        live.supervisor.limit({**WIDE, TOKENS: 2048})
