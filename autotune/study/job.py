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
    Scalar,
    Tiles,
    build_lattice,
)
from autotune.engine.protocol import EngineInfo
from autotune.engine.supervisor import Description
from autotune.errors import UsageError
from autotune.settings import TuneSettings
from autotune.traffic.model import Trace
from objectives.classes import LengthClass
from objectives.limits import Budget


@dataclass(frozen=True, slots=True)
class Job:
    """What is tuned, on which traffic, and how it is judged.

    Attributes:
        settings: as the user gave them.
        trace: the window that every trial replays.
        budget: limits, relative ones unresolved.
        classes: of prompt length.
        info: what vLLM makes of the user's engine arguments.
        flags: how the installed ``vllm serve`` spells its arguments.
        pinned: engine arguments that hold for every candidate and are exported.
        baseline: the user's own limits, else those of vLLM's server.
        lattice: the frozen ladders.
        peak_concurrency: what the ladders were made for.
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

    def engine_args(self, candidate: Candidate) -> dict[str, Any]:
        """Return what an engine is started with, which is what is exported for it."""
        return {**self.pinned, **candidate}

    def fingerprint(self) -> dict[str, Any]:
        """Return what may not change when a study is resumed."""
        notes = self.trace.notes
        return {
            "trace": self.trace.sha256,
            # Named where it made the traffic what it is, so that a refusal can say why.
            **({"too_long": self.settings.too_long} if notes.skipped or notes.truncated else {}),
            "model": self.settings.model,
            "engine_args": {k: v for k, v in self.pinned.items() if k != "model"},
            "baseline": dict(self.baseline),
            "peak_concurrency": self.peak_concurrency,
            **self.lattice.to_json(),
            "seed": self.settings.seed,
            "warmup_s": self.settings.warmup_s,
            "vllm_version": self.info.vllm_version,
            "device": self.info.device,
        }

    def spec(self) -> dict[str, Any]:
        """Return what may change between runs of one study, and what an export needs."""
        return {
            "budget": self.budget.text,
            "classes": " ".join(each.text for each in self.classes),
            "trials": self.settings.trials,
            "trace": self.settings.trace,
            "window": self.settings.window,
            "requests": len(self.trace.requests),
            "duration_s": self.trace.duration_s,
            "model": self.info.model,
            "flags": dict(self.flags),
            "torch_version": self.info.torch_version,
        }


def make_job(
    settings: TuneSettings,
    trace: Trace,
    budget: Budget,
    classes: Sequence[LengthClass],
    described: Description,
    *,
    peak: int | None = None,
) -> Job:
    """Put a job together from what the user gave and what vLLM said of it.

    Args:
        settings: as the user gave them.
        trace: the window that every trial replays; its requests fit the engine.
        budget: limits, relative ones unresolved.
        classes: of prompt length.
        described: by the installed vLLM.
        peak: peak concurrency that the ladders of a resumed study were made for, so that
            another budget leaves them as they are; None estimates it.

    Raises:
        UsageError: the tile leaves no candidate.
    """
    info = described.info
    names = dict.fromkeys((TOKENS, SEQS, *settings.knobs))
    baseline = {name: _own_value(name, described) for name in names}
    pinned = {k: v for k, v in settings.engine_args.items() if k not in baseline}
    if peak is None:
        peak = peak_concurrency(trace, budget)
    lattice = build_lattice(
        tiles=Tiles.parse(settings.tile),
        default_tokens=int(baseline[TOKENS]),
        default_seqs=int(baseline[SEQS]),
        longest_prompt=int(trace.input_lengths.max()),
        peak_concurrency=peak,
        baseline=baseline,
        knobs=settings.knobs,
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
    )


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


def _own_value(name: str, described: Description) -> Scalar:
    """Return what an argument is without a candidate: the user's value, or vLLM's default.

    Raises:
        UsageError: vLLM leaves it open, so that there is no baseline to search from.
    """
    value = described.info.resolved.get(name)
    if value is None:
        value = json.loads(described.flags.get(name, {}).get("default") or "null")
    if not isinstance(value, int | float | str | bool):
        raise UsageError(
            f"{name} has no plain default to compare with",
            hint=f"give the value that you use today: --engine-arg {name}=…",
        )
    return value
