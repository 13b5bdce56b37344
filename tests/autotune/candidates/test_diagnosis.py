from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from autotune.candidates.diagnosis import Load, diagnose, summarise
from autotune.candidates.lattice import SEQS, TOKENS
from objectives.steps import COLUMNS, Steps

STEPS = 20
CANDIDATE = {TOKENS: 512, SEQS: 16}
RATIOS = {"tpot_ratio": 1.5, "work_ratio": 1.2}


def ints(value: int, *, first: int | None = None, share: float = 0.5) -> NDArray[np.int64]:
    """One value a step; ``first`` in the first ``share`` of them."""
    column = np.full(STEPS, value, dtype=np.int64)
    if first is not None:
        column[: round(share * STEPS)] = first
    return column


def load(
    *,
    prefill: NDArray[np.int64] | None = None,
    decode: NDArray[np.int64] | None = None,
    running: NDArray[np.int64] | None = None,
    waiting: NDArray[np.int64] | None = None,
    kv_usage: float = 0.3,
    preemptions: NDArray[np.int64] | None = None,
) -> Load:
    """A log in which nothing is short: 40 tokens a step of 512, 8 of 16 sequences, none waits."""
    steps = Steps.from_rows(np.ones((STEPS, len(COLUMNS))))
    steps = replace(
        steps,
        prefill_tokens=ints(32) if prefill is None else prefill,
        decode_requests=ints(8) if decode is None else decode,
        running=ints(8) if running is None else running,
        waiting=ints(0) if waiting is None else waiting,
        kv_usage=np.full(STEPS, kv_usage),
        preemptions=ints(0) if preemptions is None else preemptions,
    )
    return summarise(steps, max_num_batched_tokens=512, max_num_seqs=16)


FULL = ints(32, first=500)
CAPPED = ints(8, first=16)
QUEUE = ints(0, first=3)
PREEMPTED = ints(0, first=1, share=0.05)


@pytest.mark.parametrize(
    ("measured", "ratios", "code", "knob"),
    [
        (load(), {}, "under_loaded", ""),
        (load(prefill=FULL), {}, "budget_bound", f"raise {TOKENS}"),
        (load(running=CAPPED, waiting=QUEUE), {}, "sequence_bound", f"raise {SEQS}"),
        (load(kv_usage=0.97, waiting=QUEUE), {}, "kv_bound", f"lower {SEQS}"),
        (load(preemptions=PREEMPTED), {}, "kv_bound", f"lower {SEQS}"),
        (load(), RATIOS, "decode_starved", f"lower {TOKENS}"),
        (load(waiting=QUEUE), {}, "balanced", ""),
        (load(prefill=ints(32, first=500, share=0.05)), {}, "balanced", ""),
        (load(prefill=ints(0, first=504, share=0.05)), {}, "budget_bound", f"raise {TOKENS}"),
    ],
    ids=[
        "nothing", "full steps", "sequences", "kv full", "preemptions", "starved", "queue",
        "one full step", "rare full steps with all the prompts",
    ],
)  # fmt: skip
def test_each_condition_has_its_code(
    measured: Load, ratios: dict[str, float], code: str, knob: str
) -> None:
    found = diagnose(measured, CANDIDATE, **ratios)
    assert (found.code, found.next_knob) == (code, knob)
    assert found.to_json() == {"code": code, "reason": found.reason, "next_knob": knob}


def test_the_cause_goes_before_its_consequences() -> None:
    """Everything at once: the KV cache, then sequences, then starved decodes, then the budget."""
    everything = load(
        prefill=FULL, running=CAPPED, waiting=QUEUE, kv_usage=0.97, preemptions=PREEMPTED
    )
    assert diagnose(everything, CANDIDATE, **RATIOS).code == "kv_bound"
    without_kv = load(prefill=FULL, running=CAPPED, waiting=QUEUE)
    assert diagnose(without_kv, CANDIDATE, **RATIOS).code == "sequence_bound"
    without_queue = load(prefill=FULL)
    assert diagnose(without_queue, CANDIDATE, **RATIOS).code == "decode_starved"
    assert diagnose(without_queue, CANDIDATE).code == "budget_bound"


@pytest.mark.parametrize(
    ("tpot_ratio", "work_ratio", "starved"),
    [
        (1.1, 1.0, True),
        (1.1, None, True),
        (1.09, 1.2, False),
        (2.0, 0.9, False),  # Slower and less work done: something else is wrong.
        (None, None, False),
    ],
)
def test_starving_is_judged_against_the_baseline(
    tpot_ratio: float | None, work_ratio: float | None, starved: bool
) -> None:
    found = diagnose(load(), CANDIDATE, tpot_ratio=tpot_ratio, work_ratio=work_ratio)
    assert (found.code == "decode_starved") is starved


@pytest.mark.parametrize(("steps_capped", "code"), [(2, "sequence_bound"), (1, "under_loaded")])
def test_a_limit_binds_from_a_tenth_of_the_steps(steps_capped: int, code: str) -> None:
    share = steps_capped / STEPS
    measured = load(running=ints(8, first=16, share=share), waiting=ints(0, first=3, share=share))
    assert diagnose(measured, CANDIDATE).code == code


def test_reasons_give_the_figures() -> None:
    measured = load(running=CAPPED, waiting=QUEUE)
    reason = diagnose(measured, CANDIDATE).reason
    assert reason == "requests waited while 16 ran, in 50% of the steps"
    reason = diagnose(load(), CANDIDATE, tpot_ratio=1.5).reason
    assert reason == "TPOT p95 is 1.50 times the baseline's: prefill crowds out decodes"


def test_a_log_in_figures() -> None:
    decode = ints(5, first=15, share=0.25)
    measured = load(prefill=ints(0, first=504, share=0.25), waiting=QUEUE, decode=decode)
    assert measured.to_json() == {
        "steps": 20,
        "full_steps": 0.25,
        "prefill_in_full_steps": 1.0,
        "capped_steps": 0.0,
        "kv_full_steps": 0.0,
        "waiting_steps": 0.5,
        "preemptions": 0,
        "peak_running": 8,
        "peak_waiting": 3,
        "peak_kv_usage": 0.3,
        "mean_step_tokens": 133.5,
        "gaps_beside_prefill": 0.5,
    }


def test_a_full_step_without_prefill_is_not_chunked() -> None:
    measured = load(prefill=ints(0), decode=ints(8, first=500))
    assert measured.full_steps == 0.5
    assert measured.prefill_in_full_steps == 0.0


def test_a_log_without_steps() -> None:
    nothing = Steps.from_rows(np.empty((0, len(COLUMNS))))
    idle = summarise(nothing, max_num_batched_tokens=512, max_num_seqs=16)
    assert idle.steps == 0
    assert idle.gaps_beside_prefill is None
    assert diagnose(idle, CANDIDATE).code == "under_loaded"


def test_without_decodes_there_are_no_gaps() -> None:
    assert load(decode=ints(0)).gaps_beside_prefill is None
