"""Names of studies that quote, climb, escape and hide, in every command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autotune import tuning
from autotune.engine.protocol import Failure
from tests.autotune.cli.conftest import Autotune
from tests.autotune.study.scripted import DESCRIPTION, ScriptedEngines, small_trace

NAMES = (
    'it\'s "quoted" `so`, 100 % of %s {0}',
    "/../../etc/[bold]passwd[/bold]",
    "\u202eright to left\u2066 \U0001f469\u200d\U0001f4bb ",
    "--study-name",
    "n" * 1000,
)


def printable(text: str) -> bool:
    return all(each.isprintable() or each == "\n" for each in text)


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ScriptedEngines:
    scripted = ScriptedEngines()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tuning, "describe_engine", lambda _settings, _supervisor: DESCRIPTION)
    monkeypatch.setattr(tuning, "open_supervisor", lambda _settings, _name: scripted)
    Path("small.jsonl").write_bytes(b"".join(small_trace().lines()))
    return scripted


@pytest.mark.parametrize("name", NAMES, ids=lambda name: ascii(name[:20]))
def test_every_command_takes_the_name(
    autotune: Autotune, engines: ScriptedEngines, tmp_path: Path, name: str
) -> None:
    option = f"--study-name={name}"
    tuned = autotune(
        "tune", "--model", "tiny", "--trace", "small.jsonl", "--warmup-s", "0", "--trials", "1",
        option,
    )  # fmt: skip
    assert tuned.code == 0, tuned.err
    told = [tuned, *(autotune(each, option) for each in ("best", "show", "trials"))]
    told += [autotune("studies"), autotune("studies", "--format", "json")]
    assert [ran.code for ran in told] == [0] * 6
    assert all(printable(ran.out + ran.err) for ran in told)
    assert [each["name"] for each in json.loads(told[-1].out)] == [name]
    (log,) = engines.logs
    assert log.parent.parent == Path("autotune-logs")
    assert len(log.parent.name) <= 80
    left = {path.name for path in tmp_path.iterdir()}
    left -= {"autotune.db", "autotune-logs", "small.jsonl"}
    assert [each for each in left if not each.endswith(".lock")] == []


def test_evidence_of_a_failure_cannot_drive_the_terminal(
    autotune: Autotune, engines: ScriptedEngines
) -> None:
    engines.refused = lambda args: (
        None if args["max_num_seqs"] == 64 else Failure("oom_start", "out of \x1b[31mmemory")
    )
    ran = autotune(
        "tune", "--model", "tiny", "--trace", "small.jsonl", "--warmup-s", "0", "--trials", "3",
        "--study-name", "s",
    )  # fmt: skip
    shown = [ran, *(autotune("show", str(number)) for number in range(3)), autotune("trials")]
    assert any("memory" in each.out for each in shown)
    assert all(printable(each.out + each.err) for each in shown)
