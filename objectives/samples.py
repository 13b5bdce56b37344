"""The stamps of one replay, one row a request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from objectives.arrays import F8, I8, Bools
from objectives.errors import ObjectiveError

_DTYPES: dict[str, type[np.generic]] = {"F8": np.float64, "I8": np.int64, "Bools": np.bool_}
_PER_GAP = ("gap_s", "gap_request")


@dataclass(frozen=True, slots=True, eq=False)
class RequestSamples:
    """What the client saw of one replay, in arrival order.

    All arrays have one entry per request, except the two of the gaps. Times are seconds from
    the start of the replay. The arrays are kept as read-only views.

    Attributes:
        scheduled_s: when the trace wanted the request sent.
        sent_s: when it was sent; NaN if it never was.
        first_token_s: when its first token came; NaN if none came.
        last_token_s: when its last token came; NaN exactly where ``first_token_s`` is.
        prompt_tokens: length of the prompt.
        output_tokens: tokens received.
        expected_output_tokens: tokens that the trace recorded and the replay forced.
        cached_tokens: prompt tokens served from the prefix cache.
        failed: whether the request ended in an error or was cut off.
        gap_s: gaps between successive token deliveries, pooled over requests, in any order.
        gap_request: the row that each gap belongs to.

    Raises:
        ObjectiveError: shapes, types or rows that do not fit together.
    """

    scheduled_s: F8
    sent_s: F8
    first_token_s: F8
    last_token_s: F8
    prompt_tokens: I8
    output_tokens: I8
    expected_output_tokens: I8
    cached_tokens: I8
    failed: Bools
    gap_s: F8
    gap_request: I8

    def __post_init__(self) -> None:
        for field in fields(self):
            array = _view(field.name, getattr(self, field.name), _DTYPES[str(field.type)])
            object.__setattr__(self, field.name, array)
        for field in fields(self):
            self._check_length(field.name)
        if self.gap_s.size and not (
            self.gap_request.min() >= 0 and self.gap_request.max() < len(self)
        ):
            raise ObjectiveError(f"gap_request must name rows from 0 to {len(self) - 1}.")
        if not np.array_equal(np.isnan(self.first_token_s), np.isnan(self.last_token_s)):
            raise ObjectiveError("first_token_s and last_token_s must be NaN on the same rows.")

    def __len__(self) -> int:
        return self.scheduled_s.size

    def _check_length(self, name: str) -> None:
        wanted = self.gap_s.size if name in _PER_GAP else len(self)
        if (found := getattr(self, name).size) != wanted:
            raise ObjectiveError(f"{name} has {found} entries, expected {wanted}.")

    @property
    def lost(self) -> Bools:
        """The requests that count as infinitely late: failed, or without any token."""
        lost: Bools = self.failed | np.isnan(self.first_token_s)
        return lost

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> RequestSamples:
        """Build from what ``to_arrays`` gave; raises ``ObjectiveError`` on other names."""
        wanted = {field.name for field in fields(cls)}
        if odd := sorted(wanted ^ set(arrays)):
            raise ObjectiveError(f"samples have missing or unknown arrays: {', '.join(odd)}.")
        return cls(**{name: arrays[name] for name in wanted})

    def select(self, mask: Bools) -> RequestSamples:
        """Return the requests where ``mask`` (one entry per request) holds, with their gaps."""
        if mask.shape != (len(self),):
            raise ObjectiveError(f"the mask has shape {mask.shape}, expected ({len(self)},).")
        kept_gaps = mask[self.gap_request]
        new_row = np.cumsum(mask) - 1
        rows = {
            name: array[mask] for name, array in self.to_arrays().items() if name not in _PER_GAP
        }
        return RequestSamples(
            **rows,
            gap_s=self.gap_s[kept_gaps],
            gap_request=new_row[self.gap_request[kept_gaps]],
        )


def _view(name: str, value: object, dtype: type[np.generic]) -> NDArray[Any]:
    array = np.asarray(value)
    if array.ndim != 1:
        raise ObjectiveError(f"{name} must have one dimension, not {array.ndim}.")
    if array.size and not np.can_cast(array.dtype, dtype, casting="same_kind"):
        raise ObjectiveError(f"{name} holds {array.dtype}, expected {np.dtype(dtype)}.")
    view = array.astype(dtype, copy=False).view()
    view.flags.writeable = False
    return view
