from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.engine import ground as ground_module
from autotune.engine.ground import Ground, GroundCheck, NotClean, survey
from autotune.engine.processes import Process
from autotune.engine.protocol import Failure, FailureClass
from autotune.engine.run_folder import RunFolder
from autotune.hardware.gpu_memory import GpuMemory, Holder

GIB = 2**30
CLEAN = Ground(
    processes=0,
    host_memory_bytes=GIB,
    host_descriptors=40,
    shared_memory_bytes=0,
    sockets=0,
    gpu_memory_bytes={"GPU-1": GIB},
)
HOST, NEXT_HOST = Process(1001, 1), Process(1002, 2)


class Clock:
    """Moves on by a second whenever somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, _duration_s: float) -> None:
        self.now_s += 1.0


class Held:
    """What is held at each survey, one after the other, the last one again and again."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = Clock()
        self.states: list[Ground] = []
        monkeypatch.setattr(ground_module, "survey", self._survey)
        monkeypatch.setattr(ground_module, "time", self.clock)

    def _survey(self, *_: object) -> Ground:
        return self.states.pop(0) if len(self.states) > 1 else self.states[0]


class Gpu(GpuMemory):
    """Has in use what it is told, the last value again and again."""

    def __init__(self, holders: list[Holder], *used_gib: float) -> None:
        super().__init__(())
        self._holders = holders
        self._used_gib = list(used_gib)

    def used_bytes(self) -> dict[str, int]:
        more = len(self._used_gib) > 1
        return dict(used(self._used_gib.pop(0) if more else self._used_gib[0]))

    def holders(self) -> list[Holder]:
        return self._holders


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Held:
    return Held(monkeypatch)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path)


def check(held: Held, settle_s: float = 5.0) -> GroundCheck:
    return GroundCheck(settle_s, clock=held.clock.monotonic)


def used(gib: float) -> Mapping[str, int]:
    return {"GPU-1": int(gib * GIB)}


def test_clean_ground_costs_nothing(held: Held, folder: RunFolder) -> None:
    ground = check(held)
    held.states = [replace(CLEAN, gpu_memory_bytes={})]
    assert ground.before_start(HOST, folder, GpuMemory(())) == held.states[0]


def test_what_an_earlier_run_gives_back_is_no_baseline(held: Held, folder: RunFolder) -> None:
    ground = check(held)
    held.states = [replace(CLEAN, gpu_memory_bytes=used(x)) for x in (130, 60, 2, 1, 1)]
    found = ground.before_start(HOST, folder, GpuMemory(()))
    assert found == replace(CLEAN, waited_s=4.0)
    held.states = [replace(CLEAN, gpu_memory_bytes=used(2.0))]
    with pytest.raises(NotClean, match=r"GPU-1 has 2\.00 GiB in use, 1\.00 GiB before"):
        ground.before_start(HOST, folder, GpuMemory(()))


def test_a_gpu_that_did_not_answer_at_first_gets_its_baseline_later(
    held: Held, folder: RunFolder
) -> None:
    ground = check(held)
    held.states = [replace(CLEAN, gpu_memory_bytes={})]
    ground.before_start(HOST, folder, GpuMemory(()))
    held.states = [CLEAN]
    ground.before_start(HOST, folder, GpuMemory(()))
    held.states = [replace(CLEAN, gpu_memory_bytes=used(2.0))]
    with pytest.raises(NotClean, match="GPU-1 has"):
        ground.before_start(HOST, folder, GpuMemory(()))


def test_memory_of_a_gpu_is_waited_for(held: Held, folder: RunFolder) -> None:
    ground = check(held)
    held.states = [CLEAN]
    ground.before_start(HOST, folder, GpuMemory(()))
    held.states = [replace(CLEAN, gpu_memory_bytes=used(x)) for x in (70, 30, 1.04)]
    found = ground.before_start(HOST, folder, GpuMemory(()))
    assert found == replace(CLEAN, gpu_memory_bytes=used(1.04), waited_s=2.0)


def test_memory_that_does_not_come_back_is_named_with_its_holder(
    held: Held, folder: RunFolder
) -> None:
    ground = check(held)
    held.states = [CLEAN]
    ground.before_start(HOST, folder, GpuMemory(()))
    held.states = [replace(CLEAN, gpu_memory_bytes=used(31.0))]
    gpu = Gpu([Holder(4711, 30 * GIB), Holder(4712, None)])
    with pytest.raises(NotClean) as caught:
        ground.before_start(NEXT_HOST, folder, gpu)
    assert str(caught.value) == (
        "GPU-1 has 31.00 GiB in use, 1.00 GiB before the first engine, after 5 s: "
        "process 4711 with 30.00 GiB, process 4712"
    )


NOT_FREE = Failure("unknown", "Free memory on device cuda:0 (9/140 GiB) is less than desired.")
NO_MEMORY = Failure("oom_run", "torch.OutOfMemoryError: CUDA out of memory.")


