"""The controller's side of the engine host: starts it, talks to it, and ends it for certain."""

from __future__ import annotations

import math
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import numpy as np

from autotune.engine.channel import Channel, ChannelClosed, Message
from autotune.engine.children import how_ended
from autotune.engine.failures import classify_run, classify_start, log_size, read_tail
from autotune.engine.ground import Ground, GroundCheck, NotClean
from autotune.engine.janitor import dismiss, start_janitor
from autotune.engine.log_cap import CappedLogs
from autotune.engine.processes import RUN_VARIABLE, Process
from autotune.engine.protocol import (
    SCHEDULE_ARRAYS,
    SCHEDULE_PREFIX,
    EngineInfo,
    Failure,
    ReplayPlan,
    ReplayResult,
    Schedule,
    TrialFailed,
    Warmup,
)
from autotune.engine.run_folder import RUNS, RunFolder
from autotune.errors import EnvironmentFault
from autotune.forecast.grid import SweepPlan
from autotune.hardware.gpu_memory import GpuMemory
from autotune.supervision_settings import LOG_BYTES
from autotune.traffic.model import Trace
from objectives.censoring import Censored, Lost
from objectives.samples import RequestSamples
from objectives.steps import Steps

_POLL_S = 0.5
_CONFIG_TIMEOUT_S = 300.0
_QUIT_TIMEOUT_S = 10.0
_STOP_TIMEOUT_S = 90.0
_EXIT_TIMEOUT_S = 5.0

_OF_A_RUNNING_ENGINE = ("limit", "sweep", "replay")
_LONG = ("start", "sweep", "replay")
"""What may be cut short; what ends an engine never is."""

SWEEP_S = 100.0
"""After which a calibration sweep begins nothing new, so that it ends within two minutes."""

HOST_COMMAND = (sys.executable, "-P", "-m", "autotune.engine.host")
"""Starts a host; the number of its socket and our pid are added."""

SOCKETS_VARIABLE = "VLLM_RPC_BASE_PATH"
"""Where vLLM makes its sockets; it leaves them behind even after a clean stop."""

ProgressCallback = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Watchdogs:
    """Limits in seconds: a start-up as a whole, a replay without any token, and how long what
    an engine held may take to be given back."""

    start_s: float = 1800.0
    silence_s: float = 120.0
    settle_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Description:
    """A configuration as the installed vLLM resolves it, and how its arguments are spelt."""

    info: EngineInfo
    flags: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Started:
    """A running engine: what it is, the seconds it took, and the ground that it started on."""

    info: EngineInfo
    start_s: float
    ground: Ground


