from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from autotune.engine import processes as processes_module
from autotune.engine import supervisor as supervisor_module
from autotune.engine.ground import GroundCheck, NotClean
from autotune.engine.protocol import Failure, ReplayPlan, TrialFailed
from autotune.engine.supervisor import HOST_COMMAND, Supervisor, Watchdogs, arrays_of
from autotune.errors import EnvironmentFault
from autotune.forecast.grid import ContextProbe, KvProbe, SweepPlan
from autotune.traffic.model import Trace, TraceRequest
from objectives.censoring import Censored, Lost
from tests.autotune.engine.supervised import Open, Script, supervisors, trace
from tests.autotune.engine.survival import survivors
from tests.autotune.engine.test_protocol import info

pytestmark = pytest.mark.wire

ROOT = Path(__file__).resolve().parents[3]
PLAN = ReplayPlan(seed=3, salt="s", warmup_requests=1)
HASTY = Watchdogs(start_s=0.15, silence_s=0.15)

LIMITS = {"max_num_batched_tokens": 512, "max_num_seqs": 16, "long_prefill_token_threshold": 0}
SWEEP = SweepPlan((64, 512), (2, 1), (ContextProbe(64, 256),), (KvProbe(2, 64),), (128, 129))
REPORT = {"stage": "calibrate", "total": 4, "sent": 1, "done": 1, "tokens": 1}
CUT = Censored(Lost("ttft_p95@long", 500.0, 750.5), cut_s=1.25, requests=2, sent=1, ended=0)

ENDED = "the engine host ended"
STARTED = ["send", "started", {"info": info().to_json(), "start_s": 2.0}]
FAILED = ["send", "failed", {"class": "no_kv_room", "evidence": "too small"}]

ENDINGS: list[tuple[list[object], str]] = [
    (["exit", 3], "ended with status 3"),
    (["kill"], "ended by SIGKILL"),
    (["leave"], "ended with status 3"),
]


