from __future__ import annotations

import resource
from pathlib import Path

import pytest

from autotune.study.doctor.sockets import descriptors_result, socket_results


@pytest.mark.wire
def test_a_byte_goes_through_both(tmp_path: Path) -> None:
    found = {each.name: each.state for each in socket_results(tmp_path)}
    assert (found["loopback"], found["socket files"]) == ("ok", "ok")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.wire
def test_where_no_socket_can_be_made_it_is_said(tmp_path: Path) -> None:
    found = {each.name: each for each in socket_results(tmp_path / "none")}
    assert found["socket files"].state == "fail"
    assert found["socket files"].words == "No such file or directory"


@pytest.mark.parametrize(
    ("most", "state"), [(1024, "warn"), (65536, "ok"), (resource.RLIM_INFINITY, "ok")]
)
def test_few_descriptors_are_warned_of(most: int, state: str) -> None:
    assert descriptors_result(most).state == state
