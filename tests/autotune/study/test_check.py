from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autotune.demo import resolve_trace
from autotune.errors import UsageError
from autotune.export.document import Export, Format
from autotune.export.render import render
from autotune.settings import load_settings
from autotune.study.check import check_here
from autotune.study.check_export import Exported, of_export, read_export
from autotune.study.check_here import NOWHERE
from autotune.study.session import read_traffic
from autotune.traffic.holdout import Holdout
from autotune.traffic.trace import load_trace


def exported(**told: Any) -> Exported:
    """An export of a study of the demo trace."""
    given = of_export(Export("m", {}, {}, provenance={"trace": "demo:mixed", **told}), "study")
    settings = load_settings(None, given.traffic(), command="check")
    sha = read_traffic(settings).trace.sha256
    return of_export(Export("m", {}, {}, {**given.provenance, "trace_sha256": sha}), "study")


@pytest.mark.parametrize(
    "told",
    [
        {"window": "all", "load": 1.0},
        {"window": "0:20"},
        {"window": "busiest:20s", "load": 0.5, "load_method": "thin"},
        {"holdout": "20%"},
    ],
)
def test_the_traffic_of_a_study_is_found_as_it_was_replayed(told: dict[str, Any]) -> None:
    checked = check_here(exported(**told), NOWHERE, trace="demo:mixed", window="0:20")
    assert checked.drift[0].name == "rate_per_s"
    assert checked.drift[-1].name == "reused_share"


@pytest.mark.parametrize("form", ["yaml", "json"])
def test_what_was_held_out_is_no_part_of_its_traffic(form: Format, tmp_path: Path) -> None:
    whole = load_trace(resolve_trace("demo:mixed"))
    chosen_on, _ = Holdout("20%").split(whole)
    told = {"trace": "demo:mixed", "window": "all", "load": 1.0, "holdout": "20%"}
    export = Export("m", {}, {"max_num_seqs": 8}, {**told, "trace_sha256": chosen_on.sha256})
    path = tmp_path / f"best.{form}"
    path.write_text(render(export, form))
    given = read_export(path)
    traffic = read_traffic(load_settings(None, given.traffic(), command="check"))
    assert traffic.trace.sha256 == chosen_on.sha256 != whole.sha256
    drift = check_here(given, NOWHERE, trace="demo:mixed").drift
    assert {row.name for row in drift if row.change} != set()


def test_a_busiest_window_is_looked_for_in_the_new_trace_too() -> None:
    given = exported(window="busiest:20s")
    same = check_here(given, NOWHERE, trace="demo:mixed")
    assert {row.change for row in same.drift} == {0.0}
    assert not same.against
    other = check_here(given, NOWHERE, trace="demo:mixed", window="0:15")
    assert {row.change for row in other.drift} != {0.0}


def test_a_trace_that_is_another_by_now_is_not_taken_for_the_old_one() -> None:
    given = exported()
    changed = of_export(Export("m", {}, {}, {**given.provenance, "trace_sha256": "ab"}), "study")
    for broken in (changed, of_export(Export("m", {}, {}, {}), "study")):
        with pytest.raises(UsageError, match="is not at hand"):
            check_here(broken, NOWHERE, trace="demo:mixed")
