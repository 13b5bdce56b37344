from __future__ import annotations

import re
from pathlib import Path

import pytest

from autotune.study.doctor.environment import OUR_NAMES, environment_results, hub_cache
from autotune.study.doctor.results import Result


def results(environ: dict[str, str], *, compiles: bool = False) -> dict[str, Result]:
    return {each.name: each for each in environment_results(environ, compiles=compiles)}


def test_a_usual_environment_is_well(tmp_path: Path) -> None:
    found = results({"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "AUTOTUNE_COMPILE": "0"})
    assert {each.state for each in found.values()} == {"ok"}
    assert found["variables"].words == "AUTOTUNE_COMPILE"


def test_what_cron_and_systemd_leave_out_is_said(tmp_path: Path) -> None:
    found = results({})
    assert (found["PATH"].state, found["HOME"].state) == ("fail", "warn")
    bare = results({"PATH": str(tmp_path), "HOME": str(tmp_path / "none")}, compiles=True)
    assert (bare["PATH"].state, bare["HOME"].state) == ("warn", "warn")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("AUTOTUNE_STORAG", "did you mean 'AUTOTUNE_STORAGE'?"),
        ("AUTOTUNE_QQQQQQQQQQQQ", "it has no effect"),
    ],
)
def test_a_name_that_nothing_reads_is_said(name: str, hint: str) -> None:
    found = results({"PATH": "/bin", name: "1"})["variables"]
    assert (found.state, found.hint) == ("warn", hint)
    assert name in found.words


def test_offline_wants_a_model_in_the_cache(tmp_path: Path) -> None:
    environ = {"PATH": "/bin", "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    assert results(environ)["hub"].state == "warn"
    (tmp_path / "hub" / "models--owner--name").mkdir(parents=True)
    assert "1 models" in results(environ)["hub"].words


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"HF_HUB_CACHE": "/c", "HF_HOME": "/h"}, "/c"),
        ({"HF_HOME": "/h"}, "/h/hub"),
        ({"XDG_CACHE_HOME": "/x", "HOME": "/me"}, "/x/huggingface/hub"),
        ({"HOME": "/me"}, "/me/.cache/huggingface/hub"),
    ],
)
def test_the_cache_is_where_the_hub_has_it(environ: dict[str, str], expected: str) -> None:
    assert hub_cache(environ) == Path(expected)


def test_every_name_of_ours_that_the_code_reads_is_known() -> None:
    root = Path(__file__).resolve().parents[4]
    read = set()
    for package in ("autotune", "storage", "objectives"):
        for path in (root / package).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            if "environ" in text or "envvar" in text:
                read |= set(re.findall(r"\"(AUTOTUNE_[A-Z_]*[A-Z])\"", text))
    assert read <= set(OUR_NAMES)
