from __future__ import annotations

import numpy as np
import pytest

from objectives.steps import COLUMNS, PREFIX, Steps, request_arrays


def rows(count: int = 3) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return np.arange(count * len(COLUMNS), dtype=np.float64).reshape(count, -1)


def test_rows_become_columns_of_their_types() -> None:
    steps = Steps.from_rows(rows())
    assert len(steps) == 3
    assert steps.begun_s.tolist() == [0.0, 13.0, 26.0]
    assert steps.prefill_pairs.tolist() == [12, 25, 38]
    assert steps.kv_usage.dtype == np.float64
    assert steps.running.dtype == np.int64
    assert steps.tokens.tolist() == [7, 33, 59]


def test_steps_are_told_apart_from_requests() -> None:
    before = Steps.from_rows(rows())
    requests = {"sent_s": np.array([0.0]), "gap_s": np.empty(0)}
    after, rest = Steps.split({**before.to_arrays(), **requests})
    assert rest == requests
    for name, array in before.to_arrays().items():
        assert name.startswith(PREFIX)
        np.testing.assert_array_equal(after.to_arrays()[name], array, strict=True)


def test_arrays_without_steps_are_not_a_replay() -> None:
    with pytest.raises(KeyError, match="iteration_begun_s"):
        Steps.split({"sent_s": np.array([0.0])})


def test_request_arrays_leave_the_steps_out() -> None:
    sent_s = np.array([0.0])
    arrays = {**Steps.from_rows(rows()).to_arrays(), "sent_s": sent_s}
    assert request_arrays(arrays) == {"sent_s": sent_s}


def test_a_period_runs_from_the_end_of_the_step_before() -> None:
    table = rows(4)
    table[:, COLUMNS.index("begun_s")] = [0.0, 1.0, 1.5, 9.0]
    table[:, COLUMNS.index("done_s")] = [1.0, 2.0, 4.0, 9.5]
    # The third was planned before the second was done; before the fourth the engine was idle.
    assert Steps.from_rows(table).period_s.tolist() == [1.0, 1.0, 2.0, 0.5]


def test_no_steps_have_no_periods() -> None:
    assert Steps.from_rows(np.empty((0, len(COLUMNS)))).period_s.size == 0
