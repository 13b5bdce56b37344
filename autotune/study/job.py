"""A job made ready: everything that a study needs to know before its first engine starts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from autotune.candidates.lattice import (
    SEQS,
    TOKENS,
    Candidate,
    Lattice,
    Tiles,
    Value,
    build_lattice,
    integer,
    plain_values,
    value_of,
)
from autotune.candidates.live import LIVE_LIMITS, THRESHOLD
from autotune.engine.protocol import EngineInfo
from autotune.engine.supervisor import Description
from autotune.errors import UsageError
from autotune.forecast.sweep import Calibrated, MeasuredRungs
from autotune.settings import AUTO, TuneSettings
from autotune.simulated.profile import load_profile
from autotune.traffic.load import Load
from autotune.traffic.model import Trace
from objectives.classes import LengthClass, classes_text
from objectives.limits import Budget


@dataclass(frozen=True, slots=True)
class Job:
    """What is tuned, on which traffic, and how it is judged.

    Attributes:
        settings: as the user gave them.
        trace: what every trial replays: the window, without what is held out of it.
        budget: limits, relative ones unresolved.
        classes: of prompt length.
        info: what vLLM makes of the user's engine arguments.
        flags: how the installed ``vllm serve`` spells its arguments.
        pinned: engine arguments that hold for every candidate and are exported.
        baseline: the user's own limits, else those of vLLM's server.
        lattice: the frozen ladders.
        peak_concurrency: what the ladders were made for.
        live: whether the search changes limits on a running engine.
        calibrated: step times of this engine on this hardware, None if they were not measured.
        held: the end of the window, on which only the winner is confirmed; None if there is none.
    """

    settings: TuneSettings
    trace: Trace
    budget: Budget
    classes: tuple[LengthClass, ...]
    info: EngineInfo
    flags: Mapping[str, Any]
    pinned: Mapping[str, Any]
    baseline: Candidate
    lattice: Lattice
    peak_concurrency: int
    live: bool = False
    calibrated: Calibrated | None = None
    held: Trace | None = None

    @property
    def best_flops_per_s(self) -> float | None:
        """What utilization is a share of, None without a calibration."""
        return None if self.calibrated is None else self.calibrated.calibration.best_flops_per_s

    @property
    def simulated_by(self) -> str | None:
        """Identity of the profile by which engines are simulated, None of real engines."""
        settings = self.settings
        return load_profile(settings.engine).identity if settings.simulated else None

    @property
    def load(self) -> Load | None:
        """What was made of the recorded traffic, None if nothing, or nothing yet."""
        given = self.settings.load
        return None if given in (None, 1, AUTO) else Load.of(float(given))

    @property
    def forecast_obstacle(self) -> str | None:
        return self.info.forecast_obstacle

    @property
    def seed(self) -> int:
        """Of prompts, sampler and draws."""
        return self.settings.seed

    def engine_args(self, candidate: Candidate) -> dict[str, Any]:
        """Return what an engine is started with, which is what is exported for it."""
        return {**self.pinned, **plain_values(candidate)}

    def envelope(self, candidate: Candidate) -> dict[str, Any]:
        """Return what an engine is started with on which the candidate's limits can be set."""
        return envelope_of(self.lattice, self.engine_args(candidate))

    def limits(self, candidate: Candidate) -> dict[str, int]:
        """Return the values of ``LIVE_LIMITS`` that an engine of this candidate would have."""
        arguments = {
            THRESHOLD: self.info.resolved.get(THRESHOLD, 0),
            **self.engine_args(candidate),
        }
        return {name: int(arguments[name]) for name in LIVE_LIMITS}

    def fingerprint(self) -> dict[str, Any]:
        """Return what may not change when a study is resumed."""
        notes = self.trace.notes
        return {
            "trace": self.trace.sha256,
            # Named where it made the traffic what it is, so that a refusal can say why.
            **({"too_long": self.settings.too_long} if notes.skipped or notes.truncated else {}),
            **({"load": self.load.factor} if self.load is not None else {}),
            **({"holdout": self.settings.holdout} if self.held is not None else {}),
            "model": self.settings.model,
            "engine_args": {k: v for k, v in self.pinned.items() if k != "model"},
            "baseline": plain_values(self.baseline),
            "peak_concurrency": self.peak_concurrency,
            **self.lattice.to_json(),
            "seed": self.settings.seed,
            "warmup_s": self.settings.warmup_s,
            "vllm_version": self.info.vllm_version,
            "device": self.info.device,
            # Studies from before there was another have no word of it.
            **({"fidelity": "live"} if self.live else {}),
            **({"engine": engine} if (engine := self.simulated_by) is not None else {}),
        }

    def spec(self) -> dict[str, Any]:
        """Return what may change between runs of one study, and what an export needs."""
        return {
            "budget": self.budget.text,
            "classes": classes_text(self.classes),
            "trials": self.settings.trials,
            "trace": self.settings.trace,
            "window": self.settings.window,
            "load": None if self.load is None else self.load.factor,
            "load_method": None if self.load is None else self.load.method,
            "requests": len(self.trace.requests),
            "duration_s": self.trace.duration_s,
            "model": self.info.model,
            "flags": dict(self.flags),
            "torch_version": self.info.torch_version,
            "calibration": None if self.calibrated is None else self.calibrated.to_json(),
        }


