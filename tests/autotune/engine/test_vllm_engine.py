"""One real engine, driven as the controller drives it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from autotune.demo import resolve_trace
from autotune.engine.processes import processes_of
from autotune.engine.protocol import EngineInfo, ReplayPlan, ReplayResult, TrialFailed
from autotune.engine.supervisor import Supervisor, Watchdogs
from autotune.simulated.arguments import HONOURED
from autotune.traffic.model import Trace, TraceRequest
from autotune.traffic.trace import load_trace
from tests.autotune.engine.survival import orphaned_shared_memory, shared_memory_of, survivors
from tests.autotune.engine.tiny import (
    ENGINE_ARGS,
    ENVIRONMENT,
    KV_BYTES_PER_TOKEN,
    KV_CACHE_BYTES,
)

pytestmark = [pytest.mark.engine, pytest.mark.timeout(240)]

LIMITS: Mapping[str, Any] = {"max_num_batched_tokens": 256, "max_num_seqs": 8}
DEFAULTS_ON_CPU = {"max_num_batched_tokens": 2048, "max_num_seqs": 128}


@dataclass(frozen=True, slots=True)
class Running:
    """The engine that the tests share, and the reports of its replays."""

    supervisor: Supervisor
    info: EngineInfo
    reports: list[Mapping[str, Any]]

    @property
    def host(self) -> psutil.Process:
        assert self.supervisor._process is not None
        return psutil.Process(self.supervisor._process.pid)

    def replay(self, trace: Trace, *, salt: str, warmup_requests: int = 0) -> ReplayResult:
        plan = ReplayPlan(seed=1, salt=salt, warmup_requests=warmup_requests)
        return self.supervisor.replay(trace, plan, self.reports.append)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("engine")


@pytest.fixture(scope="module")
def supervisor(folder: Path) -> Iterator[Supervisor]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        with Supervisor(log_folder=folder, watchdogs=Watchdogs(180.0, 60.0)) as opened:
            yield opened


@pytest.fixture(scope="module")
def engine(supervisor: Supervisor, folder: Path) -> Running:
    started = supervisor.start({**ENGINE_ARGS, **LIMITS}, folder / "trial.log")
    assert started.start_s > 0
    return Running(supervisor, started.info, [])


@pytest.fixture(scope="module")
def window() -> Trace:
    return load_trace(resolve_trace("demo:mixed")).window(0.0, 4.0)


@pytest.fixture(scope="module")
def first(engine: Running, window: Trace) -> ReplayResult:
    return engine.replay(window, salt="first", warmup_requests=3)


def test_open_limits_get_the_defaults_of_the_server(supervisor: Supervisor) -> None:
    described = supervisor.describe(ENGINE_ARGS)
    resolved = described.info.resolved
    assert {name: resolved[name] for name in DEFAULTS_ON_CPU} == DEFAULTS_ON_CPU
    assert resolved["scheduling_policy"] == "fcfs"
    # Whatever a simulation goes by.
    assert resolved.keys() >= HONOURED
    assert described.info.forecast_obstacle is None
    assert described.info.kv_cache_tokens is None
    assert described.flags["max_num_seqs"]["flag"] == "--max-num-seqs"


def test_given_limits_are_described_as_they_are(supervisor: Supervisor) -> None:
    info = supervisor.describe({**ENGINE_ARGS, **LIMITS, "scheduling_policy": "priority"}).info
    assert info.resolved["scheduling_policy"] == "priority"
    assert {name: info.resolved[name] for name in LIMITS} == LIMITS
    assert info.max_model_len == 8192
    assert info.vocab_size == 4096
    assert info.device_uuids == ()
    assert info.device


def test_good_arguments_are_accepted(supervisor: Supervisor) -> None:
    error, known = supervisor.validate({**ENGINE_ARGS, **LIMITS})
    assert error is None
    assert set(known) >= {"model", *LIMITS}


def test_a_bad_pair_is_refused_in_words(supervisor: Supervisor) -> None:
    bad = {"max_num_batched_tokens": 16, "max_num_seqs": 64}
    error, known = supervisor.validate({**ENGINE_ARGS, **bad})
    assert error is not None
    assert "max_num_batched_tokens (16) must be greater than or equal to max_num_seqs" in error
    assert set(known) >= set(bad)


def test_an_unknown_argument_is_named(supervisor: Supervisor) -> None:
    error, known = supervisor.validate({**ENGINE_ARGS, "max_num_seq": 8})
    assert error == "vLLM has no engine argument 'max_num_seq'"
    assert set(known) >= {"model", *LIMITS}


def test_the_engine_is_what_was_asked_for(engine: Running) -> None:
    assert {name: engine.info.resolved[name] for name in LIMITS} == LIMITS
    assert engine.info.kv_cache_tokens == KV_CACHE_BYTES // KV_BYTES_PER_TOKEN
    assert engine.info.capture_sizes == ()
    assert engine.info.resolved["dtype"] == "bfloat16"


def test_processes_that_vllm_renames_keep_the_mark_of_their_run(engine: Running) -> None:
    below = engine.host.children(recursive=True)
    assert any(child.name().startswith("VLLM::") for child in below)
    folder = engine.supervisor._folder
    assert folder is not None
    assert {child.pid for child in below} <= {each.pid for each in processes_of(folder.path)}


def test_every_answer_has_exactly_its_recorded_length(first: ReplayResult, window: Trace) -> None:
    samples = first.samples
    assert len(samples) == len(window.requests)
    np.testing.assert_array_equal(samples.output_tokens, window.output_lengths)
    np.testing.assert_array_equal(samples.expected_output_tokens, window.output_lengths)
    np.testing.assert_array_equal(samples.prompt_tokens, window.input_lengths)
    np.testing.assert_array_equal(samples.scheduled_s, window.timestamps_s)
    assert not samples.lost.any()
    assert first.errors == ()


def test_stamps_are_in_order(first: ReplayResult) -> None:
    samples = first.samples
    assert (samples.scheduled_s <= samples.sent_s).all()
    assert (samples.sent_s < samples.first_token_s).all()
    assert (samples.first_token_s <= samples.last_token_s).all()
    assert samples.last_token_s.max() - samples.sent_s.min() <= first.replay_s
    assert (samples.gap_s > 0).all()


def test_no_token_of_a_step_is_missed_or_counted_twice(first: ReplayResult, window: Trace) -> None:
    steps = first.steps
    # The step that ends a prefill yields the first token, each decode step one more.
    assert steps.preemptions.sum() == 0
    assert steps.prefill_tokens.sum() == window.input_lengths.sum()
    assert steps.decode_requests.sum() == (window.output_lengths - 1).sum()


def test_the_limits_hold_in_every_step(first: ReplayResult) -> None:
    steps = first.steps
    tokens = steps.prefill_tokens + steps.decode_requests
    assert tokens.max() <= LIMITS["max_num_batched_tokens"]
    assert tokens.min() > 0
    assert steps.running.max() <= LIMITS["max_num_seqs"]
    assert steps.decode_requests.max() <= LIMITS["max_num_seqs"]


def test_steps_lie_within_the_replay(first: ReplayResult) -> None:
    steps = first.steps
    assert (np.diff(steps.begun_s) > 0).all()
    assert (steps.begun_s <= steps.planned_s).all()
    assert (steps.planned_s <= steps.done_s).all()
    assert steps.begun_s[0] > 0
    assert steps.done_s[-1] <= first.replay_s + first.samples.sent_s.min()
    assert steps.kv_usage.min() >= 0
    assert 0 < steps.kv_usage.max() < 1


def test_progress_is_reported_for_both_stages(engine: Running, window: Trace) -> None:
    before = len(engine.reports)
    engine.replay(window.window(0.0, 1.5), salt="watched", warmup_requests=10)
    stages = {report["stage"] for report in engine.reports[before:]}
    assert stages <= {"warmup", "replay"}
    assert engine.reports[before:]
    for report in engine.reports:
        assert report["done"] <= report["sent"] <= report["total"]


def test_another_salt_repeats_the_prompts_and_finds_nothing_cached(
    engine: Running, first: ReplayResult, window: Trace
) -> None:
    second = engine.replay(window, salt="second", warmup_requests=3)
    np.testing.assert_array_equal(second.samples.prompt_tokens, first.samples.prompt_tokens)
    np.testing.assert_array_equal(second.samples.output_tokens, first.samples.output_tokens)
    assert second.samples.cached_tokens.sum() == 0
    assert first.samples.cached_tokens.sum() == 0
    assert second.steps.prefill_tokens.sum() == window.input_lengths.sum()


def test_shared_prefixes_are_found_within_a_replay_only(engine: Running) -> None:
    rows = [TraceRequest(at_ms, 1200, 4, (1, 2, 3 + at_ms)) for at_ms in (0, 1500, 3000)]
    shared = Trace.build(rows, block_size=512, prefixes_known=True, source="shared")
    result = engine.replay(shared, salt="shared", warmup_requests=1)
    # Two blocks of 512 tokens are common; the warm-up has another salt.
    assert result.samples.cached_tokens.tolist() == [0, 1024, 1024]
    computed = (result.samples.prompt_tokens - result.samples.cached_tokens).sum()
    assert result.steps.prefill_tokens.sum() == computed


def test_stopping_leaves_nothing_but_the_host(engine: Running) -> None:
    processes = engine.host.children(recursive=True)
    segments = shared_memory_of(processes)
    assert any("EngineCore" in " ".join(process.cmdline()) for process in processes)
    assert segments
    assert engine.supervisor.stop() > 0
    # The tracker of shared memory is the host's own, and stays as long as it does.
    left = survivors(processes, timeout_s=0.0)
    assert [process for process in left if "resource_tracker" not in str(process.cmdline())] == []
    assert [segment for segment in segments if segment.exists()] == []
    assert engine.host.is_running()


def test_a_start_that_fails_is_classed_and_the_supervisor_recovers(
    supervisor: Supervisor, folder: Path
) -> None:
    too_small = {**ENGINE_ARGS, "kv_cache_memory_bytes": 2**20}
    orphaned = orphaned_shared_memory()
    assert supervisor._process is not None
    host = psutil.Process(supervisor._process.pid)
    with pytest.raises(TrialFailed) as caught:
        supervisor.start(too_small, folder / "too-small.log")
    failure = caught.value.failure
    assert failure.failure_class == "no_kv_room"
    assert failure.deterministic
    assert failure.evidence.startswith("ValueError: To serve at least one request with the model")
    assert survivors([host], timeout_s=0.0) == []
    assert orphaned_shared_memory() <= orphaned
    assert supervisor.describe(ENGINE_ARGS).info.max_model_len == 8192
