"""The figures on the page about the KV cache are those of the code, and of engines."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from autotune.hardware.kv_bill import KvBill, kv_bill
from autotune.study.findings import layers_text, size
from autotune.study.kv_fit import ASSUMED_TPOT_MS, ASSUMED_TTFT_MS
from autotune.traffic.inspect import MODEL_LEN_MULTIPLE
from tests.autotune.hardware.public_models import PUBLIC

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE = (DOCS / "kv-cache.md").read_text(encoding="utf-8")
ENGINES = json.loads((DOCS / "results" / "kv_bill_cpu.json").read_text(encoding="utf-8"))


def table(heading: str) -> list[list[str]]:
    """Return the cells of the rows of the table below a heading."""
    section = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.*) \|$", section, re.MULTILINE)
    return [[cell.strip() for cell in row.split("|")] for row in rows[2:]]


def row_of(name: str) -> list[str]:
    bill = kv_bill(PUBLIC[name])
    assert isinstance(bill, KvBill)
    longest, beyond = bill.shape.context_tokens, bill.bytes_per_token_unbounded
    cells = [
        name.partition("/")[2],
        ", ".join(layers_text(each) for each in bill.shape.layers),
        size(bill.bytes_per_token),
        "" if not bill.window_bytes else size(beyond) if beyond else "nothing",
    ]
    if longest is None:
        return [*cells, "", ""]
    return [*cells, str(longest), size(bill.request_bytes(longest))]


def test_public_models_have_the_figures_of_the_code() -> None:
    assert len(PUBLIC) >= 10
    assert table("Public models") == [row_of(name) for name in PUBLIC]


def engine_row(row: dict[str, Any]) -> list[str]:
    bill = kv_bill(row["config"])
    assert isinstance(bill, KvBill)
    return [
        row["architecture"],
        ", ".join(layers_text(each) for each in bill.shape.layers),
        str(row["estimated_tokens"]),
        str(row["reported_tokens"]),
        f"{row['ratio']:.3f}",
    ]


def test_engines_have_the_figures_that_they_reported() -> None:
    started = [row for row in ENGINES["architectures"] if "failure" not in row]
    assert table("What the engine says") == [engine_row(row) for row in started]


@pytest.mark.parametrize("figure", [ASSUMED_TTFT_MS, ASSUMED_TPOT_MS, MODEL_LEN_MULTIPLE])
def test_assumptions_are_those_of_the_code(figure: float) -> None:
    assert re.search(rf"\b{figure:.0f}\b", PAGE)
