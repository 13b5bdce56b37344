"""An export served by vLLM's own server, and what the study promised held against it."""

from __future__ import annotations

import asyncio
import http.client
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from autotune.endpoint_settings import EndpointSettings
from autotune.engine.endpoint import (
    EndpointFailed,
    EndpointRefuses,
    EndpointSource,
    open_endpoint,
)
from autotune.engine.protocol import TrialFailed
from autotune.engine.serve import Server, serve_command
from autotune.engine.serve_report import Report
from autotune.errors import EnvironmentFault, UsageError
from autotune.settings import TuneSettings
from autotune.study.check_devices import gpus_used
from autotune.study.check_export import Exported
from autotune.study.check_here import gpus_here
from autotune.study.check_result import Served, compare
from autotune.study.endpoint_replay import (
    ORDINARY_IDS,
    EndpointReplay,
    replay_fitted,
)
from autotune.study.replays import client_bound
from autotune.study.session import (
    Follower,
    Traffic,
    device_lease,
    end_earlier_runs,
    log_of_one_engine,
    read_traffic,
)
from objectives.budget import is_feasible
from objectives.limits import Budget
from objectives.measurement import measure

SERVED = "served"
"""Name of the endpoint in errors."""

FIRST_PROMPT = 64
"""Tokens of the first prompt. With 4 or fewer the first request kills vLLM 0.32 on a CPU with
AMX: its product of so few rows does without these instructions and so does not ask the kernel
for them, and its attention then uses them unasked (SIGILL)."""

_OF_THE_SERVER = (
    "api_key",
    "hf_token",
    "ssl_keyfile",
    "ssl_certfile",
    "uds",
    "root_path",
    "headless",
    "grpc",
)
_REFUSED = re.compile(r"error: (unrecognized arguments|argument )|validation errors? for ")
_REPORT_PATH = "/server_info?config_format=json"
_FILE = "serve.yaml"


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """What was learnt while the server ran."""

    first_token_s: float
    report: Report
    traffic: Traffic
    replay: EndpointReplay


def check_served(
    exported: Exported,
    settings: TuneSettings,
    follower: Follower,
    *,
    command: Sequence[str] | None = None,
    flags: Mapping[str, Mapping[str, str | None]] | None = None,
) -> Served:
    """Serve an export, replay traffic against it, and stop it again.

    Args:
        exported: what is served, unchanged.
        settings: trace, window, load, classes, warm-up and timeouts of the replay.
        follower: who is told.
        command: what starts a server, to which options are added; by default the installed vLLM.
        flags: spelling of the options, for an export that is no file yet.

    Raises:
        LeaseHeld: another process has one of the GPUs.
        UsageError: the file says what cannot be served on loopback; the trace cannot be used.
        EnvironmentFault: there is no vLLM, or its server died for a reason that is not the file.
    """
    _check_servable(exported)
    given = read_traffic(settings)
    for sentence in given.trace.notes.sentences():
        follower.say(sentence)
    end_earlier_runs(follower.say)
    log = log_of_one_engine(settings, SERVED)
    path = _written(exported, log.parent / _FILE, flags)
    server = Server(
        serve_command() if command is None else command,
        ("--config", str(path)),
        log=log,
        start_timeout_s=settings.start_timeout_s,
    )
    follower.say(f"starting {' '.join(server.command)}")
    gpus = gpus_used(gpus_here(), exported.settings)
    name = gpus[0].name if gpus else ""
    with device_lease(name, [gpu.uuid for gpu in gpus]), server:
        try:
            start_s = server.wait_until_ready()
        except TrialFailed as outcome:
            return _refused(server, outcome)
        follower.say(f"it takes requests after {start_s:.1f} s; asking for a first token")
        try:
            seen = asyncio.run(observe(server, exported, given, settings, follower))
            # Requests that fail with the server would count as those that it served badly.
            server.check_alive()
        except EnvironmentFault as fault:
            raise _blamed(server, fault) from fault
        except TrialFailed as outcome:
            raise EnvironmentFault(str(outcome), hint=f"its log is {log}") from outcome
        gone = server.stop()
    return replace(judged(exported, seen, server), start_s=start_s, gone=gone)


def _check_servable(exported: Exported) -> None:
    if exported.model is None:
        raise UsageError(
            f"{exported.source} names no model", hint="add a line `model: NAME` to it"
        )
    for name in _OF_THE_SERVER:
        if name in exported.settings:
            raise UsageError(
                f"{exported.source}: {name.replace('_', '-')} is no argument of an engine",
                hint="leave it out of what is checked: the server listens on loopback, in plain "
                "HTTP and without a key; the hub's token is taken from HF_TOKEN",
            )


