from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from autotune.errors import UsageError
from autotune.export.document import Export, FlagFacts, Format
from autotune.export.render import render
from autotune.study.check_export import Exported, of_export, read_export

EXPORT = Export(
    model="org/model",
    candidate={"max_num_seqs": 24},
    engine_args={
        "max_num_seqs": 24,
        "enable_prefix_caching": False,
        "gpu_memory_utilization": 0.9,
        "compilation_config": {"mode": 3},
        "served_model_name": ["a", "b"],
    },
    provenance={
        "study": "knee: a",
        "trials": [5, 7],
        "window": "busiest:10m",
        "load": 1.4,
        "load_method": "superpose",
        "trace_sha256": "ab",
        "vllm": "0.32.0",
        "kv_cache_tokens": None,
    },
    metrics={
        "ttft_p95": 236.2971,
        "itl_p99@short": 8.5,
        "tpot_p95": None,
        "output_throughput": 76.0,
    },
    intervals={"ttft_p95": (235.5, 239.25), "itl_p99@short": (8.0, None)},
    baseline={"ttft_p95": 97.0},
)

BOMB = "i: &i [" + "0, " * 99 + "0]\nj: [" + "*i, " * 200 + "*i]\n"
"""What aliases make of few lines."""


def written(folder: Path, format: Format) -> Exported:  # noqa: A002
    path = folder / f"export.{format}"
    path.write_text(render(EXPORT, format), encoding="utf-8")
    return read_export(path)


@pytest.mark.parametrize("format", ["yaml", "json"])
def test_an_export_reads_back_as_what_it_says(tmp_path: Path, format: Format) -> None:  # noqa: A002
    found = written(tmp_path, format)
    assert found.model == EXPORT.model
    assert found.settings == EXPORT.engine_args
    for name in ("study", "trials", "window", "load", "load_method", "trace_sha256", "vllm"):
        assert found.provenance[name] == EXPORT.provenance[name]
    assert found.metrics.keys() == EXPORT.metrics.keys()
    for name, value in EXPORT.metrics.items():
        assert found.metrics[name] == (None if value is None else pytest.approx(value, rel=1e-5))
    assert found.intervals == dict(EXPORT.intervals)


def test_a_file_is_served_as_it_is_and_anything_else_as_yaml(tmp_path: Path) -> None:
    text = render(EXPORT, "yaml")
    assert written(tmp_path, "yaml").served_text() == text
    made = yaml.safe_load(written(tmp_path, "json").served_text())
    assert made == yaml.safe_load(text)
    facts: FlagFacts = {
        name: {"flag": f"--as-{name}", "negative": f"--not-{name}", "default": None}
        for name in EXPORT.engine_args
    }
    respelt = yaml.safe_load(of_export(EXPORT, "study").served_text(facts))
    assert respelt["not-enable_prefix_caching"] is True


def test_a_file_of_ones_own_has_settings_and_no_past(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("# a note\nmax_num_seqs: 8\nno-enable-prefix-caching: true\n", "utf-8")
    found = read_export(path)
    assert found.settings == {"max_num_seqs": 8, "enable_prefix_caching": False}
    assert (found.model, found.provenance, found.metrics) == (None, {}, {})


def exported(**changed: object) -> str:
    parts = {"model": "m", "engine_args": {}, "provenance": {}, "metrics": {}, "intervals": {}}
    return json.dumps({**parts, **changed})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "sets nothing"),
        ("- a\n", "sets nothing"),
        ("a: [\n", "line 2: is no YAML"),
        ("vllm serve m --max-num-seqs 8\n", "sets nothing"),
        ("3: 4\n", "3 is no name of an option"),
        ("{}", "is no export of autotune"),
        (json.dumps({"model": "m", "engine_args": 3}), "is no export of autotune"),
        ("a: &a [*a]\n" * 2 + "? [b]\n", "is no"),
        ("a: &a [*a]\n", "a: has more than 10,000 values"),
        (BOMB, "j: has more than 10,000 values"),
        ("since: 2026-11-30\n", "since: is a date"),
        ("a: !!binary aGk=\n", "a: is a bytes"),
        ("a: [{3: 4}]\n", "a: has a name that is no text"),
        ("model: [m]\n", "model: is no name"),
        (exported(model=-1), "is no export of autotune"),
        (exported(metrics={"ttft_p95": "fast"}), "is no export of autotune"),
        (exported(metrics={"ttft_p95": 10**400}), "is no export of autotune"),
        (exported(intervals={"ttft_p95": [[], True]}), "is no export of autotune"),
    ],
)
def test_what_is_no_export_is_refused_in_words(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        read_export(path)
    assert said in caught.value.message
    assert str(path) in caught.value.message


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read_export(tmp_path / "absent.yaml")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="UTF-8"):
        read_export(tmp_path / "binary")
