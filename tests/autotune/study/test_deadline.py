from __future__ import annotations

import pytest

from autotune.errors import EnvironmentFault, UsageError
from autotune.study.deadline import (
    GRACE_S,
    SLURM_END,
    SLURM_MARGIN_S,
    ClockWatch,
    Deadline,
    DeadlinePassed,
    Due,
    boot_time,
    deadline_line,
    due,
    too_short,
)
from tests.autotune.study.scripted import settings_of

NOW_S = 1_800_000_000.0


class Clock:
    """Shows what a test sets."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_without_a_deadline_there_is_none() -> None:
    assert due(settings_of(), {}, NOW_S) is None
    assert due(settings_of(), {SLURM_END: "soon"}, NOW_S) is None


def test_the_earlier_of_all_counts() -> None:
    by_timeout = due(settings_of(timeout="8h"), {}, NOW_S)
    assert by_timeout == Due(8 * 3600.0, "--timeout 8h")
    both = settings_of(timeout="48h", until="07:00")
    by_until = due(both, {}, NOW_S)
    assert by_until is not None
    assert by_until.why == "--until 07:00"
    assert 0 < by_until.seconds <= 25 * 3600
    end = {SLURM_END: str(int(NOW_S) + 600)}
    by_slurm = due(both, end, NOW_S)
    assert by_slurm is not None
    assert by_slurm.seconds == 600 - SLURM_MARGIN_S
    assert SLURM_END in by_slurm.why


def test_the_end_of_a_job_says_nothing_of_time_on_paper() -> None:
    simulated = settings_of(engine="sim:h200-llama8b")
    assert due(simulated, {SLURM_END: str(int(NOW_S) + 600)}, NOW_S) is None


def test_a_date_that_is_over_is_refused() -> None:
    with pytest.raises(UsageError, match="is over"):
        due(settings_of(until="2001-01-01T07:00"), {}, NOW_S)


def test_a_deadline_counts_from_the_start_of_the_run() -> None:
    clock = Clock()
    clock.now_s = 1030.0
    deadline = Due(100.0, "--timeout 100s").by(clock, 1000.0)
    assert deadline.left_s() == 70.0
    assert deadline.total_s == 100.0


def test_what_runs_is_cut_after_the_grace() -> None:
    clock = Clock()
    deadline = Deadline(100.0, 100.0, "--timeout 100s", clock)
    for now_s in (0.0, 100.0, 100.0 + GRACE_S):
        clock.now_s = now_s
        deadline.check()
    clock.now_s += 0.1
    with pytest.raises(DeadlinePassed, match="--timeout 100s"):
        deadline.check()
    assert issubclass(DeadlinePassed, EnvironmentFault)


def test_the_clock_of_deadlines_only_grows() -> None:
    assert boot_time() <= boot_time()


def test_when_a_run_ends_is_said() -> None:
    deadline = Deadline(7200.0, 7200.0, "--timeout 2h", Clock())
    assert deadline_line(deadline, NOW_S, simulated=True) == (
        "ends after 7200 s of simulated time (--timeout 2h)"
    )
    real = deadline_line(deadline, NOW_S, simulated=False)
    assert real.startswith("ends by 2027-01-15 ")
    assert real.endswith("(--timeout 2h)")


def test_a_refusal_says_how_long_it_takes() -> None:
    refusal = too_short(Deadline(30.0, 30.0, "--timeout 30s", Clock()), 99.5)
    assert "leaves 30 s" in refusal.message
    assert "100 s at least" in refusal.message
    assert refusal.exit_code == 2


def test_a_jump_of_the_time_of_day_is_noticed_once() -> None:
    wall, clock = Clock(), Clock()
    wall.now_s = NOW_S
    watch = ClockWatch(wall=wall, clock=clock)
    wall.now_s, clock.now_s = NOW_S + 60.0, 60.0
    assert watch.jump_s() is None
    wall.now_s += 4.0
    assert watch.jump_s() is None, "clocks are set right all the time"
    wall.now_s -= 3600.0
    assert watch.jump_s() == -3600.0
    assert watch.jump_s() is None
