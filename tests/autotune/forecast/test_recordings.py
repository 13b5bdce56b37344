from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from autotune.forecast.recordings import FOLDS, Recorded
from objectives.arrays import F8
from objectives.steps import COLUMNS, Steps
from tests.autotune.forecast.builders import loaded, planned_ahead


def prompts(tokens: list[int], ms: Sequence[float]) -> Steps:
    """Steps of one prompt each, one at a time."""
    rows = np.zeros((len(tokens), len(COLUMNS)))
    done_s = np.cumsum(ms) / 1e3
    rows[:, COLUMNS.index("begun_s")] = done_s - np.array(ms) / 1e3
    rows[:, COLUMNS.index("done_s")] = done_s
    rows[:, COLUMNS.index("prefill_tokens")] = tokens
    return Steps.from_rows(rows)


def test_steps_that_took_no_time_and_empty_recordings_are_left_out() -> None:
    first = prompts([8, 0, 8, 8], [10, 10, 0, 20])
    nothing = first.select(first.tokens < 0)
    found = Recorded.of([nothing, first, first], overlapping=False)
    assert found.recording.tolist() == [0, 0, 1, 1]
    assert found.actual_s == pytest.approx([0.01, 0.02, 0.01, 0.02])
    assert len(Recorded.of([nothing], overlapping=False)) == 0


def test_what_overlaps_takes_its_period_also_among_a_part() -> None:
    steps = planned_ahead(loaded(seconds=2), host_s=1e-3, host_request_s=1e-5)
    found = Recorded.of([steps], overlapping=True)
    assert found.actual_s == pytest.approx(steps.period_s)
    assert np.all(found.ahead_s[2:] > 0)
    some = np.arange(len(steps)) % 3 == 0
    part = found.select(some)
    assert np.array_equal(part.actual_s, found.actual_s[some])
    assert np.array_equal(part.ahead_s, found.ahead_s[some])
    assert np.array_equal(part.steps.tokens, steps.tokens[some])


def test_alone_nothing_is_planned_ahead() -> None:
    found = Recorded.of([loaded(seconds=1)], overlapping=False)
    assert not found.ahead_s.any()


def test_no_bin_has_steps_of_two_recordings() -> None:
    one = prompts([8] * 5, [100] * 5)
    found = Recorded.of([one, one], overlapping=False)
    assert found.bins(0.25).tolist() == [0, 0, 1, 1, 1, 2, 2, 3, 3, 3]


@pytest.mark.parametrize("share", [0.5, 1.0, 2.0])
def test_errors_are_logs_of_sums(share: float) -> None:
    found = Recorded.of([prompts([8] * 20, [100] * 20)], overlapping=False)
    errors: F8 = found.errors(found.actual_s * share, 0.5)
    assert errors == pytest.approx(np.full(4, np.log(share)))


def test_the_folds_of_one_recording_are_quarters_of_its_time() -> None:
    long = prompts([8] * 9, [100] * 8 + [200])
    assert Recorded.of([long], overlapping=False).time_folds().tolist() == [
        0,
        0,
        1,
        1,
        1,
        2,
        2,
        3,
        3,
    ]
    single = long.select(np.arange(9) == 0)
    assert Recorded.of([single], overlapping=False).time_folds().tolist() == [0]


def test_the_folds_of_several_are_whole_recordings() -> None:
    two = prompts([8, 8], [100, 100])
    found = Recorded.of([two] * (FOLDS + 1), overlapping=False).time_folds()
    assert found.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 0, 0]


def test_steps_of_one_size_are_in_one_fold_and_the_outer_sizes_in_none() -> None:
    steps = prompts([3, 8, 12, 16, 17, 20, 30, 20, 7], [1] * 9)
    folds = Recorded.of([steps], overlapping=False).size_folds((4, 8, 16))
    # Padded: 4, 8, 16, 16, then those without a graph; 7 runs as 8.
    assert folds.tolist() == [-1, 1, -1, -1, -1, 1, -1, 1, 1]
