"""Whole studies that nobody sits before: what is left for those who look later."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autotune import lease
from autotune.cli import signals
from autotune.errors import LeaseHeld
from autotune.watching.progress import StudyProgress
from storage.records import TrialRecord
from tests.autotune.cli.conftest import Autotune
from tests.autotune.cli.forked import Ran
from tests.autotune.watching.servers import serving, status

pytestmark = [pytest.mark.study, pytest.mark.wire]

NAME = "sim-cpu-tiny-llama-mixed-0:1"
SECRETS = ("s3cretHook", "dbS3cret", "m0delS3cret", "hf_s3cret")

Tune = Callable[..., Ran]
Act = Callable[[TrialRecord], None]


@pytest.fixture
def tune(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autotune: Autotune) -> Tune:
    """Tune on a second of traffic, in a fresh folder, four trials unless told otherwise."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(lease, "LOCKS", tmp_path / "locks")
    monkeypatch.delenv("AUTOTUNE_NOTIFY_URL", raising=False)

    def command(*arguments: str) -> Ran:
        return autotune(
            "tune", "--engine", "sim:cpu-tiny-llama", "--trace", "demo:mixed", "--window", "0:1",
            "--budget", "ttft_p95:500 tpot_p95:60", "--classes", "", "--trials", "3", *arguments,
        )  # fmt: skip

    return command


@pytest.fixture
def at_second_trial(monkeypatch: pytest.MonkeyPatch) -> Callable[[Act], None]:
    """Have something happen as the second trial of a study begins."""

    def arrange(act: Act) -> None:
        real = StudyProgress.begun

        def begun(self: StudyProgress, row: TrialRecord, position: int, total: int) -> None:
            real(self, row, position, total)
            if row.number == 1:
                act(row)

        monkeypatch.setattr(StudyProgress, "begun", begun)

    return arrange


def status_of(folder: Path) -> dict[str, Any]:
    (path,) = (folder / "autotune-logs").glob("*/status.json")
    found: dict[str, Any] = json.loads(path.read_bytes())
    return found


def keeper(folder: Path) -> str:
    """Return a command that keeps every message as a line of ``sent``."""
    script = folder / "keep"
    script.write_text(f"#!/bin/sh\ncat >> {folder}/sent; echo >> {folder}/sent\n", "utf-8")
    script.chmod(0o700)
    return str(script)


def sent(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "sent").read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines]


def test_a_study_that_ends_well_leaves_all_of_it(tune: Tune, tmp_path: Path) -> None:
    with serving(status(200)) as asked:
        ran = tune(
            "--log-file", "night.jsonl", "--log-format", "json", "--notify", keeper(tmp_path),
            "--notify-url", f"http://127.0.0.1:{asked.port}/hook",
        )  # fmt: skip
    assert ran.code == 0
    found = status_of(tmp_path)
    assert (found["state"], found["exit_code"], found["reason"]) == ("finished", 0, None)
    assert (found["study"], found["simulated"]) == (NAME, "cpu-tiny-llama")
    assert found["trials"] == {"finished": 3, "total": 3}
    assert list(found["best"]["metrics"]) == ["ttft_p95", "tpot_p95"]
    assert [each["event"] for each in sent(tmp_path)] == ["first_feasible", "finished"]
    assert [json.loads(body) for body in asked.bodies] == sent(tmp_path)
    lines = [json.loads(each) for each in (tmp_path / "night.jsonl").read_bytes().splitlines()]
    said = [each["message"] for each in lines if each["event"] != "ended"]
    assert said == [each.rstrip() for each in ran.err.splitlines() if each.strip()]
    assert {each["trial"] for each in lines if each["event"] == "begun"} == {0, 1, 2}
    assert lines[-1]["message"] == "finished, exit code 0"


def test_a_signal_in_the_middle_is_told_once(
    tune: Tune, tmp_path: Path, at_second_trial: Callable[[Act], None]
) -> None:
    at_second_trial(lambda _: signal.raise_signal(signal.SIGTERM))
    ran = tune("--notify", keeper(tmp_path), "--log-file", "night.log")
    assert ran.code == 143
    found = status_of(tmp_path)
    assert (found["state"], found["exit_code"], found["reason"]) == (
        "interrupted", 143, "SIGTERM",
    )  # fmt: skip
    assert found["trial"]["number"] == 1
    last = sent(tmp_path)[-1]
    assert [each["event"] for each in sent(tmp_path)].count("aborted") == 1
    assert (last["event"], last["exit_code"], last["reason"]) == ("aborted", 143, "SIGTERM")
    assert last["status"]["state"] == "interrupted"
    log = (tmp_path / "night.log").read_text("utf-8")
    assert log.endswith("ERROR   interrupted, exit code 143: SIGTERM\n")
    assert signals._listeners == []


