"""What held a trial back, in one code and one sentence, and which knob to move next.

Read off what the engine did in each step, and compared with the baseline where one exists;
never with a fixed utilization, which is near 100 % for every loaded engine.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from autotune.candidates.lattice import SEQS, TOKENS, Candidate
from objectives.steps import Steps

Code = Literal[
    "budget_bound", "sequence_bound", "kv_bound", "decode_starved", "under_loaded", "balanced"
]

FULL_STEP_SHARE = 0.9
"""A step whose tokens reach this share of the step budget counts as full."""

BOUND_SHARE = 0.1
"""A limit that binds in at least this share of the busy steps is said to bind."""

CHUNKED_SHARE = 0.5
"""The step budget binds when this share of the prompt tokens was computed in full steps."""

KV_FULL = 0.95
"""KV cache use from which on new requests wait for room."""

STARVED_TPOT = 1.1
"""TPOT above the baseline's by this factor, with more work done, means starved decodes."""


@dataclass(frozen=True, slots=True)
class Load:
    """The steps of a replay in the figures that a diagnosis needs.

    Shares are of the steps. ``prefill_in_full_steps`` is the share of the
    prompt tokens that full steps computed, ``gaps_beside_prefill`` the share of token gaps that
    ended with a step which also computed prefill, None without gaps.
    """

    steps: int
    full_steps: float
    prefill_in_full_steps: float
    capped_steps: float
    kv_full_steps: float
    waiting_steps: float
    preemptions: int
    peak_running: int
    peak_waiting: int
    peak_kv_usage: float
    mean_step_tokens: float
    gaps_beside_prefill: float | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A code, why, and the next knob to move with its direction ('' if none)."""

    code: Code
    reason: str
    next_knob: str

    def to_json(self) -> dict[str, str]:
        return asdict(self)


def summarise(steps: Steps, *, max_num_batched_tokens: int, max_num_seqs: int) -> Load:
    """Condense what an engine did in its steps under these limits."""
    count = len(steps)
    if count == 0:
        return Load(0, 0.0, 0.0, 0.0, 0.0, 0.0, 0, 0, 0, 0.0, 0.0, None)
    full = steps.tokens >= FULL_STEP_SHARE * max_num_batched_tokens
    queued = steps.waiting > 0
    prefill = steps.prefill_tokens
    return Load(
        steps=count,
        full_steps=float(full.sum() / count),
        prefill_in_full_steps=float(prefill[full].sum() / max(1, prefill.sum())),
        capped_steps=float((queued & (steps.running >= max_num_seqs)).sum() / count),
        kv_full_steps=float((queued & (steps.kv_usage >= KV_FULL)).sum() / count),
        waiting_steps=float(queued.sum() / count),
        preemptions=int(steps.preemptions.sum()),
        peak_running=int(steps.running.max()),
        peak_waiting=int(steps.waiting.max()),
        peak_kv_usage=float(steps.kv_usage.max()),
        mean_step_tokens=float(steps.tokens.mean()),
        gaps_beside_prefill=gaps_beside_prefill(steps),
    )


def gaps_beside_prefill(steps: Steps) -> float | None:
    """Return the share of token gaps whose step also computed prefill, None without gaps.

    Each decoding request of a step has one gap that ends with it.
    """
    gaps = steps.decode_requests
    total = int(gaps.sum())
    return float(gaps[steps.prefill_tokens > 0].sum() / total) if total else None


def diagnose(
    load: Load,
    candidate: Candidate,
    *,
    tpot_ratio: float | None = None,
    work_ratio: float | None = None,
) -> Diagnosis:
    """Name what bound a trial.

    Args:
        load: its steps, condensed.
        candidate: what was tried.
        tpot_ratio: TPOT p95 over the baseline's, None for the baseline itself.
        work_ratio: tokens per busy second over the baseline's.
    """
    tokens, seqs = candidate[TOKENS], candidate[SEQS]
    if load.preemptions or load.kv_full_steps >= BOUND_SHARE:
        return Diagnosis(
            "kv_bound",
            f"the KV cache was the limit: {load.preemptions} preemptions, "
            f"{load.peak_kv_usage:.0%} used at the peak",
            f"lower {SEQS}",
        )
    if load.capped_steps >= BOUND_SHARE:
        return Diagnosis(
            "sequence_bound",
            f"requests waited while {seqs} ran, in {load.capped_steps:.0%} of the steps",
            f"raise {SEQS}",
        )
    starved = tpot_ratio is not None and tpot_ratio >= STARVED_TPOT
    if starved and (work_ratio is None or work_ratio >= 1.0):
        return Diagnosis(
            "decode_starved",
            f"TPOT p95 is {tpot_ratio:.2f} times the baseline's: prefill crowds out decodes",
            f"lower {TOKENS}",
        )
    if load.prefill_in_full_steps >= CHUNKED_SHARE:
        return Diagnosis(
            "budget_bound",
            f"{load.prefill_in_full_steps:.0%} of the prompt tokens were computed in steps filled "
            f"to the budget of {tokens} tokens",
            f"raise {TOKENS}",
        )
    if load.waiting_steps < BOUND_SHARE and load.full_steps == 0:
        return Diagnosis(
            "under_loaded",
            f"nothing was chunked and next to nothing waited: no step reached {tokens} tokens, "
            f"at most {load.peak_running} requests ran",
            "",
        )
    return Diagnosis(
        "balanced",
        f"{load.prefill_in_full_steps:.0%} of the prompt tokens were computed in full steps, "
        "none of the limits held much up",
        "",
    )
