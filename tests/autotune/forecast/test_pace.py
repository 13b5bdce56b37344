from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from autotune.forecast import pace
from autotune.forecast.pace import STEADY, drift, slow_spell
from objectives.steps import COLUMNS, Steps
from tests.autotune.forecast import builders
from tests.autotune.forecast.builders import FakeEngine, h200_ms, slowed, smooth_ms

QUIET = (
    "async16384_1024_256_replay0",
    "async16384_2048_256_replay0",
    "async16384_2048_256_replay1",
    "async16384_4096_256_replay0",
    "async16384_512_256_replay0",
    "sync8192_2048_256_replay0",
    "sync8192_2048_256_replay1",
    "sync8192_512_256_replay0",
)
recorded = cache(builders.recorded)


def replay(
    *, seconds: float = 15, noise: float = 0.02, seed: int = 0, graphs: bool = True
) -> Steps:
    """Load that comes and goes, on an engine with or without CUDA graphs."""
    step_ms = h200_ms if graphs else smooth_ms
    engine = FakeEngine(step_ms=step_ms, noise=noise, seed=seed)
    rng = np.random.default_rng(seed)
    while engine.clock_s < seconds:
        decodes = int(rng.integers(1, 80))
        kv = decodes * int(rng.integers(300, 900))
        prefill = 2048 if rng.uniform() < 0.2 else 0
        engine.step(prefill=prefill, context=2048 * int(rng.integers(4)), decodes=decodes, kv=kv)
    return Steps.from_rows(np.array(engine.rows))


def test_a_quiet_replay_has_no_spell() -> None:
    assert slow_spell(replay(), capture_limit=512) is None


def test_noise_is_no_spell() -> None:
    for seed in range(8):
        assert slow_spell(replay(noise=0.1, seed=seed, graphs=False)) is None


@pytest.mark.parametrize(("begin_s", "end_s"), [(0.0, 4.0), (5.0, 9.0), (11.0, 15.1)])
def test_a_spell_is_found_with_its_time_and_factor(begin_s: float, end_s: float) -> None:
    hit = slowed(replay(), begin_s=begin_s, end_s=end_s, factor=1.2)
    spell = slow_spell(hit, capture_limit=512)
    assert spell is not None
    assert spell.begin_s == pytest.approx(begin_s, abs=0.6)
    assert spell.end_s == pytest.approx(begin_s + (end_s - begin_s) * 1.2, abs=0.8)
    assert spell.factor == pytest.approx(1.2, abs=0.04)


def test_a_spell_as_long_as_the_replay_shows_against_others_alone() -> None:
    whole = slowed(replay(seed=1), begin_s=0, end_s=100, factor=1.15)
    assert slow_spell(whole, capture_limit=512) is None
    spell = slow_spell(whole, reference=[replay(), replay(seed=2)], capture_limit=512)
    assert spell is not None
    assert (spell.begin_s, spell.end_s) == (whole.begun_s[0], whole.done_s[-1])
    assert spell.factor == pytest.approx(1.15, abs=0.03)


def test_a_reference_as_slow_or_of_other_work_accuses_nobody() -> None:
    slow = slowed(replay(seed=1), begin_s=0, end_s=100, factor=1.15)
    prefills = replay(seed=3)
    others = prefills.select(prefills.prefill_tokens > 10_000)
    assert slow_spell(slow, reference=[slow, others], capture_limit=512) is None


def test_too_little_shows_nothing() -> None:
    whole = replay()
    for steps in (whole.select(whole.done_s < 3), whole.select(np.zeros(len(whole), np.bool_))):
        assert slow_spell(slowed(steps, begin_s=0, end_s=2, factor=2)) is None
    long_steps = replace(whole, begun_s=whole.begun_s * 40, done_s=whole.done_s * 40)
    few = long_steps.select(np.arange(len(whole)) < 12)
    assert slow_spell(slowed(few, begin_s=0, end_s=3, factor=2)) is None


def test_drift_is_the_log_of_the_ratio_at_equal_work() -> None:
    first, second = replay(), replay(seed=1)
    slower = slowed(second, begin_s=0, end_s=100, factor=1.1)
    found = drift(first, second)
    assert found is not None
    assert abs(found) < STEADY / 2
    assert drift(first, slower) == pytest.approx(np.log(1.1), abs=STEADY / 2)
    assert drift(slower, first) == pytest.approx(-np.log(1.1), abs=STEADY / 2)