@pytest.fixture(autouse=True)
def path_of_children(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@pytest.fixture
def open_supervisor(tmp_path: Path) -> Iterator[Open]:
    with supervisors(tmp_path) as opener:
        yield opener


def progress(tokens: int, *, sent: int, done: int) -> list[Any]:
    body = {"stage": "replay", "total": 2, "sent": sent, "done": done, "tokens": tokens}
    return ["send", "progress", body]


def ignore(_: Mapping[str, Any]) -> None:
    pass


def host_of(supervisor: Supervisor) -> psutil.Process:
    assert supervisor._process is not None
    return psutil.Process(supervisor._process.pid)


def failure_of(action: Callable[[], object]) -> Failure:
    with pytest.raises(TrialFailed) as caught:
        action()
    return caught.value.failure


def test_the_gpus_of_all_configurations_are_known(open_supervisor: Open) -> None:
    """A knob such as the tensor parallel size may need more of them than the baseline."""
    infos = [replace(info(None), device_uuids=uuids) for uuids in (("GPU-1", "GPU-2"), ("GPU-1",))]
    answers = [[["send", "described", {"info": each.to_json(), "flags": {}}]] for each in infos]
    with open_supervisor({"describe": answers}) as supervisor:
        assert supervisor.device_uuids == frozenset()
        for each in infos:
            assert supervisor.describe({}).info == each
        assert supervisor.device_uuids == {"GPU-1", "GPU-2"}


def test_a_host_is_started_once_and_answers(open_supervisor: Open, tmp_path: Path) -> None:
    described = {"info": info(None).to_json(), "flags": {"dtype": {"flag": "--dtype"}}}
    script = {
        "describe": [[["send", "described", described]]],
        "validate": [
            [["send", "validated", {"error": "no such argument", "known": ["a", "b"]}]],
            [["send", "validated", {"error": None, "known": []}]],
        ],
        "start": [[["log", "fine\n"], STARTED]],
        "replay": [[["replayed"]]],
        "stop": [[["send", "stopped", {"stop_s": 0.5}]]],
    }
    with open_supervisor(script) as supervisor:
        description = supervisor.describe({"model": "m"})
        host = host_of(supervisor)
        assert description.info == info(None)
        assert description.flags == described["flags"]
        assert supervisor.validate({}) == ("no such argument", ("a", "b"))
        assert supervisor.validate({}) == (None, ())
        started = supervisor.start({}, tmp_path / "trial.log")
        assert (started.info, started.start_s) == (info(), 2.0)
        assert started.ground.processes == started.ground.sockets == 0
        result = supervisor.replay(trace(), PLAN, ignore)
        assert (result.warmup.seconds, result.replay_s, result.errors) == (1.5, 2.5, ("one",))
        np.testing.assert_array_equal(result.samples.scheduled_s, [0.0, 0.25])
        np.testing.assert_array_equal(result.steps.prefill_tokens, [100, 600])
        assert supervisor.stop() == 0.5
        assert host_of(supervisor) == host
    assert survivors([host], timeout_s=0.0) == []


def test_a_failed_answer_costs_the_host_its_life_and_a_fresh_one_follows(
    open_supervisor: Open, tmp_path: Path
) -> None:
    script = {
        "start": [[["child"], FAILED]],
        "validate": [[["send", "validated", {"error": None, "known": []}]]],
    }
    with open_supervisor(script) as supervisor:
        assert supervisor.validate({}) == (None, ())
        host = host_of(supervisor)
        failure = failure_of(lambda: supervisor.start({}, tmp_path / "trial.log"))
        assert failure == Failure("no_kv_room", "too small")
        assert survivors([host], timeout_s=0.0) == []
        assert supervisor.validate({}) == (None, ())
        assert host_of(supervisor) != host


def test_a_host_whose_engine_left_something_is_replaced_before_the_next_start(
    open_supervisor: Open, tmp_path: Path
) -> None:
    script = {
        "start": [[["child"], STARTED], [STARTED]],
        "stop": [[["send", "stopped", {"stop_s": 0.0}]]],
    }
    with open_supervisor(script, Watchdogs(30.0, 30.0, settle_s=0.0)) as supervisor:
        supervisor.start({}, tmp_path / "1.log")
        supervisor.stop()
        host = host_of(supervisor)
        (child,) = host.children()
        name = child.name()
        again = supervisor.start({}, tmp_path / "2.log")
        assert again.ground.host_replaced == (
            f"1 processes of the last engine still run after 0 s: process {child.pid} ({name})"
        )
        assert survivors([host, child], timeout_s=0.0) == []
        assert host_of(supervisor) != host


def test_what_cannot_be_cleaned_is_a_fault_of_the_machine(
    open_supervisor: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise NotClean("GPU-1 has 70.00 GiB in use")

    monkeypatch.setattr(GroundCheck, "before_start", never)
    with open_supervisor({}) as supervisor, pytest.raises(EnvironmentFault) as caught:
        supervisor.start({}, tmp_path / "1.log")
    assert caught.value.message == "no engine can be started: GPU-1 has 70.00 GiB in use"
    assert caught.value.hint


@pytest.mark.parametrize("kind", ["start", "replay"])
def test_a_failure_for_want_of_memory_is_told_by_who_has_it(
    open_supervisor: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    def blamed(_ground: GroundCheck, failure: Failure, _gpu: object) -> Failure:
        return Failure("unknown", f"process 4711: {failure.evidence}")

    monkeypatch.setattr(GroundCheck, "blamed", blamed)
    with open_supervisor({"start": [[STARTED]], kind: [[FAILED]]}) as supervisor:
        commands = {
            "start": lambda: supervisor.start({}, tmp_path / "1.log"),
            "replay": lambda: supervisor.replay(trace(), PLAN, ignore),
        }
        failure = failure_of(commands[kind])
        assert failure == Failure("unknown", "process 4711: too small")


def test_a_host_that_has_ended_unnoticed_is_a_failure_of_the_trial(
    open_supervisor: Open, tmp_path: Path
) -> None:
    script = {"stop": [[["send", "stopped", {"stop_s": 0.0}], ["kill"]]], "start": [[STARTED]]}
    with open_supervisor(script) as supervisor:
        supervisor.stop()
        assert survivors([host_of(supervisor)], timeout_s=10.0) == []
        failure = failure_of(lambda: supervisor.start({}, tmp_path / "1.log"))
        assert failure == Failure("unknown", "the engine host ended by SIGKILL during start")
        assert supervisor.start({}, tmp_path / "2.log").start_s == 2.0


@pytest.mark.parametrize(
    ("step", "ended"),
    ENDINGS,
    ids=["exits", "is killed", "leaves a process that keeps the channel open"],
)
def test_a_host_that_ends_under_a_replay(
    open_supervisor: Open, step: list[object], ended: str
) -> None:
    script = {"replay": [[progress(1, sent=1, done=0), step]]}
    with open_supervisor(script) as supervisor:
        failure = failure_of(lambda: supervisor.replay(trace(), PLAN, ignore))
        expected = f"the engine host {ended} during replay"
        assert failure == Failure("engine_dead", expected)


def test_the_log_of_an_engine_is_cut_beyond_its_cap(open_supervisor: Open, tmp_path: Path) -> None:
    log = tmp_path / "logs" / "trial.log"
    script = {"start": [[["log", "started\n" + "." * 9_000 + "\nready\n"], STARTED]]}
    with open_supervisor(script, log_bytes=1000) as supervisor:
        supervisor.start({}, log)
    text = log.read_text()
    assert len(text) < 1000
    assert text.startswith("started\n")
    assert text.endswith("\nready\n")


def test_a_host_that_ends_in_a_start_is_classed_by_the_log_of_the_trial(
    open_supervisor: Open, tmp_path: Path
) -> None:
    line = "torch.OutOfMemoryError: CUDA out of memory."
    logged = f"(EngineCore pid=1) ERROR 1-1 0:0 [a:1] {line}\n"
    script: Script = {
        "start": [[["log", logged], ["kill"]]],
        "describe": [[["exit", 1]]],
    }
    with open_supervisor(script) as supervisor:
        failure = failure_of(lambda: supervisor.start({}, tmp_path / "trial.log"))
        assert failure == Failure("oom_start", line)
        # The next host has no trial yet, so the old log says nothing about it.
        failure = failure_of(lambda: supervisor.describe({}))
        expected = "the engine host ended with status 1 during describe"
        assert failure == Failure("unknown", expected)


def test_a_host_that_cannot_be_started_says_why(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "raise ImportError('no engine here')"]
    with Supervisor(log_folder=tmp_path, command=command) as supervisor:
        failure = failure_of(lambda: supervisor.describe({}))
    assert failure == Failure("unknown", "ImportError: no engine here")
    assert supervisor.host_log.stat().st_size > 0


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("start", Failure("start_timeout", "the engine did not come up within 0 s")),
        ("replay", Failure("hang", "no sign of life during replay for 0 s")),
    ],
)
def test_a_silent_host_is_given_up(
    open_supervisor: Open, tmp_path: Path, kind: str, expected: Failure
) -> None:
    with open_supervisor({kind: [[["child"], ["hang"]]]}, HASTY) as supervisor:
        calls: dict[str, Callable[[], object]] = {
            "start": lambda: supervisor.start({}, tmp_path / "trial.log"),
            "replay": lambda: supervisor.replay(trace(), PLAN, ignore),
        }
        assert failure_of(calls[kind]) == expected
        assert supervisor._process is None


def test_a_host_that_takes_no_more_is_given_up(
    open_supervisor: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes_module, "_TERM_GRACE_S", 0.1)
    rows = [TraceRequest(float(row), 100, 5, (row,)) for row in range(40_000)]
    endless = Trace.build(rows, block_size=512, prefixes_known=True, source="long")
    with open_supervisor({"stop": [[["send", "stopped", {"stop_s": 0.0}]]]}, HASTY) as supervisor:
        supervisor.stop()
        host_of(supervisor).suspend()
        failure = failure_of(lambda: supervisor.replay(endless, PLAN, ignore))
    assert failure == Failure("hang", "no sign of life during replay for 0 s")


class Clock:
    """Stands in for ``time``; every look at it moves it on."""

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s
        self._now_s = 0.0

    def monotonic(self) -> float:
        self._now_s += self._step_s
        return self._now_s

    def sleep(self, duration_s: float) -> None:
        self._now_s += duration_s


@pytest.fixture
def quick_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a second pass with every message, of which 30 without a sign of life are a hang."""
    monkeypatch.setattr(supervisor_module, "time", Clock(1.0))


@pytest.mark.usefixtures("quick_clock")
def test_reports_without_tokens_are_silence_while_requests_wait(open_supervisor: Open) -> None:
    stuck = [progress(5, sent=2, done=1)] * 100
    with open_supervisor({"replay": [[*stuck, ["replayed"]]]}) as supervisor:
        failure = failure_of(lambda: supervisor.replay(trace(), PLAN, ignore))
    assert failure == Failure("hang", "no sign of life during replay for 30 s")


@pytest.mark.usefixtures("quick_clock")
@pytest.mark.parametrize(
    "reports",
    [
        [progress(5, sent=1, done=1)] * 100,
        [progress(tokens, sent=2, done=0) for tokens in range(100)],
        [progress(5, sent=n % 2 + 1, done=1) for n in range(100)],
    ],
    ids=["nothing waits between arrivals", "tokens come", "now and then"],
)
def test_reports_that_are_a_sign_of_life(open_supervisor: Open, reports: list[Any]) -> None:
    seen: list[Mapping[str, Any]] = []
    with open_supervisor({"replay": [[*reports, ["replayed"]]]}) as supervisor:
        result = supervisor.replay(trace(), PLAN, seen.append)
    assert len(result.samples) == 2
    assert seen == [body for _, _, body in reports]


def test_an_interrupted_conversation_is_not_continued(open_supervisor: Open) -> None:
    def interrupt(_: Mapping[str, Any]) -> None:
        raise KeyboardInterrupt

    script = {
        "replay": [[progress(1, sent=1, done=0), ["replayed"]]],
        "stop": [[["send", "stopped", {"stop_s": 0.0}]]],
    }
    with open_supervisor(script) as supervisor:
        with pytest.raises(KeyboardInterrupt):
            supervisor.replay(trace(), PLAN, interrupt)
        assert supervisor._process is None
        # A fresh host answers this, and not the old one its replay.
        assert supervisor.stop() == 0.0


def test_a_pulse_ends_what_takes_long_and_not_what_ends_it(open_supervisor: Open) -> None:
    def over() -> None:
        raise EnvironmentFault("over")

    script = {"replay": [], "stop": [[["send", "stopped", {"stop_s": 0.5}]]]}
    with open_supervisor(script) as supervisor:
        supervisor.pulse = over
        assert supervisor.stop() == 0.5
        with pytest.raises(EnvironmentFault, match="over"):
            supervisor.replay(trace(), PLAN, lambda _: None)
        assert supervisor._process is None


def test_a_body_that_cannot_be_sent_is_an_error(open_supervisor: Open) -> None:
    with open_supervisor({}) as supervisor, pytest.raises(ValueError, match="JSON compliant"):
        supervisor.describe({"gpu_memory_utilization": math.nan})


@pytest.mark.parametrize("deaf", [False, True])
def test_close_and_kill_can_be_repeated(
    open_supervisor: Open, monkeypatch: pytest.MonkeyPatch, deaf: bool
) -> None:
    monkeypatch.setattr(supervisor_module, "_QUIT_TIMEOUT_S", 0.1)
    script = {"deaf": deaf, "stop": [[["child"], ["send", "stopped", {"stop_s": 0.0}]]]}
    supervisor = open_supervisor(script)
    supervisor.kill()
    supervisor.close()
    supervisor.stop()
    host = host_of(supervisor)
    children = host.children()
    assert len(children) == 1
    supervisor.close()
    assert survivors([host, *children], timeout_s=0.0) == []
    supervisor.close()
    supervisor.kill()
    supervisor.kill()


def test_closing_after_the_host_has_gone(open_supervisor: Open) -> None:
    supervisor = open_supervisor({"stop": [[["send", "stopped", {"stop_s": 0.0}], ["kill"]]]})
    supervisor.stop()
    assert survivors([host_of(supervisor)], timeout_s=10.0) == []
    supervisor.close()
    supervisor.close()


def test_an_exception_kills_host_and_children(open_supervisor: Open) -> None:
    processes: list[psutil.Process] = []
    script = {"stop": [[["child"], ["send", "stopped", {"stop_s": 0.0}]]], "deaf": True}
    with pytest.raises(RuntimeError, match="mine"), open_supervisor(script) as supervisor:
        supervisor.stop()
        host = host_of(supervisor)
        processes += [host, *host.children()]
        raise RuntimeError("mine")
    assert len(processes) == 2
    assert survivors(processes, timeout_s=0.0) == []


def test_the_default_host_comes_from_the_installed_package() -> None:
    # A file called autotune.py in the current folder must not take its place.
    assert (sys.executable, "-P", "-m", "autotune.engine.host") == HOST_COMMAND


def test_a_trace_becomes_flat_arrays() -> None:
    arrays = arrays_of(trace())
    assert {name: array.tolist() for name, array in arrays.items()} == {
        "scheduled_s": [0.0, 0.25],
        "input_lengths": [100, 600],
        "output_lengths": [5, 9],
        "priorities": [0, 2],
        "hash_counts": [1, 2],
        "hash_ids": [7, 7, 8],
    }


def test_log_folder_is_private(open_supervisor: Open) -> None:
    with open_supervisor({"stop": [[["send", "stopped", {"stop_s": 0.0}]]]}) as supervisor:
        supervisor.stop()
        assert supervisor.host_log.parent.stat().st_mode & 0o777 == 0o700
        assert os.getpgid(host_of(supervisor).pid) == host_of(supervisor).pid


def test_one_engine_is_limited_swept_and_replayed_on(open_supervisor: Open) -> None:
    script = {
        "limit": [[["limited"]]],
        "sweep": [[["send", "progress", REPORT], ["swept"]]],
        "replay": [
            [["replayed"]],
            [["replayed", asdict(CUT)]],
            [["replayed", {**asdict(CUT), "lost": {**asdict(CUT.lost), "at_least_ms": None}}]],
        ],
    }
    reports: list[Mapping[str, Any]] = []
    with open_supervisor(script) as supervisor:
        supervisor.limit(LIMITS)
        host = host_of(supervisor)
        steps, whole = supervisor.sweep(SWEEP, LIMITS, reports.append)
        assert steps.prefill_tokens.tolist() == [64, 512]
        assert whole
        assert reports == [REPORT]
        assert not supervisor.sweep(SWEEP, LIMITS, ignore, seconds=1.0)[1]
        plain = supervisor.replay(trace(), PLAN, ignore)
        assert (plain.censored, plain.schedule) == (None, None)
        detailed = supervisor.replay(trace(), replace(PLAN, detail=True), ignore)
        assert detailed.censored == CUT
        lost = supervisor.replay(trace(), PLAN, ignore).censored
        assert lost is not None
        assert lost.lost == Lost("ttft_p95@long", 500.0, math.inf)
        assert host_of(supervisor) == host
    assert detailed.schedule is not None
    assert detailed.schedule.names == ("row-0", "row-1")
    assert detailed.schedule.tokens.tolist() == [100, 600]
    assert detailed.schedule.arrival_step.tolist() == [0, 1]
    np.testing.assert_array_equal(detailed.steps.prefill_tokens, [100, 600])
    np.testing.assert_array_equal(detailed.samples.scheduled_s, [0.0, 0.25])


def test_an_engine_that_takes_other_limits_is_ended(open_supervisor: Open) -> None:
    other = {**LIMITS, "max_num_seqs": 8}
    with open_supervisor({"limit": [[["send", "limited", {"limits": other}]]]}) as supervisor:
        failure = failure_of(lambda: supervisor.limit(LIMITS))
        assert failure == Failure("unknown", f"the engine runs with {other}, not {LIMITS}")
        assert supervisor.running() == frozenset()


@pytest.mark.parametrize(
    ("kind", "answer", "expected"),
    [
        ("limit", ["exit", 3], Failure("engine_dead", f"{ENDED} with status 3 during limit")),
        ("sweep", ["kill"], Failure("engine_dead", f"{ENDED} by SIGKILL during sweep")),
        ("sweep", FAILED, Failure("no_kv_room", "too small")),
    ],
)
def test_an_engine_that_dies_meanwhile(
    open_supervisor: Open, kind: str, answer: list[Any], expected: Failure
) -> None:
    """What ran has died: that says nothing of how it was started."""
    with open_supervisor({kind: [[answer]]}) as supervisor:
        calls = {
            "limit": lambda: supervisor.limit(LIMITS),
            "sweep": lambda: supervisor.sweep(SWEEP, LIMITS, ignore),
        }
        assert failure_of(calls[kind]) == expected
        assert supervisor.running() == frozenset()