def _written(
    exported: Exported, path: Path, flags: Mapping[str, Mapping[str, str | None]] | None
) -> Path:
    """Return the exported file itself, or one that is made of what a study has stored."""
    if exported.text is not None:
        return Path(exported.source).resolve()
    text = exported.served_text(flags)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise EnvironmentFault(
            f"cannot write {path}: {error.strerror}", hint="choose another --log-folder"
        ) from error
    return path


def _refused(server: Server, outcome: TrialFailed) -> Served:
    """Return that vLLM does not take the file.

    Raises:
        EnvironmentFault: it did not start for another reason.
    """
    failure = outcome.failure
    gone = server.stop()
    by_file = failure.failure_class == "refused_argument" or _REFUSED.search(failure.evidence)
    if not by_file:
        raise EnvironmentFault(
            f"the server did not start: {failure.failure_class}: {failure.evidence}",
            hint=f"its log is {server.log}",
        ) from outcome
    return Served(server.command, server.log, refusal=failure.evidence, gone=gone)


def _blamed(server: Server, fault: EnvironmentFault) -> EnvironmentFault:
    """Return what the server's own log says of a fault that the client saw."""
    failure = server.why_failed(fault.message)
    return EnvironmentFault(
        f"{fault.message}; the server says: {failure.evidence}"
        if failure.evidence not in fault.message
        else fault.message,
        hint=f"its log is {server.log}",
    )


async def observe(
    server: Server,
    exported: Exported,
    given: Traffic,
    settings: TuneSettings,
    follower: Follower,
) -> Seen:
    """Ask a server for a token, for its report, and for the answers to the traffic.

    Raises:
        TraceError: a request is longer than the server allows.
        EnvironmentFault: it gives no token, or every request failed.
    """
    endpoint = EndpointSettings(
        base_url=server.base_url,
        model=_served_name(exported),
        kind="vllm",
        silence_timeout_s=settings.silence_timeout_s,
    )
    async with open_endpoint(SERVED, endpoint) as source:
        first_token_s = await _first_token(source)
        report = _report(server)
        traffic, replay = await replay_fitted(source, given, settings, "check", follower)
    return Seen(first_token_s, report, traffic, replay)


def _served_name(exported: Exported) -> str:
    names = exported.settings.get("served_model_name")
    first = names[0] if isinstance(names, list) and names else names
    return str(first or exported.model)


async def _first_token(source: EndpointSource) -> float:
    """Return the seconds to a token of a first answer; ``/health`` alone promises none.

    Raises:
        EnvironmentFault: there is none.
    """
    prompt = ORDINARY_IDS[:FIRST_PROMPT]
    begun_s = time.monotonic()
    try:
        stream = source.endpoint.complete(prompt, 1, salt="autotune-check", priority=0)
        tokens = sum([new async for new, _ in stream])
    except (EndpointFailed, EndpointRefuses) as failed:
        raise EnvironmentFault(
            f"the server takes requests and gives no token: {failed.fault.message}",
            hint=failed.fault.hint,
        ) from None
    if not tokens:
        raise EnvironmentFault("the server's first answer has no token")
    return time.monotonic() - begun_s


def _report(server: Server) -> Report:
    info = ""
    # Without it nothing is proved, which is then said of every value.
    with suppress(OSError, http.client.HTTPException):
        status, body = server.get(_REPORT_PATH)
        info = body if status == http.client.OK else ""
    return Report.of(info, server.output())


def judged(exported: Exported, seen: Seen, server: Server) -> Served:
    """Hold what a server showed against what its export says and promises."""
    traffic = seen.traffic
    budget = Budget(traffic.budget.absolute)
    measurement = measure(seen.replay.samples, classes=traffic.classes, budget=budget)
    same = traffic.trace.sha256 == exported.provenance.get("trace_sha256")
    late = client_bound(measurement, budget)
    return Served(
        command=server.command,
        log=server.log,
        first_token_s=seen.first_token_s,
        kv_cache_tokens=seen.report.kv_cache_tokens,
        proofs=seen.report.prove({"model": exported.model, **exported.settings}),
        resolved=seen.report.resolved(),
        measurement=measurement,
        replay=seen.replay,
        traffic=traffic.trace.sha256,
        same_traffic=same,
        budget=budget if budget.limits else None,
        # Of a client that was late nobody knows what the server would have kept.
        kept=is_feasible(budget, measurement.metrics, measurement.failed_requests)
        if budget.limits and late is None
        else None,
        compared=compare(exported, measurement.metrics) if same else (),
        late=None if late is None else late.evidence,
    )
