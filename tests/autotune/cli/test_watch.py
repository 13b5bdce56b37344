from __future__ import annotations

import io

import pytest

from autotune.cli.watch import ScreenWatcher
from storage.records import TrialRecord
from tests.autotune.study.records import limits, record

METRICS = {"ttft_p95": 120.04, "tpot_p95": 9.5, "itl_p99": None}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def use_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    return stream


def measured() -> TrialRecord:
    return record(
        0,
        limits(512),
        metrics=METRICS,
        timings={"start_s": 11.2, "stop_s": None},
        diagnosis={"code": "balanced", "reason": "", "next_knob": ""},
    )


def test_a_pipe_gets_a_line_at_each_end_of_a_trial(capsys: pytest.CaptureFixture[str]) -> None:
    with ScreenWatcher() as watcher:
        watcher.say("[asking] vLLM")
        watcher.begun(record(0, limits(512), phase="baseline"), 1, 8)
        watcher.progress({"stage": "replay", "done": 3, "total": 9})
        watcher.finished(measured())
    out, err = capsys.readouterr()
    assert out == ""
    label = "trial 0 (1 of 8) baseline 512/64"
    assert err.splitlines() == [
        "[asking] vLLM",
        f"{label}: starting an engine",
        f"{label}: ttft_p95 120.0 ms, tpot_p95 9.5 ms, itl_p99 - ms; balanced; 11 s",
    ]


def test_a_trial_without_a_result_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    failed = record(
        1, limits(512), state="failed", failure_class="hang", failure_evidence="no sign of life"
    )
    with ScreenWatcher() as watcher:
        watcher.begun(failed, 2, 8)
        watcher.finished(failed)
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == "trial 1 (2 of 8) search 512/64: failed, hang: no sign of life"


def test_a_terminal_gets_a_bar_that_counts_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = use_terminal(monkeypatch)
    with ScreenWatcher() as watcher:
        watcher.begun(record(0, limits(512)), 1, 8)
        watcher.progress({"stage": "replay", "done": 3, "total": 9})
        watcher.finished(measured())
    shown = terminal.getvalue()
    assert "trial 0 (1 of 8) search 512/64 · engine starts" in shown
    assert "0/?" in shown
    assert "starting an engine" not in shown
    assert "ttft_p95 120.0 ms" in shown


def test_progress_between_trials_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = use_terminal(monkeypatch)
    with ScreenWatcher() as watcher:
        watcher.progress({"stage": "replay", "done": 3, "total": 9})
    assert "replay" not in terminal.getvalue()


def test_a_terminal_that_is_closed_ends_no_study(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = use_terminal(monkeypatch)
    with ScreenWatcher() as watcher:
        watcher.begun(record(0, limits(512), phase="baseline"), 1, 8)
        stream.close()
        watcher.progress({"stage": "replay", "done": 3, "total": 9})
        watcher.finished(measured())
        watcher.say("on it goes")
