"""Bad input: one error, one hint, the documented exit code, nothing lost and nothing left."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.autotune.cli.answers import answer_to, objections, row
from tests.autotune.cli.bad_cases import Case
from tests.autotune.cli.bad_input import CASES
from tests.autotune.cli.forked import Commands, run_fresh

PAGE = Path(__file__).resolve().parents[3] / "docs" / "bad-input.md"
ALL = [
    pytest.param(case, id=f"{group}: {case.what}", marks=[pytest.mark.engine] * case.vllm)
    for group, cases in CASES.items()
    for case in cases
]


@pytest.fixture(scope="module")
def commands() -> Iterator[Commands]:
    with Commands() as started:
        yield started


@pytest.fixture(scope="module")
def page() -> str:
    return PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("case", ALL)
def test_bad_input(
    case: Case, commands: Commands, studies: str, tmp_path: Path, page: str
) -> None:
    database = Path(studies.removeprefix("sqlite:///"))
    answer = answer_to(case, commands.run, folder=tmp_path, studies=database)
    assert objections(case, answer) == [], answer.ran
    # What vLLM says differs from version to version.
    assert case.vllm or row(case, answer.ran) in page, "run scripts/make_bad_input_table"


def test_names_differ() -> None:
    names = [(group, case.what) for group, cases in CASES.items() for case in cases]
    assert len(set(names)) == len(names) >= 45


def test_a_fresh_interpreter_answers_as_a_forked_one(commands: Commands, tmp_path: Path) -> None:
    command = ("trace", "inspect", "none.jsonl")
    fresh = run_fresh(command, folder=tmp_path, environ={})
    assert fresh.code == 2
    assert fresh == commands.run(command, folder=tmp_path, environ={})