class Supervisor:
    """Runs engines in a host process; a fresh host replaces one that failed or leaks.

    Use it as a context manager: on leaving, host and engine are gone. If this process is killed
    before, the kernel's parent-death signals and a janitor see to it.

    Attributes:
        pulse: called twice a second while an engine starts or works; what it raises ends that.
    """

    def __init__(
        self,
        *,
        log_folder: Path,
        watchdogs: Watchdogs | None = None,
        log_bytes: int = LOG_BYTES,
        command: Sequence[str] = HOST_COMMAND,
        runs: Path = RUNS,
    ) -> None:
        self.pulse: Callable[[], None] | None = None
        self._command = command
        self._log_folder = log_folder
        self._watchdogs = watchdogs or Watchdogs()
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._log_path: Path | None = None
        self._logs = CappedLogs(log_bytes)
        self._said = 0
        self._runs = runs
        self._folder: RunFolder | None = None
        self._janitor: subprocess.Popen[bytes] | None = None
        self._ground = GroundCheck(self._watchdogs.settle_s)
        self._device_uuids: frozenset[str] = frozenset()
        self._gpu = GpuMemory(())

    @property
    def device_uuids(self) -> frozenset[str]:
        """The GPUs of every configuration that was described; knobs may ask for more of them."""
        return self._device_uuids

    @property
    def host_log(self) -> Path:
        """Where the host's own output goes before an engine has a log of its own."""
        return self._log_folder / "host.log"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.kill()
        self.close()

    def describe(self, engine_args: Mapping[str, Any]) -> Description:
        """Resolve engine arguments without starting an engine.

        Raises:
            TrialFailed: vLLM refuses them.
        """
        answer = self._call("describe", {"engine_args": dict(engine_args)}, _CONFIG_TIMEOUT_S)
        info = EngineInfo.from_json(answer.body["info"])
        self._device_uuids |= frozenset(info.device_uuids)
        self._gpu = GpuMemory(sorted(self._device_uuids))
        return Description(info, answer.body["flags"])

    def validate(self, engine_args: Mapping[str, Any]) -> tuple[str | None, tuple[str, ...]]:
        """Return vLLM's objection or None, and the arguments that it has."""
        answer = self._call("validate", {"engine_args": dict(engine_args)}, _CONFIG_TIMEOUT_S)
        return answer.body["error"], tuple(answer.body["known"])

    def start(self, engine_args: Mapping[str, Any], log_path: Path) -> Started:
        """Start an engine with exactly these arguments, on clean ground.

        Raises:
            TrialFailed: it did not come up, with the class and the line that says why.
            EnvironmentFault: what the last engine held is not given back, or is another's now.
        """
        ground = self._clean_ground()
        self._log_path = log_path
        self._logs.watch(self.host_log, log_path)
        body = {"engine_args": dict(engine_args), "log_path": str(log_path)}
        with self._others_blamed():
            answer = self._call("start", body, self._watchdogs.start_s)
        self._record()
        info = EngineInfo.from_json(answer.body["info"])
        return Started(info, float(answer.body["start_s"]), ground)

    def replay(
        self, trace: Trace, plan: ReplayPlan, on_progress: ProgressCallback
    ) -> ReplayResult:
        """Warm up, then replay a whole trace against the running engine.

        Raises:
            TrialFailed: the engine died, or gave no token for too long.
        """
        body = {"block_size": trace.meta.block_size, **asdict(plan)}
        with self._others_blamed():
            answer = self._call(
                "replay", body, self._watchdogs.silence_s, arrays_of(trace), on_progress
            )
        return _replay_result(answer)

    def limit(self, limits: Mapping[str, int]) -> None:
        """Change ``LIVE_LIMITS`` of the running engine; they hold when this returns.

        Raises:
            TrialFailed: the engine does not take them.
        """
        answer = self._call("limit", {"limits": dict(limits)}, self._watchdogs.silence_s)
        if answer.body["limits"] != dict(limits):
            self.kill()
            raise TrialFailed(
                Failure("unknown", f"the engine runs with {answer.body['limits']}, not {limits}")
            )

    def sweep(
        self,
        plan: SweepPlan,
        limits: Mapping[str, int],
        on_progress: ProgressCallback,
        *,
        seconds: float = SWEEP_S,
    ) -> tuple[Steps, bool]:
        """Measure single steps of the running engine, whose ``LIVE_LIMITS`` are as given.

        Returns:
            The steps, each with its whole time between its stamps, and whether there was time
            for all of the plan.

        Raises:
            TrialFailed: the engine died, or did not go on.
        """
        body = {"plan": plan.to_json(), "limits": dict(limits), "seconds": seconds}
        answer = self._call("sweep", body, self._watchdogs.silence_s, on_progress=on_progress)
        steps, _ = Steps.split(answer.arrays)
        return steps, bool(answer.body["whole"])

    def stop(self) -> float:
        """Stop the engine, keep the host; return the seconds taken."""
        self._record()
        return float(self._call("stop", {}, _STOP_TIMEOUT_S).body["stop_s"])

    def close(self) -> None:
        """Ask the host to end, make sure that it did, and leave nothing behind."""
        if self._channel is not None and self._process is not None:
            try:
                self._channel.send(Message("quit"))
                self._process.wait(_QUIT_TIMEOUT_S)
            except (ChannelClosed, TimeoutError, subprocess.TimeoutExpired):
                pass
        self.kill()
        self._logs.stop()
        if self._folder is not None:
            # What the kernel does not let go of is for the next run to end, by the record.
            if not self._folder.running():
                self._folder.remove()
            self._folder = None
        if self._janitor is not None:
            dismiss(self._janitor)
            self._janitor = None

    def running(self) -> frozenset[Process]:
        """Return the processes that run for us: the host, and what it has started."""
        return frozenset() if self._folder is None else self._folder.running()

    def kill(self) -> None:
        """End the host and everything that it has started. Safe to repeat."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._process is not None:
            self._run_folder().end_all()
            # One that the kernel does not let go of stays; the next start will name it.
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_EXIT_TIMEOUT_S)
            self._process = None
            self._log_path = None

    def _clean_ground(self) -> Ground:
        """Wait until nothing of the last engine is left, if need be without its host."""
        try:
            return self._ground.before_start(*self._held())
        except NotClean as fault:
            # What a host holds ends with it.
            reason = str(fault)
            self.kill()
        try:
            return replace(self._ground.before_start(*self._held()), host_replaced=reason)
        except NotClean as fault:
            raise EnvironmentFault(
                f"no engine can be started: {fault}",
                hint="end what holds it; the same command then goes on with the study",
            ) from fault

    @contextmanager
    def _others_blamed(self) -> Iterator[None]:
        """Tell a failure for want of memory by who has the memory; the engine is gone then."""
        try:
            yield
        except TrialFailed as outcome:
            raise TrialFailed(self._ground.blamed(outcome.failure, self._gpu)) from outcome

    def _held(self) -> tuple[Process, RunFolder, GpuMemory]:
        self._connected()
        host = None if self._process is None else Process.of(self._process.pid)
        if host is None:
            failure = self._post_mortem("start")
            self.kill()
            raise TrialFailed(failure)
        return host, self._run_folder(), self._gpu

    def _record(self) -> None:
        """Write down what runs, for whoever has to clean up after us."""
        if self._process is not None:
            self._run_folder().record()

    def _run_folder(self) -> RunFolder:
        """Return the folder of this run, made now if there is none, with its janitor."""
        if self._folder is None:
            self._folder = RunFolder.create(self._runs)
            self._janitor = start_janitor(self._folder.path)
            self._folder.watched_by(self._janitor.pid)
        return self._folder

    def _connected(self) -> Channel:
        """Return the channel to a living host, started now if there is none."""
        if self._channel is not None:
            return self._channel
        run = str(self._run_folder().path)
        ours, theirs = socket.socketpair()
        with open_log(self.host_log) as log:
            self._process = subprocess.Popen(
                [*self._command, str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env={**os.environ, RUN_VARIABLE: run, SOCKETS_VARIABLE: run},
            )
        theirs.close()
        self._logs.watch(self.host_log)
        self._logs.start()
        self._channel = Channel(ours, stuck_after_s=self._watchdogs.silence_s)
        self._record()
        return self._channel

    def _call(
        self,
        kind: str,
        body: Mapping[str, Any],
        silence_s: float,
        arrays: Mapping[str, Any] | None = None,
        on_progress: ProgressCallback | None = None,
    ) -> Message:
        """Send a command and wait for its answer; any failure costs the host its life."""
        try:
            channel = self._connected()
            self._said = log_size(self._log_path) if kind in _OF_A_RUNNING_ENGINE else 0
            channel.send(Message(kind, body, arrays or {}))
            answer = self._wait(channel, kind, silence_s, on_progress)
        except ChannelClosed as error:
            failure = self._post_mortem(kind)
            self.kill()
            raise TrialFailed(failure) from error
        except TimeoutError as error:
            self.kill()
            raise TrialFailed(_silence(kind, self._watchdogs.silence_s)) from error
        except BaseException:
            # After a conversation cut short the next answer would be the one to this command.
            self.kill()
            raise
        if answer.kind == "failed":
            self.kill()
            raise TrialFailed(Failure(answer.body["class"], answer.body["evidence"]))
        return answer

    def _wait(
        self, channel: Channel, kind: str, silence_s: float, on_progress: ProgressCallback | None
    ) -> Message:
        """Return the answer; a report is a sign of life only if tokens came or nothing waits."""
        tokens_seen = -1
        alive_at = time.monotonic()
        while True:
            if kind == "start":
                self._record()
            if self.pulse is not None and kind in _LONG:
                self.pulse()
            if channel.wait(_POLL_S):
                message = channel.receive()
                if message.kind != "progress":
                    return message
                body = message.body
                if body["tokens"] != tokens_seen or body["sent"] == body["done"]:
                    tokens_seen = body["tokens"]
                    alive_at = time.monotonic()
                if on_progress is not None:
                    on_progress(body)
            elif self._ended() and not channel.wait(0):
                # A process that the host forked may still hold its end of the channel.
                raise ChannelClosed("the engine host has ended")
            if time.monotonic() - alive_at > silence_s:
                raise TrialFailed(_silence(kind, silence_s))

    def _ended(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def _post_mortem(self, kind: str) -> Failure:
        status = self._exit_status()
        end = "closed its channel" if status is None else how_ended(status)
        log = read_tail(self._log_path or self.host_log, after=self._said)
        classify = classify_run if kind in _OF_A_RUNNING_ENGINE else classify_start
        return classify(log, f"the engine host {end} during {kind}")

    def _exit_status(self) -> int | None:
        """Return the status of a host that ends within a moment, None if it does not."""
        try:
            return None if self._process is None else self._process.wait(_EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return None


def open_log(path: Path) -> BinaryIO:
    """Make a log file that is written at its end, and its folder, for the owner alone.

    Raises:
        EnvironmentFault: it cannot be made.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
        return os.fdopen(os.open(path, flags, 0o600), "wb")
    except OSError as error:
        raise EnvironmentFault(
            f"cannot write the log {path}: {error.strerror}", hint="choose another --log-folder"
        ) from error