def make_job(
    settings: TuneSettings,
    trace: Trace,
    budget: Budget,
    classes: Sequence[LengthClass],
    described: Description,
    *,
    peak: int | None = None,
    live: bool = False,
    calibrated: Calibrated | None = None,
    held: Trace | None = None,
) -> Job:
    """Put a job together from what the user gave and what vLLM said of it.

    Args:
        settings: as the user gave them.
        trace: what every trial replays; its requests fit the engine.
        budget: limits, relative ones unresolved.
        classes: of prompt length.
        described: by the installed vLLM.
        peak: peak concurrency that the ladders of a resumed study were made for, so that
            another budget leaves them as they are; None estimates it.
        live: whether the search changes limits on a running engine.
        calibrated: step times of which the ladders are made, None makes them of the tile alone.
        held: what the winner alone is confirmed on; its requests fit too.

    Raises:
        UsageError: the tile leaves no candidate.
    """
    info = described.info
    names = dict.fromkeys((TOKENS, SEQS, *settings.knobs))
    baseline = {name: _own_value(name, settings, described) for name in names}
    pinned = {k: v for k, v in settings.engine_args.items() if k not in baseline}
    if peak is None:
        peak = peak_concurrency(trace, budget)
    lattice = build_lattice(
        tiles=Tiles.parse(settings.tile),
        default_tokens=integer(baseline[TOKENS]),
        default_seqs=integer(baseline[SEQS]),
        longest_prompt=int(trace.input_lengths.max()),
        peak_concurrency=peak,
        baseline=baseline,
        knobs=settings.knobs,
        measured=None if calibrated is None else MeasuredRungs(calibrated.calibration),
    )
    return Job(
        settings=settings,
        trace=trace,
        budget=budget,
        classes=tuple(classes),
        info=info,
        flags=described.flags,
        pinned={**pinned, "model": info.model},
        baseline=baseline,
        lattice=lattice,
        peak_concurrency=peak,
        live=live,
        calibrated=calibrated,
        held=held,
    )


def envelope_of(lattice: Lattice, engine_args: Mapping[str, Any]) -> dict[str, Any]:
    """Return engine arguments with the largest of each ladder whose value can be changed live.

    The threshold for long prefills is no size that an engine is built for, and stays.
    """
    largest = {name: max(map(integer, lattice.ladders[name])) for name in (TOKENS, SEQS)}
    # vLLM wants room in a step for each sequence.
    largest[SEQS] = min(largest[SEQS], largest[TOKENS])
    return {**{k: v for k, v in engine_args.items() if k != THRESHOLD}, **largest}


def peak_concurrency(trace: Trace, budget: Budget) -> int:
    """Return how many requests are open at once when each is just within the budget, 0 without.

    An estimate before anything was measured: a request stays for its TTFT limit and its TPOT
    limit times its output. Both are needed; of several the loosest counts, and limits on a
    class say nothing of the other requests.
    """
    ttft_ms, tpot_ms = (_loosest(budget, metric) for metric in ("ttft", "tpot"))
    if ttft_ms is None or tpot_ms is None:
        return 0
    arrivals = trace.timestamps_s
    departures = arrivals + (ttft_ms + tpot_ms * trace.output_lengths) / 1000
    changes = np.concatenate([np.ones(arrivals.size), -np.ones(arrivals.size)])
    order = np.argsort(np.concatenate([arrivals, departures]), kind="stable")
    return int(np.cumsum(changes[order]).max())


def _loosest(budget: Budget, metric: str) -> float | None:
    limits = [
        limit.limit_ms
        for limit in budget.limits
        if limit.metric == metric and limit.class_name is None and limit.limit_ms
    ]
    return max(limits, default=None)


def _own_value(name: str, settings: TuneSettings, described: Description) -> Value:
    """Return what an argument is without a candidate: the user's value, or vLLM's default.

    What vLLM made of the user's value comes before it, where that is a plain value.

    Raises:
        UsageError: vLLM leaves it open, or works it out of others, such as the sizes of CUDA
            graphs out of ``max_num_seqs``: there is no one baseline to search from.
    """
    value = described.info.resolved.get(name)
    if value is None:
        value = value_of(settings.engine_args.get(name))
    if value is None:
        value = value_of(json.loads(described.flags.get(name, {}).get("default") or "null"))
    parts = value if isinstance(value, tuple) and value else (value,)
    if not all(isinstance(part, int | float | str | bool) for part in parts):
        raise UsageError(
            f"{name} has no plain default to compare with",
            hint=f"give the value that you use today: --engine-arg {name}=…",
        )
    # Checked just now, which mypy does not see of values within values.
    own: Value = value
    return own
