from __future__ import annotations

import io
import signal
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest

from autotune.cli.signals import Interrupted, raised_signals
from autotune.cli.watch import Heartbeat, ScreenWatcher
from autotune.study.held import HeldPart, HeldReplay, HeldResult
from autotune.watching.log_file import Level, LogEvent
from storage.records import TrialRecord
from tests.autotune.study.records import limits, record, study_record, with_best

METRICS = {"ttft_p95": 120.04, "tpot_p95": 9.5, "itl_p99": None, "tokens_per_busy_s": 900.0}
TIMINGS = {"start_s": 20.0, "warmup_s": 10.0, "replay_s": 60.0, "stop_s": None}
REPLAY = {"stage": "replay", "done": 3, "total": 9}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@dataclass(slots=True)
class Clock:
    """Stands still until it is moved."""

    now_s: float = 100.0

    def __call__(self) -> float:
        return self.now_s


def use_terminal(monkeypatch: pytest.MonkeyPatch, *, columns: int = 120) -> Terminal:
    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(columns))
    return stream


def measured(number: int = 0, timings: Mapping[str, float | None] = TIMINGS) -> TrialRecord:
    return record(
        number,
        limits(512),
        phase="baseline",
        metrics=METRICS,
        timings=timings,
        diagnosis={"code": "balanced", "reason": "", "next_knob": ""},
    )


def lines_of(capsys: pytest.CaptureFixture[str]) -> list[str]:
    out, err = capsys.readouterr()
    assert out == ""
    return err.splitlines()


def test_a_pipe_gets_a_line_at_each_end_of_a_trial(capsys: pytest.CaptureFixture[str]) -> None:
    with ScreenWatcher(clock=Clock()) as watcher:
        watcher.say("[asking] vLLM")
        watcher.opened(study_record(), [])
        watcher.begun(record(0, limits(512), phase="baseline"), 1, 8)
        watcher.progress(REPLAY)
        watcher.finished(measured())
        watcher.begun(record(1, limits(256)), 2, 8)
    said, *table, first, row, second = lines_of(capsys)
    assert said == "[asking] vLLM"
    assert table[0].split()[:3] == ["trial", "phase", "tokens/seqs"]
    assert table[1].split() == ["ms", "ms", "ms", "tok/s"]
    assert first == (
        "trial 0 (1 of 8) baseline 512/64: starting an engine; about 12 min and engine starts left"
    )
    assert row == (
        "    0   baseline       512/64     120.0       9.5         -      900  met     balanced"
    )
    assert second == "trial 1 (2 of 8) search 256/64: starting an engine; about 10 min left"


