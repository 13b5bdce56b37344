"""The page about checks has every key, state and figure of the code."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest

from autotune.engine import serve_report
from autotune.engine.serve import Gone
from autotune.export.document import Export
from autotune.study import check_against, check_drift, check_here, check_result, check_serve
from autotune.study.check import Checked
from autotune.study.check_export import of_export
from tests.test_docs import literals, missing, numbers, text_of

NOTHING = of_export(Export("m", {}, {}, {}), "study")


def names_of(*kinds: type) -> list[str]:
    return [each.name for kind in kinds for each in fields(kind)]


@pytest.mark.parametrize(
    "names",
    [
        list(Checked(NOTHING, ()).to_json()),
        list(check_result.Served((), Path("log")).to_json()),
        names_of(Gone, check_here.Here, check_here.Matter, check_drift.Drifted),
        names_of(serve_report.Proof, check_result.Compared, check_against.Side),
        literals(serve_report.ProofState),
        list(get_args(check_here.MatterState)),
        ["vllm", "torch", "device", "model", "arguments", "simulated"],
    ],
)
def test_every_name_of_a_check_is_described(names: list[str]) -> None:
    assert missing("check.md", names) == []


def test_the_figures_are_those_of_the_code() -> None:
    figures = {
        check_drift.DRIFT_P,
        check_drift.DRIFT_LEAST,
        check_drift.REUSE_LEAST,
        check_drift._BATCHES,
        check_serve.FIRST_PROMPT,
    }
    assert figures <= numbers(text_of("check.md"))
