"""Which engine runs, and how a trial gets the one that it needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from autotune.candidates.lattice import Candidate
from autotune.engine.protocol import EngineInfo, Failure, TrialFailed
from autotune.engine.supervisor import Started
from autotune.study.costs import Fidelity
from autotune.study.job import Job


class StageEngines(Protocol):
    """What the stage needs of an engine host; see ``autotune.engine.supervisor``."""

    def start(self, engine_args: Mapping[str, Any], log_path: Path) -> Started: ...

    def limit(self, limits: Mapping[str, int]) -> None: ...

    def stop(self) -> float: ...

    def kill(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Running:
    """An engine that runs.

    Attributes:
        engine_args: what it was started with.
        started: what came of that.
        log_path: where its output goes.
        measured: whether a replay was measured on it.
    """

    engine_args: Mapping[str, Any]
    started: Started
    log_path: Path
    measured: bool = False


class Stage:
    """Holds at most one engine, and replaces it where a trial needs another.

    A restart trial gets an engine that was started with exactly what would be exported for its
    candidate, and on which nothing was measured yet. A live trial gets one that was started at
    the envelope of the ladders, with its limits set.
    """

    def __init__(self, engines: StageEngines) -> None:
        self._engines = engines
        self._running: Running | None = None
        self._start_s: float | None = None

    @property
    def start_s(self) -> float | None:
        """The seconds that the latest start took, None before the first."""
        return self._start_s

    @property
    def info(self) -> EngineInfo | None:
        """What the running engine says of itself, None while none runs."""
        return None if self._running is None else self._running.started.info

    def log_path(self, job: Job, candidate: Candidate, fidelity: Fidelity) -> Path | None:
        """Return the log of the running engine if a trial can have it, None if not."""
        running = self._running
        suits = running is not None and self._suits(running, job, candidate, fidelity)
        return running.log_path if running is not None and suits else None

    def _suits(self, running: Running, job: Job, candidate: Candidate, fidelity: Fidelity) -> bool:
        wanted = wanted_args(job, candidate, fidelity)
        return running.engine_args == wanted and (fidelity == "live" or not running.measured)

    def start(self, engine_args: Mapping[str, Any], log_path: Path) -> Running:
        """Start an engine, after stopping the one that runs.

        Raises:
            TrialFailed: it did not come up.
        """
        self.clear()
        started = self._engines.start(engine_args, log_path)
        self._start_s = started.start_s
        self._running = Running(dict(engine_args), started, log_path)
        return self._running

    def ready(
        self, job: Job, candidate: Candidate, fidelity: Fidelity, log_path: Path
    ) -> tuple[Started, float | None]:
        """Bring up the engine of a trial; return it, and the seconds that its start took.

        None of them where it ran already.

        Raises:
            TrialFailed: it did not come up, or does not take the limits.
        """
        start_s = None
        running = self._running
        if running is None or not self._suits(running, job, candidate, fidelity):
            running = self.start(wanted_args(job, candidate, fidelity), log_path)
            start_s = running.started.start_s
        if fidelity == "live":
            if obstacle := running.started.info.live_obstacle:
                raise TrialFailed(Failure("unknown", f"limits cannot be changed: {obstacle}"))
            self._engines.limit(job.limits(candidate))
        self._running = replace(running, measured=True)
        return running.started, start_s

    def release(self, job: Job, candidate: Candidate, fidelity: Fidelity) -> float | None:
        """Stop the engine of a trial unless live ones can follow on it; return as ``clear``."""
        shared = job.live and job.envelope(candidate) == job.engine_args(candidate)
        return None if fidelity == "live" or shared else self.clear()

    def clear(self) -> float | None:
        """Stop the engine that runs, if any; return the seconds taken, None if it was killed.

        What it measured counts even if it will not go quietly.
        """
        if self._running is None:
            return None
        self._running = None
        try:
            return self._engines.stop()
        except TrialFailed:
            self._engines.kill()
            return None

    def kill(self) -> None:
        """End the engine and its host, whatever state they are in."""
        self._running = None
        self._engines.kill()


def wanted_args(job: Job, candidate: Candidate, fidelity: Fidelity) -> dict[str, Any]:
    """Return what the engine of a trial is started with."""
    return job.envelope(candidate) if fidelity == "live" else job.engine_args(candidate)
