"""The pages on report and doctor have every name that is printed."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import get_args

import pytest

from autotune.cli import machine_doctor, report_words
from autotune.study import report, spending
from autotune.study.doctor import machine, results
from autotune.study.doctor.environment import OUR_NAMES
from autotune.study.gains import Gain
from autotune.study.plan import EndedBy
from tests.test_docs import keys_written, missing, text_of


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("json.md", keys_written(report, "report_json")),
        ("json.md", keys_written(report, "_margin_json")),
        ("json.md", keys_written(report, "_failure_json")),
        ("json.md", [each.name for each in fields(report.Course)]),
        ("json.md", [each.name for each in fields(Gain)]),
        ("json.md", [*keys_written(spending, "spending_json"), *spending.PARTS]),
        ("json.md", [*get_args(EndedBy), *get_args(results.State)]),
        ("json.md", keys_written(machine_doctor, "machine_json")),
        ("configuration.md", list(OUR_NAMES)),
    ],
)
def test_every_name_stands_on_its_page(page: str, names: list[str]) -> None:
    assert names
    assert missing(page, names) == []


def test_every_end_of_a_study_has_words() -> None:
    assert set(report_words.ENDED) == set(get_args(EndedBy))


def test_every_label_of_the_report_has_a_row() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", text_of("report.md"), re.MULTILINE)
    assert rows == list(report_words.LABELS)


def test_every_check_of_a_machine_has_a_row() -> None:
    page = text_of("doctor.md")
    assert keys_written(machine, "_places")
    assert missing("doctor.md", ["disk of database", *keys_written(machine, "_places")]) == []
    for name in ("python", "leases", "leftovers", "clock", "time zone", "journal", "integrity"):
        assert f"`{name}`" in page
