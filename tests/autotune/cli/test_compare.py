"""``autotune compare``: endpoints on loopback, simulated engines, and both."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune import lease
from tests.autotune.cli.conftest import Autotune
from tests.autotune.cli.endpoints import REQUESTS, local, make_folder
from tests.autotune.engine.endpoint_cases import KEYED, answers, only_every_other
from tests.autotune.engine.faulty_server import KEY, FaultyServer, Script, running

pytestmark = pytest.mark.wire

TRACE = ("--trace", "t.jsonl", "--warmup-s", "0")
JSON = ("--format", "json")
SIMULATED = ("--engine", "sim:cpu-tiny-llama", "--trace", "demo:mixed", "--window", "0:2")
OTHER = {"m": {"owned_by": "somebody"}}


@pytest.fixture(autouse=True)
def _in_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PLANTED_KEY", KEY)
    monkeypatch.setattr(lease, "LOCKS", tmp_path)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FaultyServer]:
    """One server with two names."""
    with running(Script(key=KEY)) as server:
        make_folder(tmp_path, a=local(server, **KEYED), b=local(server, **KEYED))
        yield server


def test_sides_take_turns_on_the_same_prompts(autotune: Autotune, server: FaultyServer) -> None:
    ran = autotune("compare", "a", "b", *TRACE, *JSON)
    assert ran.code == 0
    found = json.loads(ran.out)
    assert found["order"] == ["a", "b", "b", "a"]
    assert [side["name"] for side in found["sides"]] == ["a", "b"]
    assert all(len(side["replays"]) == 2 for side in found["sides"])
    (against,) = found["differences"]
    assert (against["first"], against["second"]) == ("a", "b")
    for metric in ("ttft_p95", "tpot_p50", "itl_p99", "e2e_mean"):
        one = against["metrics"][metric]
        assert one["difference_ms"] == pytest.approx(one["second_ms"] - one["first_ms"])
        assert one["low_ms"] <= one["high_ms"]
    bodies = server.bodies()
    rounds = [bodies[REQUESTS * turn : REQUESTS * (turn + 1)] for turn in range(4)]
    # They may arrive in another order than they were sent in.
    assert len({json.dumps(sorted(b["prompt"] for b in each)) for each in rounds}) == 1
    # Nobody finds the prefixes of the round before.
    assert [len({body["cache_salt"] for body in each}) for each in rounds] == [1] * 4
    assert len({each[0]["cache_salt"] for each in rounds}) == 4
    assert KEY not in ran.out + ran.err


def test_what_is_said_goes_to_a_log_file_too(
    autotune: Autotune, server: FaultyServer, tmp_path: Path
) -> None:
    log = ("--log-file", "night.jsonl", "--log-format", "json")
    ran = autotune("compare", "a", "b", *TRACE, *JSON, *log)
    assert (ran.code, bool(server.bodies())) == (0, True)
    lines = [json.loads(line) for line in (tmp_path / "night.jsonl").read_bytes().splitlines()]
    said = [each["message"] for each in lines]
    assert said == [*ran.err.splitlines(), "finished, exit code 0"]
    assert {each["study"] for each in lines} == {"compare"}
    assert autotune("compare", "a", "nobody", *TRACE, *log).code == 2
    *_, last, _ = (tmp_path / "night.jsonl").read_text("utf-8").splitlines()
    assert json.loads(last)["message"].startswith("failed, exit code 2: ")


def test_a_table_says_who_and_by_how_much(autotune: Autotune, server: FaultyServer) -> None:
    ran = autotune("compare", "a", "a", "b", *TRACE, "--repeats", "1", "--budget", "ttft_p90:500")
    assert ran.code == 0
    assert server.bodies()
    lines = ran.out.splitlines()
    assert lines[0] == "4 requests; in turn a, a (2), b"
    assert lines[2].split() == ["a", "a", "(2)", "b"]
    labels = [line.split("  ")[0] for line in lines]
    assert {"requests/s", "output tokens/s", "total tokens/s", "failed"} <= set(labels)
    assert labels.count("ttft p90") == labels.count("ttft p95") == 2
    assert "- Without repeats the noise between replays is not known" in ran.out
    assert KEY not in ran.out


def test_lengths_that_are_not_forced_leave_ttft_and_figures_per_token(
    autotune: Autotune, tmp_path: Path
) -> None:
    with running(Script()) as vllm, running(Script(models=OTHER)) as other:
        make_folder(tmp_path, a=local(vllm), b=local(other))
        ran = autotune("compare", "a", "b", *TRACE, *JSON, "--budget", "e2e_p95:900 ttft_p90:9")
    assert ran.code == 0
    found = json.loads(ran.out)
    metrics = found["differences"][0]["metrics"]
    assert {name.partition("_")[0] for name in metrics} == {"ttft", "tpot", "itl"}
    assert "ttft_p90" in metrics
    assert [side["lengths"] for side in found["sides"]] == ["forced", "not forced"]
    assert any("Lengths are not forced with b" in each for each in found["caveats"])
    texts = [body["messages"][0]["content"] for body in other.bodies()[2:]]
    assert len({text.split()[0] for text in texts}) == 2


def test_other_models_are_told(autotune: Autotune, tmp_path: Path) -> None:
    models: dict[str, Any] = {
        "m": {"owned_by": "vllm", "root": "/models/one"},
        "n": {"owned_by": "vllm", "root": "/models/two"},
    }
    with running(Script(models=models)) as server:
        make_folder(tmp_path, a=local(server), b=local(server, model="n"))
        ran = autotune("compare", "a", "b", *TRACE, "--repeats", "1")
    assert ran.code == 0
    assert "The sides serve other models (a /models/one, b /models/two)" in ran.out


def test_requests_that_fail_are_no_success(autotune: Autotune, tmp_path: Path) -> None:
    calls: list[int] = []
    flaky = Script(stream=lambda body, chat: only_every_other(calls, body, chat))
    with running(Script()) as good, running(flaky) as bad:
        make_folder(tmp_path, a=local(good), b=local(bad))
        ran = autotune("compare", "a", "b", *TRACE, *JSON)
    assert ran.code == 0
    found = json.loads(ran.out)
    assert [side["failed"] for side in found["sides"]] == [0, REQUESTS]
    assert found["differences"][0]["metrics"]["ttft_p95"]["difference_ms"] is None
    assert found["differences"][0]["metrics"]["ttft_p95"]["second_ms"] == "inf"
    assert any("b: 4 of 8 requests failed" in each for each in found["caveats"])


def test_where_all_fail_there_is_nothing_to_compare(autotune: Autotune, tmp_path: Path) -> None:
    with running(Script()) as good, running(answers(500, "boom")) as bad:
        make_folder(tmp_path, a=local(good), b=local(bad))
        ran = autotune("compare", "a", "b", *TRACE)
    assert (ran.code, ran.out) == (4, "")
    assert "error: endpoint b: all of 4 requests failed: HTTP 500" in ran.err


def test_simulated_engines_by_file_and_by_default(autotune: Autotune, tmp_path: Path) -> None:
    config = tmp_path / "small.yaml"
    config.write_text("# use: vllm serve\nmax-num-batched-tokens: 512\nmax-num-seqs: 8\n")
    ran = autotune("compare", "default", "small.yaml", *SIMULATED, *JSON, "--output", "r.json")
    assert ran.code == 0
    found = json.loads(ran.out)
    assert json.loads((tmp_path / "r.json").read_text()) == found
    assert found["simulated"] == "cpu-tiny-llama"
    default, small = found["sides"]
    assert (default["kind"], small["kind"]) == ("engine", "engine")
    assert small["limits"] == {"max_num_batched_tokens": 512, "max_num_seqs": 8}
    assert default["limits"] != small["limits"]
    assert found["caveats"] == []
    assert ran.err.count("starting an engine") == 3
    table = autotune("compare", "default", "small.yaml", *SIMULATED)
    assert table.out.startswith("No engine was run: engines are simulated by cpu-tiny-llama.\n")


def test_an_engine_and_a_server(autotune: Autotune, server: FaultyServer) -> None:
    engine = ("--engine", "sim:cpu-tiny-llama")
    ran = autotune("compare", "default", "a", *engine, *TRACE, *JSON, "--repeats", "1")
    assert ran.code == 0
    assert len(server.bodies()) == REQUESTS
    caveats = json.loads(ran.out)["caveats"]
    assert any(each.startswith("In process: default.") for each in caveats)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("a",), "a comparison has 2 to 8 sides, not 1"),
        (("a", "none"), "autotune.yaml names no endpoint 'none'"),
        (("a", "none.yaml"), "cannot read none.yaml: No such file or directory"),
        (("a", "default"), "default names no model"),
    ],
)
def test_what_cannot_be_compared(
    autotune: Autotune, server: FaultyServer, arguments: tuple[str, ...], error: str
) -> None:
    ran = autotune("compare", *arguments, *TRACE)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.splitlines()[-2] == f"error: {error}"
    assert ran.err.splitlines()[-1].startswith("hint: ")
    assert server.bodies() == []
