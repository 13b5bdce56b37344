from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from autotune.candidates.lattice import SEQS, TOKENS, Candidate
from autotune.cli.main import app
from autotune.engine.protocol import Failure, TrialFailed
from autotune.settings import load_settings
from autotune.study.check_export import of_export
from autotune.study.foresight import stored_traffic
from autotune.study.held import Confirmed, HeldPart, HeldReplay, HeldResult, held_part
from autotune.study.holdout import confirm_on_held, due, held_spec
from autotune.study.job import Job
from autotune.study.judgement import Judgement
from autotune.study.session import read_traffic
from autotune.study.stage import Stage
from autotune.study.view import load_view, make_export, shown_verdict
from autotune.traffic.holdout import Holdout
from objectives.classes import parse_classes
from objectives.limits import parse_budget
from storage.records import StudyRecord
from storage.repository import open_repository
from tests.autotune.cli.judgements import judgement
from tests.autotune.study.records import limits, study_record
from tests.autotune.study.scripted import (
    Notes,
    ScriptedEngines,
    Speed,
    clear_knee,
    job_of,
    small_trace,
)
from tests.autotune.study.simulated import run_simulated
from tests.autotune.study.test_runner import quiet, spell

BASE, WINNER, OTHER = limits(2048), limits(512), limits(768)
FOUND = judgement("knee", winner=1)


def job_that_holds_out(**changes: Any) -> Job:
    job = job_of(holdout="20%", **changes)
    first, held = Holdout("20%").split(small_trace())
    return replace(job, trace=first, held=held)