def begun(held: Held, folder: RunFolder, *neighbours: Holder) -> GroundCheck:
    """A run whose first engine could start, beside these."""
    ground = check(held)
    held.states = [CLEAN]
    ground.before_start(HOST, folder, Gpu(list(neighbours)))
    held.clock.now_s = 0.0
    return ground


def test_memory_that_others_took_meanwhile_is_no_fault_of_the_candidate(
    held: Held, folder: RunFolder
) -> None:
    ground = begun(held, folder)
    failure = ground.blamed(NO_MEMORY, Gpu([Holder(4711, 10 * GIB)], 131.0, 11.0))
    assert failure == Failure(
        "unknown",
        "GPU-1 has 11.00 GiB in use, 1.00 GiB before the first engine, without an engine: "
        "process 4711 with 10.00 GiB; so the engine said: " + NO_MEMORY.evidence,
    )
    assert held.clock.now_s == 5.0
    assert "an engine; so" in ground.blamed(NO_MEMORY, Gpu([], 11.0)).evidence


def test_memory_that_the_engine_itself_wanted_is(held: Held, folder: RunFolder) -> None:
    ground = begun(held, folder)
    assert ground.blamed(NO_MEMORY, Gpu([], 131.0, 60.0, 1.0)) == NO_MEMORY
    assert held.clock.now_s == 2.0, "it is waited for what the engine held"


def test_who_was_there_before_the_first_engine_is_named(held: Held, folder: RunFolder) -> None:
    ground = begun(held, folder, Holder(4711, 90 * GIB), Holder(12, None))
    for failure in (NOT_FREE, NO_MEMORY):
        assert ground.blamed(failure, Gpu([], 1.0)) == replace(
            failure,
            evidence=f"{failure.evidence} (not ours is process 4711 with 90.00 GiB, process 12)",
        )


@pytest.mark.parametrize("failure_class", ["unknown", "engine_dead", "hang", "refused_argument"])
def test_other_failures_are_told_as_they_are(
    held: Held, folder: RunFolder, failure_class: FailureClass
) -> None:
    failure = Failure(failure_class, "IndexError: block 7 is out of range")
    assert begun(held, folder).blamed(failure, Gpu([], 99.0)) == failure
    assert held.clock.now_s == 0.0


@pytest.mark.parametrize(
    ("left", "words"),
    [
        (replace(CLEAN, processes=2), "2 processes of the last engine still run"),
        (replace(CLEAN, shared_memory_bytes=GIB // 2), "0.50 GiB of shared memory and 0 sockets"),
        (replace(CLEAN, sockets=7), "0.00 GiB of shared memory and 7 sockets"),
    ],
)
def test_what_an_engine_leaves_is_said(
    held: Held, folder: RunFolder, left: Ground, words: str
) -> None:
    held.states = [left]
    with pytest.raises(NotClean, match=words):
        check(held).before_start(HOST, folder, GpuMemory(()))


@pytest.mark.parametrize(
    ("grown", "words"),
    [
        (replace(CLEAN, host_memory_bytes=int(1.3 * GIB)), "grown from 1.20 GiB to 1.30 GiB"),
        (replace(CLEAN, host_descriptors=90), "the host has 90 descriptors, 40 before"),
    ],
)
def test_a_host_that_leaks_after_its_first_engine_is_found_out(
    held: Held, folder: RunFolder, grown: Ground, words: str
) -> None:
    ground = check(held)
    # The first engine's imports stay, and are no leak.
    for state in (CLEAN, replace(CLEAN, host_memory_bytes=int(1.2 * GIB))):
        held.states = [state]
        ground.before_start(HOST, folder, GpuMemory(()))
    held.states = [grown]
    with pytest.raises(NotClean, match=words):
        ground.before_start(HOST, folder, GpuMemory(()))
    # A fresh host is measured by itself.
    assert ground.before_start(NEXT_HOST, folder, GpuMemory(())).host_replaced is None


def test_a_little_more_is_no_leak(held: Held, folder: RunFolder) -> None:
    ground = check(held)
    more = replace(CLEAN, host_memory_bytes=int(1.04 * GIB), host_descriptors=50)
    for state in (CLEAN, CLEAN, more):
        held.states = [state]
        found = ground.before_start(HOST, folder, GpuMemory(()))
        assert replace(found, waited_s=0.0) == state


def test_a_real_survey(folder: RunFolder) -> None:
    ours = Process.of(os.getpid())
    assert ours is not None
    now = survey(ours, folder, GpuMemory(()))
    assert (now.processes, now.shared_memory_bytes, now.sockets) == (0, 0, 0)
    assert now.host_memory_bytes > 2**20
    assert now.host_descriptors > 3
    assert now.to_json()["gpu_memory_bytes"] == {}


def test_shared_memory_that_is_unlinked_during_a_survey_holds_nothing(
    folder: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = Process.of(os.getpid())
    assert ours is not None
    left = tmp_path / "psm_left"
    left.write_bytes(b"12345")
    segments = frozenset({left, tmp_path / "psm_unlinked"})
    monkeypatch.setattr(RunFolder, "shared_memory", lambda _folder: segments)
    assert survey(ours, folder, GpuMemory(())).shared_memory_bytes == 5
