"""What an engine did in each of its steps, one row a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from objectives.arrays import F8, I8, Bools

PREFIX = "iteration_"
"""Before the names of the arrays where they are kept together with those of the requests."""


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """The steps of a replay that computed something, in order; all arrays of one length.

    Times are seconds from the start of the replay, on the engine's clock. With async scheduling
    a step is planned before the one before it is done, so that single durations are blurred and
    only sums over neighbours are right.

    Attributes:
        begun_s: when the scheduler began to plan the step.
        planned_s: when it had.
        done_s: when the step's tokens were taken up.
        prefill_tokens: prompt tokens computed, those that a preemption made necessary included.
        decode_requests: requests that had their first token already.
        requests: those with a part in the step.
        running: admitted requests, after planning.
        waiting: requests that wait for admission, after planning.
        kv_usage: share of the KV cache in use, 0 to 1, after planning.
        preemptions: requests that lost their place while planning.
        context_tokens: lengths of all contexts after the step, summed.
        decode_kv_tokens: the same over the decoding requests alone: what they read.
        prefill_pairs: attention pairs of the prefill, each computed token with each token up to
            itself.
    """

    begun_s: F8
    planned_s: F8
    done_s: F8
    prefill_tokens: I8
    decode_requests: I8
    requests: I8
    running: I8
    waiting: I8
    kv_usage: F8
    preemptions: I8
    context_tokens: I8
    decode_kv_tokens: I8
    prefill_pairs: I8

    def __len__(self) -> int:
        return self.begun_s.size

    @property
    def tokens(self) -> I8:
        """What each step computed; one token for each decoding request."""
        return self.prefill_tokens + self.decode_requests

    @property
    def period_s(self) -> F8:
        """Seconds from the end of the step before, or from planning if that came later.

        What a decoding request waits for its token. Their sum is the time in which there was
        work.
        """
        if not len(self):
            return np.empty(0)
        before = np.concatenate([[-np.inf], self.done_s[:-1]])
        period: F8 = self.done_s - np.maximum(before, self.begun_s)
        return period

    def select(self, mask: Bools) -> Self:
        """Return the steps where ``mask`` holds; a period then spans what was left out."""
        return type(self)(**{f.name: getattr(self, f.name)[mask] for f in fields(self)})

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        return {PREFIX + field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_rows(cls, rows: NDArray[np.float64]) -> Self:
        """Build from [steps, attributes] in the order of the attributes."""
        columns: dict[str, NDArray[Any]] = {}
        for number, field in enumerate(fields(cls)):
            column = rows[:, number]
            columns[field.name] = column if field.type == "F8" else column.astype(np.int64)
        return cls(**columns)

    @classmethod
    def split(cls, arrays: Mapping[str, NDArray[Any]]) -> tuple[Self, dict[str, NDArray[Any]]]:
        """Take the steps out of named arrays; return them and the other arrays."""
        own = {field.name: arrays[PREFIX + field.name] for field in fields(cls)}
        return cls(**own), request_arrays(arrays)


COLUMNS = tuple(field.name for field in fields(Steps))
"""The attributes in the order of a row."""


def request_arrays(arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return the arrays of a stored replay that are about its requests."""
    return {name: array for name, array in arrays.items() if not name.startswith(PREFIX)}
