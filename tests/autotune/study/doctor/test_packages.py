from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.study.doctor.packages import (
    Packages,
    gather_packages,
    package_results,
    satisfies,
)

FOUND = Packages(
    python="3.12.4",
    requires_python=">=3.11,<3.14",
    requires=(
        "optuna<6,>=5.0",
        "SQLAlchemy<3,>=2.0.30",
        'vllm>=0.26; extra == "vllm"',
        'numba>=0.60; extra == "fast"',
    ),
    versions={"optuna": "5.0.1", "sqlalchemy": "2.0.30", "vllm": "0.26.0", "torch": "2.11.0"},
    torch_cuda="13.0",
    driver_cuda="13.1",
)


def states(found: Packages) -> dict[str, str]:
    return {each.name: each.state for each in package_results(found)}


def test_all_is_well_in_the_supported_ranges() -> None:
    assert states(FOUND) == {"python": "ok", "packages": "ok", "vllm": "ok", "torch": "ok"}


@pytest.mark.parametrize(
    ("changes", "name", "state"),
    [
        ({"python": "3.14.0"}, "python", "fail"),
        ({"requires": ()}, "packages", "warn"),
        ({"versions": {**FOUND.versions, "optuna": "4.9"}}, "packages", "fail"),
        ({"versions": {"sqlalchemy": "2.0.30"}}, "packages", "fail"),
        ({"versions": {**FOUND.versions, "numba": "0.59.1"}}, "packages", "fail"),
        ({"versions": {**FOUND.versions, "vllm": "0.25.2"}}, "vllm", "fail"),
        ({"versions": {"optuna": "5.0", "sqlalchemy": "2.1"}}, "vllm", "warn"),
        ({"driver_cuda": "12.8"}, "torch", "warn"),
        ({"torch_cuda": "12.9", "driver_cuda": "12.4"}, "torch", "warn"),
    ],
)
def test_what_is_out_of_range_is_said(changes: dict[str, object], name: str, state: str) -> None:
    found = replace(FOUND, **changes)  # type: ignore[arg-type]
    assert states(found)[name] == state


@pytest.mark.parametrize(
    ("version", "specifier", "inside"),
    [
        ("1.13", ">=1.13", True),
        ("1.13.0", "==1.13", True),
        ("2.0.29", ">=2.0.30,<3", False),
        ("2.10", ">=2.9", True),
        ("0.32.0+cpu", ">=0.26", True),
        ("5.0", "", True),
    ],
)
def test_versions_are_compared_as_numbers(version: str, specifier: str, inside: bool) -> None:
    assert satisfies(version, specifier) is inside


def test_this_very_environment_is_in_its_ranges() -> None:
    found = gather_packages(None)
    assert {"optuna", "numpy", "sqlalchemy"} <= set(found.versions)
    assert {each.name: each.state for each in package_results(found)}["packages"] == "ok"