class Held:
    """A study whose trials are over, and its replays of held-out traffic."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.said: list[str] = []
        self.reports: list[Mapping[str, Any]] = []
        self.pauses: list[float] = []

    def confirm(
        self,
        engines: ScriptedEngines,
        found: Judgement = FOUND,
        job: Job | None = None,
    ) -> HeldPart:
        """Open the study as a run does, and confirm; return what is stored then."""
        job, watcher = job or job_that_holds_out(), Notes()
        with open_repository(f"sqlite:///{self.folder / 'study.db'}") as repository:
            known = [each.name for each in repository.studies()]
            earlier = repository.study("study") if known else None
            record = repository.open_study(
                "study",
                fingerprint=job.fingerprint(),
                spec={**job.spec(), **held_spec(job, earlier)},
            )
            repository.set_state(record.id, "finished")
            try:
                confirm_on_held(
                    job,
                    found,
                    record=record,
                    repository=repository,
                    engines=engines,
                    stage=Stage(engines),
                    follower=watcher,
                    log_folder=self.folder / "logs",
                    pause=self.pauses.append,
                )
            finally:
                self.said, self.reports = watcher.said, watcher.reports
                self.study = repository.study("study")
        part = held_part(self.study)
        assert part is not None
        return part


@pytest.fixture
def held(tmp_path: Path) -> Held:
    return Held(tmp_path)


def started(engines: ScriptedEngines) -> list[Candidate]:
    return [{name: each[name] for name in (TOKENS, SEQS)} for each in engines.started]


def test_winner_and_baseline_replay_it_in_turn(held: Held) -> None:
    engines = ScriptedEngines()
    part = held.confirm(engines)
    assert started(engines) == [BASE, WINNER, WINNER, BASE]
    assert not engines.alive
    assert len({plan.salt for plan in engines.plans}) == 4
    assert {plan.budget for plan in engines.plans} == {""}
    job = job_that_holds_out()
    assert job.held is not None
    assert (part.sha256, part.requests) == (job.held.sha256, len(job.held.requests))
    assert held.study.state == "finished"
    confirmed = Confirmed.of(held.study, WINNER)
    assert confirmed is not None
    assert (confirmed.met, confirmed.met_by(confirmed.baseline)) == (True, False)
    assert confirmed.winner.metrics["tpot_p95"] == pytest.approx(9.4, rel=0.1)
    assert [log.name for log in engines.logs] == [f"holdout-{n}.log" for n in range(4)]


def test_each_replay_says_which_it_is(held: Held) -> None:
    held.confirm(ScriptedEngines())
    names = ("2048/64", "512/64", "512/64", "2048/64")
    labels = [f"held-out replay {n} of 4, {name}" for n, name in enumerate(names, start=1)]
    assert [each for each in held.said if each.startswith("held-out")] == labels
    assert list(dict.fromkeys(report["label"] for report in held.reports)) == labels
    assert {"start", "stop"} <= {report["stage"] for report in held.reports}


def test_a_baseline_that_wins_is_replayed_twice(held: Held) -> None:
    engines = ScriptedEngines()
    held.confirm(engines, judgement("keep_default", winner=0))
    assert started(engines) == [BASE, BASE]


def test_without_a_winner_or_held_out_traffic_nothing_starts(held: Held) -> None:
    engines = ScriptedEngines()
    part = held.confirm(engines, judgement("nothing_feasible", winner=None))
    assert part.results == ()
    assert engines.started == []
    assert held_spec(job_of(), None) == {}


def test_what_a_kill_has_left_is_measured_by_the_next_run(held: Held) -> None:
    killed = ScriptedEngines(faults={("replay", 2): KeyboardInterrupt()})
    with pytest.raises(KeyboardInterrupt):
        held.confirm(killed)
    assert held.study.state == "running"
    again = ScriptedEngines()
    part = held.confirm(again)
    assert started(again) == [WINNER, BASE]
    assert [len(each.replays) for each in part.results] == [2, 2]
    assert held.confirm(idle := ScriptedEngines()).to_json() == part.to_json()
    assert idle.started == []


def test_another_winner_is_all_that_another_budget_measures(held: Held) -> None:
    held.confirm(ScriptedEngines())
    engines = ScriptedEngines()
    part = held.confirm(engines, judgement("knee", winner=2))
    assert started(engines) == [OTHER, OTHER]
    assert [len(part.result(each).replays) for each in (BASE, WINNER, OTHER)] == [2, 2, 2]


def test_other_classes_or_another_end_of_the_trace_are_measured_anew(held: Held) -> None:
    held.confirm(ScriptedEngines())
    job = job_that_holds_out()
    known = held.study
    assert HeldPart.from_json(held_spec(job, known)["holdout"]).results
    classes = replace(job, classes=parse_classes("short:0-500 long:500-"))
    assert held_spec(classes, known)["holdout"]["results"] == []
    assert job.held is not None
    shorter = replace(job, held=job.held.window(0, 0.5))
    assert held_spec(shorter, known)["holdout"]["results"] == []


def late_in(*replays: int) -> Callable[[Candidate], Speed]:
    """The knee, with a client that is late in replays of these numbers."""
    numbers: Iterator[int] = iter(range(99))

    def truth(candidate: Candidate) -> Speed:
        lag_s = 0.4 if next(numbers) in replays else 0.0
        return replace(clear_knee(candidate), send_lag_s=lag_s)

    return truth


def test_a_replay_that_was_sent_late_is_repeated_once(held: Held) -> None:
    engines = ScriptedEngines(truth=late_in(1))
    part = held.confirm(engines)
    assert started(engines) == [BASE, WINNER, WINNER, WINNER, BASE]
    assert part.attempts == 5
    assert [each.failure for each in part.results] == [None, None]


def test_one_that_stays_late_is_for_the_next_run(held: Held) -> None:
    engines = ScriptedEngines(truth=late_in(1, 2))
    part = held.confirm(engines)
    assert started(engines) == [BASE, WINNER, WINNER, BASE]
    failure = part.result(WINNER).failure
    assert failure is not None
    assert failure["class"] == "client_bound"
    assert any(each.startswith("it does not count: requests left") for each in held.said)
    again = ScriptedEngines()
    assert held.confirm(again).result(WINNER).failure is None
    assert started(again) == [WINNER, WINNER]


def test_one_that_a_slow_spell_has_hit_is_repeated_after_it(held: Held) -> None:
    engines = ScriptedEngines(steps=lambda _, n: spell(n) if n == 3 else quiet(n))
    part = held.confirm(engines)
    assert started(engines) == [BASE, WINNER, WINNER, BASE, BASE]
    assert [len(each.replays) for each in part.results] == [2, 2]
    assert len(held.pauses) == 1


def test_a_candidate_that_cannot_run_is_tried_once(held: Held) -> None:
    failure = Failure("oom_run", "CUDA out of memory")
    engines = ScriptedEngines(refused=lambda c: failure if c[TOKENS] == 512 else None)
    part = held.confirm(engines)
    assert started(engines) == [BASE, WINNER, BASE]
    assert part.result(WINNER).cannot_run
    confirmed = Confirmed.of(held.study, WINNER)
    assert confirmed is not None
    assert confirmed.met is False
    held.confirm(again := ScriptedEngines())
    assert again.started == []


def test_an_engine_that_dies_is_started_once_more(held: Held) -> None:
    died = TrialFailed(Failure("engine_dead", "it is gone"))
    engines = ScriptedEngines(faults={("replay", 1): died})
    part = held.confirm(engines)
    assert engines.kills == 1
    assert [len(each.replays) for each in part.results] == [2, 2]


def replays_of(ttft_ms: float, **changes: Any) -> HeldReplay:
    values: dict[str, Any] = {"metrics": {"ttft_p95": ttft_ms}, "failed_requests": 0}
    return HeldReplay(**{**values, "intervals": {"ttft_p95": [1.0, None]}, **changes})


def study_of(budget: str, *results: HeldResult) -> StudyRecord:
    study = study_record(budget=budget)
    part = HeldPart("20%", "abc", 16, 0.8, "", 2, results)
    return replace(study, spec={**study.spec, "holdout": part.to_json()})


def test_a_relative_limit_is_relative_to_the_baseline_there() -> None:
    base = HeldResult(BASE, (replays_of(100), replays_of(400)))
    own = HeldResult(WINNER, (replays_of(150), replays_of(150)))
    study = study_of("ttft_p95:0.8x", base, own)
    confirmed = Confirmed.of(study, WINNER)
    assert confirmed is not None
    assert confirmed.budget.limits[0].limit_ms == pytest.approx(160)
    assert confirmed.met
    alone = Confirmed.of(study_of("ttft_p95:0.8x", own), WINNER)
    assert alone is not None
    assert (alone.met, alone.budget.limits) == (None, ())


def test_a_request_that_failed_breaks_any_budget() -> None:
    own = HeldResult(WINNER, (replays_of(100, failed_requests=1),))
    for budget in ("", "ttft_p95:500"):
        confirmed = Confirmed.of(study_of(budget, own), WINNER)
        assert confirmed is not None
        assert confirmed.met is False


def test_the_turns_that_are_missing() -> None:
    part = HeldPart("20%", "abc", 16, 0.8, "")
    assert due(part, baseline=BASE, winner=WINNER) == [BASE, WINNER, WINNER, BASE]
    once = part.with_result(HeldResult(WINNER, (replays_of(1),)), attempts=1)
    assert due(once, baseline=BASE, winner=WINNER) == [BASE, WINNER, BASE]
    assert due(once, baseline=BASE, winner=BASE) == [BASE, BASE]


@pytest.mark.study
def test_a_study_holds_out_and_confirms(tmp_path: Path) -> None:
    few: dict[str, Any] = {"knobs": {TOKENS: [256, 2048], SEQS: [128]}, "trials": 3}
    run_simulated(tmp_path, holdout="40%", **few)
    storage = f"sqlite:///{tmp_path / 'study.db'}"
    with open_repository(storage, create=False) as repository:
        view = load_view(repository, None)
        assert stored_traffic(view).sha256 == view.study.fingerprint["trace"]
        assert view.study.fingerprint["holdout"] == "40%"
        assert view.judgement is not None
        for cell in view.judgement.cells:
            # Also one that was not measured on what is held out.
            export = of_export(make_export(view, cell), "study")
            read = read_traffic(load_settings(None, export.traffic(), command="check"))
            assert read.trace.sha256 == export.provenance["trace_sha256"]
        part = held_part(view.study)
        assert part is not None
        run_simulated(tmp_path, holdout="40 %", **few)
        assert repository.study(None).spec == view.study.spec

    def shown(*words: str) -> str:
        return CliRunner().invoke(app, [*words, "--storage", storage]).stdout

    said = f"n the last 40 % of the window, which nothing was chosen on ({part.requests} requests)"
    assert said in shown("show")
    told = (shown_verdict(view) or {})["holdout"]
    exported = json.loads(shown("best", "--format", "json"))
    assert exported["verdict"]["holdout"] == told
    assert exported["provenance"]["holdout_met"] == told["met"]
    assert told["winner"]["replays"] == told["baseline"]["replays"] == 2
    assert [each["limit"] for each in told["winner"]["limits"]] == ["ttft_p95", "itl_p99"]
    assert parse_budget(view.study.spec["budget"]).limits
