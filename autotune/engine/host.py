"""The engine host: a child process that has imported vLLM once and runs one engine at a time.

Started by the supervisor as ``python -m autotune.engine.host FD PARENT``. It reads one command
after the other from the channel on FD and answers each; while a replay runs it reports progress.
Its own output and that of its engines goes to the log file of the current trial.

Commands and their answers: ``describe`` and ``validate`` look at a configuration without starting
anything; ``start``, ``limit``, ``sweep``, ``replay`` and ``stop`` handle an engine; ``quit`` ends
the process. A command that fails is answered by ``failed`` with the class of the failure and its
evidence.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import math
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.engine.channel import Channel, ChannelClosed, Message
from autotune.engine.children import Children
from autotune.engine.failures import classify_run, classify_start, log_size, read_tail
from autotune.engine.parent_death import arm_in_engine, become_host, die_with_parent
from autotune.engine.protocol import (
    MODEL_FAULT,
    PROGRESS_EVERY_S,
    Failure,
    Schedule,
    TrialFailed,
    Warmup,
)
from autotune.engine.sweep import Sweep
from autotune.forecast.grid import SweepPlan
from autotune.forecast.pace import STEADY, drift
from autotune.traffic.prompts import prompt_token_ids
from autotune.traffic.replay import PreparedRequest, Replay
from objectives.censoring import Censored, Lost
from objectives.classes import parse_classes
from objectives.limits import parse_budget
from objectives.samples import RequestSamples
from objectives.steps import Steps

_MOST_PASS = 2.0
"""Times its rows' own length that a warm-up may take: a candidate that falls far behind is warm
by then, and would take many times as long to catch up."""
_LEAST_PASS_S = 5.0
_ERRORS_KEPT = 5

ENVIRONMENT: Mapping[str, str] = {
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    # As ``vllm serve`` sets it; the library's own default is to fork.
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    # vLLM renames its processes, and setproctitle would write the name over the environment by
    # which they are found.
    "SPT_NOENV": "1",
}
"""Set for the engines unless the user has set it."""


@dataclass(frozen=True, slots=True, eq=False)
class _Pass:
    """One replay of some rows, with its first send and last token on the machine's clock."""

    samples: RequestSamples
    steps: Steps
    schedule: Schedule
    censored: Censored | None
    began_at: float
    ended_at: float
    errors: tuple[str, ...]


