from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from autotune.hardware.gpu_meter import GPU_FIGURES
from autotune.hardware.hardware_use import HardwareUse
from autotune.hardware.machine_meter import MACHINE_FIGURES
from autotune.hardware.neighbours import Neighbour
from autotune.hardware.sampler import HardwareSampler
from tests.autotune.hardware.driver import FakeLibrary

LAST = "nvmlDeviceGetComputeRunningProcesses"
"""What a sample asks the driver last."""


def sample(library: FakeLibrary, *, samples: int = 3, **options: Any) -> HardwareUse:
    """Sample until so many samples were begun."""
    enough, begun = threading.Event(), 0

    def count(function: str) -> None:
        nonlocal begun
        begun += function == LAST
        if begun == samples:
            enough.set()

    library.hook = count
    sampler = HardwareSampler(["GPU-1", "GPU-2"], interval_s=1e-4, library=library, **options)
    with sampler:
        assert enough.wait(30)
    return sampler.result()


def test_what_a_gpu_did() -> None:
    library = FakeLibrary()
    library.reasons = [0x1, 0x4, 0x4]
    library.pids = {os.getpid(): 30, 2**22 + 1: 9}
    found = sample(library, own_pids=[os.getpid()])
    assert found.fault is None
    assert found.samples >= 3
    first, unknown = found.gpus["GPU-1"], found.gpus["GPU-2"]
    power, busy = first.figures["power_w"], first.figures["sm_busy_ratio"]
    assert power is not None
    assert (power.mean, power.max) == (650, 650)
    assert busy is not None
    assert busy.mean == pytest.approx(0.2)
    assert first.figures["dram_busy_ratio"] is first.figures["sm_occupancy_ratio"] is None
    assert first.clock_reasons is not None
    assert first.clock_reasons["gpu_idle"] == pytest.approx(1 / found.samples)
    assert sum(first.clock_reasons.values()) == pytest.approx(1)
    assert unknown.clock_reasons is None
    assert set(unknown.figures.values()) == {None}
    assert found.others == (Neighbour("GPU-1", 2**22 + 1, None, 9),)
    assert not library.allocated


def test_the_result_as_json() -> None:
    found = json.loads(json.dumps(sample(FakeLibrary()).to_json(), allow_nan=False))
    assert set(found) == {"samples", "machine", "gpus", "others", "pids_comparable", "fault"}
    assert set(found["machine"]) == set(MACHINE_FIGURES)
    gpu = found["gpus"]["GPU-1"]
    assert set(gpu["figures"]) == set(GPU_FIGURES)
    assert gpu["figures"]["temperature_c"] == {"mean": 61, "max": 61}
    assert gpu["clock_reasons"] == {}
    assert found["gpus"]["GPU-2"]["clock_reasons"] is None


def test_the_samples_as_arrays() -> None:
    found = sample(FakeLibrary())
    arrays = found.series.to_arrays(started_at=found.series.at_s[0])
    assert {len(each) for each in arrays.values()} == {found.samples}
    assert arrays["hardware_at_s"][0] == 0
    assert (arrays["hardware_gpu0_power_w"] == 650).all()
    assert math.isnan(arrays["hardware_gpu0_sm_busy_ratio"][0])
    assert arrays["hardware_gpu0_sm_busy_ratio"][1] == pytest.approx(0.2)
    assert len(arrays) == 1 + len(MACHINE_FIGURES) + 2 * len(GPU_FIGURES)


def test_a_sampler_that_fails_stops_and_says_so() -> None:
    library, begun = FakeLibrary(), 0

    def fail_in_the_second(function: str) -> None:
        nonlocal begun
        begun += function == LAST
        if function == LAST and begun == 2:
            raise OverflowError("a count of the driver")

    library.hook = fail_in_the_second
    with HardwareSampler(["GPU-1"], interval_s=0, library=library) as sampler:
        sampler._thread.join(30)
    found = sampler.result()
    assert found.samples == 1
    assert found.fault == "OverflowError: a count of the driver"
    assert not library.allocated


def test_a_driver_that_hangs_holds_nothing_up() -> None:
    library, go_on = FakeLibrary(), threading.Event()

    def hang(function: str) -> None:
        if function == LAST:
            go_on.wait(30)

    library.hook = hang
    with HardwareSampler(["GPU-1"], library=library, patience_s=0.01) as sampler:
        pass
    try:
        found = sampler.result()
        assert (found.samples, found.fault) == (0, "the driver does not answer")
        assert sampler._thread.daemon
    finally:
        go_on.set()
        sampler._thread.join(30)


def test_a_thread_that_cannot_start_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with HardwareSampler([]) as sampler:
        pass
    assert sampler.result().fault == "can't start new thread"


def test_an_error_of_the_replay_is_passed_on() -> None:
    with pytest.raises(KeyError), HardwareSampler([]):
        raise KeyError("replay")


def test_without_a_driver_there_is_the_machine() -> None:
    library = FakeLibrary()
    library.broken = {"nvmlInit"}
    with HardwareSampler(["GPU-1"], own_pids=[os.getpid()], library=library) as sampler:
        pass
    found = sampler.result()
    assert found.fault is None
    assert found.machine["own_memory_bytes"] is not None
    assert set(found.gpus["GPU-1"].figures.values()) == {None}
    assert (found.others, found.pids_comparable) == ((), None)


def test_a_machine_without_gpus_is_not_asked_for_any() -> None:
    library = FakeLibrary()
    library.hook = lambda function: pytest.fail(f"asked {function}")
    with HardwareSampler([], library=library) as sampler:
        pass
    assert (sampler.result().samples, sampler.result().fault) == (1, None)


def test_the_interpreter_ends_while_it_samples(tmp_path: Path) -> None:
    code = (
        "from autotune.hardware.sampler import HardwareSampler\n"
        "HardwareSampler([], interval_s=3600).__enter__()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, timeout=60, cwd=tmp_path
    )
    assert done.stderr == b""