def _replay_result(answer: Message) -> ReplayResult:
    body, arrays = answer.body, dict(answer.arrays)
    schedule = None
    if body["names"] is not None:
        found = {name: arrays.pop(SCHEDULE_PREFIX + name) for name in SCHEDULE_ARRAYS}
        schedule = Schedule(tuple(body["names"]), **found)
    steps, samples = Steps.split(arrays)
    return ReplayResult(
        samples=RequestSamples.from_arrays(samples),
        steps=steps,
        warmup=Warmup(**body["warmup"]),
        replay_s=float(body["replay_s"]),
        began_at=float(body["began_at"]),
        ended_at=float(body["ended_at"]),
        errors=tuple(body["errors"]),
        censored=_censored(body["censored"]),
        schedule=schedule,
    )


def _censored(plain: Mapping[str, Any] | None) -> Censored | None:
    if plain is None:
        return None
    lost = plain["lost"]
    bound = math.inf if lost["at_least_ms"] is None else float(lost["at_least_ms"])
    return Censored(**{**plain, "lost": Lost(**{**lost, "at_least_ms": bound})})


def _silence(kind: str, silence_s: float) -> Failure:
    if kind == "start":
        return Failure("start_timeout", f"the engine did not come up within {silence_s:.0f} s")
    return Failure("hang", f"no sign of life during {kind} for {silence_s:.0f} s")


def arrays_of(trace: Trace) -> dict[str, Any]:
    """Return a trace as the flat arrays that ``autotune.engine.host.prepare`` takes apart."""
    requests = trace.requests
    return {
        "scheduled_s": np.array([r.timestamp_ms / 1000 for r in requests], dtype=np.float64),
        "input_lengths": np.array([r.input_length for r in requests], dtype=np.int64),
        "output_lengths": np.array([r.output_length for r in requests], dtype=np.int64),
        "priorities": np.array([r.priority or 0 for r in requests], dtype=np.int64),
        "hash_counts": np.array([len(r.hash_ids) for r in requests], dtype=np.int64),
        "hash_ids": np.array([i for r in requests for i in r.hash_ids], dtype=np.int64),
    }
