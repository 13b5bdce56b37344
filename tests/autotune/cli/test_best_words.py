from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from autotune.cli.advice import next_lines
from autotune.cli.best_words import verdict_and_advice
from autotune.cli.words import study_verdict
from autotune.study.view import StudyView, load_view
from storage.repository import Repository, open_repository

OTHER = "ttft_p95:200"


@pytest.fixture
def repository(studies: str) -> Iterator[Repository]:
    with open_repository(studies, create=False) as opened:
        yield opened


def told(view: StudyView, budget: str | None) -> tuple[list[str], list[str]]:
    assert view.judgement is not None
    return verdict_and_advice(view, view.judgement, budget)


def with_trials(view: StudyView, total: int) -> StudyView:
    return replace(view, study=replace(view.study, spec={**view.study.spec, "trials": total}))


def test_without_another_budget_the_verdict_is_the_study_s(repository: Repository) -> None:
    view = load_view(repository, "slow")
    verdict, advice = told(view, None)
    said = study_verdict(view)
    assert verdict == said[: len(verdict)]
    assert len(verdict) + len(advice) == len(said)
    assert advice[0] == "Next: the same autotune tune with --trials raised by 8, to search on."


def test_another_budget_is_part_of_the_advice(repository: Repository) -> None:
    view = load_view(repository, "slow", budget=OTHER)
    _, advice = told(view, OTHER)
    assert advice[0] == (
        f"Next: the same autotune tune with --budget '{OTHER}' and --trials raised by 8, to "
        "search on."
    )
    # The looser budget stands in place of the other one, not beside it.
    assert all(line.count("--budget") <= 1 for line in advice)


def test_a_study_that_has_trials_left_goes_on_by_the_other_budget(repository: Repository) -> None:
    view = load_view(repository, "slow", budget=OTHER)
    total = len(view.trials)
    goes_on = f"Next: the same autotune tune with --budget '{OTHER}': it goes on by these limits"
    for left, trials in ((1, "1 more trial"), (5, "5 more trials")):
        early = with_trials(view, total + left)
        first, looser, lighter = told(early, OTHER)[1]
        assert first == f"{goes_on}, with up to {trials}."
        # Further trials may find nothing either.
        assert looser.startswith("Or with --budget 'ttft_p95:1200', which 2048/64 meets: ")
        assert looser.endswith(f"; up to {trials} may confirm it.")
        assert lighter == "Or lighten the load, or give the model more hardware."
        assert told(early, None)[1] != [f"{goes_on}, with up to {trials}."]


def test_what_was_simulated_is_measured_before_it_is_served(repository: Repository) -> None:
    view = load_view(repository, "knee")
    assert told(view, None)[1][0] == (
        "Next: autotune best --output serve.yaml, then vllm serve --config serve.yaml."
    )
    known = {**view.study.fingerprint, "engine": "sim:mine@0123"}
    simulated = replace(view, study=replace(view.study, fingerprint=known))
    assert told(simulated, None)[1][0] == (
        "Next: autotune best --output serve.yaml, and measure what it says before it is served."
    )


def test_a_study_that_runs_is_waited_for(repository: Repository) -> None:
    view = with_trials(load_view(repository, "slow", budget=OTHER), 99)
    view = replace(view, study=replace(view.study, state="running"))
    assert view.judgement is not None
    (line,) = next_lines(view.judgement, state="running")
    assert told(view, OTHER)[1] == [line.replace("the same command", "the same autotune tune")]
