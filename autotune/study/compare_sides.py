"""The sides of a comparison: servers that run, and engines that are started for it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Literal, Protocol, Self

from autotune.endpoint_settings import EndpointSettings
from autotune.engine.endpoint import EndpointSource, open_endpoint
from autotune.engine.protocol import ReplayPlan, TrialFailed
from autotune.engine.supervisor import Description
from autotune.errors import EnvironmentFault
from autotune.settings import TuneSettings
from autotune.study.endpoint_replay import replay_once_over_http
from autotune.study.engines import AnyEngines
from autotune.study.replays import first_warmup_requests, warmup_requests
from autotune.study.session import (
    Follower,
    describe_engine,
    device_lease,
    end_earlier_runs,
    log_of_one_engine,
    open_supervisor,
)
from autotune.traffic.model import Trace
from objectives.samples import RequestSamples

SideKind = Literal["engine", "vllm", "openai"]
"""``engine`` is in process, the others are kinds of endpoints."""


@dataclass(frozen=True, slots=True, eq=False)
class Replayed:
    """What one replay of one side yielded; see ``autotune.study.endpoint_replay``."""

    samples: RequestSamples
    exact: bool
    errors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class About:
    """What one side is.

    Attributes:
        name: as it was given, with a number where it was given twice.
        kind: of side.
        model: name or path; of a server what is behind the name, where it says so.
        max_model_len: longest request; None where nobody says.
        limits: of an engine, as vLLM resolved them.
    """

    name: str
    kind: SideKind
    model: str
    max_model_len: int | None
    limits: Mapping[str, int] = field(default_factory=dict)

    @property
    def forced(self) -> bool:
        """Whether its answers have the lengths of the trace."""
        return self.kind != "openai"


class Side(Protocol):
    """One of those that are compared."""

    @property
    def about(self) -> About: ...

    def replay(self, trace: Trace, turn: int, follower: Follower) -> Replayed:
        """Replay the trace once; ``turn`` counts the replays of the whole comparison.

        Raises:
            UsageError: the server refuses what every request asks for.
            EnvironmentFault: nothing came back.
        """
        ...


class EndpointSide:
    """A server that runs."""

    def __init__(
        self,
        about: About,
        source: EndpointSource,
        runner: asyncio.Runner,
        *,
        settings: TuneSettings,
        run: str,
    ) -> None:
        self.about = about
        self._source = source
        self._runner = runner
        self._settings = settings
        self._run = run

    def replay(self, trace: Trace, turn: int, follower: Follower) -> Replayed:
        replayed = self._runner.run(
            replay_once_over_http(
                self._source,
                trace,
                seed=self._settings.seed,
                # Servers outlive a comparison: another one must not find this one's prefixes.
                salt=f"{self._run}-{turn}",
                warmup=warmup_requests(trace, self._settings.warmup_s),
                follower=follower,
            )
        )
        return Replayed(replayed.samples, replayed.exact, replayed.errors)


class EngineSide:
    """An engine that is started for its turn, and runs until another's comes."""

    def __init__(
        self,
        about: About,
        engines: LocalEngines,
        *,
        settings: TuneSettings,
        described: Description,
    ) -> None:
        self.about = about
        self._engines = engines
        self._settings = settings
        self._engine_args = {**settings.engine_args, "model": described.info.model}

    def replay(self, trace: Trace, turn: int, follower: Follower) -> Replayed:
        plan = ReplayPlan(
            seed=self._settings.seed,
            salt=f"compare-{turn}",
            warmup_requests=warmup_requests(trace, self._settings.warmup_s),
            first_warmup_requests=first_warmup_requests(trace, self._settings.warmup_s),
        )
        log = log_of_one_engine(self._settings, f"compare-{self.about.name}")
        try:
            engines = self._engines.running(self, self._engine_args, log, follower)
            replayed = engines.replay(trace, plan, follower.progress)
        except TrialFailed as outcome:
            raise EnvironmentFault(
                f"{self.about.name}: {outcome}", hint=f"the engine's log is {log}"
            ) from outcome
        if replayed.samples.lost.all():
            cause = next(iter(replayed.errors), "no tokens came")
            raise EnvironmentFault(
                f"{self.about.name}: all of {len(replayed.samples)} requests failed: {cause}",
                hint=f"the engine's log is {log}",
            )
        return Replayed(replayed.samples, exact=True, errors=replayed.errors)


class LocalEngines:
    """Runs one engine at a time."""

    def __init__(self, engines: AnyEngines) -> None:
        self.engines = engines
        self._current: EngineSide | None = None

    def running(
        self, side: EngineSide, engine_args: Mapping[str, object], log: Path, follower: Follower
    ) -> AnyEngines:
        """Return the engines once that of ``side`` runs.

        Raises:
            TrialFailed: it does not start, or the one before does not stop.
        """
        if self._current is not side:
            if self._current is not None:
                self._current = None
                self.engines.stop()
            follower.say(f"{side.about.name}: starting an engine")
            self.engines.start(engine_args, log)
            self._current = side
        return self.engines


class Sides:
    """Opens sides, and closes all of them when it is left: no engine and no client stays."""

    def __init__(self, follower: Follower, *, run: str) -> None:
        self._follower = follower
        self._run = run
        self._stack = ExitStack()
        self._runner: asyncio.Runner | None = None
        self._clients = AsyncExitStack()
        self._local: LocalEngines | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if self._runner is not None:
                self._runner.run(self._clients.aclose())
        finally:
            self._stack.__exit__(kind, error, trace)

    def endpoint(
        self, label: str, name: str, endpoint: EndpointSettings, settings: TuneSettings
    ) -> Side:
        """Connect to a server; raises as ``open_endpoint`` does."""
        if self._runner is None:
            self._runner = self._stack.enter_context(asyncio.Runner())
        source = self._runner.run(self._opened(name, endpoint))
        served = source.served
        model = served.root or endpoint.model
        about = About(label, served.kind, model, served.max_model_len)
        return EndpointSide(about, source, self._runner, settings=settings, run=self._run)

    def engine(self, label: str, settings: TuneSettings) -> EngineSide:
        """Ask what an engine would be; raises as ``describe_engine`` does."""
        if self._local is None:
            end_earlier_runs(self._follower.say)
            engines = self._stack.enter_context(open_supervisor(settings, "compare"))
            self._local = LocalEngines(engines)
        described = describe_engine(settings, self._local.engines)
        info = described.info
        limits = {
            name: int(info.resolved[name]) for name in ("max_num_batched_tokens", "max_num_seqs")
        }
        about = About(label, "engine", info.model, info.max_model_len, limits)
        return EngineSide(about, self._local, settings=settings, described=described)

    def hold_devices(self) -> None:
        """Hold the GPUs of all engines that were described until the sides are closed.

        Raises:
            LeaseHeld: another process has one of them.
        """
        if self._local is not None:
            engines = self._local.engines
            self._stack.enter_context(device_lease("GPU", engines.device_uuids))
            # Gone before the GPUs are given back.
            self._stack.callback(_close, engines)

    async def _opened(self, name: str, endpoint: EndpointSettings) -> EndpointSource:
        return await self._clients.enter_async_context(open_endpoint(name, endpoint))


def _close(engines: AnyEngines) -> None:
    with suppress(TrialFailed):
        engines.close()


def in_turn(count: int, repeats: int) -> Sequence[int]:
    """Return whose turn it is: A B C, C B A, A B C …, so that drift meets all alike."""
    rounds = (
        range(count) if each % 2 == 0 else range(count - 1, -1, -1) for each in range(repeats)
    )
    return [side for each in rounds for side in each]
