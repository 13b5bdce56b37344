"""One trial on real engines: the engine it needs, a replay, and whether that can be trusted."""

from __future__ import annotations

import json
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from autotune.candidates.diagnosis import Load, summarise
from autotune.candidates.lattice import SEQS, TOKENS, Candidate, cell_key, integer
from autotune.engine.numbers import require_numbers
from autotune.engine.processes import Process
from autotune.engine.protocol import Failure, ReplayPlan, ReplayResult
from autotune.engine.supervisor import Started
from autotune.forecast.pace import LEAST_FACTOR, Spell, drift, slow_spell
from autotune.hardware.hardware_use import HardwareUse
from autotune.hardware.sampler import HardwareSampler
from autotune.study.costs import Fidelity
from autotune.study.job import Job
from autotune.study.replays import first_warmup_requests, warmup_requests
from autotune.study.stage import Stage, StageEngines, wanted_args
from autotune.traffic.model import Trace
from objectives.classes import classes_text
from objectives.limits import Budget
from objectives.steps import Steps

SPELL_S = 60.0
"""How long a slow spell may last: what is as slow after it is so by itself."""

REFERENCES = 6
"""Accepted replays of one engine that the next one is compared with."""


class Engines(StageEngines, Protocol):
    """What trials need of an engine host; see ``autotune.engine.supervisor``."""

    def replay(
        self, trace: Trace, plan: ReplayPlan, on_progress: Callable[[Mapping[str, Any]], None]
    ) -> ReplayResult: ...

    def running(self) -> frozenset[Process]: ...


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """What one trial yielded before it is judged.

    Attributes:
        replayed: on which engine did what.
        started: that engine.
        load: its steps, condensed.
        hardware: what the sampler saw meanwhile; None where no process ran, so that this
            machine's is not what was measured.
        spell: why the replay must not be scored, None if it may.
        timings: seconds by name.
    """

    replayed: ReplayResult
    started: Started
    load: Load
    hardware: HardwareUse | None
    spell: Failure | None
    timings: Mapping[str, float | None]


@dataclass(frozen=True, slots=True, eq=False)
class _Suspect:
    """A replay that a spell seems to have hit, and when that was noticed."""

    steps: Steps
    spell: Spell
    noticed_at: float


