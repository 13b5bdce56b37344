from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from objectives.errors import ObjectiveError
from objectives.samples import RequestSamples
from tests.objectives.builders import from_deliveries, random_samples


def test_arrays_round_trip() -> None:
    samples = random_samples(20, fail=0.2)
    again = RequestSamples.from_arrays(samples.to_arrays())
    for name, array in samples.to_arrays().items():
        np.testing.assert_array_equal(array, again.to_arrays()[name])


def test_from_arrays_names_what_is_odd() -> None:
    arrays = random_samples(3).to_arrays()
    arrays["extra"] = arrays.pop("gap_s")
    with pytest.raises(ObjectiveError, match="extra, gap_s"):
        RequestSamples.from_arrays(arrays)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("sent_s", np.zeros(2), "sent_s has 2 entries, expected 3"),
        ("gap_request", np.zeros(99, dtype=np.int64), "gap_request has 99 entries"),
        ("failed", np.zeros((3, 1), dtype=np.bool_), "one dimension"),
        ("prompt_tokens", np.zeros(3), "prompt_tokens holds float64, expected int64"),
        ("first_token_s", np.full(3, np.nan), "NaN on the same rows"),
    ],
)
def test_misfits_are_refused(name: str, value: Any, message: str) -> None:
    arrays = random_samples(3).to_arrays()
    with pytest.raises(ObjectiveError, match=message):
        RequestSamples.from_arrays({**arrays, name: value})


def test_gap_of_a_row_that_is_not_there_is_refused() -> None:
    arrays = random_samples(3).to_arrays()
    with pytest.raises(ObjectiveError, match="rows from 0 to 2"):
        RequestSamples.from_arrays({**arrays, "gap_request": arrays["gap_request"] + 3})


def test_select_takes_the_gaps_along() -> None:
    samples = from_deliveries(
        [[1.0, 2.0], [1.0, 4.0], [5.0], [1.0, 2.0, 9.0]], scheduled_s=[0.0, 0.1, 0.2, 0.3]
    )
    part = samples.select(np.array([False, True, True, True]))
    assert len(part) == 3
    assert part.gap_s.tolist() == [3.0, 1.0, 7.0]
    assert part.gap_request.tolist() == [0, 2, 2]


def test_select_refuses_another_length() -> None:
    with pytest.raises(ObjectiveError, match="mask"):
        random_samples(3).select(np.array([True]))


def test_a_request_without_a_token_is_lost_even_if_nobody_called_it_failed() -> None:
    samples = from_deliveries(
        [[1.0], [], [1.0]], scheduled_s=[0, 0, 0], failed=[True, False, False]
    )
    assert samples.lost.tolist() == [True, True, False]


def test_arrays_cannot_be_changed_and_the_callers_stay_writeable() -> None:
    scheduled = np.array([0.0])
    samples = RequestSamples.from_arrays(
        {**from_deliveries([[1.0]], scheduled_s=[0.0]).to_arrays(), "scheduled_s": scheduled}
    )
    with pytest.raises(ValueError, match="read-only"):
        samples.scheduled_s[0] = 1.0
    assert scheduled.flags.writeable
