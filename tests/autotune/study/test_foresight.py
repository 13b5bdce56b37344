"""What a stored study of simulated engines forecasts."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from autotune.candidates.lattice import SEQS, TOKENS, Candidate, cell_key
from autotune.candidates.live import THRESHOLD
from autotune.cli.foreseen import attribution_lines, last_words, next_line
from autotune.errors import TraceError, UsageError
from autotune.forecast.forecast_words import trust_line
from autotune.study import foresight as foresights
from autotune.study.foresight import (
    MOST_LOAD,
    Forecast,
    Foresight,
    described,
    stored_traffic,
)
from autotune.study.screen import Screen
from autotune.study.view import StudyView, load_view
from autotune.traffic.model import Trace
from autotune.traffic.trace import save_trace
from objectives.errors import ObjectiveError
from storage.repository import Repository, open_repository
from tests.autotune.study.scripted import small_trace
from tests.autotune.study.simulated import KNOBS, simulated_study

pytestmark = pytest.mark.study

BASELINE: Candidate = {TOKENS: 2048, SEQS: 128}
BEST: Candidate = {TOKENS: 512, SEQS: 128}
UNMEASURED: Candidate = {TOKENS: 1024, SEQS: 128}


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """A study, its traffic, and what it forecasts by its own budget."""

    repository: Repository
    view: StudyView
    trace: Trace
    own: Foresight

    def foresight(self, budget: str | None = None, **changes: Any) -> Foresight:
        study = self.view.study
        view = self.view if budget is None else load_view(self.repository, None, budget=budget)
        return Foresight(
            replace(view, **changes),
            self.trace,
            lambda number: self.repository.samples(study.id, number),
        )

    def with_spec(self, **changes: Any) -> StudyView:
        study = self.view.study
        return replace(self.view, study=replace(study, spec={**study.spec, **changes}))


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stored]:
    path = simulated_study(tmp_path_factory.mktemp("foresight"))
    with open_repository(f"sqlite:///{path}", create=False) as repository:
        view = load_view(repository, None)
        trace = stored_traffic(view)
        own = Foresight(view, trace, lambda number: repository.samples(view.study.id, number))
        yield Stored(repository, view, trace, own)


def test_every_candidate_is_forecast_once_and_measured_ones_name_their_trials(
    stored: Stored,
) -> None:
    forecasts = stored.own.forecasts
    cells = [{TOKENS: t, SEQS: s} for t, s in itertools.product(KNOBS[TOKENS], KNOBS[SEQS])]
    assert sorted(cell_key(each.candidate) for each in forecasts) == sorted(map(cell_key, cells))
    numbers = sorted(number for each in forecasts for number in each.trials)
    assert numbers == [trial.number for trial in stored.view.trials]
    assert stored.own.of(BASELINE).trials == (0, 1, 5)
    assert stored.own.of(UNMEASURED).trials == ()
    assert [each.loss for each in forecasts] == sorted(each.loss for each in forecasts)


def test_ranges_hold_the_mean_and_are_narrower_where_it_was_measured(stored: Stored) -> None:
    for each in stored.own.forecasts:
        assert set(each.metrics) == {"ttft_p95", "itl_p99", "utilization"}
        assert all(0 < low < mean < high for low, mean, high in each.metrics.values())

    def width(candidate: Candidate) -> float:
        low, _, high = stored.own.of(candidate).metrics["itl_p99"]
        return high / low

    assert width(BASELINE) < width(UNMEASURED)


def test_a_forecast_of_what_was_measured_is_near_it(stored: Stored) -> None:
    for trial in stored.view.trials:
        assert trial.metrics is not None
        low, mean, high = stored.own.of(trial.candidate).metrics["itl_p99"]
        assert mean == pytest.approx(trial.metrics["itl_p99"], rel=0.1)
        assert low / 1.05 < (trial.metrics["itl_p99"] or 0) < high * 1.05


def test_the_chance_of_keeping_a_budget(stored: Stored) -> None:
    far = stored.foresight("ttft_p95:9999 itl_p99:9999").forecasts
    assert {each.probability for each in far} == {1.0}
    assert all(each.loss < 1 for each in far)
    none = stored.foresight("ttft_p95:1 itl_p99:9999").forecasts
    assert max(each.probability or 0 for each in none) < 1e-9
    assert all(each.loss > 1 for each in none)
    mean = stored.own.of(UNMEASURED).metrics["itl_p99"][1]
    on_edge = stored.foresight(f"ttft_p95:9999 itl_p99:{mean}").of(UNMEASURED)
    assert on_edge.probability == pytest.approx(0.5, abs=0.01)


def test_without_a_budget_there_is_no_chance_and_no_load(stored: Stored) -> None:
    free = stored.foresight("")
    assert {each.probability for each in free.forecasts} == {None}
    assert free.holds_up_to(BASELINE) is None


def test_a_relative_limit_is_one_of_what_the_baseline_measured(stored: Stored) -> None:
    relative = stored.foresight("itl_p99:0.9x ttft_p95:9999")
    assert (relative.of(BASELINE).probability or 0) < 0.1
    assert relative.of(BEST).probability == pytest.approx(1)


def test_another_budget_forecasts_the_metrics_that_it_names(stored: Stored) -> None:
    found = stored.foresight("e2e_p90:900 tpot_mean:40").of(UNMEASURED).metrics
    assert set(found) == {"e2e_p90", "tpot_mean", "utilization"}


def test_the_budget_holds_up_to_a_load_and_not_far_beyond(stored: Stored) -> None:
    def excess(load: float) -> float:
        found = stored.own.at_load(candidate, load)
        return max((found["ttft_p95"] or 0) / 500, (found["itl_p99"] or 0) / 60)

    candidate: Candidate = {TOKENS: 256, SEQS: 8}
    load = stored.own.holds_up_to(candidate)
    assert load is not None
    assert 1 < load < MOST_LOAD
    assert excess(load) <= 1 < excess(1.3 * load)


def test_what_is_not_kept_holds_at_no_load_and_what_is_far_off_at_any(stored: Stored) -> None:
    assert stored.foresight("ttft_p95:1").holds_up_to(BEST) is None
    assert stored.foresight("ttft_p95:99999").holds_up_to(BEST) == MOST_LOAD


def test_metrics_at_a_load_start_from_the_forecast_and_grow(stored: Stored) -> None:
    means = {key: mean for key, (_, mean, _) in stored.own.of(UNMEASURED).metrics.items()}
    assert stored.own.at_load(UNMEASURED, 1.0) == pytest.approx(means)
    ttft_ms = [stored.own.at_load(UNMEASURED, load)["ttft_p95"] or 0 for load in (1, 1.5, 2, 3)]
    assert all(later > 0.95 * before for before, later in itertools.pairwise(ttft_ms))
    assert ttft_ms[-1] > 1.2 * ttft_ms[0]


def test_limits_that_are_broken(stored: Stored) -> None:
    found = {"ttft_p95": 500.1, "itl_p99": 59.9, "utilization": 0.3}
    assert stored.own.broken(found) == ["ttft_p95"]
    assert stored.own.broken({**found, "ttft_p95": 499.9}) == []
    assert stored.own.broken({**found, "itl_p99": None}) == ["ttft_p95", "itl_p99"]
    assert stored.foresight("").broken(found) is None


def test_what_was_tried_without_a_whole_replay_says_so(stored: Stored) -> None:
    def tried(engine: dict[str, Any] | None) -> Forecast:
        added = replace(
            stored.view.trials[-1],
            number=6,
            candidate=UNMEASURED,
            state="infeasible",
            metrics=None,
            engine=engine,
        )
        return stored.foresight(trials=(*stored.view.trials, added)).of(UNMEASURED)

    cut = tried({"censored": {"bounds": {"ttft_p95": 900.0}}})
    assert (cut.source, cut.trials, cut.cut_short, cut.failed) == ("cut short", (), (6,), ())
    failed = tried(None)
    assert (failed.source, failed.cut_short, failed.failed) == ("failed", (), (6,))
    assert stored.own.of(UNMEASURED).source == "forecast"
    assert stored.own.of(BASELINE).source == "measured"


def test_only_knobs_that_moved_have_a_part_in_the_change(stored: Stored) -> None:
    assert set(stored.own.attribution(BEST)) == {TOKENS}
    assert stored.own.attribution(BASELINE) == {}
    both = stored.own.attribution({TOKENS: 512, SEQS: 8})
    assert set(both) == {TOKENS, SEQS}
    before = stored.own.of(BASELINE).metrics["itl_p99"][1]
    after = stored.own.of(BEST).metrics["itl_p99"][1]
    alone = both[TOKENS]
    assert alone is not None
    assert alone["itl_p99"] == pytest.approx(after / before - 1)
    assert alone["itl_p99"] < -0.3


def test_a_knob_that_alone_makes_no_candidate_is_named(stored: Stored) -> None:
    study = stored.view.study
    ladders = {**study.fingerprint["ladders"], TOKENS: [64, *KNOBS[TOKENS]]}
    study = replace(study, fingerprint={**study.fingerprint, "ladders": ladders})
    # 64/128 has fewer tokens than sequences.
    smaller = stored.foresight(study=study)
    found = smaller.attribution({TOKENS: 64, SEQS: 8})
    assert found[TOKENS] is None
    assert found[SEQS]


def test_what_each_limit_does_alone_in_words(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = {TOKENS: None, SEQS: {"itl_p99": -0.104}, THRESHOLD: dict[str, float]()}
    monkeypatch.setattr(Foresight, "attribution", lambda *_: parts)
    (line,) = attribution_lines(stored.own)
    assert line.endswith(
        f" to 512/128, {TOKENS} alone makes no candidate; {SEQS} alone: itl_p99 -10 %; "
        f"{THRESHOLD} alone: nothing can be forecast."
    )


def test_the_best_by_chance_is_the_mean_over_all_draws(stored: Stored) -> None:
    losses = [each.loss for each in stored.own.forecasts]
    base = stored.own.of(BASELINE).loss
    # Two candidates beside the baseline were measured.
    draws = [min(base, *pair) for pair in itertools.product(losses, repeat=2)]
    assert stored.own.loss_by_chance() == pytest.approx(math.fsum(draws) / len(draws))


def test_a_study_of_its_baseline_has_nothing_to_compare_with_chance(stored: Stored) -> None:
    alone = stored.foresight(trials=stored.view.trials[:1])
    assert alone.loss_by_chance() is None


def test_the_candidate_that_comes_next(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    assert stored.own.next == UNMEASURED
    tried = [replace(stored.view.trials[-1], number=6, state="infeasible", candidate=UNMEASURED)]
    later = stored.foresight(trials=(*stored.view.trials, *tried))
    assert later.next is not None
    assert later.next != UNMEASURED
    contradicted = stored.foresight()
    outlook = replace(contradicted.looked.outlook, trust=0.2)
    looked = replace(contradicted.looked, outlook=outlook)
    monkeypatch.setattr(Screen, "look", lambda *_: looked)
    assert contradicted.next is None


def test_what_is_proposed_is_what_a_search_would_try_and_gains_something(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    strict = stored.foresight("ttft_p95:145 itl_p99:50")
    assert strict.proposal is not None
    assert strict.proposal.candidate == strict.next == UNMEASURED
    monkeypatch.setattr(foresights, "SETTLED_GAIN", 99.0)
    assert strict.proposal is None
    monkeypatch.setattr(strict, "next", None)
    assert strict.proposal is None


def test_what_does_the_same_as_one_that_was_measured_does_not_come_next(stored: Stored) -> None:
    """Fewer requests than the smaller cap ran at once, so that the larger changes nothing."""
    trials = [
        replace(
            trial, engine={**trial.engine, "load": {**trial.engine["load"], "peak_running": 7}}
        )
        for trial in stored.view.trials
        if trial.engine is not None
    ]
    extra = replace(trials[-1], number=6, candidate={TOKENS: 1024, SEQS: 8})
    found = stored.foresight(trials=(*trials, extra))
    assert found.next != UNMEASURED
    assert found.of(UNMEASURED).trials == ()


def test_a_replay_that_another_budget_had_cut_short_comes_next_under_a_looser_one(
    stored: Stored,
) -> None:
    cut = {"censored": {"bounds": {"ttft_p95": 900.0}, "sent": 9, "requests": 10}}
    added = replace(
        stored.view.trials[-1],
        number=6,
        candidate={TOKENS: 1024, SEQS: 8},
        state="infeasible",
        phase="screen",
        metrics=None,
        engine=cut,
    )
    trials = (*stored.view.trials, added)
    assert stored.foresight(trials=trials).next != added.candidate
    assert stored.foresight("ttft_p95:950 itl_p99:60", trials=trials).next == added.candidate


def test_the_next_candidate_in_words(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    assert next_line(stored.own) == "The search would try 1024/128 next."
    monkeypatch.setattr(stored.own, "next", None)
    assert next_line(stored.own).startswith("No candidate that was not tried is forecast to be ")


def test_the_candidate_of_the_verdict(stored: Stored) -> None:
    deployed = stored.own.deployed
    assert deployed is not None
    assert deployed.candidate == BEST
    judgement = stored.view.judgement
    assert judgement is not None
    for winner in (None, judgement.baseline):
        ruled = replace(judgement, winner=winner)
        assert stored.foresight(judgement=ruled).deployed is None


def test_the_last_words_of_a_study_are_of_its_verdict_and_of_forecasts_that_are_trusted(
    stored: Stored,
) -> None:
    attribution, chance = last_words(stored.own)
    assert attribution.startswith("By forecast, from 2048/128 to")
    assert chance.startswith("As many candidates drawn at random")
    judgement = stored.view.judgement
    assert judgement is not None
    kept = stored.foresight(judgement=replace(judgement, winner=judgement.baseline))
    assert last_words(kept) == []
    contradicted = stored.foresight()
    outlook = replace(contradicted.looked.outlook, trust=0.2)
    contradicted.looked = replace(contradicted.looked, outlook=outlook)
    assert last_words(contradicted) == [trust_line(0.2)]


def test_json_has_no_value_that_is_not_a_number(stored: Stored) -> None:
    found = replace(
        stored.own.of(UNMEASURED),
        metrics={"ttft_p95": (math.nan,) * 3, "itl_p99": (1.0, 2.0, math.inf)},
    ).to_json()
    assert found["metrics"] == {
        "ttft_p95": {"low": None, "mean": None, "high": None},
        "itl_p99": {"low": 1.0, "mean": 2.0, "high": math.inf},
    }
    whole = [each.to_json() for each in stored.own.forecasts]
    assert json.loads(json.dumps(whole, allow_nan=False)) == whole


def test_a_list_has_the_first_and_all_that_were_measured(stored: Stored) -> None:
    listed = described(stored.own.forecasts, 1, None)
    assert listed[0] is stored.own.forecasts[0]
    assert sorted(number for each in listed for number in each.trials) == [0, 1, 2, 3, 4, 5]
    assert len(listed) == 3
    assert described(stored.own.forecasts, 99, None) == stored.own.forecasts
    following = stored.own.next
    assert following is not None
    with_it = described(stored.own.forecasts, 1, following)
    assert len(with_it) == 4
    assert following in [each.candidate for each in with_it]


def test_what_is_no_candidate_is_told_the_ladders(stored: Stored) -> None:
    with pytest.raises(UsageError, match="no such candidate in this study") as caught:
        stored.own.of({TOKENS: 700, SEQS: 128})
    assert caught.value.hint == f"{TOKENS}: 256, 512, 1024, 2048; {SEQS}: 8, 128"


# What cannot be forecast


def test_other_traffic_is_refused(stored: Stored) -> None:
    with pytest.raises(UsageError, match="is not the traffic that study 'whatif'") as caught:
        Foresight(stored.view, small_trace(), lambda _: {})
    assert caught.value.hint == (
        "it was demo:mixed; if that has changed since, give the file as it was with --trace"
    )


def test_a_class_that_the_study_has_not_is_refused(stored: Stored) -> None:
    with pytest.raises(ObjectiveError, match="long"):
        stored.foresight("ttft_p95@long:99")


def refused(view: StudyView, stored: Stored) -> UsageError:
    with pytest.raises(UsageError) as caught:
        Foresight(view, stored.trace, lambda _: {})
    return caught.value


def test_a_study_without_a_calibration_or_a_baseline(stored: Stored) -> None:
    error = refused(stored.with_spec(calibration=None), stored)
    assert "has no calibration" in error.message
    assert "--no-calibrate" in error.hint
    error = refused(replace(stored.view, trials=()), stored)
    assert "has not measured its baseline yet" in error.message
    assert "autotune trials" in error.hint


def test_an_engine_that_no_simulation_knows(stored: Stored) -> None:
    why = "the model has layers with a sliding window of 4096 tokens"
    trials = [
        replace(trial, engine={**(trial.engine or {}), "forecast_obstacle": why})
        for trial in stored.view.trials
    ]
    error = refused(replace(stored.view, trials=tuple(trials)), stored)
    assert error.message == f"study 'whatif' cannot be forecast: {why}"
    assert "full attention" in error.hint


def test_trials_of_before_anybody_asked_for_obstacles(stored: Stored) -> None:
    def older(engine: Mapping[str, Any] | None) -> dict[str, Any]:
        return {k: v for k, v in (engine or {}).items() if k != "forecast_obstacle"}

    trials = [replace(trial, engine=older(trial.engine)) for trial in stored.view.trials]
    view = replace(stored.view, trials=tuple(trials))
    samples = stored.repository.samples
    found = Foresight(view, stored.trace, lambda number: samples(view.study.id, number))
    assert len(found.forecasts) == len(stored.own.forecasts)


@pytest.mark.parametrize(("name", "values"), [("block_size", [16, 32]), ("dtype", ["a", "b"])])
def test_a_knob_that_no_simulation_knows(stored: Stored, name: str, values: list[Any]) -> None:
    study = stored.view.study
    known = study.fingerprint
    study = replace(
        study,
        fingerprint={
            **known,
            "ladders": {**known["ladders"], name: values},
            "baseline": {**known["baseline"], name: values[0]},
        },
    )
    error = refused(replace(stored.view, study=study), stored)
    assert f"cannot be forecast: a simulation does not know {name}" in error.message
    assert THRESHOLD in error.hint


# Where the traffic is


def test_traffic_is_read_from_where_it_has_moved_to(stored: Stored, tmp_path: Path) -> None:
    moved, view = tmp_path / "moved.jsonl", stored.with_spec(trace="gone.jsonl", window=None)
    save_trace(stored.trace, moved)
    assert stored_traffic(view, moved).sha256 == stored.trace.sha256
    with pytest.raises(TraceError, match=r"gone\.jsonl") as caught:
        stored_traffic(view)
    assert "give it with --trace" in caught.value.hint
    with pytest.raises(TraceError, match="other") as caught:
        stored_traffic(view, tmp_path / "other.jsonl")
    assert "--trace" not in caught.value.hint


def test_traffic_is_cut_and_fitted_as_it_was(stored: Stored) -> None:
    assert stored.trace.duration_s < 2
    study = stored.view.study
    trials = [
        replace(trial, engine={**(trial.engine or {}), "resolved": {"max_model_len": 500}})
        for trial in stored.view.trials
    ]
    study = replace(study, fingerprint={**study.fingerprint, "too_long": "skip"})
    fit = stored_traffic(replace(stored.view, study=study, trials=tuple(trials)))
    assert fit.longest_request <= 500
    assert 0 < len(fit.requests) < len(stored.trace.requests)
