from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autotune.endpoint_settings import NO_KEY, EndpointSettings, endpoint_named, parse_endpoints
from autotune.errors import UsageError
from autotune.settings import load_endpoints, load_settings

URL = "http://127.0.0.1:8000/v1"
GIVEN = {"base_url": URL, "model": "m"}
PLANTED = "sk-planted-0123456789"


def parsed(**changes: Any) -> EndpointSettings:
    return parse_endpoints({"local": {**GIVEN, **changes}}, where="a.yaml")["local"]


def refused(given: object) -> str:
    with pytest.raises(UsageError) as error:
        parse_endpoints(given, where="a.yaml")
    assert PLANTED not in error.value.message + error.value.hint
    return error.value.message


def test_what_is_left_out() -> None:
    endpoint = parsed()
    assert (endpoint.kind, endpoint.silence_timeout_s, endpoint.key_words) == (None, 120.0, "")
    assert endpoint.key({}) == NO_KEY
    assert parse_endpoints(None, where="a.yaml") == {}


def test_a_slash_at_the_end_is_none() -> None:
    assert parsed(base_url=f"{URL}/").base_url == URL


def test_dashes_are_underscores() -> None:
    assert parsed(**{"api-key-env": "KEY"}).api_key_env == "KEY"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([1], "a.yaml: endpoints: must be `NAME: settings` pairs"),
        ({"local": URL}, "a.yaml: endpoints: local: must be `name: value` pairs"),
        ({"local": {"model": "m"}}, "a.yaml: endpoints: local: base_url is missing"),
        ({"local": {**GIVEN, "modle": "m"}}, "a.yaml: endpoints: local: unknown setting 'modle'"),
        ({"default": GIVEN}, "a.yaml: endpoints: default cannot be the name of one"),
        ({"a.yaml": GIVEN}, "a.yaml: endpoints: a.yaml cannot be the name of one"),
    ],
)
def test_what_is_no_list_of_endpoints(given: object, message: str) -> None:
    assert refused(given) == message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"base_url": "127.0.0.1:8000/v1"}, "must be a URL such as"),
        ({"base_url": "ftp://127.0.0.1/v1"}, "must be a URL such as"),
        ({"base_url": "http://"}, "must be a URL such as"),
        ({"base_url": "http://127.0.0.1:99999/v1"}, "is no URL: its port or host cannot be read"),
        ({"base_url": "http://[::1/v1"}, "is no URL: its port or host cannot be read"),
        ({"base_url": f"http://me:{PLANTED}@box/v1"}, "must be without user and password"),
        ({"base_url": f"{URL}?key={PLANTED}"}, "must end with its path"),
        ({"api_key": PLANTED}, "a key does not belong into a file of settings"),
        ({"token": PLANTED}, "a key does not belong into a file of settings"),
        ({"api_key_env": "A", "api_key_file": "b"}, "has both api_key_env and api_key_file"),
        ({"model": ""}, "must have at least 1 character"),
        ({"kind": "azure"}, "kind: must be 'vllm' or 'openai'"),
        ({"silence_timeout_s": 0}, "silence_timeout_s: must be more than 0"),
        ({"silence_timeout_s": float("nan")}, "silence_timeout_s: must be a finite number"),
        ({"base_url": 7}, "base_url: must be a text"),
    ],
)
def test_settings_that_cannot_be_used(changes: dict[str, Any], message: str) -> None:
    assert message in refused({"local": {**GIVEN, **changes}})


def test_keys_come_from_the_environment_or_a_file(tmp_path: Path) -> None:
    assert parsed(api_key_env="KEY").key({"KEY": f" {PLANTED}\n"}) == PLANTED
    (tmp_path / "key").write_text(f"{PLANTED}\n")
    assert parsed(api_key_file=str(tmp_path / "key")).key({}) == PLANTED


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file or directory"),
        (b"", "is empty"),
        (b"\xff", "it is no UTF-8"),
        (f"{PLANTED} {PLANTED}".encode(), "holds no key"),
        (f"{PLANTED}é".encode(), "holds no key"),
    ],
)
def test_keys_that_cannot_be_read(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "key"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError) as error:
        parsed(api_key_file=str(path)).key({})
    assert message in error.value.message
    assert PLANTED not in error.value.message + error.value.hint


def test_they_stand_in_the_file_of_a_study(tmp_path: Path) -> None:
    path = tmp_path / "autotune.yaml"
    path.write_text(
        f"model: m\ntrace: t.jsonl\nendpoints:\n  local:\n    base_url: {URL}\n    model: m\n"
    )
    assert load_settings(path, {}).endpoints == load_endpoints(path) == {"local": parsed()}
    path.write_text("endpoints:\n  local:\n    base_url: http://\n    model: m\n")
    with pytest.raises(UsageError, match="endpoints: local: base_url"):
        load_settings(path, {})


def test_a_name_that_is_none() -> None:
    known = {"local": parsed(), "gateway": parsed()}
    assert endpoint_named(known, "local", where="a.yaml") == parsed()
    with pytest.raises(UsageError) as near:
        endpoint_named(known, "locale", where="a.yaml")
    assert near.value.hint == "did you mean 'local'?"
    with pytest.raises(UsageError) as far:
        endpoint_named(known, "zzz", where="a.yaml")
    assert far.value.hint == "it names local, gateway"
    with pytest.raises(UsageError) as none:
        endpoint_named({}, "local", where="a.yaml")
    assert none.value.hint.startswith("add endpoints:")
