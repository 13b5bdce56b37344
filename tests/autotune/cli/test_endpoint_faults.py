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
from tests.autotune.engine.endpoint_cases import CASES, FaultCase
from tests.autotune.engine.faulty_server import KEY, running, with_certificate

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


def test_names_differ() -> None:
    names = [case.what for cases in CASES.values() for case in cases]
    assert len(set(names)) == len(names)


def test_the_page_has_no_other_rows() -> None:
    rows = re.findall(r"^\| (?!what|---)", PAGE.read_text("utf-8"), re.MULTILINE)
    assert len(rows) == len(ALL)