def test_a_resumed_study_shows_its_earlier_trials_first(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with ScreenWatcher() as watcher:
        killed = replace(record(2), state="running")
        watcher.opened(study_record(), [measured(0), measured(1), killed])
        watcher.begun(record(3), 3, 3)
    goes_on, *_, rule = (lines := lines_of(capsys))[:4]
    assert goes_on == "goes on: 2 of 3 trials done"
    assert rule.startswith("──")
    shown = lines[4:]
    assert [line.split()[0] for line in shown] == ["0", "1", "2", "trial"]
    assert shown[2].endswith("interrupted")
    assert shown[-1].endswith("about 90 s left")


@pytest.mark.parametrize(("done", "left"), [(0, "about 8 min"), (3, "about 3 min")])
def test_what_is_held_out_takes_its_time_too(
    capsys: pytest.CaptureFixture[str], done: int, left: str
) -> None:
    """Up to four replays of it, each with an engine of its own."""
    study, earlier = study_record(), measured(0)
    replays = (HeldReplay({}, {}, 0),) * done
    replay_s = (earlier.timings or {})["replay_s"] or 0.0
    part = HeldPart("20%", "abc", 16, replay_s, "", done, (HeldResult(limits(512), replays),))
    study = replace(study, spec={**study.spec, "holdout": part.to_json()})
    with ScreenWatcher() as watcher:
        watcher.opened(study, [earlier, measured(1)])
        watcher.begun(record(2), 3, 3)
    assert lines_of(capsys)[-1].endswith(f"{left} left")


def test_a_trial_that_is_tried_again_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    again = replace(record(3, limits(512)), replicate_of=2)
    confirmed = replace(again, number=4, phase="confirm")
    with ScreenWatcher() as watcher:
        watcher.opened(study_record(), [])
        watcher.begun(again, 2, 8)
        watcher.begun(confirmed, 3, 8)
    first, second = lines_of(capsys)[-2:]
    assert first.startswith("trial 3 (2 of 8, again) search 512/64: ")
    assert second.startswith("trial 4 (3 of 8) confirm 512/64: ")


def test_a_terminal_says_that_the_study_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = use_terminal(monkeypatch)
    with pytest.raises(Interrupted), raised_signals(), ScreenWatcher() as watcher:
        watcher.opened(study_record(), [])
        watcher.begun(record(0, limits(512)), 1, 8)
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            watcher._live.refresh()
    assert "SIGINT: stopping; once more to end at once." in terminal.getvalue()


def test_a_finished_study_needs_no_table_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    with ScreenWatcher() as watcher:
        watcher.opened(study_record(), [measured(0), measured(1)])
    assert lines_of(capsys) == []


def test_a_trial_without_a_result_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    failed = record(
        1, limits(512), state="failed", failure_class="hang", failure_evidence="no sign of life"
    )
    with ScreenWatcher() as watcher:
        watcher.opened(study_record(), [])
        watcher.begun(failed, 2, 8)
        watcher.finished(failed)
    row, evidence = lines_of(capsys)[-2:]
    assert row.endswith("failed: hang")
    assert evidence.strip() == "no sign of life"


def test_a_heartbeat_says_what_runs_and_how_long_it_takes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = Clock()
    with ScreenWatcher(clock=clock) as watcher:
        watcher.beat()
        watcher.opened(study_record(), [measured()])
        watcher.begun(record(1, limits(256)), 2, 8)
        clock.now_s += 15
        watcher.beat()
        watcher.progress({**REPLAY, "stage": "warmup"})
        watcher.progress(REPLAY)
        clock.now_s += 20
        watcher.progress({**REPLAY, "done": 4})
        watcher.beat()
        watcher.progress({**REPLAY, "stage": "stop", "done": 9})
        watcher.beat()
        watcher.finished(record(1, state="failed"))
        watcher.beat()
    beats = [line for line in lines_of(capsys) if " for " in line or "stops" in line]
    label = "trial 1 (2 of 8) search 256/64"
    assert beats == [
        f"{label}: engine starts for 15 s; about 10 min left",
        f"{label}: replay for 20 s; 4 of 9 requests; about 10 min left",
        f"{label}: engine stops; about 9 min left",
    ]


def test_a_heartbeat_between_measurements_says_that_it_goes_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with ScreenWatcher(clock=Clock()) as watcher:
        watcher.beat()
    assert lines_of(capsys) == ["still at work, between measurements"]


def test_no_study_takes_longer_than_its_deadline(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with ScreenWatcher(clock=clock) as watcher:
        watcher.due(120.0)
        watcher.opened(study_record(), [measured()])
        watcher.begun(record(1, limits(256)), 2, 8)
        clock.now_s += 50.0
        watcher.beat()
        watcher.begun(record(2, limits(256)), 8, 8)
        clock.now_s += 80.0
        watcher.beat()
    lines = [line.rpartition("; ")[2] for line in lines_of(capsys) if line.startswith("trial ")]
    assert lines[1:] == [
        "2 min left until the deadline", "70 s left until the deadline",
        "70 s left until the deadline", "0 s left until the deadline",
    ]  # fmt: skip


class Recorded:
    """Keeps what is recorded beside the screen."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, int | None]] = []
        self.texts: list[str] = []

    def __call__(self, text: str, *, level: Level, event: LogEvent, trial: int | None) -> None:
        self.lines.append((level, event, trial))
        self.texts.append(text)


@pytest.mark.parametrize("terminal", [False, True])
def test_what_a_display_stands_for_is_recorded_too(
    monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    if terminal:
        use_terminal(monkeypatch)
    recorded = Recorded()
    failed = record(0, limits(512), state="failed", failure_class="hang", failure_evidence="-")
    with ScreenWatcher(record=recorded) as watcher:
        watcher.say("asking")
        watcher.opened(study_record(), [])
        watcher.begun(record(0, limits(512), phase="baseline"), 1, 8)
        watcher.finished(failed)
        watcher.say("goes on")
    first, *heading, begun, row, evidence, last = recorded.lines
    assert first == last == ("info", "line", None)
    assert {event for _, event, _ in heading} == {"line"}
    assert recorded.texts[-1] == "goes on"
    assert begun == ("info", "begun", 0)
    assert row == evidence == ("warning", "finished", 0)


def test_nothing_secret_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    recorded = Recorded()
    with ScreenWatcher(record=recorded, mask=lambda text: text.replace("s3cret", "***")) as shown:
        shown.say("s3cret")
    assert lines_of(capsys) == recorded.texts == ["***"]


def test_what_comes_before_a_start_is_no_part_of_the_time_left(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = Clock()
    with ScreenWatcher(clock=clock) as watcher:
        watcher.opened(study_record(), [measured()])
        watcher.begun(record(1, limits(256)), 2, 8)
        watcher.progress({"stage": "wait", "done": 0, "total": 0})
        clock.now_s += 15
        watcher.beat()
    waiting = lines_of(capsys)[-1]
    assert ": waits for 15 s, until a slow spell is over; about " in waiting
    assert waiting.endswith(" left")


def test_each_pass_of_a_warm_up_is_counted_by_itself(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    warming = {"stage": "warmup", "total": 55}
    with ScreenWatcher(clock=clock) as watcher:
        for done in (10, 55, 20):
            watcher.progress({**warming, "done": done})
            clock.now_s += 16
            watcher.beat()
        watcher.progress({**REPLAY, "done": 0})
        watcher.beat()
    assert lines_of(capsys) == [
        "warm-up for 16 s; 10 of 55 requests",
        "warm-up for 32 s; 55 of 55 requests",
        "warm-up for 48 s; 20 of 55 requests of pass 2",
        "replay; 0 of 9 requests",
    ]


def test_replays_that_are_no_trials_have_a_label_of_their_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = Clock()
    with ScreenWatcher(clock=clock) as watcher:
        for label in ("one", "other"):
            watcher.progress({**REPLAY, "label": label, "stage": "start"})
            clock.now_s += 15
            watcher.beat()
            watcher.progress({**REPLAY, "label": label})
            watcher.beat()
    replay = "replay; 3 of 9 requests"
    starts = "engine starts for 15 s"
    assert lines_of(capsys) == [
        f"{label}: {now}" for label in ("one", "other") for now in (starts, replay)
    ]


def test_what_a_calibration_found_is_said_when_its_study_opens(
    capsys: pytest.CaptureFixture[str],
) -> None:
    calibrated = study_record(calibration=with_best(6e14))
    with ScreenWatcher() as watcher:
        watcher.opened(calibrated, [])
        (said,) = lines_of(capsys)
        watcher.opened(calibrated, [measured()])
        watcher.opened(study_record(), [])
    assert said.startswith("Calibration: 3 step sizes up to 513 tokens; CUDA graphs up to 512")
    assert said.endswith("the ladders are the plain ones. autotune show says it again.")
    assert lines_of(capsys) == []


def test_a_terminal_gets_the_trial_and_the_whole_study(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = use_terminal(monkeypatch)
    with ScreenWatcher() as watcher:
        watcher.opened(study_record(), [])
        watcher.begun(record(0, limits(512)), 1, 8)
        watcher._live.refresh()
        watcher.progress(REPLAY)
        watcher._live.refresh()
        watcher.finished(measured())
    shown = terminal.getvalue()
    assert "trial 0 (1 of 8) search 512/64 · about 12 min and engine starts left" in shown
    assert "· engine starts" in shown
    assert "· replay" in shown
    assert "3 of 9 requests" in shown
    assert "━" in shown
    assert "starting an engine" not in shown
    assert "120.0" in shown


def test_a_narrow_terminal_has_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = use_terminal(monkeypatch, columns=40)
    with ScreenWatcher() as watcher:
        watcher.opened(study_record(), [])
        watcher.begun(record(0, limits(512)), 1, 8)
        watcher.progress(REPLAY)
        watcher._live.refresh()
    shown = terminal.getvalue()
    assert "3 of 9 requests" in shown
    assert "━" not in shown


def test_a_replay_without_a_study_is_followed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = use_terminal(monkeypatch)
    with ScreenWatcher() as watcher:
        watcher.progress(REPLAY)
        watcher._live.refresh()
    assert "3 of 9 requests" in terminal.getvalue()
    assert "left" not in terminal.getvalue()


def test_trials_come_after_their_study() -> None:
    with ScreenWatcher() as watcher, pytest.raises(RuntimeError, match="opened before"):
        watcher.begun(record(0), 1, 8)


def test_a_terminal_that_is_closed_ends_no_study(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = use_terminal(monkeypatch)
    with ScreenWatcher() as watcher:
        watcher.opened(study_record(), [])
        watcher.begun(record(0, limits(512), phase="baseline"), 1, 8)
        stream.close()
        watcher.progress(REPLAY)
        watcher.finished(measured())
        watcher.say("on it goes")


def test_a_heart_beats_until_it_is_stopped() -> None:
    beats: list[str] = []
    enough = threading.Event()

    def beat() -> None:
        beats.append(threading.current_thread().name)
        if len(beats) == 2:
            enough.set()

    heart = Heartbeat(0.001, beat)
    heart.start()
    assert enough.wait(30)
    heart.stop()
    counted = len(beats)
    assert set(beats) == {"heartbeat"}
    heart.stop()
    assert len(beats) == counted


def test_a_heart_beats_after_silence_alone() -> None:
    beats: list[float] = []
    clock = Clock(0.0)
    heart = Heartbeat(60.0, lambda: beats.append(clock.now_s), clock=clock)
    assert heart.tick() == 60.0
    clock.now_s = 58.0
    heart.postpone()
    clock.now_s = 60.0
    assert heart.tick() == 58.0
    clock.now_s = 118.0
    assert heart.tick() == 60.0
    assert beats == [118.0]


def test_a_heart_that_never_beat_can_be_stopped() -> None:
    heart = Heartbeat(60.0, lambda: None)
    heart.stop()
    assert "heartbeat" not in {thread.name for thread in threading.enumerate()}
