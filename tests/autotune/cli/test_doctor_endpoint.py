"""``autotune doctor --endpoint``: what each step finds, and where it stops."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.autotune.cli.conftest import Autotune
from tests.autotune.cli.endpoints import local, make_folder
from tests.autotune.engine.certificate import with_certificate
from tests.autotune.engine.endpoint_cases import (
    KEYED,
    OTHERS,
    PAGE,
    answers,
    early,
    no_address,
    other_scheme,
    unused_port,
)
from tests.autotune.engine.faulty_server import (
    KEY,
    FaultyServer,
    Script,
    Whole,
    running,
)

pytestmark = pytest.mark.wire

DOCTOR = ("doctor", "--endpoint", "local")
ALL = ["settings", "name", "connection", "tls", "models", "model", "token", "usage", "token_ids"]
HTML = "text/html"


@pytest.fixture(autouse=True)
def _in_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PLANTED_KEY", KEY)


@contextmanager
def set_up(folder: Path, script: Script, **settings: Any) -> Iterator[FaultyServer]:
    with running(script) as server:
        make_folder(folder, local=local(server, **settings))
        yield server


def states(out: str) -> dict[str, str]:
    return {each["name"]: each["state"] for each in json.loads(out)["checks"]}


def test_a_server_that_does_as_it_should(autotune: Autotune, tmp_path: Path) -> None:
    with set_up(tmp_path, Script(key=KEY), **KEYED):
        ran = autotune(*DOCTOR)
        as_json = autotune(*DOCTOR, "--format", "json")
    assert (ran.code, ran.err) == (0, "")
    assert [line.split()[0] for line in ran.out.splitlines()] == [
        "ok", "ok", "ok", "skipped", "ok", "ok", "ok", "ok", "ok",
    ]  # fmt: skip
    assert "m is served, for requests of up to 8,192 tokens" in ran.out
    assert list(states(as_json.out)) == ALL
    assert KEY not in ran.out + as_json.out


def test_connections_are_used_again(autotune: Autotune, tmp_path: Path) -> None:
    with set_up(tmp_path, Script(models={"m": {}})) as server:
        make_folder(tmp_path, local=local(server))
        # The list, two prompts that are counted, and one request after the other.
        trace = tmp_path / "t.jsonl"
        trace.write_text(trace.read_text("utf-8").splitlines()[0] + "\n", "utf-8")
        assert autotune("replay", "--endpoint", "local", "--trace", "t.jsonl").code == 0
        assert len(server.asked) == 5
        assert server.connections == 1


def test_another_server_is_asked_by_text(autotune: Autotune, tmp_path: Path) -> None:
    with set_up(tmp_path, Script(models={"m": {}})) as server:
        ran = autotune(*DOCTOR, "--format", "json")
        assert [body["max_tokens"] for body in server.bodies()] == [1]
    assert ran.code == 0
    assert states(ran.out)[ALL[-1]] == "skipped"


@pytest.mark.parametrize(
    ("script", "settings", "expected"),
    [
        (Script(), {"api_key_env": "NO_SUCH_KEY"}, ("settings", 2, "is not set")),
        (Script(key="another"), KEYED, ("models", 2, "HTTP 401")),
        (
            Script(whole={"": Whole(200, PAGE, HTML)}),
            KEYED,
            ("models", 4, "'Sign in to continue'"),
        ),
        (Script(models=OTHERS), {}, ("token", 2, "the server has no model 'm'")),
        (answers(500, "boom"), {}, ("token", 4, "HTTP 500")),
    ],
)
def test_it_stops_where_the_rest_would_mean_nothing(
    autotune: Autotune,
    tmp_path: Path,
    script: Script,
    settings: Mapping[str, Any],
    expected: tuple[str, int, str],
) -> None:
    last, code, error = expected
    with set_up(tmp_path, script, **settings):
        ran = autotune(*DOCTOR, "--format", "json")
    assert ran.code == code
    assert list(states(ran.out)) == ALL[: ALL.index(last) + 1]
    assert states(ran.out)[last] == "failed"
    assert error in ran.err.splitlines()[0]
    assert ran.err.splitlines()[1].startswith("hint: ")
    assert KEY not in ran.out + ran.err


def test_a_model_that_is_not_listed_may_be_served_all_the_same(
    autotune: Autotune, tmp_path: Path
) -> None:
    listed = Whole(200, json.dumps({"data": [{"id": "other", "owned_by": "vllm"}]}))
    with set_up(tmp_path, Script(whole={"/models": listed})):
        ran = autotune(*DOCTOR)
        beside_the_machine = autotune(*DOCTOR, "--json")
    assert states(beside_the_machine.out)["endpoint model"] == "warn"
    assert ran.code == 0
    assert "warn     model       m is not among the models that are listed" in ran.out
    assert "it serves other" in ran.out
    assert "ok       token" in ran.out


def test_a_gateway_without_a_list_needs_a_kind(autotune: Autotune, tmp_path: Path) -> None:
    with set_up(tmp_path, Script(whole={"/models": Whole(404, "{}")}), kind="openai"):
        ran = autotune(*DOCTOR, "--format", "json")
    assert ran.code == 0
    assert (states(ran.out)["models"], states(ran.out)["token"]) == ("skipped", "ok")


def test_missing_usage_and_ids_are_told(autotune: Autotune, tmp_path: Path) -> None:
    def bare(body: Mapping[str, Any], chat: bool) -> Iterator[bytes]:
        yield from early({**body, "prompt": [1]}, chat)

    plain = Script(stream=lambda body, chat: (p for p in bare(body, chat) if b"usage" not in p))
    with set_up(tmp_path, plain):
        ran = autotune(*DOCTOR, "--format", "json")
    assert ran.code == 0
    assert states(ran.out)["usage"] == "warn"


def test_names_ports_and_tls(
    autotune: Autotune, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(Script()) as server:
        make_folder(tmp_path, local=local(server, **unused_port(server)))
        ran = autotune(*DOCTOR)
        assert (ran.code, ran.out.splitlines()[-1].split()[:2]) == (4, ["failed", "connection"])
        make_folder(tmp_path, local=local(server, **other_scheme(server)))
        ran = autotune(*DOCTOR)
        assert (ran.code, ran.out.splitlines()[-1].split()[:2]) == (4, ["failed", "tls"])
        assert "does not speak TLS" in ran.err
        monkeypatch.setattr(socket, "getaddrinfo", no_address)
        ran = autotune(*DOCTOR)
        assert (ran.code, ran.out.splitlines()[-1].split()[:2]) == (4, ["failed", "name"])


def test_a_server_that_hangs_up_is_asked_whether_it_speaks_tls(
    autotune: Autotune, tmp_path: Path
) -> None:
    with running(Script(), with_certificate()) as server:
        make_folder(tmp_path, local=local(server, **other_scheme(server)))
        ran = autotune(*DOCTOR)
        assert ran.code == 4
        assert "speaks TLS, and base_url begins with http://" in ran.err
        make_folder(tmp_path, local=local(server, base_url=f"https://localhost:{server.port}/v1"))
        ran = autotune(*DOCTOR)
    assert (ran.code, ran.out.splitlines()[-1].split()[:2]) == (4, ["failed", "tls"])
    assert "is not accepted: self-signed certificate" in ran.err


def test_behind_a_proxy_the_way_is_not_ours_to_try(
    autotune: Autotune, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(Script()) as server:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{server.port}")
        make_folder(tmp_path, local=local(server, base_url="http://api.example.com/v1"))
        ran = autotune(*DOCTOR, "--format", "json")
    assert {states(ran.out)[name] for name in ("name", "connection", "tls")} == {"skipped"}
    assert ran.code == 2


def test_a_model_or_an_endpoint(autotune: Autotune) -> None:
    ran = autotune("doctor", "m", "--endpoint", "local")
    assert ran.code == 2
    assert "give a model or an --endpoint" in ran.err


def test_a_misspelt_endpoint(autotune: Autotune, tmp_path: Path) -> None:
    make_folder(tmp_path, local={"base_url": "http://127.0.0.1/v1", "model": "m"})
    ran = autotune("doctor", "--endpoint", "locla")
    assert ran.code == 2
    assert ran.err == (
        "error: autotune.yaml names no endpoint 'locla'\nhint: did you mean 'local'?\n"
    )
