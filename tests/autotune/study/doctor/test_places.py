from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.study.doctor.places import Place, gather_place, place_results

GOOD = Place(Path("/data"), 50 * 2**30, 10**6, "ext4", None)


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({}, "ok"),
        ({"filesystem": None, "free_inodes": None}, "ok"),
        ({"free_bytes": 2 * 2**30}, "warn"),
        ({"filesystem": "nfs4"}, "warn"),
        ({"free_bytes": 2**20}, "fail"),
        ({"free_inodes": 3}, "fail"),
        ({"fault": "Read-only file system"}, "fail"),
    ],
)
def test_a_folder_is_judged(changes: dict[str, Any], state: str) -> None:
    (found,) = place_results("disk", replace(GOOD, **changes), of_database=True)
    assert found.state == state
    assert bool(found.hint) == (state != "ok")


def test_a_network_matters_to_a_database_alone() -> None:
    (found,) = place_results("disk", replace(GOOD, filesystem="nfs4"))
    assert found.state == "ok"


def test_a_folder_that_need_not_be_written_does_not_fail() -> None:
    read_only = replace(GOOD, fault="Read-only file system")
    (found,) = place_results("hub cache", read_only, needed=False)
    assert found.state == "warn"
    (fine,) = place_results("hub cache", GOOD, needed=False)
    assert fine.state == "ok"


def test_a_folder_that_is_not_there_is_looked_up_where_it_would_be(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "1 0 8:1 / / rw - ext4 /dev/sda rw\n"
        f"2 1 0:9 / {tmp_path} rw shared:1 - nfs4 host:/x rw\n"
        "a line that is none\n"
    )
    before = sorted(tmp_path.iterdir())
    found = gather_place(tmp_path / "logs" / "deep", mounts)
    assert found.filesystem == "nfs4"
    assert found.fault is None
    assert found.free_bytes is not None
    assert sorted(tmp_path.iterdir()) == before


def test_a_file_in_the_way_is_said(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("")
    assert gather_place(tmp_path / "logs").fault == "Not a directory"
