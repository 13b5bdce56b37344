"""The recipes in docs/recipes name options, exit codes and variables that there are."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from autotune.cli.main import app
from autotune.cli.parsing import REFUSED
from autotune.settings import TuneSettings
from autotune.study.doctor.environment import OUR_NAMES
from tests.test_docs import exit_codes

ROOT = Path(__file__).resolve().parents[1]
RECIPES = ROOT / "docs" / "recipes"
FILES = sorted(RECIPES.iterdir())
COMMAND: Any = get_command(app)

FINISHED = {0, 3}
INTERRUPTED = {129, 130, 143}
HOPELESS = {2, 5, 75}
"""Codes after which the same command would only say the same again."""


def text_of(name: str) -> str:
    return (RECIPES / name).read_text(encoding="utf-8")


def unit(name: str) -> dict[str, list[str]]:
    """Return the values of a unit file, by ``Section.Name``."""
    found: dict[str, list[str]] = {}
    section = ""
    for line in text_of(name).splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found.setdefault(f"{section}.{key}", []).append(value)
    return found


def codes(text: str) -> set[int]:
    return {int(word) for word in re.findall(r"\d+", text)}


def documents() -> list[Any]:
    return list(yaml.safe_load_all(text_of("job.yaml")))


def command_lines(name: str) -> Iterator[list[str]]:
    """Yield the words after ``autotune`` wherever it is run in a file."""
    joined = text_of(name).replace("\\\n#", " ").replace("\\\n", " ")
    for line in joined.splitlines():
        for found in re.finditer(r"(?<![\w./-])(?:/opt/autotune/bin/)?autotune (?=[a-z])", line):
            rest = re.split(r"[>&;|']|#", line[found.end() :])[0]
            words = shlex.split(rest)
            if words and words[0] in COMMAND.commands:
                yield words


def parsed(words: list[str]) -> None:
    command = COMMAND.commands[words[0]]
    command.make_context("autotune", words[1:])


LINES = [
    pytest.param(w, id=f"{f.name}: {' '.join(w)}") for f in FILES for w in command_lines(f.name)
]


@pytest.mark.parametrize("words", LINES)
def test_every_command_line_parses(words: list[str]) -> None:
    parsed(words)


def test_each_recipe_runs_a_study_and_a_wrong_option_would_be_noticed() -> None:
    seen = {each.id.split(":")[0] for each in LINES if each.values[0][0] == "tune"}  # type: ignore[union-attr, index]
    assert {"autotune.service", "autotune.cron", "autotune.sbatch"} <= seen
    with pytest.raises(REFUSED):
        parsed(["tune", "--no-such-option"])


def test_every_file_is_described() -> None:
    page = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    assert [each.name for each in FILES if f"recipes/{each.name}" not in page] == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_variables_of_ours_are_read(file: Path) -> None:
    named = set(re.findall(r"AUTOTUNE_[A-Z_]*[A-Z]", file.read_text(encoding="utf-8")))
    assert named <= set(OUR_NAMES)


def test_the_unit_knows_what_each_exit_code_means() -> None:
    service = unit("autotune.service")
    (success,), (prevent,) = (
        service["Service.SuccessExitStatus"],
        service["Service.RestartPreventExitStatus"],
    )
    assert codes(success) == (FINISHED - {0}) | INTERRUPTED
    assert codes(prevent) == HOPELESS
    assert codes(success) | codes(prevent) <= exit_codes()
    assert service["Service.Type"] == ["notify"]
    assert service["Service.KillMode"] == ["mixed"]
    assert int(service["Service.TimeoutStopSec"][0]) > 30


def test_the_timer_begins_when_the_unit_may_run() -> None:
    (calendar,) = unit("autotune.timer")["Timer.OnCalendar"]
    (condition,) = unit("autotune.service")["Service.ExecCondition"]
    assert calendar.endswith("19:00")
    assert "-ge 19" in condition


def test_the_table_of_cron_has_five_fields_and_a_path() -> None:
    lines = [line for line in text_of("autotune.cron").splitlines() if line[:1] not in ("#", "")]
    settings = dict(line.split("=", 1) for line in lines if re.match(r"[A-Z_]+=", line))
    jobs = [line for line in lines if not re.match(r"[A-Z_]+=", line)]
    assert {"PATH", "HOME", "MAILTO"} <= set(settings)
    assert all(re.fullmatch(r"[\d*,/-]+", field) for job in jobs for field in job.split()[:5])
    # To cron it is a new line.
    assert not any("%" in job for job in jobs)


@pytest.mark.wire
def test_the_batch_script_is_a_shell_script() -> None:
    done = subprocess.run(
        ["bash", "-n", RECIPES / "autotune.sbatch"], check=False, capture_output=True, timeout=30
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_the_batch_script_ends_before_its_signal_and_asks_for_another_turn() -> None:
    text = text_of("autotune.sbatch")
    options = dict(re.findall(r"^#SBATCH --([\w-]+)=(.*)$", text, re.MULTILINE))
    hours, minutes, _ = map(int, options["time"].split(":"))
    notice_s = int(options["signal"].partition("@")[2])
    given = re.search(r"--timeout (\d+)m", text)
    assert given is not None
    assert 60 * int(given[1]) < 3600 * hours + 60 * minutes - notice_s
    cases = re.search(r"case \$code in\n(.*?)^esac", text, re.MULTILINE | re.DOTALL)
    assert cases is not None
    found = set(map(int, re.findall(r"\b(\d+)(?= \||\))", cases[1])))
    assert found == {0, 3, 75, 143}
    assert found <= exit_codes()


def test_the_job_gives_up_by_exit_codes_and_mounts_what_it_names() -> None:
    claim, job = documents()
    assert (claim["kind"], job["kind"]) == ("PersistentVolumeClaim", "Job")
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    parsed(container["args"])
    fail, ignore = job["spec"]["podFailurePolicy"]["rules"]
    assert fail["onExitCodes"]["containerName"] == container["name"]
    assert set(fail["onExitCodes"]["values"]) == {2, 3, 5}
    assert ignore["action"] == "Ignore"
    # Without it Kubernetes takes no podFailurePolicy.
    assert pod["restartPolicy"] == "Never"
    assert pod["terminationGracePeriodSeconds"] > 30
    volumes = {each["name"] for each in pod["volumes"]}
    assert {each["name"] for each in container["volumeMounts"]} == volumes
    named = [
        each["persistentVolumeClaim"] for each in pod["volumes"] if "persistentVolumeClaim" in each
    ]
    assert named == [{"claimName": claim["metadata"]["name"]}]


def test_the_study_of_the_job_ends_before_the_job_does() -> None:
    _, job = documents()
    args = job["spec"]["template"]["spec"]["containers"][0]["args"]
    given = args[args.index("--timeout") + 1]
    assert TuneSettings.model_fields["timeout"] is not None
    assert 60 * int(given.removesuffix("m")) < job["spec"]["activeDeadlineSeconds"]


def test_in_a_container_signals_reach_autotune_itself() -> None:
    lines = text_of("Containerfile").splitlines()
    assert 'ENTRYPOINT ["autotune"]' in lines
    assert any("--init" in line for line in lines)
    assert "STOPSIGNAL SIGTERM" in lines
    (default,) = [line for line in lines if line.startswith("CMD")]
    parsed(yaml.safe_load(default.removeprefix("CMD ")))
