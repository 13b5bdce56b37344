"""A study on engines that follow a script: real controller, SQLite and Optuna, no vLLM."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Self

import numpy as np
import optuna

from autotune.candidates.lattice import SEQS, TOKENS, Candidate, cell_key, integer
from autotune.controller import Controller
from autotune.engine.ground import Ground
from autotune.engine.processes import Process
from autotune.engine.protocol import (
    EngineInfo,
    Failure,
    ReplayPlan,
    ReplayResult,
    TrialFailed,
    Warmup,
)
from autotune.engine.supervisor import Description, Started
from autotune.forecast.grid import DECODE_STEPS, SweepPlan
from autotune.settings import TuneSettings
from autotune.study.job import Job, make_job
from autotune.study.judgement import Judgement
from autotune.study.stage import Stage
from autotune.traffic.model import Trace, TraceRequest
from objectives.censoring import Censored, Lost, censored, lower_bounds
from objectives.classes import parse_classes
from objectives.limits import parse_budget
from objectives.samples import RequestSamples
from objectives.steps import COLUMNS, Steps
from storage.records import TrialRecord
from storage.repository import Repository, open_repository, utc_now
from storage.study import close_optuna_study, open_optuna_study

BUDGET = "ttft_p95:300 tpot_p95:16"
BASELINE: Candidate = {TOKENS: 2048, SEQS: 64}
REQUESTS = 80
PEAK_RUNNING = 30

INFO = EngineInfo(
    vllm_version="0.32.0",
    torch_version="2.9.0",
    device="scripted",
    device_uuids=(),
    model="tiny",
    resolved={**BASELINE, "max_model_len": 8192},
    vocab_size=4096,
    kv_cache_tokens=65536,
)
FLAGS = {
    name: {"flag": "--" + name.replace("_", "-"), "negative": None, "default": None}
    for name in (TOKENS, SEQS, "enforce_eager", "long_prefill_token_threshold")
}
DESCRIPTION = Description(INFO, FLAGS)
GROUND = Ground(
    processes=0,
    host_memory_bytes=2**29,
    host_descriptors=20,
    shared_memory_bytes=0,
    sockets=0,
    gpu_memory_bytes={},
)


@dataclass(frozen=True, slots=True)
class Speed:
    """How an engine serves every request of the trace, but for a little jitter."""

    ttft_ms: float
    tpot_ms: float
    failed: int = 0
    send_lag_s: float = 0.0


Truth = Callable[[Candidate], Speed]


def clear_knee(candidate: Candidate) -> Speed:
    """Large steps are good for TTFT and bad for TPOT; the baseline breaks the TPOT limit."""
    tokens, seqs = integer(candidate[TOKENS]), integer(candidate[SEQS])
    return Speed(60 + 60_000 / tokens + 400 / seqs, 6 + tokens / 150)


def too_slow(candidate: Candidate) -> Speed:
    speed = clear_knee(candidate)
    return Speed(speed.ttft_ms + 1000, speed.tpot_ms)


def all_alike(_candidate: Candidate) -> Speed:
    return Speed(100, 10)


def samples_of(speed: Speed, trace: Trace, *, seed: int = 0) -> RequestSamples:
    """Every request of the trace, with a jitter of 1 % between requests."""
    rng = np.random.default_rng(seed)
    count = len(trace.requests)
    scheduled = trace.timestamps_s
    gaps = trace.output_lengths - 1
    tpot_s = speed.tpot_ms / 1000 * rng.normal(1, 0.01, count)
    first = scheduled + speed.ttft_ms / 1000 * rng.normal(1, 0.01, count)
    owner = np.repeat(np.arange(count), gaps)
    return RequestSamples(
        scheduled_s=scheduled,
        sent_s=scheduled + speed.send_lag_s,
        first_token_s=first,
        last_token_s=first + gaps * tpot_s,
        prompt_tokens=trace.input_lengths,
        output_tokens=trace.output_lengths,
        expected_output_tokens=trace.output_lengths,
        cached_tokens=np.zeros(count, dtype=np.int64),
        failed=np.arange(count) < speed.failed,
        gap_s=tpot_s[owner],
        gap_request=owner,
    )


def cut_off(samples: RequestSamples, cut_s: float) -> RequestSamples:
    """What of evenly served requests a client has seen by ``cut_s``."""
    gaps = samples.expected_output_tokens - 1
    pace_s = (samples.last_token_s - samples.first_token_s) / gaps
    sent, begun = samples.sent_s <= cut_s, samples.first_token_s <= cut_s
    whole = np.floor((cut_s - samples.first_token_s) / pace_s).astype(np.int64)
    later = np.clip(whole, 0, gaps) * begun
    number = np.arange(len(samples.gap_s)) - np.repeat(np.cumsum(gaps) - gaps, gaps)
    seen = number < later[samples.gap_request]
    return replace(
        samples,
        sent_s=np.where(sent, samples.sent_s, np.nan),
        first_token_s=np.where(begun, samples.first_token_s, np.nan),
        last_token_s=np.where(begun, samples.first_token_s + later * pace_s, np.nan),
        output_tokens=(later + 1) * begun,
        failed=samples.failed & sent,
        gap_s=samples.gap_s[seen],
        gap_request=samples.gap_request[seen],
    )


def steps_of(candidate: Candidate, *, peak_running: int = PEAK_RUNNING, waiting: int = 0) -> Steps:
    """Ten steps, none of them near a limit unless ``peak_running`` is at the cap."""
    ones = np.ones(10, dtype=np.int64)
    running = min(peak_running, integer(candidate[SEQS])) * ones
    begun_s = np.arange(10) / 10
    return Steps(
        begun_s=begun_s,
        planned_s=begun_s + 0.001,
        done_s=begun_s + 0.09,
        prefill_tokens=16 * ones,
        decode_requests=running,
        requests=running + 1,
        running=running + 0 * ones,
        waiting=waiting * ones,
        kv_usage=np.full(10, 0.2),
        preemptions=0 * ones,
        context_tokens=100 * running,
        decode_kv_tokens=90 * running,
        prefill_pairs=136 * ones,
    )


@dataclass(slots=True)
class ScriptedEngines:
    """Engines that serve by ``truth``; a context manager, as the supervisor is.

    Attributes:
        faults: what is raised, by stage (start, replay or stop) and count of earlier starts.
        refused: a failure for each candidate that cannot start.
        started: the arguments of each start; ``logs`` and ``plans`` likewise.
        alive: whether an engine runs now.
        device_uuids: the GPUs of what vLLM was asked about.
        obstacle: why limits cannot be changed, None if they can.
        limits: set one after the other; ``swept`` the sweeps, ``pauses`` in s likewise.
        steps: of a replay, by what it is measured with and how many replays came before it.
        cut_s: when a replay ends that has lost its budget by then.
        pulse: never called.
    """

    truth: Truth = clear_knee
    faults: Mapping[tuple[str, int], BaseException] = field(default_factory=dict)
    refused: Callable[[Candidate], Failure | None] = lambda _: None
    on_replay: Callable[[int], None] = lambda _: None
    started: list[Mapping[str, Any]] = field(default_factory=list)
    logs: list[Path] = field(default_factory=list)
    plans: list[ReplayPlan] = field(default_factory=list)
    alive: bool = False
    kills: int = 0
    device_uuids: frozenset[str] = frozenset()
    obstacle: str | None = None
    limits: list[Mapping[str, int]] = field(default_factory=list)
    swept: list[SweepPlan] = field(default_factory=list)
    limited: Mapping[str, int] = field(default_factory=dict)
    steps: Callable[[Candidate, int], Steps] = lambda candidate, _: steps_of(candidate)
    cut_s: float | None = None
    pauses: list[float] = field(default_factory=list)
    clock_s: float = 0.0
    pulse: Callable[[], None] | None = None
    _replays: Counter[str] = field(default_factory=Counter)
    host_log: Path = Path("host.log")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.kill()

    def start(self, engine_args: Mapping[str, Any], log_path: Path) -> Started:
        assert not self.alive, "one engine at a time"
        self.started.append(engine_args)
        self.logs.append(log_path)
        self._fail_at("start")
        failure = self.refused(engine_args)
        if failure is not None:
            raise TrialFailed(failure)
        self.alive = True
        self.limited = {}
        return Started(replace(INFO, live_obstacle=self.obstacle), 1.0, GROUND)

    def limit(self, limits: Mapping[str, int]) -> None:
        assert self.alive, "limits are those of a running engine"
        self._fail_at("limit")
        self.limited = {name: limits[name] for name in (TOKENS, SEQS)}
        self.limits.append(limits)

    def sweep(
        self,
        plan: SweepPlan,
        limits: Mapping[str, int],
        on_progress: Callable[[Mapping[str, Any]], None],
    ) -> tuple[Steps, bool]:
        """Steps that take 1 ms and 1 ms for each 8 tokens; every context is of one token more."""
        assert self.alive, "a sweep is of a running engine"
        assert limits[TOKENS] == self.started[-1][TOKENS], "nothing is limited meanwhile"
        self._fail_at("sweep")
        self.swept.append(plan)
        on_progress({"stage": "calibrate", "done": 1, "total": len(plan.coarse)})
        prompts = np.array([*plan.coarse, *plan.fine], dtype=np.int64)
        batches = [(size, plan.decode_prompt) for size in plan.decodes]
        batches += [(probe.requests, probe.context_tokens) for probe in plan.kv]
        each = np.array(batches, dtype=np.int64).reshape(-1, 2)
        sizes, contexts = np.repeat(each, DECODE_STEPS, axis=0).T
        prefills = np.concatenate([prompts, 0 * sizes])
        decodes = np.concatenate([0 * prompts, sizes])
        steps = Steps.from_rows(np.zeros((prefills.size, len(COLUMNS))))
        return replace(
            steps,
            done_s=0.001 + (prefills + decodes) / 8000,
            prefill_tokens=prefills,
            decode_requests=decodes,
            decode_kv_tokens=np.concatenate([0 * prompts, sizes * (contexts + 1)]),
            requests=np.where(prefills > 0, 1, decodes),
            prefill_pairs=prefills * (prefills + 1) // 2,
        ), True

    def running(self) -> frozenset[Process]:
        return frozenset()

    def replay(
        self, trace: Trace, plan: ReplayPlan, on_progress: Callable[[Mapping[str, Any]], None]
    ) -> ReplayResult:
        self.plans.append(plan)
        on_progress({"stage": "replay", "done": 1, "total": len(trace.requests)})
        self._fail_at("replay")
        self.on_replay(len(self.started) - 1)
        candidate = {**self.started[-1], **self.limited}
        key = cell_key({TOKENS: candidate[TOKENS], SEQS: candidate[SEQS]})
        seed = int(candidate[TOKENS]) * 1000 + int(candidate[SEQS]) + 7 * self._replays[key]
        self._replays[key] += 1
        samples = samples_of(self.truth(candidate), trace, seed=seed)
        cut = self._cut(samples, plan)
        self.clock_s += 5.0
        return ReplayResult(
            samples if cut is None else cut_off(samples, cut.cut_s),
            self.steps(candidate, len(self.plans) - 1),
            Warmup(requests=plan.warmup_requests, passes=1, drift=0.0, seconds=0.5),
            replay_s=4.0,
            began_at=self.clock_s,
            ended_at=self.clock_s + 4.5,
            censored=cut,
        )

    def _cut(self, samples: RequestSamples, plan: ReplayPlan) -> Censored | None:
        if self.cut_s is None:
            return None
        partial = cut_off(samples, self.cut_s)
        bounds = lower_bounds(partial, cut_s=self.cut_s, classes=parse_classes(plan.classes))
        for limit in parse_budget(plan.budget).limits:
            bound_ms, limit_ms = bounds[limit.key], limit.limit_ms
            if bound_ms is not None and limit_ms is not None and bound_ms > limit_ms:
                lost = Lost(limit.key, limit_ms, bound_ms)
                return censored(partial, lost=lost, cut_s=self.cut_s)
        return None

    def stop(self) -> float:
        self._fail_at("stop")
        self.alive = False
        return 0.1

    def close(self) -> None:
        self.alive = False

    def kill(self) -> None:
        self.alive = False
        self.kills += 1

    def _fail_at(self, stage: str) -> None:
        fault = self.faults.get((stage, len(self.started) - 1))
        if fault is not None:
            raise fault


@dataclass(slots=True)
class Notes:
    """A watcher that writes down what it is told."""

    begun_trials: list[tuple[int, str, int, int]] = field(default_factory=list)
    finished_trials: list[tuple[int, str]] = field(default_factory=list)
    reports: list[Mapping[str, Any]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def say(self, text: str) -> None:
        self.said.append(text)

    def leased(self) -> None:
        """Nothing is written down."""

    def due(self, left_s: float) -> None:
        """Nothing is written down."""

    def judging(self, judge: Callable[[], Judgement | None]) -> None:
        """Nothing is written down."""

    def alive(self) -> None:
        """Nothing is written down."""

    def begun(self, row: TrialRecord, position: int, total: int) -> None:
        self.begun_trials.append((row.number, row.phase, position, total))

    def progress(self, body: Mapping[str, Any]) -> None:
        self.reports.append(body)

    def finished(self, row: TrialRecord) -> None:
        self.finished_trials.append((row.number, row.state))


def small_trace() -> Trace:
    """Chats of 100 tokens, and every eighth request a document of 1,000."""
    requests = [
        TraceRequest(50.0 * i, 1000 if i % 8 == 7 else 100, 4, (i,) * (2 if i % 8 == 7 else 1))
        for i in range(REQUESTS)
    ]
    return Trace.build(requests, block_size=512, prefixes_known=True, source="small")


def settings_of(**changes: Any) -> TuneSettings:
    return TuneSettings(
        **{
            "model": "tiny",
            "trace": "small.jsonl",
            "budget": BUDGET,
            "trials": 8,
            "warmup_s": 1.0,
            **changes,
        }
    )


def job_of(
    *,
    classes: str = "",
    peak: int | None = None,
    live: bool = False,
    described: Description = DESCRIPTION,
    **changes: Any,
) -> Job:
    settings = settings_of(**changes)
    return make_job(
        settings,
        small_trace(),
        parse_budget(settings.budget),
        parse_classes(classes),
        described,
        peak=peak,
        live=live,
    )


@dataclass(frozen=True, slots=True, eq=False)
class Running:
    """A controller with its repository, ready to run."""

    controller: Controller
    repository: Repository
    study_id: int
    optuna_study: optuna.Study
    watcher: Notes

    def rows(self) -> tuple[TrialRecord, ...]:
        return self.repository.trials(self.study_id)


@cache
def _tables() -> bytes:
    """A database with the tables of both; Optuna takes longer to make its own than to run."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "study.db"
        open_repository(f"sqlite:///{path}").close()
        storage = optuna.storages.RDBStorage(f"sqlite:///{path}")
        storage.remove_session()
        storage.engine.dispose()
        return path.read_bytes()


@contextmanager
def opened(
    folder: Path,
    job: Job,
    engines: ScriptedEngines,
    *,
    name: str = "study",
    now: Callable[[], datetime] = utc_now,
) -> Iterator[Running]:
    """Open a study in ``folder`` as the tune command does."""
    database = folder / "study.db"
    if not database.exists():
        database.write_bytes(_tables())
    url = f"sqlite:///{database}"
    with open_repository(url) as repository:
        record = repository.open_study(name, fingerprint=job.fingerprint(), spec=job.spec())
        study = open_optuna_study(url, name, directions=3, sampler=optuna.samplers.RandomSampler())
        watcher = Notes()
        try:
            controller = Controller(
                job=job,
                study_id=record.id,
                repository=repository,
                optuna_study=study,
                engines=engines,
                stage=Stage(engines),
                watcher=watcher,
                log_folder=folder / "logs",
                pause=engines.pauses.append,
                now=now,
            )
            yield Running(controller, repository, record.id, study, watcher)
        finally:
            close_optuna_study(study)
