from __future__ import annotations

from pathlib import Path

import pytest

from storage import owner
from storage.leases import held_lease, study_resource
from storage.repository import Repository
from tests.storage.lease_contract import LeaseContract

pytestmark = pytest.mark.usefixtures("prepared")


class TestSqliteLeases(LeaseContract):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path / 'study.db'}"


def test_the_longest_name_of_a_study_has_a_lease(repository: Repository) -> None:
    with held_lease(repository, study_resource("x" * 1000), "it") as held:
        assert len(held.resource) == 1006


def test_a_process_is_known_by_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    myself = owner.Owner.myself()
    assert not myself.is_gone
    assert owner.Owner.myself().owner != myself.owner
    assert owner.started_ticks(2**22 + 1) is None
    monkeypatch.setattr(owner, "machine", lambda: "another")
    assert not owner.Owner(myself.owner, "far", "third", 1, 0).is_gone


def test_without_proc_a_machine_is_known_by_its_card(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(owner, "_BOOT_ID", tmp_path / "none")
    assert owner.machine.__wrapped__().endswith("/")
