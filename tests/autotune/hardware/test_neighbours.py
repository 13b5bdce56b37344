from __future__ import annotations

import os
from pathlib import Path

import pytest

from autotune.hardware.gpu_memory import Holder
from autotune.hardware.neighbours import Neighbour, Neighbourhood


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A container's view: no namespace of the machine's, and one process of ours."""
    for pid, name in ((7, "VLLM::EngineCore"), (30, "python")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "comm").write_text(name + "\n")
    return tmp_path


def test_others_are_named_with_the_most_that_they_held(proc: Path) -> None:
    near = Neighbourhood([7], proc=proc)
    near.look({"GPU-1": [Holder(7, 50), Holder(30, 5)], "GPU-2": [Holder(31, None)]})
    near.look({"GPU-1": [Holder(30, 9)], "GPU-2": []})
    near.look({"GPU-1": [Holder(30, 2)]})
    assert near.pids_comparable is True
    assert near.others() == (
        Neighbour("GPU-1", 30, "python", 9),
        Neighbour("GPU-2", 31, None, None),
    )


def test_pids_of_another_namespace_accuse_nobody_by_name(proc: Path) -> None:
    near = Neighbourhood([7], proc=proc)
    near.look({"GPU-1": [Holder(30, 50)]})
    assert near.pids_comparable is False
    assert near.others() == (Neighbour("GPU-1", 30, None, 50),)


def test_the_machines_own_namespace_is_known_by_its_inode(monkeypatch: pytest.MonkeyPatch) -> None:
    first = os.stat_result((0, 0xEFFFFFFC, *[0] * 8))
    monkeypatch.setattr(Path, "stat", lambda _: first)
    near = Neighbourhood([7])
    near.look({"GPU-1": [Holder(2**22 + 1, 50)]})
    assert near.pids_comparable is True
    assert near.others() == (Neighbour("GPU-1", 2**22 + 1, None, 50),)


def test_without_holders_there_is_nothing_to_say(proc: Path) -> None:
    near = Neighbourhood([7], proc=proc)
    near.look({"GPU-1": []})
    assert (near.others(), near.pids_comparable) == ((), None)
