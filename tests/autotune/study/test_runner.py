from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from autotune.candidates.lattice import SEQS, TOKENS, Candidate
from autotune.engine.processes import Process
from autotune.engine.protocol import Failure, TrialFailed
from autotune.study.costs import Fidelity
from autotune.study.runner import REFERENCES, SPELL_S, Result, Runner
from autotune.study.stage import Stage
from objectives.limits import parse_budget
from objectives.steps import Steps
from tests.autotune.forecast import test_pace
from tests.autotune.forecast.builders import slowed
from tests.autotune.study.records import limits
from tests.autotune.study.scripted import BASELINE, ScriptedEngines, job_of, steps_of

SMALL, OTHER = limits(512, 16), limits(256, 8)
LOG = Path("trial.log")
quiet = cache(lambda seed: test_pace.replay(seed=seed, graphs=False))


def spell(seed: int, *, begin_s: float = 4.0, factor: float = 1.25) -> Steps:
    """A replay of which four seconds were slow."""
    return slowed(quiet(seed), begin_s=begin_s, end_s=begin_s + 4, factor=factor)


def slow_throughout(seed: int) -> Steps:
    return slowed(quiet(seed), begin_s=0, end_s=100, factor=1.2)


class Trials:
    """A runner whose replays have these steps, one after the other."""

    def __init__(self, *steps: Steps, live: bool = True, **changes: Any) -> None:
        script: Callable[[Candidate, int], Steps] = lambda _, number: steps[number]  # noqa: E731
        self.engines = ScriptedEngines(steps=script) if steps else ScriptedEngines()
        self.reports: list[Mapping[str, Any]] = []
        job = job_of(live=live, **changes)
        self.now_s = 0.0
        self.pauses: list[float] = []
        self._runner = Runner(
            job,
            self.engines,
            Stage(self.engines),
            self.reports.append,
            pause=self.pauses.append,
            clock=lambda: self.now_s,
        )

    def run(
        self,
        candidate: Candidate = SMALL,
        fidelity: Fidelity = "live",
        *,
        budget: str | None = None,
    ) -> Result:
        return self._runner.run(
            candidate,
            fidelity,
            salt=f"trial-{len(self.engines.plans)}",
            log_path=LOG,
            budget=None if budget is None else parse_budget(budget),
        )

    def suspect(self, candidate: Candidate, steps: Steps, ended_s_ago: float) -> None:
        self._runner.suspect(candidate, "live", steps, capture_limit=None, ended_s_ago=ended_s_ago)

    def spells(self, candidates: Sequence[Candidate]) -> list[str | None]:
        found = [self.run(candidate).spell for candidate in candidates]
        return [None if each is None else each.failure_class for each in found]


def test_a_live_trial_costs_no_start_and_no_stop() -> None:
    trials = Trials()
    first, second = trials.run(SMALL), trials.run(OTHER)
    assert first.timings == {
        "start_s": 1.0, "turnaround_s": None, "warmup_s": 0.5, "replay_s": 4.0, "stop_s": None,
    }  # fmt: skip
    # A replay begins every 5 s and lasts 4.5 s.
    assert second.timings == {**first.timings, "start_s": None, "turnaround_s": 0.5}
    assert len(trials.engines.started) == 1
    assert trials.engines.limited == OTHER


def test_a_restart_stops_its_engine() -> None:
    trials = Trials()
    timings = trials.run(SMALL, "restart").timings
    assert (timings["start_s"], timings["stop_s"]) == (1.0, 0.1)
    assert not trials.engines.alive
    assert [report["stage"] for report in trials.reports] == ["replay", "stop"]


def test_the_load_is_measured_against_the_limits_of_the_trial() -> None:
    """30 requests would run at once where the cap lets them."""
    wide = limits(512, 64)
    trials = Trials(*(steps_of(each, waiting=1) for each in (SMALL, wide)))
    assert [trials.run(each).load.capped_steps for each in (SMALL, wide)] == [1.0, 0.0]


def test_the_plan_of_a_replay() -> None:
    trials = Trials(classes="short:0-500 long:500-", seed=9)
    trials.run()
    trials.run(budget="ttft_p95:300 tpot_p95:16.25")
    whole, may_be_cut = trials.engines.plans
    assert (whole.seed, whole.salt, whole.warmup_requests) == (9, "trial-0", 20)
    assert (whole.budget, whole.detail) == ("", False)
    assert may_be_cut.budget == "ttft_p95:300 tpot_p95:16.25"
    assert may_be_cut.classes == "short:0-500 long:500-"


def test_an_engine_that_dies_ends_the_trial() -> None:
    trials = Trials()
    trials.engines.faults = {("replay", 0): TrialFailed(Failure("engine_dead", "it died"))}
    with pytest.raises(TrialFailed, match="it died"):
        trials.run()


def test_a_slow_spell_makes_a_replay_untrusted() -> None:
    found = Trials(spell(0)).run().spell
    assert found is not None
    assert found.failure_class == "slow_spell"
    words = found.evidence.split()
    assert words[0] == "from"
    assert [float(words[1]), float(words[3])] == pytest.approx([4.0, 9.0], abs=0.7)
    assert float(words[7]) == pytest.approx(1.25, abs=0.05)
    assert found.evidence.endswith("times as long as equal work did otherwise")


