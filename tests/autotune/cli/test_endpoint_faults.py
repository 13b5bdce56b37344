"""What an endpoint does wrong is told in words, ends as documented, and counts as no success."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path

import pytest

from tests.autotune.cli.conftest import Autotune
from tests.autotune.cli.endpoints import (
    REPLAY,
    REQUESTS,
    fault_row,
    local,
    make_folder,
    neutral,
)
from tests.autotune.engine.certificate import with_certificate
from tests.autotune.engine.endpoint_cases import CASES, KEYED, FaultCase, said
from tests.autotune.engine.faulty_server import KEY, Script, running

pytestmark = pytest.mark.wire

PAGE = Path(__file__).resolve().parents[3] / "docs" / "results" / "endpoint_faults.md"
ALL = [
    pytest.param(case, id=f"{group}: {case.what}")
    for group, cases in CASES.items()
    for case in cases
]


@pytest.mark.parametrize("case", ALL)
def test_fault(
    case: FaultCase, autotune: Autotune, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PLANTED_KEY", KEY)
    for name, value in case.environ.items():
        monkeypatch.setenv(name, value)
    if case.addresses is not None:
        monkeypatch.setattr(socket, "getaddrinfo", case.addresses)
    with running(case.script, with_certificate() if case.tls else None) as server:
        make_folder(tmp_path, local=local(server, **case.settings(server)))
        ran = autotune(*REPLAY, "--output", "result.json")
        asked = len(server.bodies())
    assert ran.code == case.code, ran.err
    written = tmp_path / "result.json"
    shown = ran.out + ran.err + (written.read_text("utf-8") if written.exists() else "")
    prompts = [json.dumps(body["prompt"])[1:40] for body in server.bodies() if "prompt" in body]
    assert [secret for secret in (KEY, "secret-answer", *prompts) if secret in shown] == []
    assert "Traceback" not in shown
    assert case.asked is None or asked <= case.asked
    # Each request is sent once, whatever comes of it; two more measure how text is counted.
    assert asked <= REQUESTS + 2
    assert fault_row(case, neutral(ran.err)) in PAGE.read_text("utf-8"), (
        "run scripts/make_endpoint_fault_table"
    )
    if case.code == 0:
        result = json.loads(written.read_text("utf-8"))
        assert (result["failed"], result["completed"]) == (case.failed, REQUESTS - case.failed)
        assert case.error in ran.err
        return
    assert (ran.out, written.exists()) == ("", False)
    error, hint = ran.err.splitlines()[-2:]
    assert error.startswith("error: ")
    assert case.error in error
    assert hint.startswith("hint: ")
    assert case.hint in hint


@pytest.mark.parametrize("status", [401, 403, 404])
def test_what_every_request_would_meet_ends_the_run_at_once(
    autotune: Autotune, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    monkeypatch.chdir(tmp_path)
    with running(Script(whole={"/completions": said(status, "no")})) as server:
        make_folder(tmp_path, local=local(server))
        trace = tmp_path / "t.jsonl"
        first, *others = map(json.loads, trace.read_text("utf-8").splitlines())
        rows = [first, *({**row, "timestamp": 3_600_000} for row in others)]
        trace.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
        # The others are due in an hour.
        assert autotune(*REPLAY).code == 2
        assert len(server.bodies()) == 1


@pytest.mark.parametrize("status", [400, 401])
def test_a_traceback_shows_no_secret_either(
    autotune: Autotune, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PLANTED_KEY", KEY)
    script = Script(whole={"/completions": said(status, f"Incorrect API key: {KEY}")})
    with running(script) as server:
        make_folder(tmp_path, local=local(server, **KEYED))
        ran = autotune("--debug", *REPLAY)
    assert "Traceback" in ran.err
    assert KEY not in ran.out + ran.err


def test_names_differ() -> None:
    names = [case.what for cases in CASES.values() for case in cases]
    assert len(set(names)) == len(names)


def test_the_page_has_no_other_rows() -> None:
    rows = re.findall(r"^\| (?!what|---)", PAGE.read_text("utf-8"), re.MULTILINE)
    assert len(rows) == len(ALL)
