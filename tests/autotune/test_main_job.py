"""The main job on real engines: tune, export, stop, resume."""

from __future__ import annotations

import copy
import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from autotune.forecast.compiled import SWITCH

# A host with slow spells has several trials wait for a minute each.
pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

STARTED = ("confirm",)
"""Phases that always start an engine; the baseline runs on the one that was calibrated."""

ROOT = Path(__file__).resolve().parents[2]
TUNE = (
    "tune", "--model", "demo:tiny-llama", "--trace", "demo:mixed", "--window", "0:5",
    "--warmup-s", "1", "--budget", "ttft_p95:9000 tpot_p95:900", "--study-name", "job",
    "--engine-arg", "load_format=dummy", "--engine-arg", "kv_cache_memory_bytes=67108864",
    "--engine-arg", "enforce_eager=true", "--engine-arg", "max_model_len=8192",
    "--engine-arg", "max_num_batched_tokens=8192",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Folder:
    """Where the command runs, with its database and logs."""

    path: Path

    def command(
        self, arguments: Sequence[str], stderr: int = subprocess.PIPE
    ) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "autotune", *arguments],
            cwd=self.path,
            # As users have it: the simulation is compiled here, unlike in the other tests.
            env={**os.environ, SWITCH: "1", "TERM": "xterm", "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        with self.command(arguments) as process:
            out, err = process.communicate()
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def trials(self) -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] = json.loads(self.run("trials", "--format", "json").stdout)
        return listed

    @property
    def processes(self) -> list[str]:
        """The command lines of all processes that work in the folder or name it."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                text = (entry / "cmdline").read_text().replace("\0", " ")
                cwd = (entry / "cwd").readlink()
            except OSError:
                continue
            if cwd == self.path or str(self.path) in text:
                found.append(text)
        return found


def read_until(terminal: io.RawIOBase, text: str) -> str:
    """Return what the terminal showed up to ``text``, or to its end without it."""
    shown = b""
    while text.encode() not in shown:
        try:
            shown += terminal.read(4096) or b""
        except OSError:  # The other side of a terminal is gone.
            break
    return shown.decode(errors="replace")


def facts(trials: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return trials without what depends on later ones."""
    kept = copy.deepcopy(trials)
    for each in kept:
        (each["metrics"] or {}).pop("utilization", None)
    return kept


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    return Folder(tmp_path_factory.mktemp("job").resolve())


@pytest.fixture(scope="module")
def first(folder: Folder) -> subprocess.CompletedProcess[str]:
    """The shortest study that searches live: its largest limits are those of the baseline."""
    return folder.run(*TUNE, "--trials", "6")


def test_the_job_ends_with_a_verdict(
    folder: Folder, first: subprocess.CompletedProcess[str]
) -> None:
    assert first.returncode == 0, first.stderr
    headline = r"^(The knee is at|Keep what you have|Not converged)"
    assert re.search(headline, first.stdout, re.MULTILINE)
    assert "calibrating: starting the engine of the largest limits" in first.stderr
    assert re.search(r"trial \d+ \(\d of 6(, again)?\) confirm", first.stderr)
    assert "Traceback" not in first.stderr
    assert folder.processes == []


def test_its_trials_are_measured(folder: Folder, first: subprocess.CompletedProcess[str]) -> None:
    # What a slow spell of the machine has hit was measured again.
    trials = [each for each in folder.trials() if each["state"] != "invalid"]
    assert [each["state"] for each in trials] == ["complete"] * 6
    fidelities = [(each["phase"], each["fidelity"]) for each in trials]
    assert fidelities[:2] == [("baseline", "restart"), ("sentinel", "live")]
    assert fidelities[-2:] == [("confirm", "restart")] * 2
    assert {fidelity for _, fidelity in fidelities[2:-2]} == {"live"}
    for each in trials:
        metrics = each["metrics"]
        assert 0 < metrics["ttft_p50"] <= metrics["ttft_p95"]
        assert 0 < metrics["tpot_p50"] <= metrics["tpot_p95"]
        assert metrics["tokens_per_busy_s"] > 0
        assert (each["timings"]["start_s"] is None) is (each["phase"] not in STARTED)
        assert each["diagnosis"]["code"]
        assert each["candidate"]["max_num_seqs"] % 8 == 0


def test_the_winner_is_exported(folder: Folder, first: subprocess.CompletedProcess[str]) -> None:
    best = folder.run("best", "--format", "json")
    assert best.returncode == first.returncode
    exported = json.loads(best.stdout)
    restarted = [t["candidate"] for t in folder.trials() if t["fidelity"] == "restart"]
    assert exported["candidate"] in restarted
    assert exported["engine_args"]["max_model_len"] == 8192


def test_the_same_command_again_runs_nothing(
    folder: Folder, first: subprocess.CompletedProcess[str]
) -> None:
    before = folder.trials()
    again = folder.run(*TUNE, "--trials", "6")
    assert again.returncode == first.returncode
    assert again.stdout == first.stdout
    assert "starting an engine" not in again.stderr
    assert folder.trials() == before


@pytest.mark.parametrize(
    ("changed", "difference"),
    [
        (["--seed", "1"], "seed: 0 before, 1 now"),
        (["--engine-arg", "block_size=32"], "engine_args.block_size: None before, 32 now"),
    ],
)
def test_another_job_under_the_same_name_is_refused(
    folder: Folder,
    first: subprocess.CompletedProcess[str],
    changed: list[str],
    difference: str,
) -> None:
    before = folder.trials()
    refused = folder.run(*TUNE, "--trials", "6", *changed)
    assert refused.returncode == 2
    assert difference in refused.stderr
    assert "hint: " in refused.stderr
    assert folder.trials() == before


def test_a_termination_in_a_replay_leaves_nothing_behind_and_is_made_up_for(
    folder: Folder, first: subprocess.CompletedProcess[str]
) -> None:
    before = folder.trials()
    master, slave = os.openpty()
    with (
        os.fdopen(master, "rb", buffering=0) as terminal,
        folder.command([*TUNE, "--trials", "7"], stderr=slave) as process,
    ):
        os.close(slave)
        shown = read_until(terminal, "· replay")
        process.send_signal(signal.SIGTERM)
        shown += read_until(terminal, "goes on from here.")
        out, _ = process.communicate()
    assert process.returncode == 143, shown
    assert out == ""
    assert "(7 of 7)" in shown
    assert "SIGTERM: stopped" in shown
    assert folder.processes == []
    stopped = folder.trials()
    known = len(before)
    assert facts(stopped[:known]) == facts(before)
    assert [each["state"] for each in stopped[known:]] == ["interrupted"]

    resumed = folder.run(*TUNE, "--trials", "7")
    assert resumed.returncode == 0, resumed.stderr
    trials = folder.trials()
    assert facts(trials[: known + 1]) == facts(stopped)
    assert trials[-1]["state"] == "complete"
    assert {json.dumps(each["candidate"]) for each in trials[known:]} == {
        json.dumps(trials[-1]["candidate"])
    }
    assert folder.processes == []