class Runner:
    """Runs trials one after the other.

    Args:
        job: whose window is replayed.
        engines: replay.
        stage: which of them runs.
        on_progress: told how far a replay is.
        pause: waits for some seconds.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        job: Job,
        engines: Engines,
        stage: Stage,
        on_progress: Callable[[Mapping[str, Any]], None],
        *,
        pause: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pause = pause
        self._clock = clock
        self._job = job
        self._engines = engines
        self._stage = stage
        self._on_progress = on_progress
        self._ended_at: float | None = None
        self._accepted: defaultdict[str, deque[Steps]] = defaultdict(
            lambda: deque(maxlen=REFERENCES)
        )
        self._suspects: dict[str, _Suspect] = {}

    def run(
        self,
        candidate: Candidate,
        fidelity: Fidelity,
        *,
        salt: str,
        log_path: Path,
        budget: Budget | None,
    ) -> Result:
        """Get the engine that the fidelity asks for, and replay on it.

        Args:
            candidate: what is measured.
            fidelity: on an engine started with it, or with its limits set.
            salt: of the prompts, another one for each replay.
            log_path: where the output of an engine goes that has to be started.
            budget: in ms; the replay is cut short once it is lost. None: it is not.

        Raises:
            TrialFailed: the engine did not start, died, or gave what are no numbers.
        """
        job = self._job
        if (suspect := self._suspects.get(_trial(candidate, fidelity))) is not None:
            # A spell that goes on would hit the repetition too.
            self._on_progress({"stage": "wait", "done": 0, "total": 0})
            self._pause(max(0.0, suspect.noticed_at + SPELL_S - self._clock()))
            self._on_progress({"stage": "start", "done": 0, "total": 0})
            self._ended_at = None  # What we waited for is no cost of the engine's.
        started, start_s = self._stage.ready(job, candidate, fidelity, log_path)
        plan = ReplayPlan(
            seed=job.settings.seed,
            salt=salt,
            warmup_requests=warmup_requests(job.trace, job.settings.warmup_s),
            first_warmup_requests=first_warmup_requests(job.trace, job.settings.warmup_s),
            budget="" if budget is None else budget.text,
            classes=classes_text(job.classes),
        )
        replayed, hardware = self._watched(plan, started)
        if fidelity == "restart":
            count = len(job.trace.requests)
            self._on_progress({"stage": "stop", "done": count, "total": count})
        stop_s = self._stage.release(job, candidate, fidelity)
        timings = {
            "start_s": start_s,
            "turnaround_s": None if self._ended_at is None else replayed.began_at - self._ended_at,
            "warmup_s": replayed.warmup.seconds,
            "replay_s": replayed.replay_s,
            "stop_s": stop_s,
        }
        self._ended_at = replayed.ended_at
        return Result(
            replayed=replayed,
            started=started,
            load=summarise(
                replayed.steps,
                max_num_batched_tokens=integer(candidate[TOKENS]),
                max_num_seqs=integer(candidate[SEQS]),
            ),
            hardware=hardware,
            spell=self._spell(candidate, fidelity, replayed.steps, started),
            timings=timings,
        )

    def _watched(
        self, plan: ReplayPlan, started: Started
    ) -> tuple[ReplayResult, HardwareUse | None]:
        """Replay, and sample the hardware meanwhile if anything runs on it."""
        trace, own = self._job.trace, [process.pid for process in self._engines.running()]
        if not own:
            return require_numbers(self._engines.replay(trace, plan, self._on_progress)), None
        with HardwareSampler(started.info.device_uuids, own_pids=own) as sampler:
            replayed = self._engines.replay(trace, plan, self._on_progress)
        return require_numbers(replayed), sampler.result()

    def remember(self, candidate: Candidate, fidelity: Fidelity, steps: Steps) -> None:
        """Take a replay that was accepted as a reference for those to come."""
        self._references(candidate, fidelity).append(steps)
        self._suspects.pop(_trial(candidate, fidelity), None)

    def forget(self, candidate: Candidate, fidelity: Fidelity) -> None:
        """Take back the latest reference: the replay does not count for another reason."""
        self._references(candidate, fidelity).pop()

    def suspect(
        self,
        candidate: Candidate,
        fidelity: Fidelity,
        steps: Steps,
        *,
        capture_limit: int | None,
        ended_s_ago: float,
    ) -> None:
        """Take a replay that a spell had hit before the study was stopped.

        After those that were accepted before it. The repetition waits until the spell would be
        over, and counts if it is as slow in the same place.
        """
        accepted = tuple(self._references(candidate, fidelity))
        found = slow_spell(steps, reference=accepted, capture_limit=capture_limit)
        if found is not None:
            noticed_at = self._clock() - max(0.0, ended_s_ago)
            self._suspects[_trial(candidate, fidelity)] = _Suspect(steps, found, noticed_at)

    def _references(self, candidate: Candidate, fidelity: Fidelity) -> deque[Steps]:
        engine_args = wanted_args(self._job, candidate, fidelity)
        return self._accepted[json.dumps(engine_args, sort_keys=True)]

    def _spell(
        self, candidate: Candidate, fidelity: Fidelity, steps: Steps, started: Started
    ) -> Failure | None:
        """Return why a replay is not to be trusted; one that is serves as a reference."""
        accepted = self._references(candidate, fidelity)
        limit = max(started.info.capture_sizes, default=None)
        found = slow_spell(steps, reference=tuple(accepted), capture_limit=limit)
        trial = _trial(candidate, fidelity)
        if found is None or self._is_its_own_pace(trial, found, steps):
            self.remember(candidate, fidelity, steps)
            return None
        self._suspects[trial] = _Suspect(steps, found, self._clock())
        return Failure(
            "slow_spell",
            f"from {found.begin_s:.1f} to {found.end_s:.1f} s steps took {found.factor:.2f} "
            "times as long as equal work did otherwise",
        )

    def _is_its_own_pace(self, trial: str, found: Spell, steps: Steps) -> bool:
        """Whether the same trial was as slow at the same place before; a spell would be over."""
        if (suspect := self._suspects.get(trial)) is None:
            return False
        earlier = suspect.spell
        both_s = min(found.end_s, earlier.end_s) - max(found.begin_s, earlier.begin_s)
        if both_s < 0.5 * min(found.end_s - found.begin_s, earlier.end_s - earlier.begin_s):
            return False
        if not 1 / LEAST_FACTOR < found.factor / earlier.factor < LEAST_FACTOR:
            return False
        change = drift(suspect.steps, steps)
        return change is None or abs(change) < LEAST_FACTOR - 1


def _trial(candidate: Candidate, fidelity: Fidelity) -> str:
    return f"{fidelity} {cell_key(candidate)}"
