from __future__ import annotations

import time

from autotune.traffic.capture.clock import now_s, steadied, steady_clock


class Times:
    """A machine whose clock can be set."""

    wall_s = 1_700_000_000.0
    up_s = 500.0

    def go_on(self, seconds: float) -> None:
        self.wall_s += seconds
        self.up_s += seconds


def test_arrivals_go_on_evenly_when_the_clock_is_set() -> None:
    times = Times()
    clock = steady_clock(wall=lambda: times.wall_s, timer=lambda: times.up_s)
    times.go_on(10)
    assert clock() == 1_700_000_010.0
    times.wall_s -= 3600
    times.go_on(5)
    assert clock() == 1_700_000_015.0


def test_a_moment_of_the_machines_clock_is_carried_over_only_if_that_was_set() -> None:
    times = Times()
    clock = steady_clock(wall=lambda: times.wall_s, timer=lambda: times.up_s)
    ended_s = times.wall_s - 1
    assert steadied(ended_s, wall=lambda: times.wall_s + 0.01, steady=clock) == ended_s
    assert steadied(ended_s - 3600, wall=lambda: times.wall_s - 3600, steady=clock) == ended_s


def test_it_shows_the_machines_time() -> None:
    assert abs(now_s() - time.time()) < 60
