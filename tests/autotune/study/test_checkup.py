from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from autotune.engine.protocol import EngineInfo, Failure, TrialFailed
from autotune.engine.supervisor import Description, Started
from autotune.errors import EnvironmentFault
from autotune.hardware.kv_pool import KvPool
from autotune.hardware.model_shape import EngineDecides
from autotune.study import checkup as module
from autotune.study.checkup import Checkup, check_up, checkup_json
from autotune.study.findings import Finding, findings_of
from tests.autotune.hardware.public_models import PUBLIC
from tests.autotune.study.scripted import GROUND, INFO, settings_of
from tests.autotune.traffic.examples import request, trace

GIB = 2**30
LLAMA = PUBLIC["meta-llama/Llama-3.1-8B"]
RESOLVED: Mapping[str, Any] = {
    "block_size": 16,
    "dtype": "bfloat16",
    "enable_chunked_prefill": True,
    "max_model_len": 131072,
    "max_num_batched_tokens": 2048,
    "max_num_seqs": 64,
}


@dataclass(slots=True)
class OneEngine:
    """A supervisor whose engine reports ``tokens``, or does not start."""

    tokens: int | None = None
    failure: Failure | None = None
    started: list[Mapping[str, Any]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    stopped: int = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        pass

    def start(self, engine_args: Mapping[str, Any], _log_path: Path) -> Started:
        self.started.append(engine_args)
        if self.failure is not None:
            raise TrialFailed(self.failure)
        info = replace(INFO, resolved={**RESOLVED, **engine_args}, kv_cache_tokens=self.tokens)
        return Started(info, 1.0, GROUND)

    def close(self) -> None:
        pass

    def stop(self) -> float:
        self.stopped += 1
        return 0.1

    def progress(self, body: Mapping[str, Any]) -> None:
        pass

    def say(self, text: str) -> None:
        self.said.append(text)


@dataclass(frozen=True, slots=True)
class Clinic:
    """Checks models up, with an engine that follows a script or without vLLM."""

    folder: Path
    monkeypatch: pytest.MonkeyPatch

    def check(
        self,
        config: Mapping[str, Any] = LLAMA,
        *,
        engine: OneEngine | None = None,
        lengths: tuple[tuple[int, int], ...] = (),
        start: bool = False,
        **engine_args: Any,
    ) -> Checkup:
        (self.folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        path = self.folder / "traffic.jsonl"
        if lengths:
            rows = [
                request(i / 10, prompt, output, tuple(range(-(-prompt // 512))))
                for i, (prompt, output) in enumerate(lengths)
            ]
            path.write_bytes(b"".join(trace(*rows).lines()))
        chosen = engine or OneEngine()
        info = EngineInfo(**{**INFO.to_json(), "resolved": {**RESOLVED, **engine_args}})
        self.monkeypatch.setattr(module, "_has_vllm", lambda: engine is not None)
        self.monkeypatch.setattr(module, "open_supervisor", lambda _settings, _name: chosen)
        self.monkeypatch.setattr(
            module, "describe_engine", lambda _settings, _supervisor: Description(info, {})
        )
        settings = settings_of(
            model=str(self.folder),
            trace=str(path) if lengths else "",
            budget="",
            engine_args=engine_args,
            log_folder=self.folder / "logs",
        )
        return check_up(settings, chosen, start=start)


@pytest.fixture
def clinic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clinic:
    return Clinic(tmp_path, monkeypatch)


def finding(checkup: Checkup, name: str) -> Finding:
    (found,) = [each for each in findings_of(checkup) if each.name == name]
    return found


def test_without_vllm_there_is_the_bill(clinic: Clinic) -> None:
    checkup = clinic.check()
    assert checkup.engine.info is None
    assert [each.name for each in findings_of(checkup)] == [
        "engine",
        "kv_bill",
        "kv_cache",
        "max_model_len",
    ]
    assert finding(checkup, "engine").state == "open"
    assert finding(checkup, "kv_bill").sentence == "One token costs 128 KiB of KV cache."
    assert "131,072 tokens costs 16 GiB" in finding(checkup, "max_model_len").sentence
    assert "--start" in finding(checkup, "kv_cache").sentence


def test_what_the_user_gives_is_known_without_vllm(clinic: Clinic) -> None:
    arguments = {name: RESOLVED[name] for name in ("block_size", "max_num_batched_tokens")}
    checkup = clinic.check(**arguments, max_model_len=8192, kv_cache_memory_bytes=16 * GIB)
    assert isinstance(checkup.pool, KvPool)
    assert checkup.estimated_tokens == 131072


def test_vllm_is_asked_and_no_engine_started(clinic: Clinic) -> None:
    engine = OneEngine()
    checkup = clinic.check(engine=engine, max_model_len=8192, kv_cache_memory_bytes=16 * GIB)
    assert engine.started == []
    assert checkup.engine.info is not None
    assert checkup.engine.reported_tokens is None
    assert checkup.cache_tokens == checkup.estimated_tokens == 131072
    found = finding(checkup, "kv_cache")
    assert found == Finding(
        "kv_cache", "ok", "16 GiB of KV cache hold about 131,072 tokens (estimate)."
    )


def test_a_cache_that_holds_no_longest_request_is_told_before_a_start(clinic: Clinic) -> None:
    checkup = clinic.check(engine=OneEngine(), kv_cache_memory_bytes=16 * GIB)
    found = finding(checkup, "kv_cache")
    assert found.state == "fail"
    assert "needs 16 GiB, so the engine will refuse to start" in found.sentence
    roomy = clinic.check(engine=OneEngine(), kv_cache_memory_bytes=17 * GIB)
    assert finding(roomy, "kv_cache").state == "ok"


@pytest.mark.parametrize(("reported", "state"), [(131072, "ok"), (129000, "ok"), (100000, "warn")])
def test_a_started_engine_is_compared_with_the_estimate(
    clinic: Clinic, reported: int, state: str
) -> None:
    engine = OneEngine(tokens=reported)
    arguments: dict[str, Any] = {"max_model_len": 8192, "kv_cache_memory_bytes": 16 * GIB}
    checkup = clinic.check(engine=engine, start=True, **arguments)
    assert engine.started == [{**arguments, "model": "tiny"}]
    assert engine.stopped == 1
    assert engine.said == ["asking vLLM for its defaults", "starting an engine"]
    assert (checkup.cache_tokens, checkup.estimated_tokens) == (reported, 131072)
    found = finding(checkup, "kv_cache")
    assert found.state == state
    assert f"reports room for {reported:,} tokens; the estimate is 131,072" in found.sentence
    assert checkup_json(checkup)["engine"]["ratio"] == pytest.approx(131072 / reported)


def test_without_a_fixed_memory_the_engines_figure_stands_alone(clinic: Clinic) -> None:
    checkup = clinic.check(engine=OneEngine(tokens=5000), start=True)
    assert finding(checkup, "kv_cache").sentence == "The engine reports room for 5,000 tokens."
    assert checkup_json(checkup)["engine"]["ratio"] is None


def test_an_engine_that_does_not_start_is_a_finding(clinic: Clinic) -> None:
    engine = OneEngine(failure=Failure("no_kv_room", "larger than the KV cache"))
    checkup = clinic.check(engine=engine, start=True)
    found = findings_of(checkup)[0]
    assert (found.name, found.state) == ("engine", "fail")
    assert "no_kv_room: larger than the KV cache" in found.sentence
    assert checkup.engine.log is not None
    assert checkup.engine.log.parent.parent == clinic.folder / "logs"
    assert not checkup.engine.started


def test_traffic_that_fits(clinic: Clinic) -> None:
    checkup = clinic.check(
        engine=OneEngine(),
        lengths=((3000, 100), (500, 50), (100, 10)),
        max_model_len=8192,
        kv_cache_memory_bytes=16 * GIB,
    )
    assert checkup.traffic is not None
    assert checkup.traffic.enough_model_len == 3136
    assert checkup.peak_share == pytest.approx(3760 / 131072, rel=0.01)
    states = {each.name: each.state for each in findings_of(checkup)}
    assert states == dict.fromkeys(
        ("kv_bill", "kv_cache", "max_model_len", "chunked_prefill", "kv_fit"), "ok"
    )
    assert "1 of 3 prompts are longer" in finding(checkup, "chunked_prefill").sentence
    assert "at most 3 are open at once" in finding(checkup, "kv_fit").sentence
    # Each request leaves its last block of 16 empty in part.
    fit = finding(checkup, "kv_fit").sentence
    assert "hold 3,760 tokens, in 236 blocks of up to 16 each. That is 3% of the cache" in fit
    assert checkup_json(checkup)["traffic"]["peak_blocks"] == 236


def test_traffic_that_does_not_fit(clinic: Clinic) -> None:
    checkup = clinic.check(
        engine=OneEngine(),
        lengths=((3000, 100),) * 50,
        max_model_len=4096,
        kv_cache_memory_bytes=GIB,
    )
    assert checkup.peak_share is not None
    assert checkup.peak_share > 1
    found = finding(checkup, "kv_fit")
    assert found.state == "warn"
    assert "lower max_num_seqs" in found.sentence


def test_without_a_count_of_blocks_tokens_are_compared(clinic: Clinic) -> None:
    checkup = clinic.check(
        PUBLIC["ai21labs/Jamba-v0.1"],
        engine=OneEngine(tokens=1000),
        lengths=((400, 100),),
        start=True,
    )
    assert isinstance(checkup.pool, EngineDecides)
    assert checkup.peak_share == 0.5
    assert "state besides" in finding(checkup, "kv_bill").sentence


def test_a_model_length_beyond_need_is_priced(clinic: Clinic) -> None:
    checkup = clinic.check(engine=OneEngine(), lengths=((3000, 100),))
    found = finding(checkup, "max_model_len")
    assert found.state == "warn"
    assert "max_model_len=3136 is enough, and one such request costs 392 MiB" in found.sentence
    assert "131,072 tokens are allowed, at 16 GiB for one request" in found.sentence


def test_a_model_length_below_need_fails(clinic: Clinic) -> None:
    checkup = clinic.check(engine=OneEngine(), lengths=((3000, 100),), max_model_len=2048)
    found = finding(checkup, "max_model_len")
    assert found.state == "fail"
    assert "Yours is 2,048" in found.sentence


def test_requests_beyond_the_model_fail(clinic: Clinic) -> None:
    config = {**LLAMA, "max_position_embeddings": 2048}
    found = finding(clinic.check(config, lengths=((3000, 100),)), "max_model_len")
    assert found.state == "fail"
    assert "the model allows 2,048" in found.sentence


def test_what_is_enough_does_not_exceed_the_model(clinic: Clinic) -> None:
    config = {**LLAMA, "max_position_embeddings": 3101}
    checkup = clinic.check(config, lengths=((3000, 100),))
    assert checkup.traffic is not None
    assert checkup.traffic.enough_model_len == 3101


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"enable_chunked_prefill": False}, "Chunked prefill is off"),
        ({"max_num_batched_tokens": 4096}, "not in effect: the longest prompt has 3,000 tokens"),
        (
            {"max_num_batched_tokens": 8192, "max_model_len": 8192},
            "as much as the longest request",
        ),
    ],
)
def test_why_chunked_prefill_is_not_in_effect(
    clinic: Clinic, arguments: dict[str, Any], words: str
) -> None:
    checkup = clinic.check(engine=OneEngine(), lengths=((3000, 100),), **arguments)
    assert words in finding(checkup, "chunked_prefill").sentence


def test_without_a_step_budget_chunking_is_not_known(clinic: Clinic) -> None:
    checkup = clinic.check(lengths=((3000, 100),))
    assert "give --engine-arg max_num_batched_tokens" in (
        finding(checkup, "chunked_prefill").sentence
    )


def test_windows_states_and_shared_memory_are_said(clinic: Clinic) -> None:
    gemma = clinic.check(PUBLIC["google/gemma-2-9b"])
    assert "336 KiB of KV cache, and beyond the windows 168 KiB" in (
        finding(gemma, "kv_bill").sentence
    )
    mistral = clinic.check(PUBLIC["mistralai/Mistral-7B-v0.1"])
    assert "beyond the windows nothing more" in finding(mistral, "kv_bill").sentence
    parallel = clinic.check(engine=OneEngine(), tensor_parallel_size=2)
    assert "64 KiB of KV cache on each of 2 GPUs" in finding(parallel, "kv_bill").sentence


def test_what_cannot_be_counted_is_left_to_the_engine(clinic: Clinic) -> None:
    checkup = clinic.check(
        {"model_type": "brand_new", "num_hidden_layers": 2, "index_topk": 8},
        engine=OneEngine(),
        lengths=((3000, 100),),
        kv_cache_memory_bytes=GIB,
    )
    assert "The engine decides what a token costs" in finding(checkup, "kv_bill").sentence
    assert "Add --start" in finding(checkup, "kv_cache").sentence
    assert finding(checkup, "max_model_len").sentence.endswith("131,072 tokens are allowed.")
    shown = checkup_json(checkup)
    assert shown["kv"] == {
        "engine_decides": "sparse attention keeps an index beside the cache (index_topk)"
    }
    assert shown["engine"]["estimated_tokens"] is None
    assert shown["traffic"]["longest_request_bytes"] is None


def test_json_is_plain(clinic: Clinic) -> None:
    checkup = clinic.check(engine=OneEngine(tokens=131072), lengths=((3000, 100),), start=True)
    shown = checkup_json(checkup)
    assert json.loads(json.dumps(shown, allow_nan=False)) == shown
    assert shown["kv"]["layers"][0] == {
        "kind": "full",
        "count": 32,
        "kv_heads": 8,
        "head_size": 128,
        "window": None,
        "bytes_per_token": 4096,
    }
    assert shown["kv"]["context_bytes"] == 16 * GIB
    assert shown["engine"]["arguments"]["max_num_seqs"] == 64
    assert shown["traffic"]["recommended_bytes"] == 3136 * 128 * 1024


def test_a_model_without_a_config_is_a_fault(clinic: Clinic) -> None:
    with pytest.raises(EnvironmentFault, match="has no config"):
        check_up(
            settings_of(model=str(clinic.folder), trace="", budget=""), OneEngine(), start=False
        )
