"""What the bench of trials plans, and how it goes on with an earlier call."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts" / "bench"
A = {"max_num_batched_tokens": 512, "max_num_seqs": 64}
B = {"max_num_batched_tokens": 2048, "max_num_seqs": 128}


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    yield importlib.import_module("trials")
    del sys.modules["trials"]


def plan(script: ModuleType, order: str, *, aa: int = 0, replays: int = 1) -> list[Any]:
    found: list[Any] = script.schedule([A, B], order.split(","), aa=aa, replays=replays)
    return found


def rows(planned: list[Any]) -> list[dict[str, Any]]:
    return [
        {"part": e.part, "fidelity": e.fidelity, **e.candidate, "ttft_p95": 1.0} for e in planned
    ]


def test_live_and_restart_take_turns_and_every_second_block_is_reversed(
    script: ModuleType,
) -> None:
    planned = plan(script, "live,restart,live", aa=1, replays=2)
    assert [(each.part, each.fidelity, each.candidate) for each in planned] == [
        ("aa", "live", A),
        *[("pairs", "live", A)] * 2, *[("pairs", "live", B)] * 2,
        *[("pairs", "restart", B)] * 2, *[("pairs", "restart", A)] * 2,
        *[("pairs", "live", A)] * 2, *[("pairs", "live", B)] * 2,
    ]  # fmt: skip


def test_the_default_gives_both_the_same(script: ModuleType) -> None:
    given = script.parsed(["out.json"])
    assert given.order == ["restart", "live", "live", "restart"]
    planned = script.schedule([A, B], given.order, aa=0, replays=given.replays)
    counts = {(e.fidelity, e.candidate["max_num_seqs"]): 0 for e in planned}
    for each in planned:
        counts[each.fidelity, each.candidate["max_num_seqs"]] += 1
    assert set(counts.values()) == {4}


@pytest.mark.parametrize("options", ["--order live,warm", "--order live,", "--earlier-raw a.npz"])
def test_what_cannot_be_run_is_refused(
    script: ModuleType, capsys: pytest.CaptureFixture[str], options: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        script.parsed(["out.json", *options.split()])
    assert options.split(maxsplit=1)[0] in capsys.readouterr().err


def bench(script: ModuleType) -> Any:
    """A bench that has described its engine, and measured nothing."""
    made = object.__new__(script.Bench)
    made.rows, made.arrays = [], {}
    made.result = {"device": "cpu", "warmup_s": 4.0, "rows": made.rows}
    return made


def test_an_earlier_call_is_gone_on_with(script: ModuleType, tmp_path: Path) -> None:
    planned = plan(script, "live,restart")
    np.savez_compressed(tmp_path / "a.npz", ttft_ms=np.array([1.0, 2.0]))
    earlier = {"device": "cpu", "warmup_s": 4.0, "rows": rows(planned[:3]), "seconds": 5.0}
    made = bench(script)
    made.take_rows(earlier, tmp_path / "a.npz", planned)
    assert made.result["rows"] == earlier["rows"]
    assert made.arrays["ttft_ms"].tolist() == [1.0, 2.0]
    made = bench(script)
    made.take_rows(earlier, None, planned)
    assert (len(made.rows), made.arrays) == (3, {})


@pytest.mark.parametrize(
    ("changes", "begins", "message"),
    [({"warmup_s": 2.0}, "live,restart", "another warmup_s"),
     ({}, "restart,live", "not how this schedule begins"),
     ({}, "live,restart,live", "not how this schedule begins")],
)  # fmt: skip
def test_another_series_is_no_earlier_call(
    script: ModuleType, changes: dict[str, Any], begins: str, message: str
) -> None:
    earlier = {"device": "cpu", "warmup_s": 4.0, "rows": rows(plan(script, begins)), **changes}
    with pytest.raises(ValueError, match=message):
        bench(script).take_rows(earlier, None, plan(script, "live,restart"))
