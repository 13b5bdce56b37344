from __future__ import annotations

import json
from itertools import chain

import pytest

from autotune.cli.report_words import LABELS, MOST_LINES
from tests.autotune.cli.conftest import Autotune


def test_one_screen_says_what_best_and_show_say(studies: str, autotune: Autotune) -> None:
    ran = autotune("report", "--storage", studies, "--study-name", "knee")
    assert ran.code == 0
    lines = ran.out.splitlines()
    assert len(lines) <= MOST_LINES
    # One word may be longer than a line: the URL of a database far down in folders.
    assert max(len(line) for line in lines if studies not in line) <= 80
    said = " ".join(chain.from_iterable(line.split() for line in lines))
    shown = autotune("show", "--storage", studies, "--study-name", "knee").out.splitlines()
    assert shown[0] in said
    assert shown[1] in said
    kept = [line for line in shown if line.startswith("The budget is")]
    assert [line for line in kept if line not in said] == []
    exported = json.loads(
        autotune("best", "--storage", studies, "--study-name", "knee", "--format", "json").out
    )
    for name, value in exported["candidate"].items():
        assert f"{name}={value}" in said
    assert "oom_start 1×" in said
    assert "CUDA out of memory" in said
    assert "autotune best" in said
    # A command that is copied begins with a small letter, at the head of a label too.
    assert "Autotune" not in said


def test_the_labels_come_in_order(studies: str, autotune: Autotune) -> None:
    lines = autotune("report", "--storage", studies, "--study-name", "knee").out.splitlines()
    labels = [line.split()[0] for line in lines if not line.startswith(" ")]
    assert [label for label in labels if label not in LABELS] == []
    assert labels == sorted(labels, key=LABELS.index)


def test_without_a_winner_it_says_who_comes_nearest(studies: str, autotune: Autotune) -> None:
    ran = autotune("report", "--storage", studies, "--study-name", "slow")
    assert ran.code == 0
    assert "Nothing keeps the budget." in ran.out
    assert "Nearest is" in ran.out
    assert "% OVER" in ran.out
    assert "serve.yaml" not in ran.out


def test_a_study_without_a_trial_has_a_report(studies: str, autotune: Autotune) -> None:
    ran = autotune("report", "--storage", studies, "--study-name", "new")
    assert ran.code == 0
    assert "None yet: no trial has a result." in ran.out
    assert "Nothing yet." in ran.out
    assert "nobody works on it now" in " ".join(ran.out.split())
    shown = json.loads(
        autotune("report", "--storage", studies, "--study-name", "new", "--format", "json").out
    )
    assert (shown["verdict"], shown["margins"], shown["gains"]) == (None, [], [])
    assert shown["finished_trials"] == 0


def test_another_budget_judges_again(studies: str, autotune: Autotune) -> None:
    place = ("--storage", studies, "--study-name", "knee", "--budget", "ttft_p95:1")
    ran = autotune("report", *place, "--format", "json")
    shown = json.loads(ran.out)
    assert shown["budget"] == "ttft_p95:1"
    assert shown["verdict"]["code"] == "nothing_feasible"
    (margin,) = shown["margins"]
    assert margin["room"] < 0
    assert shown["failures"][0]["class"] == "oom_start"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(("--budget", "nonsense"), 2), (("--study-name", "none"), 2), (("--format", "html"), 2)],
)
def test_what_cannot_be_meant_is_refused(
    studies: str, autotune: Autotune, arguments: tuple[str, ...], code: int
) -> None:
    ran = autotune("report", "--storage", studies, *arguments)
    assert ran.code == code
    assert ran.err.startswith("error: ")
