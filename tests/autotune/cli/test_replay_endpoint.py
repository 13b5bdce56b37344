"""``autotune replay --endpoint`` against a server that does as it should."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.autotune.cli.conftest import Autotune
from tests.autotune.cli.endpoints import OUTPUT_TOKENS, REPLAY, REQUESTS, local, make_folder
from tests.autotune.engine.faulty_server import (
    DONE,
    KEY,
    Body,
    FaultyServer,
    Script,
    choice,
    chunk,
    running,
    usage_of,
)

pytestmark = pytest.mark.wire

OPENAI = {"m": {"owned_by": "somebody"}}


@pytest.fixture(autouse=True)
def _in_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def replayed(
    autotune: Autotune, folder: Path, server: FaultyServer, *more: str, **settings: Any
) -> dict[str, Any]:
    make_folder(folder, local=local(server, **settings))
    ran = autotune(*REPLAY, "--format", "json", *more)
    assert ran.code == 0, ran.err
    result: dict[str, Any] = json.loads(ran.out)
    return result


def test_a_vllm_server_is_asked_for_token_ids_and_forced_lengths(
    autotune: Autotune, tmp_path: Path
) -> None:
    with running(Script()) as server:
        result = replayed(autotune, tmp_path, server)
    assert (result["endpoint_type"], result["backend"]) == ("openai", "vllm")
    assert (result["usage"], result["lengths"]) == ("exact", "forced")
    assert (result["completed"], result["failed"]) == (REQUESTS, 0)
    assert result["output_lens"] == [OUTPUT_TOKENS] * REQUESTS
    assert result["input_lens"] == [36] * REQUESTS
    assert all(len(gaps) == OUTPUT_TOKENS - 1 for gaps in result["itls"])
    assert result["tokens_per_busy_s"] > 0
    bodies = server.bodies()
    assert len(bodies) == REQUESTS
    for body in bodies:
        assert (body["max_tokens"], body["min_tokens"]) == (OUTPUT_TOKENS, OUTPUT_TOKENS)
        assert body["ignore_eos"] is True
        assert body["return_token_ids"] is True
        assert "priority" not in body
    assert bodies[0]["prompt"][:32] == bodies[1]["prompt"][:32]
    assert bodies[0]["prompt"][32:] != bodies[1]["prompt"][32:]
    assert len({body["cache_salt"] for body in bodies}) == 1


def test_a_warm_up_has_another_salt(autotune: Autotune, tmp_path: Path) -> None:
    with running(Script()) as server:
        replayed(autotune, tmp_path, server, "--warmup-s", "0.005")
    salts = [body["cache_salt"] for body in server.bodies()]
    assert len(salts) == 2 * REQUESTS
    assert salts[0] == f"{salts[-1]}-warmup"


def test_another_server_is_chatted_with(autotune: Autotune, tmp_path: Path) -> None:
    with running(Script(models=OPENAI)) as server:
        result = replayed(autotune, tmp_path, server)
    assert (result["backend"], result["lengths"]) == ("openai", "not forced")
    short, long, *bodies = server.bodies()
    assert (short["max_tokens"], long["max_tokens"]) == (1, 1)
    texts = [body["messages"][0]["content"] for body in bodies]
    # Two tokens a word, and eight around: 36 tokens are 14 words, and the salt is one more.
    assert [len(text.split()) for text in texts] == [15] * REQUESTS
    assert result["input_lens"] == [38] * REQUESTS
    assert len({text.split()[0] for text in texts}) == 1
    assert all(set(body) & {"min_tokens", "ignore_eos", "cache_salt"} == set() for body in bodies)


def fewer(body: Body, chat: bool) -> Iterator[bytes]:
    yield chunk(choice(chat, "one"))
    yield chunk(choice(chat, "two") | {"finish_reason": "stop"})
    yield chunk(usage=usage_of(body, chat, 2))
    yield DONE


def test_an_answer_that_ends_early_is_one_where_lengths_are_not_forced(
    autotune: Autotune, tmp_path: Path
) -> None:
    with running(Script(models=OPENAI, stream=fewer)) as server:
        result = replayed(autotune, tmp_path, server)
    assert (result["failed"], result["output_lens"]) == (0, [2] * REQUESTS)


def in_pairs(body: Body, chat: bool) -> Iterator[bytes]:
    for _ in range(3):
        yield chunk(choice(chat, "two of them"))
    yield chunk(usage=usage_of(body, chat, OUTPUT_TOKENS))
    yield DONE


def test_without_ids_chunks_are_counted_and_usage_corrects(
    autotune: Autotune, tmp_path: Path
) -> None:
    with running(Script(stream=in_pairs)) as server:
        result = replayed(autotune, tmp_path, server)
    assert (result["usage"], result["failed"]) == ("estimated", 0)
    assert result["output_lens"] == [OUTPUT_TOKENS] * REQUESTS
    assert all(len(gaps) == 2 for gaps in result["itls"])


def test_priorities_are_passed_on(autotune: Autotune, tmp_path: Path) -> None:
    with running(Script()) as server:
        make_folder(tmp_path, local=local(server))
        trace = tmp_path / "t.jsonl"
        rows = [json.loads(line) | {"priority": 3} for line in trace.read_text().splitlines()]
        trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
        assert autotune(*REPLAY).code == 0
    assert {body["priority"] for body in server.bodies()} == {3}


@pytest.mark.parametrize("place", ["variable", "file"])
def test_a_key_opens_the_server_and_is_shown_nowhere(
    autotune: Autotune, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setenv("PLANTED_KEY", KEY)
    (tmp_path / "key").write_text(f"{KEY}\n")
    settings = (
        {"api_key_env": "PLANTED_KEY"}
        if place == "variable"
        else {"api_key_file": str(tmp_path / "key")}
    )
    with running(Script(key=KEY)) as server:
        make_folder(tmp_path, local=local(server, **settings))
        ran = autotune(*REPLAY, "--output", "result.json")
    assert ran.code == 0
    written = ran.out + ran.err + (tmp_path / "result.json").read_text()
    assert KEY not in written
    assert "secret-answer" not in written


@pytest.mark.parametrize("option", [("--model", "demo:tiny-llama"), ("--engine-arg", "a=1")])
def test_an_engine_and_an_endpoint_do_not_go_together(
    autotune: Autotune, option: tuple[str, str]
) -> None:
    ran = autotune(*REPLAY, *option)
    assert ran.code == 2
    assert f"error: {option[0]} is for an engine that is started here" in ran.err


def test_one_of_the_two_is_needed(autotune: Autotune) -> None:
    ran = autotune("replay", "--trace", "demo:mixed")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.splitlines()[0] == "error: neither --model nor --endpoint is given"


def test_a_request_longer_than_the_server_takes_is_refused(
    autotune: Autotune, tmp_path: Path
) -> None:
    models = {"m": {"owned_by": "vllm", "max_model_len": 40}}
    with running(Script(models=models)) as server:
        make_folder(tmp_path, local=local(server))
        ran = autotune(*REPLAY)
        assert ran.code == 2
        assert "41 tokens" in ran.err
        assert server.bodies() == []