def test_a_spell_that_does_not_come_back_was_the_host() -> None:
    trials = Trials(spell(0), quiet(1), quiet(2))
    assert trials.spells([SMALL] * 3) == ["slow_spell", None, None]


@pytest.mark.parametrize(("ended_s_ago", "wait_s"), [(25.0, 35.0), (90.0, 0.0), (-5.0, 60.0)])
def test_a_spell_from_before_a_stop_is_waited_for_and_compared_with(
    ended_s_ago: float, wait_s: float
) -> None:
    """A clock of the day that was set back meanwhile makes nobody wait longer than a spell."""
    trials = Trials(spell(1, begin_s=4.5), quiet(2))
    trials.suspect(SMALL, spell(0), ended_s_ago)
    # It is the candidate's own pace, and a reference from then on.
    assert trials.spells([SMALL] * 2) == [None] * 2
    assert trials.pauses == [wait_s]


def test_a_replay_from_before_a_stop_that_looks_quiet_by_now_is_no_suspect() -> None:
    trials = Trials(quiet(1))
    trials.suspect(SMALL, quiet(0), 0.0)
    assert trials.spells([SMALL]) == [None]
    assert trials.pauses == []


def test_a_repetition_waits_until_a_spell_would_be_over() -> None:
    trials = Trials(spell(0), quiet(1), quiet(2), quiet(3))
    assert trials.spells([SMALL]) == ["slow_spell"]
    trials.now_s = 15.0
    assert trials.spells([OTHER]) == [None]
    assert trials.pauses == []
    assert trials.spells([SMALL, SMALL]) == [None, None]
    assert trials.pauses == [SPELL_S - 15.0]
    stages = [report["stage"] for report in trials.reports]
    assert stages.count("wait") == 1
    assert stages[stages.index("wait") + 1] == "start"


def test_the_wait_is_no_part_of_what_a_trial_took() -> None:
    trials = Trials(spell(0), quiet(1))
    first, again = trials.run(SMALL, "restart"), trials.run(SMALL, "restart")
    assert trials.pauses == [SPELL_S]
    assert again.timings == {**first.timings, "turnaround_s": None}
    assert again.timings["start_s"] == 1.0


def test_a_spell_that_comes_back_at_the_same_place_is_the_candidate() -> None:
    trials = Trials(spell(0), spell(1, begin_s=4.5))
    assert trials.spells([SMALL] * 2) == ["slow_spell", None]


@pytest.mark.parametrize(
    "second",
    [spell(1, begin_s=9.5), slowed(spell(1), begin_s=0, end_s=99, factor=1.5)],
    ids=["at another place", "slower throughout"],
)
def test_another_spell_is_the_host_again(second: Steps) -> None:
    trials = Trials(spell(0), second)
    assert trials.spells([SMALL] * 2) == ["slow_spell", "slow_spell"]


def test_a_spell_of_another_trial_excuses_none() -> None:
    trials = Trials(*(spell(seed) for seed in range(3)))
    assert trials.spells([SMALL, OTHER]) == ["slow_spell"] * 2
    restarted = trials.run(SMALL, "restart").spell
    assert restarted is not None


def test_once_accepted_a_pace_is_suspected_anew() -> None:
    trials = Trials(spell(0), quiet(1), spell(2))
    assert trials.spells([SMALL] * 3) == ["slow_spell", None, "slow_spell"]


def test_a_replay_that_is_slow_as_a_whole_shows_against_those_before() -> None:
    trials = Trials(quiet(0), slow_throughout(1), slow_throughout(2))
    assert trials.spells([SMALL, OTHER, OTHER]) == [None, "slow_spell", None]


def test_a_restart_of_the_envelope_is_compared_with_live_trials() -> None:
    trials = Trials(quiet(0), slow_throughout(1), slow_throughout(2))
    assert trials.run(BASELINE, "restart").spell is None
    assert trials.run(SMALL, "live").spell is not None
    # Engines of other arguments have a pace of their own.
    assert trials.run(SMALL, "restart").spell is None


def test_the_latest_accepted_replays_are_the_reference() -> None:
    """Once most of them are slow, slow is the pace of this engine."""
    slow = [slow_throughout(seed) for seed in range(1, 9)]
    trials = Trials(quiet(0), *slow)
    cells = [limits(tokens, 8) for tokens in (256, 256, 512, 512, 768, 768, 1024)]
    assert REFERENCES > 2
    found = trials.spells([OTHER, *cells])
    assert found[:3] == [None, "slow_spell", None]
    assert found[-1] is None
    assert trials.engines.limited == {TOKENS: 1024, SEQS: 8}


def test_the_hardware_is_watched_where_something_runs_on_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert Trials().run().hardware is None
    own = frozenset({Process.of(os.getpid())})
    monkeypatch.setattr(ScriptedEngines, "running", lambda _: own)
    seen = Trials().run().hardware
    assert seen is not None
    assert seen.samples >= 1
