from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autotune.candidates.lattice import SEQS, TOKENS
from autotune.candidates.live import LIVE_LIMITS, THRESHOLD
from autotune.engine.protocol import EngineInfo, ReplayPlan, ReplayResult, TrialFailed
from autotune.forecast.grid import sweep_plan
from autotune.simulated.arguments import HONOURED
from autotune.simulated.engines import SimulatedEngines
from autotune.simulated.profile import Noise, load_profile
from autotune.simulated.shape import shape_of
from autotune.traffic.model import Trace, TraceRequest

PLAN = ReplayPlan(seed=0, salt="trial-0", warmup_requests=4)
LIMITS = {TOKENS: 512, SEQS: 16}

Open = Callable[..., SimulatedEngines]


def trace_of(count: int = 20, *, apart_ms: float = 50.0, prompt: int = 600) -> Trace:
    requests = [
        TraceRequest(
            timestamp_ms=number * apart_ms,
            input_length=prompt,
            output_length=8,
            hash_ids=tuple(range(100 * number, 100 * number + -(-prompt // 512))),
        )
        for number in range(count)
    ]
    return Trace.build(requests, block_size=512, prefixes_known=True, source="made")


def said(_body: Mapping[str, Any]) -> None:
    return None


@pytest.fixture
def opened(tmp_path: Path) -> Open:
    """Engines by the profile of the CPU, with its noise or without."""

    def opener(*, noise: bool = True, seed: int = 0) -> SimulatedEngines:
        profile = load_profile("sim:cpu-tiny-llama")
        if not noise:
            profile = replace(profile, noise=Noise())
        return SimulatedEngines(profile, seed=seed, log_folder=tmp_path)

    return opener


def started(engines: SimulatedEngines, folder: Path, **engine_args: Any) -> EngineInfo:
    return engines.start({**LIMITS, **engine_args}, folder / "engine.log").info


def same(one: ReplayResult, other: ReplayResult) -> bool:
    return np.array_equal(one.samples.last_token_s, other.samples.last_token_s)


def test_a_description_is_the_profile_with_what_was_given(opened: Open) -> None:
    described = opened().describe({"model": "llama", TOKENS: 1024, "max_model_len": None})
    info = described.info
    assert info.device == "Intel(R) Xeon(R) Processor, simulated (profile cpu-tiny-llama)"
    assert (info.model, info.kv_cache_tokens, info.device_uuids) == ("llama", None, ())
    assert info.resolved[TOKENS] == 1024
    assert info.max_model_len == 8192
    assert described.flags["enable_prefix_caching"] == {
        "flag": "--enable-prefix-caching",
        "negative": "--no-enable-prefix-caching",
        "default": None,
    }


def test_without_a_name_the_model_is_the_profiles(opened: Open) -> None:
    assert opened().describe({"model": "sim:cpu-tiny-llama"}).info.model == "tiny-llama"


@pytest.mark.parametrize("name", sorted(HONOURED | {"tokenizer"}))
def test_whatever_may_be_given_can_be_exported(opened: Open, name: str) -> None:
    assert opened().describe({}).flags[name]["flag"] == f"--{name.replace('_', '-')}"


@pytest.mark.parametrize("name", sorted(HONOURED))
def test_whatever_is_followed_has_a_value_to_compare_with(opened: Open, name: str) -> None:
    assert opened().describe({}).info.resolved[name] is not None


def test_without_chunked_prefill_limits_are_not_changed_live(opened: Open) -> None:
    info = opened().describe({"enable_chunked_prefill": False}).info
    assert info.live_obstacle == "enable_chunked_prefill is false"
    assert opened().describe({}).info.live_obstacle is None


@pytest.mark.parametrize(
    "engine_args",
    [
        {},
        {"model": "any"},
        {TOKENS: 256, SEQS: 8, THRESHOLD: 64},
        {"enable_prefix_caching": False, "async_scheduling": True, "watermark": 0.1},
        {"scheduling_policy": "priority", "scheduler_reserve_full_isl": False},
        {"max_model_len": 4096, "load_format": "auto", "seed": 7, "tokenizer": "other"},
        {"enable_chunked_prefill": False, TOKENS: 8192},
        {"tensor_parallel_size": 1, "enforce_eager": True},
    ],
)
def test_what_can_be_simulated(opened: Open, engine_args: dict[str, Any]) -> None:
    error, known = opened().validate(engine_args)
    assert error is None
    assert TOKENS in known


@pytest.mark.parametrize(
    ("engine_args", "words"),
    [
        ({TOKENS: 64, SEQS: 65}, f"{TOKENS} (64) must be greater than or equal to {SEQS} (65)."),
        (
            {"enable_chunked_prefill": False},
            f"{TOKENS} (2048) is smaller than max_model_len (8192)",
        ),
        ({SEQS: 0}, f"{SEQS} must be a whole number of at least 1, not 0"),
        ({TOKENS: 10**9}, f"{TOKENS} cannot be simulated beyond 1048576"),
        ({TOKENS: True}, f"{TOKENS} must be a whole number of at least 1, not True"),
        ({THRESHOLD: -1}, f"{THRESHOLD} must be a whole number of at least 0, not -1"),
        ({"max_model_len": "auto"}, "max_model_len must be a whole number of at least 1"),
        ({"scheduling_policy": "lifo"}, "scheduling_policy must be one of fcfs, priority"),
        (
            {"tensor_parallel_size": 2},
            "the profile cpu-tiny-llama was measured with tensor_parallel_size=1",
        ),
        ({"async_scheduling": "yes"}, "async_scheduling must be true or false, not 'yes'"),
        ({"watermark": "low"}, "watermark must be a number from 0 to below 1, not 'low'"),
        ({"watermark": 1.0}, "watermark must be a number from 0 to below 1, not 1.0"),
        ({"max_model_len": 9000}, "was measured with requests of up to 8192 tokens"),
        ({"quantization": "fp8"}, "the profile cpu-tiny-llama was not measured with it"),
        ({"worker_cls": "mine"}, "the profile cpu-tiny-llama names its machine"),
    ],
)
def test_what_is_refused(
    opened: Open, tmp_path: Path, engine_args: dict[str, Any], words: str
) -> None:
    error, _ = opened().validate(engine_args)
    assert error is not None
    assert words in error
    with pytest.raises(TrialFailed) as caught:
        opened().start(engine_args, tmp_path / "engine.log")
    assert caught.value.failure.failure_class == "refused_argument"


def test_an_engine_that_no_simulation_knows_is_refused(opened: Open, tmp_path: Path) -> None:
    profile = opened().profile
    info = replace(profile.info, forecast_obstacle="LoRA changes the schedule")
    other = SimulatedEngines(replace(profile, info=info), seed=0, log_folder=tmp_path)
    words = "the engine of the profile cpu-tiny-llama cannot be simulated: LoRA changes the"
    assert (other.validate({})[0] or "").startswith(words)


def test_a_start_takes_the_time_of_the_profile_on_no_clock_but_its_own(
    opened: Open, tmp_path: Path
) -> None:
    engines = opened()
    begun = engines.start({**LIMITS}, tmp_path / "logs" / "engine.log")
    assert begun.start_s == engines.profile.start_s
    assert begun.info.kv_cache_tokens == 65536
    assert begun.ground.waited_s == 0
    log = (tmp_path / "logs" / "engine.log").read_text()
    assert log.endswith("simulated (profile cpu-tiny-llama): no engine was started\n")
    assert engines.running() == frozenset()
    assert engines.device_uuids == frozenset()


def test_the_cache_has_the_blocks_of_the_profile_whatever_the_longest_request(
    opened: Open, tmp_path: Path
) -> None:
    info = started(opened(), tmp_path, max_model_len=1000)
    # Eight blocks of 128 tokens for a request of 1000: 512 blocks are 64 of them.
    assert info.kv_cache_tokens == 64 * 1000
    assert shape_of(info).kv_blocks == 512


def test_nothing_is_replayed_without_an_engine(opened: Open, tmp_path: Path) -> None:
    with opened() as engines:
        with pytest.raises(TrialFailed, match="no engine was started"):
            engines.replay(trace_of(), PLAN, said)
        started(engines, tmp_path)
        assert engines.stop() == 0
        with pytest.raises(TrialFailed, match="no engine was started"):
            engines.replay(trace_of(), PLAN, said)


def test_a_replay(opened: Open, tmp_path: Path) -> None:
    bodies: list[Mapping[str, Any]] = []
    engines, trace = opened(), trace_of()
    started(engines, tmp_path)
    result = engines.replay(trace, PLAN, bodies.append)
    assert result.samples.output_tokens.tolist() == [8] * 20
    assert not result.samples.failed.any()
    assert int(result.steps.tokens.sum()) == 20 * (600 + 7)
    assert (result.warmup.passes, result.warmup.seconds) == (0, 0)
    assert (result.errors, result.censored) == ((), None)
    assert result.replay_s == pytest.approx(result.samples.last_token_s.max())
    assert bodies == [{"stage": "replay", "total": 20, "sent": 20, "done": 20, "tokens": 160}]


def test_the_clock_only_moves_forward(opened: Open, tmp_path: Path) -> None:
    engines = opened()
    started(engines, tmp_path)
    first = engines.replay(trace_of(), PLAN, said)
    engines.wait(60.0)
    second = engines.replay(trace_of(), PLAN, said)
    assert first.began_at == pytest.approx(engines.profile.start_s)
    assert first.ended_at == pytest.approx(first.began_at + first.replay_s)
    assert second.began_at == pytest.approx(first.ended_at + 60.0)


def test_noise_repeats_with_seed_and_salt_and_with_nothing_else(
    opened: Open, tmp_path: Path
) -> None:
    def replayed(*, seed: int = 0, salt: str = "trial-0", noise: bool = True) -> ReplayResult:
        engines = opened(seed=seed, noise=noise)
        started(engines, tmp_path)
        return engines.replay(trace_of(), replace(PLAN, salt=salt), said)

    assert same(replayed(), replayed())
    assert not same(replayed(), replayed(seed=1))
    assert not same(replayed(), replayed(salt="trial-1"))
    assert same(replayed(noise=False), replayed(noise=False, seed=1, salt="trial-1"))


def test_stalls_take_longer(opened: Open, tmp_path: Path) -> None:
    def taken_s(noise: Noise) -> float:
        profile = replace(load_profile("sim:cpu-tiny-llama"), noise=noise)
        engines = SimulatedEngines(profile, seed=0, log_folder=tmp_path)
        started(engines, tmp_path)
        return float(engines.replay(trace_of(1), PLAN, said).steps.period_s.sum())

    usual = taken_s(Noise())
    assert taken_s(Noise(stalls=1.0, stall_factor=1.5)) == pytest.approx(1.5 * usual)
    assert usual < taken_s(Noise(stalls=0.2, stall_factor=1.5)) < 1.5 * usual


def test_limits_hold_from_the_next_replay_on(opened: Open, tmp_path: Path) -> None:
    engines = opened(noise=False)
    started(engines, tmp_path)
    wide = engines.replay(trace_of(), PLAN, said)
    engines.limit({TOKENS: 128, SEQS: 4, THRESHOLD: 0})
    narrow = engines.replay(trace_of(), PLAN, said)
    assert wide.steps.tokens.max() > 128
    assert narrow.steps.tokens.max() == 128
    started(engines, tmp_path, max_num_batched_tokens=128, max_num_seqs=4)
    assert same(engines.replay(trace_of(), PLAN, said), narrow)


def test_another_trace_and_another_shape_are_simulated_anew(opened: Open, tmp_path: Path) -> None:
    engines = opened(noise=False)
    requests = [replace(each, hash_ids=(1, 2)) for each in trace_of().requests]
    alike = Trace.build(requests, block_size=512, prefixes_known=True, source="made")
    started(engines, tmp_path, enable_prefix_caching=True)
    assert engines.replay(trace_of(), PLAN, said).samples.cached_tokens.max() == 0
    assert engines.replay(alike, PLAN, said).samples.cached_tokens.max() > 0
    started(engines, tmp_path, enable_prefix_caching=False)
    assert engines.replay(alike, PLAN, said).samples.cached_tokens.max() == 0


def test_requests_that_never_fit_have_failed(opened: Open, tmp_path: Path) -> None:
    engines = opened()
    profile = replace(engines.profile, info=replace(engines.profile.info, kv_cache_tokens=1024))
    small = SimulatedEngines(profile, seed=0, log_folder=tmp_path)
    started(small, tmp_path)
    result = small.replay(trace_of(2, prompt=4000), PLAN, said)
    assert result.samples.failed.all()
    assert result.errors == ("2 requests never fit the KV cache",)


def test_a_replay_that_has_lost_its_budget_is_cut_short(opened: Open, tmp_path: Path) -> None:
    engines, trace = opened(), trace_of(200, apart_ms=20.0, prompt=1000)
    started(engines, tmp_path)
    result = engines.replay(trace, replace(PLAN, budget="ttft_p95:50"), said)
    cut = result.censored
    assert cut is not None
    assert cut.lost.key == "ttft_p95"
    assert result.replay_s == cut.cut_s < 4
    assert result.ended_at == pytest.approx(result.began_at + cut.cut_s)
    kept = engines.replay(trace, replace(PLAN, budget="ttft_p95:50000"), said)
    assert kept.censored is None


def test_a_sweep(opened: Open, tmp_path: Path) -> None:
    engines = opened(noise=False)
    info = started(engines, tmp_path)
    limits = {name: int(info.resolved[name]) for name in LIVE_LIMITS}
    plan = sweep_plan(
        max_tokens=512,
        max_seqs=16,
        max_model_len=8192,
        capture_sizes=(),
        kv_cache_tokens=65536,
        tile=128,
    )
    steps, whole = engines.sweep(plan, limits, said)
    assert whole
    assert steps.begun_s[0] == 0
    np.testing.assert_allclose(steps.begun_s[1:], steps.done_s[:-1])
    expected_s = engines.profile.step_times.expected_s(steps)
    np.testing.assert_allclose(steps.done_s - steps.begun_s, expected_s)
    part, whole = engines.sweep(plan, limits, said, seconds=0.1)
    assert not whole
    assert 0 < len(part) < len(steps)


def test_time_passes_on_paper_and_can_be_cut_short(opened: Open, tmp_path: Path) -> None:
    """The pulse is asked every second of it."""
    engines = opened()
    assert engines.clock() == 0.0
    started(engines, tmp_path)
    begun_s = engines.clock()
    assert begun_s == engines.profile.start_s
    engines.wait(7.5)
    assert engines.clock() == begun_s + 7.5

    def stop() -> None:
        if engines.clock() > begun_s + 10.0:
            raise TimeoutError

    engines.pulse = stop
    with pytest.raises(TimeoutError):
        engines.replay(trace_of(400), PLAN, said)
    assert begun_s + 10.0 < engines.clock() <= begun_s + 11.0
