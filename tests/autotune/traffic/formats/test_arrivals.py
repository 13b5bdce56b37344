from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from autotune.errors import UsageError
from autotune.traffic.formats.arrivals import made_source, with_made_arrivals
from autotune.traffic.formats.base import ReadOptions
from autotune.traffic.formats.recorded import Found, LeftOut, Recorded

REQUEST = Recorded(arrival_ns=None, input_length=1, output_length=1)


def arrivals_s(count: int, rate: float, seed: int | None = None) -> list[float]:
    options = ReadOptions(rate_per_s=rate, seed=seed)
    made, _ = with_made_arrivals(Path("a.json"), [REQUEST] * count, options, why="it has")
    times = [each.arrival_ns for each in made if isinstance(each, Recorded)]
    return [time / 1e9 for time in times if time is not None]


def test_arrivals_are_a_poisson_process_of_that_rate() -> None:
    gaps = np.diff(arrivals_s(4000, 5.0))
    assert np.mean(gaps) == pytest.approx(0.2, rel=0.05)
    assert np.std(gaps) == pytest.approx(0.2, rel=0.05)
    assert np.all(gaps >= 0)


def test_the_same_seed_gives_the_same_times() -> None:
    assert arrivals_s(5, 2.0) == arrivals_s(5, 2.0, seed=0)
    assert arrivals_s(5, 2.0) != arrivals_s(5, 2.0, seed=1)
    assert arrivals_s(5, 2.0)[0] == 0
    assert arrivals_s(5, 4.0) == pytest.approx([t / 2 for t in arrivals_s(5, 2.0)], abs=1e-6)


def test_rows_that_were_left_out_take_no_time() -> None:
    found: list[Found] = [LeftOut.FAILED, REQUEST, LeftOut.FAILED]
    options = ReadOptions(rate_per_s=1.0)
    made, remark = with_made_arrivals(Path("a.json"), found, options, why="it has")
    assert made[0] is made[2] is LeftOut.FAILED
    assert remark == (
        "The file has no times: arrivals were made, a Poisson process of 1 requests/s (seed 0), "
        "in the order of the file."
    )
    assert made_source(options) == "arrivals made, 1/s, seed 0"


def test_the_rate_must_be_said() -> None:
    with pytest.raises(UsageError, match=r"a\.json: it has no times") as caught:
        with_made_arrivals(Path("a.json"), [], ReadOptions(), why="it has")
    assert "trace import a.json a.trace.jsonl --rate 5" in caught.value.hint


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf"), 1e-9])
def test_an_impossible_rate_is_refused(rate: float) -> None:
    with pytest.raises(UsageError, match="--rate"):
        with_made_arrivals(Path("a.json"), [], ReadOptions(rate_per_s=rate), why="it has")
