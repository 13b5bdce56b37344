from __future__ import annotations

from typing import Any

import pytest

from autotune.errors import UsageError
from autotune.export.document import Export
from autotune.settings import load_settings
from autotune.study.check import check_here
from autotune.study.check_export import Exported, of_export
from autotune.study.check_here import NOWHERE
from autotune.study.session import read_traffic


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
        {"holdout": 0.2},
    ],
)
def test_the_traffic_of_a_study_is_found_as_it_was_replayed(told: dict[str, Any]) -> None:
    checked = check_here(exported(**told), NOWHERE, trace="demo:mixed", window="0:20")
    assert checked.drift[0].name == "rate_per_s"
    assert checked.drift[-1].name == "reused_share"


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