class EngineHost:
    """Answers commands; holds at most one engine."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._engine: Any = None
        self._children = Children()
        self._log_path: Path | None = None
        self._pace: Steps | None = None
        self._prepared: tuple[bytes, list[PreparedRequest]] | None = None

    async def serve(self) -> None:
        """Answer commands until told to quit or the controller is gone."""
        loop = asyncio.get_running_loop()
        handlers = {
            "describe": self._describe,
            "validate": self._validate,
            "start": self._start,
            "limit": self._limit,
            "sweep": self._sweep,
            "replay": self._replay,
            "stop": self._stop,
        }
        while True:
            try:
                command = await loop.run_in_executor(None, self._channel.receive)
            except ChannelClosed:
                return
            if command.kind == "quit":
                return
            try:
                answer = await handlers[command.kind](command)
            except TrialFailed as outcome:
                answer = _failed(outcome.failure)
            # The trial boundary: whatever goes wrong in vLLM must become an answer.
            except Exception as error:  # noqa: BLE001
                text = f"{type(error).__name__}: {error}"
                answer = _failed(classify_start(read_tail_of(self._log_path), text))
            self._channel.send(answer)

    async def _describe(self, command: Message) -> Message:
        from autotune.engine import serve_flags, vllm_engine

        config = vllm_engine.build_config(command.body["engine_args"])
        return Message(
            "described",
            {
                "info": vllm_engine.describe_config(config).to_json(),
                "flags": serve_flags.describe_flags(),
            },
        )

    async def _validate(self, command: Message) -> Message:
        from autotune.engine import vllm_engine

        engine_args = command.body["engine_args"]
        known = vllm_engine.engine_argument_names()
        unknown = sorted(set(engine_args) - set(known))
        error = f"vLLM has no engine argument {unknown[0]!r}" if unknown else None
        if error is None:
            try:
                vllm_engine.build_config(engine_args)
            # An OSError is about the model's files, not about the arguments.
            except OSError as fault:
                error = f"{MODEL_FAULT}: {fault}"
            # pydantic's ValidationError is a ValueError.
            except (ValueError, TypeError, NotImplementedError) as refusal:
                error = str(refusal)
        return Message("validated", {"error": error, "known": list(known)})

    async def _start(self, command: Message) -> Message:
        from autotune.engine import vllm_engine

        self._log_path = Path(command.body["log_path"])
        redirect_output(self._log_path)
        begun = time.perf_counter()
        try:
            with self._children.noticed():
                self._engine = vllm_engine.VllmEngine.start(command.body["engine_args"])
        except (RuntimeError, ValueError, TypeError, OSError) as error:
            text = f"{type(error).__name__}: {error}"
            log = read_tail(self._log_path)
            ended = self._children.endings()
            raise TrialFailed(classify_start(log, text, ended=ended)) from error
        self._pace = None
        obstacle = await self._engine.obstacle()
        info = replace(self._engine.info(), live_obstacle=obstacle).to_json()
        return Message("started", {"info": info, "start_s": time.perf_counter() - begun})

    @contextmanager
    def _under_load(self) -> Iterator[None]:
        """Class whatever ends an engine that works, by what it has said since."""
        # What was said before is about the start, and no evidence of what happens now.
        said = log_size(self._log_path)
        try:
            yield
        # The trial boundary: an engine that dies under load may raise anything.
        except Exception as error:
            log = read_tail_of(self._log_path, after=said)
            ended = self._children.endings()
            raise TrialFailed(classify_run(log, _leaf_text(error), ended=ended)) from error

    async def _limit(self, command: Message) -> Message:
        try:
            now = await self._engine.set_limits(command.body["limits"])
        # The trial boundary: vLLM passes on whatever its engine raises as a plain exception.
        except Exception as error:
            text = f"the limits were not taken: {_leaf_text(error)}"
            raise TrialFailed(classify_run("", text, ended=self._children.endings())) from error
        return Message("limited", {"limits": dict(now)})

    async def _sweep(self, command: Message) -> Message:
        body = command.body
        sweep = Sweep(
            self._engine,
            SweepPlan.from_json(body["plan"]),
            limits=body["limits"],
            vocab_size=self._engine.info().vocab_size,
            seconds=body["seconds"],
            progress=self._report_sweep,
        )
        with self._under_load():
            steps, whole = await sweep.run()
        return Message("swept", {"whole": whole}, steps.to_arrays())

    def _report_sweep(self, done: int, total: int) -> None:
        progress = {"stage": "calibrate", "total": total, "sent": done, "done": done}
        self._channel.send(Message("progress", {**progress, "tokens": done}))

    async def _replay(self, command: Message) -> Message:
        body = command.body
        prepared = self._prepare(command)
        gc.collect()
        gc.freeze()
        with self._under_load():
            warmup, began_at = await self._warm_up(prepared, body)
            await self._engine.reset_prefix_cache()
            await self._engine.record(detail=body["detail"])
            passed = await self._pass("replay", prepared, salt=body["salt"], limits=body)
        schedule = passed.schedule if body["detail"] else None
        return Message(
            "replayed",
            {
                "warmup": warmup.to_json(),
                "replay_s": passed.ended_at - passed.began_at,
                "began_at": passed.began_at if began_at is None else began_at,
                "ended_at": passed.ended_at,
                "errors": passed.errors,
                "censored": _plain_censored(passed.censored),
                "names": None if schedule is None else schedule.names,
            },
            {
                **passed.samples.to_arrays(),
                **passed.steps.to_arrays(),
                **({} if schedule is None else schedule.to_arrays()),
            },
        )

    async def _warm_up(
        self, prepared: Sequence[PreparedRequest], body: Mapping[str, Any]
    ) -> tuple[Warmup, float | None]:
        """Replay rows until the engine's pace stands still; also return when it took the first.

        On an engine that has replayed nothing yet the first pass has more rows: what an engine
        meets for the first time can stall it, however steady it is otherwise.
        """
        begun, began_at = time.perf_counter(), None
        rows, passes, change = 0, 0, None
        while passes < body["warmup_passes"]:
            wanted = body["warmup_requests"]
            if self._pace is None:
                wanted = max(wanted, body["first_warmup_requests"])
            if not wanted:
                break
            salt = f"{body['salt']}-warmup-{passes}"
            enough_s = max(_LEAST_PASS_S, _MOST_PASS * prepared[wanted - 1].scheduled_s)
            passed = await self._pass("warmup", prepared[:wanted], salt=salt, enough_s=enough_s)
            began_at = passed.began_at if began_at is None else began_at
            rows, passes = rows + wanted, passes + 1
            found = None if self._pace is None else drift(self._pace, passed.steps)
            change = None if found is None else math.expm1(found)
            self._pace = passed.steps
            if change is not None and abs(change) <= STEADY:
                break
        return Warmup(rows, passes, change, time.perf_counter() - begun), began_at

    async def _pass(
        self,
        stage: str,
        prepared: Sequence[PreparedRequest],
        *,
        salt: str,
        limits: Mapping[str, Any] | None = None,
        enough_s: float = math.inf,
    ) -> _Pass:
        """Run a replay while reporting its progress.

        It is cut short where its limits are lost, or after so many seconds.
        """
        await self._engine.take_steps(started_at=0.0)
        replay = Replay(prepared, self._engine, salt=salt)
        look = None
        if limits is not None and limits["budget"]:
            look = replay.watch(parse_budget(limits["budget"]), parse_classes(limits["classes"]))
        reporter = asyncio.create_task(self._report(stage, replay, look, enough_s))
        try:
            samples = await replay.run()
        finally:
            reporter.cancel()
        ended_at = time.perf_counter()
        steps, schedule = await self._engine.take_steps(started_at=replay.started_at)
        return _Pass(
            samples=samples,
            steps=steps,
            schedule=schedule,
            censored=replay.censored,
            began_at=replay.started_at + float(np.nanmin(samples.sent_s)),
            ended_at=ended_at,
            errors=tuple(replay.progress.errors[:_ERRORS_KEPT]),
        )

    def _prepare(self, command: Message) -> list[PreparedRequest]:
        """Return the requests of a replay; trials share them, so those of the last are kept."""
        given = hashlib.blake2b(repr((command.body["block_size"], command.body["seed"])).encode())
        for name in sorted(command.arrays):
            given.update(command.arrays[name].tobytes())
        if self._prepared is None or self._prepared[0] != given.digest():
            vocab_size = self._engine.info().vocab_size
            requests = prepare(command.arrays, command.body, vocab_size=vocab_size)
            self._prepared = given.digest(), requests
        return self._prepared[1]

    async def _report(
        self,
        stage: str,
        replay: Replay,
        look: Callable[[], Lost | None] | None,
        enough_s: float,
    ) -> None:
        begun = time.perf_counter()
        while True:
            await asyncio.sleep(PROGRESS_EVERY_S)
            progress = replay.progress
            self._channel.send(
                Message(
                    "progress",
                    {
                        "stage": stage,
                        "total": progress.total,
                        "sent": progress.sent,
                        "done": progress.done,
                        "tokens": progress.tokens,
                    },
                )
            )
            lost = None if look is None else look()
            if lost is not None or time.perf_counter() - begun > enough_s:
                replay.abort(lost)
                return

    async def _stop(self, _command: Message) -> Message:
        begun = time.perf_counter()
        if self._engine is not None:
            self._engine.stop()
            self._engine = None
            gc.unfreeze()
            gc.collect()
        return Message("stopped", {"stop_s": time.perf_counter() - begun})


def prepare(
    arrays: Mapping[str, NDArray[Any]], body: Mapping[str, Any], *, vocab_size: int
) -> list[PreparedRequest]:
    """Build the requests of a replay from the arrays that the supervisor sends.

    ``hash_ids`` holds the ids of all rows one after the other, ``hash_counts`` how many belong to
    each row.
    """
    ids_of_rows = np.split(arrays["hash_ids"], np.cumsum(arrays["hash_counts"])[:-1])
    return [
        PreparedRequest(
            scheduled_s=float(arrays["scheduled_s"][row]),
            prompt=prompt_token_ids(
                hash_ids,
                int(arrays["input_lengths"][row]),
                block_size=body["block_size"],
                seed=body["seed"],
                vocab_size=vocab_size,
            ).tolist(),
            output_tokens=int(arrays["output_lengths"][row]),
            priority=int(arrays["priorities"][row]),
        )
        for row, hash_ids in enumerate(ids_of_rows)
    ]


def redirect_output(path: Path) -> None:
    """Send this process's output, and that of its future children, to a file of its own."""
    sys.stdout.flush()
    sys.stderr.flush()
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)