def test_without_work_in_common_there_is_no_drift() -> None:
    steps = replay()
    decodes, rest = (steps.select(steps.prefill_tokens == 0), steps.select(steps.tokens > 512))
    nothing = steps.select(np.zeros(len(steps), np.bool_))
    assert drift(decodes, rest) is None
    assert drift(steps, nothing) is None
    assert drift(nothing, nothing) is None


@pytest.mark.shared
@pytest.mark.parametrize("name", QUIET)
def test_recorded_replays_without_a_spell_raise_no_alarm(name: str) -> None:
    steps = recorded(name)
    others = [recorded(each) for each in QUIET if each[:5] == name[:5] and each != name]
    assert slow_spell(steps, capture_limit=512) is None
    assert slow_spell(steps, reference=others, capture_limit=512) is None


@pytest.mark.shared
def test_the_recorded_spell_is_found() -> None:
    spell = slow_spell(recorded("restart1024_1024_256_replay0"), capture_limit=512)
    assert spell is not None
    # Steps of 1,024 tokens took 36.5 ms instead of 31.5 ms from 13.9 to 15.3 s.
    assert spell.begin_s < 14.1
    assert spell.end_s > 15.3


@pytest.mark.shared
@pytest.mark.parametrize("name", QUIET)
@pytest.mark.parametrize(("factor", "length_s"), [(1.15, 2.5), (1.15, 5), (1.25, 2.5), (1.25, 8)])
def test_spells_put_into_recorded_replays_are_found(
    name: str, factor: float, length_s: float
) -> None:
    steps = recorded(name)
    for begin_s in (1.0, 6.0):
        hit = slowed(steps, begin_s=begin_s, end_s=begin_s + length_s, factor=factor)
        spell = slow_spell(hit, capture_limit=512)
        assert spell is not None
        assert spell.factor == pytest.approx(factor, abs=0.06)


@pytest.mark.shared
def test_most_spells_of_a_tenth_are_found() -> None:
    spells = [
        slow_spell(
            slowed(recorded(name), begin_s=begin_s, end_s=begin_s + 6, factor=1.1),
            capture_limit=512,
        )
        for name in QUIET
        for begin_s in (1.0, 4.0, 7.0)
    ]
    assert sum(spell is not None for spell in spells) >= 0.8 * len(spells)


@pytest.mark.shared
def test_recorded_replays_of_the_same_rows_do_not_drift() -> None:
    for before, after in (QUIET[1:3], QUIET[5:7]):
        found = drift(recorded(before), recorded(after))
        assert found is not None
        assert abs(found) < STEADY / 4


@pytest.mark.shared
def test_candidates_with_little_work_in_common_are_not_compared() -> None:
    assert drift(recorded(QUIET[0]), recorded(QUIET[4])) is None
    assert drift(recorded(QUIET[1]), recorded(QUIET[3])) == pytest.approx(0, abs=STEADY)


def test_the_thresholds_are_in_order() -> None:
    assert 1 + STEADY < pace.LEAST_FACTOR < 1.1


def draining(factor: float, seed: int = 0) -> Steps:
    """Small batches of many sizes, and in the end, for 2.5 s or more, large ones alone.

    The last take ``factor`` times as long as the small ones promise.
    """
    count, last = 1500, 140
    noise = np.random.default_rng(seed).normal(1, 0.005, count)
    small = 10 + np.arange(count) // 15 % 70
    requests = np.where(np.arange(count) < count - last, small, 300)
    period_s = (0.006 + 0.00004 * requests) * noise
    period_s[-last:] *= factor
    done_s = np.cumsum(period_s)
    return replace(
        Steps.from_rows(np.zeros((count, len(COLUMNS)))),
        begun_s=done_s - period_s,
        done_s=done_s,
        decode_requests=requests,
        requests=requests,
        decode_kv_tokens=requests * 1000,
    )


def test_work_that_the_rest_does_not_have_is_no_spell_by_contrast() -> None:
    assert slow_spell(draining(1.2), capture_limit=512) is None


def test_what_took_as_long_before_is_no_spell() -> None:
    spell = slowed(replay(), begin_s=5, end_s=9, factor=1.2)
    before = [slowed(replay(seed=seed), begin_s=0, end_s=100, factor=1.2) for seed in (1, 2)]
    assert slow_spell(spell, capture_limit=512) is not None
    assert slow_spell(spell, reference=before, capture_limit=512) is None


def test_a_spell_stays_one_where_equal_work_was_faster_before() -> None:
    before = [draining(1.0, seed=seed) for seed in (1, 2)]
    found = slow_spell(draining(1.2), reference=before, capture_limit=512)
    assert found is not None
    assert found.factor == pytest.approx(1.2, abs=0.05)
