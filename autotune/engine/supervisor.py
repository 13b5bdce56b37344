"""The controller's side of the engine host: starts it, talks to it, and ends it for certain."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import numpy as np

from autotune.engine.channel import Channel, ChannelClosed, Message
from autotune.engine.failures import classify_run, classify_start, read_tail
from autotune.engine.processes import end_group
from autotune.engine.protocol import (
    EngineInfo,
    Failure,
    Iterations,
    ReplayPlan,
    ReplayResult,
    TrialFailed,
)
from autotune.errors import EnvironmentFault
from autotune.traffic.model import Trace
from objectives.samples import RequestSamples

_POLL_S = 0.5
_CONFIG_TIMEOUT_S = 300.0
_QUIT_TIMEOUT_S = 10.0
_STOP_TIMEOUT_S = 90.0
_EXIT_TIMEOUT_S = 5.0

HOST_COMMAND = (sys.executable, "-P", "-m", "autotune.engine.host")
"""Starts a host; the number of its socket and our pid are added."""

ProgressCallback = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Watchdogs:
    """Limits on silence, in seconds: a start-up as a whole, a replay without any token."""

    start_s: float = 1800.0
    silence_s: float = 120.0


@dataclass(frozen=True, slots=True)
class Description:
    """A configuration as the installed vLLM resolves it, and how its arguments are spelt."""

    info: EngineInfo
    flags: Mapping[str, Any]


class Supervisor:
    """Runs engines in a host process; a fresh host replaces one that failed.

    Use it as a context manager: on leaving, host and engine are gone.
    """

    def __init__(
        self,
        *,
        log_folder: Path,
        watchdogs: Watchdogs | None = None,
        command: Sequence[str] = HOST_COMMAND,
    ) -> None:
        self._command = command
        self._log_folder = log_folder
        self._watchdogs = watchdogs or Watchdogs()
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._log_path: Path | None = None

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
        if kind is None:
            self.close()
        else:
            self.kill()

    def describe(self, engine_args: Mapping[str, Any]) -> Description:
        """Resolve engine arguments without starting an engine.

        Raises:
            TrialFailed: vLLM refuses them.
        """
        answer = self._call("describe", {"engine_args": dict(engine_args)}, _CONFIG_TIMEOUT_S)
        return Description(EngineInfo.from_json(answer.body["info"]), answer.body["flags"])

    def validate(self, engine_args: Mapping[str, Any]) -> tuple[str | None, tuple[str, ...]]:
        """Return vLLM's objection or None, and the arguments that it has."""
        answer = self._call("validate", {"engine_args": dict(engine_args)}, _CONFIG_TIMEOUT_S)
        return answer.body["error"], tuple(answer.body["known"])

    def start(self, engine_args: Mapping[str, Any], log_path: Path) -> tuple[EngineInfo, float]:
        """Start an engine with exactly these arguments; return what it is and the seconds taken.

        Raises:
            TrialFailed: it did not come up, with the class and the line that says why.
        """
        self._log_path = log_path
        body = {"engine_args": dict(engine_args), "log_path": str(log_path)}
        answer = self._call("start", body, self._watchdogs.start_s)
        return EngineInfo.from_json(answer.body["info"]), float(answer.body["start_s"])

    def replay(
        self, trace: Trace, plan: ReplayPlan, on_progress: ProgressCallback
    ) -> ReplayResult:
        """Warm up, then replay a whole trace against the running engine.

        Raises:
            TrialFailed: the engine died, or gave no token for too long.
        """
        body = {
            "block_size": trace.meta.block_size,
            "seed": plan.seed,
            "salt": plan.salt,
            "warmup_requests": plan.warmup_requests,
        }
        answer = self._call(
            "replay", body, self._watchdogs.silence_s, arrays_of(trace), on_progress
        )
        iterations, samples = Iterations.split(answer.arrays)
        return ReplayResult(
            samples=RequestSamples.from_arrays(samples),
            iterations=iterations,
            warmup_s=float(answer.body["warmup_s"]),
            replay_s=float(answer.body["replay_s"]),
            errors=tuple(answer.body["errors"]),
        )

    def stop(self) -> float:
        """Stop the engine, keep the host; return the seconds taken."""
        return float(self._call("stop", {}, _STOP_TIMEOUT_S).body["stop_s"])

    def close(self) -> None:
        """Ask the host to end, and make sure that it did."""
        if self._channel is not None and self._process is not None:
            try:
                self._channel.send(Message("quit"))
                self._process.wait(_QUIT_TIMEOUT_S)
            except (ChannelClosed, subprocess.TimeoutExpired):
                pass
        self.kill()

    def kill(self) -> None:
        """End the host and everything in its process group. Safe to repeat."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._process is not None:
            end_group(self._process)
            self._process = None
            self._log_path = None

    def _connected(self) -> Channel:
        """Return the channel to a living host, started now if there is none."""
        if self._channel is not None:
            return self._channel
        ours, theirs = socket.socketpair()
        with open_log(self.host_log) as log:
            self._process = subprocess.Popen(
                [*self._command, str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        theirs.close()
        self._channel = Channel(ours)
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
            channel.send(Message(kind, body, arrays or {}))
            answer = self._wait(channel, kind, silence_s, on_progress)
        except ChannelClosed as error:
            failure = self._post_mortem(kind)
            self.kill()
            raise TrialFailed(failure) from error
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
        code = self._exit_status()
        end = "closed its channel" if code is None else f"ended with status {code}"
        log = read_tail(self._log_path or self.host_log)
        classify = classify_run if kind == "replay" else classify_start
        return classify(log, f"the engine host {end} during {kind}")

    def _exit_status(self) -> int | None:
        """Return the status of a host that ends within a moment, None if it does not."""
        try:
            return None if self._process is None else self._process.wait(_EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return None


def open_log(path: Path) -> BinaryIO:
    """Make a log file, and its folder for the owner alone.

    Raises:
        EnvironmentFault: it cannot be made.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        return path.open("wb")
    except OSError as error:
        raise EnvironmentFault(
            f"cannot write the log {path}: {error.strerror}", hint="choose another --log-folder"
        ) from error


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
