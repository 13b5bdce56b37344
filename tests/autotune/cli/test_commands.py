"""Commands that read a finished study."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
import yaml

from autotune.candidates.lattice import SEQS, TOKENS
from tests.autotune.cli.conftest import Autotune
from tests.autotune.study.scripted import ScriptedEngines, job_of, opened

TRIAL_KEYS = {
    "number", "state", "phase", "fidelity", "replicate_of", "candidate", "metrics", "feasible",
    "failure", "censored", "diagnosis", "timings", "started_at", "finished_at",
}  # fmt: skip


def test_trials_as_json(autotune: Autotune, studies: str) -> None:
    ran = autotune("trials", "--storage", studies, "--format", "json")
    assert (ran.code, ran.err) == (0, "")
    trials = json.loads(ran.out)
    assert [each["number"] for each in trials] == list(range(6))
    assert all(set(each) == TRIAL_KEYS for each in trials)
    assert trials[0]["candidate"] == {TOKENS: 2048, SEQS: 64}
    assert trials[0]["feasible"] is False
    assert trials[0]["failure"] is None
    assert trials[0]["diagnosis"]["code"] == "under_loaded"
    assert trials[0]["metrics"]["tokens_per_busy_s"] > 0
    assert trials[0]["metrics"]["utilization"] is None
    failed = trials[1]
    assert failed["state"] == "infeasible"
    assert failed["failure"] == {"class": "oom_start", "evidence": "CUDA out of memory"}
    assert failed["feasible"] is False
    assert failed["metrics"] is None
    assert {each["feasible"] for each in trials} == {True, False}
    assert {each["fidelity"] for each in trials} == {"restart"}


def test_trials_as_a_table(
    autotune: Autotune, studies: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    ran = autotune("trials", "--storage", studies)
    assert (ran.code, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert lines[0] == "Study 'knee': finished, 6 of 6 trials."
    assert "tokens/seqs" in lines[1]
    assert any("baseline" in line and "2048/64" in line and "broken" in line for line in lines)
    assert any("infeasible: oom_start" in line for line in lines)
    assert sum("* " in line for line in lines) >= 1
    assert "\x1b" not in ran.out


def test_a_study_without_trials_has_an_empty_list(autotune: Autotune, studies: str) -> None:
    arguments = ("--storage", studies, "--study-name", "new")
    assert json.loads(autotune("trials", *arguments, "--format", "json").out) == []
    ran = autotune("show", *arguments)
    assert (ran.code, ran.out) == (0, "Study 'new' has no finished trial yet.\n")
    ran = autotune("best", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == (
        "error: study 'new' has no finished trial yet\nhint: autotune trials shows what happened\n"
    )


def test_best_in_four_formats(autotune: Autotune, studies: str) -> None:
    texts = {}
    for name in ("yaml", "args", "json", "env"):
        ran = autotune("best", "--storage", studies, "--format", name)
        assert ran.code == 0
        assert ran.err.startswith(("The knee is at ", "Not converged: "))
        assert len(ran.err.splitlines()) == 1
        texts[name] = ran.out
    exported = json.loads(texts["json"])
    candidate = exported["candidate"]
    assert set(candidate) == {TOKENS, SEQS}
    read = yaml.safe_load(texts["yaml"])
    assert read["max-num-batched-tokens"] == candidate[TOKENS]
    arguments = shlex.split(texts["args"], comments=True)
    assert arguments[arguments.index("--max-num-seqs") + 1] == str(candidate[SEQS])
    assert str(candidate[TOKENS]) in texts["env"]


def test_best_is_yaml_by_default(autotune: Autotune, studies: str) -> None:
    given = autotune("best", "--storage", studies, "--format", "yaml").out
    assert autotune("best", "--storage", studies).out == given


def test_best_of_nothing_feasible_exits_with_3(autotune: Autotune, studies: str) -> None:
    ran = autotune("best", "--storage", studies, "--study-name", "slow")
    assert (ran.code, ran.out) == (3, "")
    first, second = ran.err.splitlines()
    assert first == "error: Nothing keeps the budget."
    assert second.startswith("hint: Nearest is ")


def test_studies_are_listed_the_latest_first(autotune: Autotune, studies: str) -> None:
    ran = autotune("studies", "--storage", studies, "--format", "json")
    assert [each["name"] for each in json.loads(ran.out)] == ["knee", "new", "slow"]
    assert json.loads(ran.out)[0]["trials"] == {"complete": 5, "infeasible": 1}
    ran = autotune("studies", "--storage", studies)
    assert (ran.code, ran.err) == (0, "")
    (line,) = (line for line in ran.out.splitlines() if "knee" in line)
    assert line.startswith("knee   finished  5 complete, 1 infeasible  20")
    assert ran.out.splitlines()[:2] == [
        "study  state     trials                    updated (UTC)",
        "─" * 59,
    ]


def test_show_says_the_verdict(autotune: Autotune, studies: str) -> None:
    ran = autotune("show", "--storage", studies)
    assert ran.code == 0
    state, headline = ran.out.splitlines()[:2]
    assert state == "Study 'knee': finished, 6 of 6 trials."
    assert headline.startswith(("The knee is at ", "Not converged: "))
    ran = autotune("show", "--storage", studies, "--study-name", "slow")
    assert (ran.code, ran.out.splitlines()[1]) == (0, "Nothing keeps the budget.")


def test_show_of_a_study_that_runs_does_not_ask_for_more_trials(
    autotune: Autotune, tmp_path: Path
) -> None:
    with opened(tmp_path, job_of(trials=2), ScriptedEngines()) as running:
        running.controller.run()
        running.repository.set_state(running.study_id, "running")
    ran = autotune("show", "--storage", f"sqlite:///{tmp_path / 'study.db'}")
    assert ran.out.startswith("Study 'study': running, 2 of 2 trials.")
    assert "the study has not ended" in ran.out
    assert "--trials" not in ran.out


def test_show_as_json(autotune: Autotune, studies: str) -> None:
    body = json.loads(autotune("show", "--storage", studies, "--format", "json").out)
    assert (body["study"], body["state"]) == ("knee", "finished")
    assert body["verdict"]["code"] in ("knee", "not_converged")


def test_show_one_trial(autotune: Autotune, studies: str) -> None:
    ran = autotune("show", "0", "--storage", studies)
    lines = ran.out.splitlines()
    assert lines[0] == "Trial 0 of study 'knee': 2048/64, baseline, restart, complete"
    assert lines[1].startswith("under_loaded: nothing was chunked")
    heading = "ms mean p50 p90 p95 p99 max p95 <="
    assert lines[2].startswith("ttft_p95: ")
    assert " ms of 300.0, met (at most " in lines[2]
    assert lines[3].startswith("tpot_p95: ")
    assert " ms of 16.0, broken (at most " in lines[3]
    assert lines[4].split() == heading.split()
    assert lines[5].split()[0] == "ttft"
    assert len(lines[5].split()) == 8
    rates = {line.split()[0]: line.split()[-1] for line in lines if "/s" in line}
    assert rates["goodput"] == "requests/s"
    assert rates["tokens_per_busy_s"] == "tokens/s"
    assert "utilization" not in rates
    assert any(line.startswith("warm-up: ") for line in lines)
    assert any(line.startswith("replay_s ") and line.endswith(" s") for line in lines)
    assert lines[-1].startswith("engine log: ")
    ran = autotune("show", "1", "--storage", studies)
    assert ran.out.splitlines()[1] == "oom_start: CUDA out of memory"


def test_show_one_trial_as_json(autotune: Autotune, studies: str) -> None:
    body = json.loads(autotune("show", "0", "--storage", studies, "--format", "json").out)
    assert set(body) == TRIAL_KEYS | {"engine", "intervals"}
    assert body["engine"]["kv_cache_tokens"] == 65536


@pytest.mark.parametrize("number", [10**22, 2**63, -1])
def test_show_refuses_what_numbers_no_trial(autotune: Autotune, studies: str, number: int) -> None:
    ran = autotune("show", "--storage", studies, "--", str(number))
    assert (ran.code, ran.out) == (2, "")
    assert "must be at " in ran.err
    assert "Traceback" not in ran.err


@pytest.mark.parametrize("command", ["trials", "best", "show"])
def test_an_unknown_study_exits_with_2_and_names_the_nearest(
    autotune: Autotune, studies: str, command: str
) -> None:
    ran = autotune(command, "--storage", studies, "--study-name", "knees")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.splitlines() == [
        "error: There is no study named 'knees'.",
        "hint: Did you mean 'knee'? `autotune studies` lists them all.",
    ]


def test_an_unknown_trial_exits_with_2(autotune: Autotune, studies: str) -> None:
    ran = autotune("show", "99", "--storage", studies)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("error: The study has no trial 99.\nhint: ")


@pytest.mark.parametrize("command", ["trials", "best", "show", "studies"])
def test_a_missing_database_exits_with_4_and_is_not_made(
    autotune: Autotune, tmp_path: Path, command: str
) -> None:
    ran = autotune(command, "--storage", f"sqlite:///{tmp_path / 'none.db'}")
    assert (ran.code, ran.out) == (4, "")
    assert ran.err.startswith("error: There is no study database at ")
    assert ran.err.splitlines()[1].startswith("hint: ")
    assert list(tmp_path.iterdir()) == []


def test_the_database_comes_from_the_environment(
    autotune: Autotune, studies: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOTUNE_STORAGE", studies)
    assert autotune("studies").code == 0


def test_best_writes_its_file_on_success_alone(
    autotune: Autotune, studies: str, tmp_path: Path
) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text("an older one")
    ran = autotune("best", "--storage", studies, "--study-name", "slow", "--output", str(file))
    assert (ran.code, file.read_text()) == (3, "an older one")
    ran = autotune("best", "--storage", studies, "--output", str(file))
    assert (ran.code, ran.out) == (0, "")
    assert f"wrote {file}" in ran.err.splitlines()
    assert "max-num-batched-tokens:" in file.read_text()
    ran = autotune("best", "--storage", studies, "--output", str(tmp_path / "no" / "file"))
    assert ran.code == 2
    assert f"no/file: cannot be written: there is no folder {tmp_path / 'no'}" in ran.err


def test_a_narrow_table_keeps_what_decides(
    autotune: Autotune, studies: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    narrow = autotune("trials", "--storage", studies).out
    assert all(len(line) <= 80 for line in narrow.splitlines())
    assert "budget" in narrow
    assert "broken" in narrow
    assert "under_loaded" in narrow
    assert "work" not in narrow


def test_names_with_brackets_are_text(autotune: Autotune, tmp_path: Path) -> None:
    with opened(tmp_path, job_of(), ScriptedEngines(), name="[/x] [bold]y[/bold]"):
        pass
    ran = autotune("studies", "--storage", f"sqlite:///{tmp_path}/study.db")
    assert ran.code == 0
    assert "[/x] [bold]y[/bold]" in ran.out
