from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from autotune import __version__
from tests.autotune.cli.conftest import Autotune

pytestmark = pytest.mark.wire

ROOT = Path(__file__).resolve().parents[3]


def test_help_lists_the_commands(autotune: Autotune) -> None:
    ran = autotune("--help")
    assert (ran.code, ran.err) == (0, "")
    for name in ("tune", "best", "trials", "show", "studies", "replay", "trace"):
        assert f" {name} " in ran.out


def test_the_version_goes_to_stdout_and_those_of_others_to_stderr(autotune: Autotune) -> None:
    ran = autotune("--version")
    assert (ran.code, ran.out) == (0, f"autotune {__version__}\n")
    assert "optuna " in ran.err


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["tune", "--trace", "demo:mixed"], 2, "--model is missing"),
        (["tune", "--model", "m", "--trace", "t", "--trials", "0"], 2, "--trials: "),
        (["tune", "--model", "m", "--trace", "none.jsonl"], 2, "No such file"),
        (["tune", "--model", "m", "--trace", "demo:mixd"], 2, "no demo trace 'demo:mixd'"),
        (["tune", "--model", "m", "--trace", "demo:mixed", "--budget", "ttfd:5"], 2, "'ttfd'"),
        (["tune", "--model", "m", "--trace", "demo:mixed", "--classes", "x"], 2, "'x' is no"),
        (["tune", "--model", "m", "--trace", "demo:mixed", "--window", "soon"], 2, "soon"),
        (["trials", "--storage", "nonsense"], 4, "nonsense"),
    ],
)
def test_errors_are_two_lines_without_a_traceback(
    autotune: Autotune, arguments: list[str], code: int, said: str
) -> None:
    ran = autotune(*arguments)
    assert (ran.code, ran.out) == (code, "")
    error, hint = ran.err.splitlines()
    assert error.startswith("error: ")
    assert said in error
    assert hint.startswith("hint: ")


def test_debug_adds_the_traceback(autotune: Autotune, tmp_path: Path) -> None:
    ran = autotune("--debug", "trials", "--storage", f"sqlite:///{tmp_path / 'none.db'}")
    assert ran.code == 4
    assert ran.err.startswith("Traceback (most recent call last):")
    assert ran.err.splitlines()[-2].startswith("error: ")


@pytest.mark.parametrize("place", [0, 2])
def test_the_traceback_is_asked_for_before_the_command_alone(
    autotune: Autotune, place: int
) -> None:
    arguments = ["best", "--storage", "nonsense", "--study-name"]
    # Behind the command it is the name of a study.
    asked = ["--debug", *arguments, "a"] if place == 0 else [*arguments, "--debug"]
    ran = autotune(*asked)
    assert (ran.code, ran.err.startswith("Traceback")) == (4, place == 0)


def run_piped(arguments: list[str], **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "autotune", *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_reader_that_has_seen_enough_is_no_error(studies: str) -> None:
    """Nobody reads the pipe any more before the first byte is written."""
    with run_piped(["trials", "--storage", studies, "--format", "json"]) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        err = process.stderr.read()
    assert err == ""
    assert process.returncode == 0


def test_no_color_is_obeyed_on_a_terminal(studies: str) -> None:
    master, slave = os.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", "NO_COLOR": "1"}
    with os.fdopen(master, "rb", buffering=0) as terminal:
        done = subprocess.run(
            [sys.executable, "-m", "autotune", "trials", "--storage", studies],
            cwd=ROOT,
            env=environment,
            stdout=slave,
            stderr=subprocess.PIPE,
            check=True,
        )
        os.close(slave)
        shown = terminal.read(1 << 16).decode()
    assert done.stderr == b""
    assert "2048/64" in shown
    assert re.search("\x1b\\[[0-9;]*3[0-9]", shown) is None


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_that_cannot_show_a_sign_is_no_error(studies: str, encoding: str) -> None:
    command = [sys.executable, "-m", "autotune", "show", "--storage", studies]
    environ = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run(command, capture_output=True, env=environ, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("arguments", ["trials --storage {studies}", "--version", "--help"])
def test_output_that_cannot_be_written_exits_with_4(studies: str, arguments: str) -> None:
    given = arguments.format(studies=studies)
    command = f"exec {sys.executable} -m autotune {given} > /dev/full"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 4
    assert done.stderr.splitlines()[-2:] == [
        "error: standard output (/dev/full): No space left on device",
        "hint: make room, or write elsewhere",
    ]


def test_without_standard_output_nothing_fails(studies: str) -> None:
    command = f"exec {sys.executable} -m autotune trials --storage {studies} >&-"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