def read_tail_of(path: Path | None, *, after: int = 0) -> str:
    return "" if path is None else read_tail(path, after=after)


def _plain_censored(censored: Censored | None) -> dict[str, Any] | None:
    """Return it as JSON can hold it, an infinite bound as None."""
    if censored is None:
        return None
    plain = asdict(censored)
    if math.isinf(censored.lost.at_least_ms):
        plain["lost"]["at_least_ms"] = None
    return plain


def _failed(failure: Failure) -> Message:
    return Message("failed", {"class": failure.failure_class, "evidence": failure.evidence})


def _leaf_text(error: BaseException) -> str:
    """Return the first real exception inside nested exception groups, as text."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"


def main() -> None:
    """Entry point of the child process."""
    fd, parent_pid = int(sys.argv[1]), int(sys.argv[2])
    die_with_parent(signal.SIGKILL, parent_pid=parent_pid)
    # The controller alone decides what a Ctrl-C means; it reaches the whole terminal group.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    become_host()
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    asyncio.run(EngineHost(Channel(socket.socket(fileno=fd))).serve())


if __name__ == "__main__":
    main()
elif __name__ == "__mp_main__":
    # A process that multiprocessing spawned below us imports this before anything of vLLM, whose
    # plug-ins are loaded only after EngineCore has shaken hands with its front end.
    arm_in_engine()
