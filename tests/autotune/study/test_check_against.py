from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import UsageError
from autotune.export.document import Export
from autotune.study.check import Checked, stored_of
from autotune.study.check_against import Side, Stored, read_stored, side_by_side
from autotune.study.check_export import of_export
from autotune.study.check_here import Here
from autotune.study.check_result import Served
from objectives.limits import Budget
from objectives.measurement import measure
from tests.objectives.builders import random_samples

HERE = Here("0.32.0", "2.13.0", ("NVIDIA H200", "NVIDIA H200"))
EXPORTED = of_export(
    Export(
        "m",
        {},
        {"max_num_seqs": 24},
        provenance={"vllm": "0.31.0", "trace_sha256": "ab", "kv_cache_tokens": 1000},
        metrics={"ttft_p95": 100.0, "tpot_p95": None, "output_throughput": 50.0},
        intervals={"ttft_p95": (90.0, None)},
    ),
    "study",
)


def served(seed: int, **changes: Any) -> Served:
    values: dict[str, Any] = {
        "command": ("vllm",),
        "log": Path("served.log"),
        "kv_cache_tokens": 2000,
        "resolved": {"scheduler_config.max_num_seqs": 24, "cache_config.block_size": 16},
        "measurement": measure(random_samples(80, seed=seed), classes=(), budget=Budget(())),
        "traffic": "ab",
    }
    return Served(**{**values, **changes})


def sides(then: Stored, now: Stored) -> dict[str, Side]:
    return {each.name: each for each in side_by_side(then, now)}


def test_a_served_result_is_read_back_and_laid_beside_the_next(tmp_path: Path) -> None:
    before = Checked(EXPORTED, (), HERE, served=served(1))
    path = tmp_path / "before.json"
    path.write_text(json.dumps(before.to_json()), encoding="utf-8")
    stored = read_stored(path)
    assert replace(stored, source="study") == replace(stored_of(before), metrics=stored.metrics)
    resolved = {"scheduler_config.max_num_seqs": 24, "cache_config.block_size": 32}
    after = served(2, resolved={**resolved, "instance_id": "b"}, kv_cache_tokens=1900)
    found = sides(
        stored, stored_of(Checked(EXPORTED, (), replace(HERE, vllm="0.33.0"), (), after))
    )
    assert (found["vllm"].then, found["vllm"].now) == ("0.32.0", "0.33.0")
    assert found["same_traffic"].now is True
    assert found["kv_cache_tokens"].change == pytest.approx(-0.05)
    assert found["ttft_p95"].kind == "metric"
    assert found["ttft_p95"].beyond_noise is not None
    assert {name for name, each in found.items() if each.kind == "argument"} == {
        "cache_config.block_size"
    }


def test_two_exports_differ_in_what_they_set(tmp_path: Path) -> None:
    path = tmp_path / "old.yaml"
    path.write_text(
        "# vllm: 0.30.0\n# ttft_p95: 50, interval 45 to 55\nmodel: m\nmax-num-seqs: 8\n", "utf-8"
    )
    found = sides(read_stored(path), stored_of(Checked(EXPORTED, ())))
    assert found["max_num_seqs"] == Side("max_num_seqs", "argument", 8, 24, 2.0)
    assert found["ttft_p95"].change == pytest.approx(1.0)
    assert found["ttft_p95"].beyond_noise is True
    assert found["same_traffic"].now is None
    assert "tpot_p95" not in found


def test_a_replay_has_the_names_of_bench(tmp_path: Path) -> None:
    path = tmp_path / "replay.json"
    result = {
        "vllm_version": "0.31.0",
        "device": "NVIDIA H200",
        "kv_cache_tokens": 500,
        "max_num_seqs": 24,
        "output_throughput": 40.0,
        "median_ttft_ms": 7.0,
        "p95_e2el_ms": None,
        "p99_itl_ms": 3.0,
        "trace_sha256": "cd",
    }
    path.write_text(json.dumps(result), encoding="utf-8")
    stored = read_stored(path)
    assert stored.metrics == {
        "ttft_p50": 7.0,
        "e2e_p95": None,
        "itl_p99": 3.0,
        "output_throughput": 40.0,
    }
    found = sides(stored, stored_of(Checked(EXPORTED, ())))
    assert found["kv_cache_tokens"].change == pytest.approx(1.0)
    assert found["output_throughput"].change == pytest.approx(0.25)
    assert found["same_traffic"].now is False


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "cannot be read"),
        ("{}", "no result of autotune"),
        (json.dumps({"served": None, "here": {}}), "nothing was served"),
        (json.dumps({"served": {"kv_cache_tokens": 1}, "here": {}}), "no result of autotune"),
        (json.dumps({"output_throughput": "40", "trace_sha256": "a"}), "no result of autotune"),
        (json.dumps({"output_throughput": 10**400, "trace_sha256": "a"}), "no result of autotune"),
    ],
)
def test_what_is_no_result_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        read_stored(path)
    assert said in caught.value.message
