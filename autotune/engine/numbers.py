"""Whether a replay holds numbers: what is stored and scored cannot be anything else."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from autotune.engine.protocol import Failure, ReplayResult, TrialFailed


def require_numbers(replayed: ReplayResult) -> ReplayResult:
    """Return a replay whose times are numbers.

    Raises:
        TrialFailed: some are not, which no candidate is to blame for.
    """
    odd = ", ".join(_odd(replayed))
    if odd:
        raise TrialFailed(Failure("unknown", f"the replay has times that are no numbers: {odd}"))
    return replayed


def _odd(replayed: ReplayResult) -> Iterator[str]:
    samples, steps = replayed.samples, replayed.steps
    # NaN is the time of what never came; nothing comes after infinite time.
    for name in ("sent_s", "first_token_s", "last_token_s"):
        if np.isinf(getattr(samples, name)).any():
            yield name
    if not np.isfinite(samples.gap_s).all():
        yield "gap_s"
    for name in ("begun_s", "planned_s", "done_s"):
        if not np.isfinite(getattr(steps, name)).all():
            yield f"{name} of steps"
    for name in ("replay_s", "began_at", "ended_at"):
        if not np.isfinite(getattr(replayed, name)):
            yield name
    if not np.isfinite(replayed.warmup.seconds):
        yield "seconds of the warm-up"