def test_a_service_manager_hears_of_every_turn(
    tune: Tune,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    at_second_trial: Callable[[Act], None],
) -> None:
    at_second_trial(lambda _: signal.raise_signal(signal.SIGHUP))
    lines: list[str] = []
    turns = ("READY=1", "STATUS=trial 0 ", "STOPPING=1", "STATUS=interrupted with exit code 129")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))

        def listen() -> None:
            while not any(line.startswith(turns[-1]) for line in lines):
                lines.extend(manager.recv(4096).decode().splitlines())

        listening = threading.Thread(target=listen)
        listening.start()
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "1")
        assert tune().code == 129
        listening.join()
    found = [next(i for i, line in enumerate(lines) if line.startswith(turn)) for turn in turns]
    assert found == sorted(found)
    assert "WATCHDOG=1" in lines[found[0] : found[2]]


def test_a_fault_is_told_with_its_reason(
    tune: Tune, tmp_path: Path, at_second_trial: Callable[[Act], None]
) -> None:
    def fail(_row: TrialRecord) -> None:
        raise SystemExit(9)

    at_second_trial(fail)
    assert tune("--notify", keeper(tmp_path)).code == 9
    found = status_of(tmp_path)
    assert (found["state"], found["reason"]) == ("failed", "SystemExit: 9")
    assert sent(tmp_path)[-1]["event"] == "aborted"


def test_the_status_of_another_run_is_left_alone(
    tune: Tune, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tune("--status-file", "status.json").code == 0
    before = (tmp_path / "status.json").read_bytes()

    def held(*_: object, **__: object) -> None:
        raise LeaseHeld("somebody has it", hint="wait")

    monkeypatch.setattr("autotune.tuning.lease", held)
    assert tune("--status-file", "status.json", "--notify", keeper(tmp_path)).code == 75
    assert (tmp_path / "status.json").read_bytes() == before
    (last,) = sent(tmp_path)
    assert (last["exit_code"], last["reason"]) == (75, "somebody has it")


def test_places_that_vanish_or_take_nothing_cost_a_line_each(
    tune: Tune, tmp_path: Path, at_second_trial: Callable[[Act], None]
) -> None:
    folder = tmp_path / "mine"

    def vanish(_row: TrialRecord) -> None:
        shutil.rmtree(folder)
        folder.write_text("no folder", "utf-8")

    at_second_trial(vanish)
    ran = tune(
        "--status-file", f"{folder}/status.json", "--log-file", "/dev/full",
        "--notify", "/nowhere/to/be --found", "--notify-url", "http://127.0.0.1:9/s3cretHook",
    )  # fmt: skip
    assert ran.code == 0
    lines = ran.err.splitlines()
    for words, count in (
        ("its status file cannot be written: ", 1),
        ("its log file cannot be written: No space left on device; the study goes on", 1),
        ("a message was not sent: /nowhere/to/be cannot be run: No such file or directory", 2),
        ("a message was not sent: http://127.0.0.1:9/***: Connection refused", 2),
    ):
        assert sum(line.startswith(words) for line in lines) == count, words
    assert folder.read_text("utf-8") == "no folder"


@pytest.mark.parametrize(
    ("storage", "code"),
    [("postgresql://me:dbS3cret@127.0.0.1:9/night", 4), ("sqlite:///night.db", 0)],
)
def test_no_secret_appears_anywhere(
    tune: Tune, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, storage: str, code: int
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_s3cret")
    monkeypatch.setenv(
        "AUTOTUNE_NOTIFY_URL", "http://127.0.0.1:9/services/s3cretHook?k=s3cretHook"
    )
    ran = tune(
        "--model", "s3://key:m0delS3cret@bucket/llama", "--log-file", "night.log",
        "--storage", storage, "--notify", keeper(tmp_path), "--status-file", "status.json",
    )  # fmt: skip
    assert ran.code == code
    assert "http://127.0.0.1:9/***: Connection refused" in ran.err
    assert sent(tmp_path)[-1]["exit_code"] == code
    names = ["night.log", "sent", *(["status.json"] if code == 0 else [])]
    texts = [ran.err, *((tmp_path / name).read_text("utf-8") for name in names)]
    assert [secret for secret in SECRETS for text in texts if secret in text] == []


def test_a_bad_url_in_the_environment_is_refused_without_being_shown(
    tune: Tune, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOTUNE_NOTIFY_URL", "ftp://s3cretHook")
    ran = tune()
    assert ran.code == 2
    assert ran.err.splitlines() == [
        "error: AUTOTUNE_NOTIFY_URL is no http or https URL",
        "hint: correct it, or unset it",
    ]
    assert list(tmp_path.iterdir()) == []
