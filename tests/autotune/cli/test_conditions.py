"""What a trial ran on, in words."""

from __future__ import annotations

from typing import Any

import pytest

from autotune.cli.conditions import BESIDE_FROM, beside_line, condition_lines
from tests.autotune.study.records import record

UUID = "GPU-665cc1a5-bd9c-f852-a44b-66b48c101bdf"
SHARES = {"cpu_busy_ratio": 0.0447, "cpu_stolen_ratio": 0.0001, "own_cpu_ratio": 0.0424}


def spread(mean: float, most: float | None = None) -> dict[str, float]:
    return {"mean": mean, "max": mean if most is None else most}


FIGURES = {
    "gpu_busy_ratio": spread(0.981),
    "memory_used_bytes": spread(141509394432.0),
    "power_w": spread(659.7, 698.97),
    "temperature_c": spread(59.9),
    "sm_clock_mhz": spread(1682.8),
    "sm_busy_ratio": spread(0.857),
    "sm_occupancy_ratio": spread(0.153),
    "tensor_busy_ratio": spread(0.548),
    "dram_busy_ratio": spread(0.42),
}
MACHINE = {**{name: spread(mean) for name, mean in SHARES.items()}, "own_memory_bytes": None}
GPU = {"figures": FIGURES, "clock_reasons": {"sw_power_cap": 0.79}}


def hardware(**changes: Any) -> dict[str, Any]:
    return {
        "samples": 86,
        "machine": MACHINE,
        "gpus": {UUID: GPU},
        "others": [],
        "pids_comparable": True,
        "fault": None,
        **changes,
    }


def lines(**engine: Any) -> list[str]:
    return condition_lines(record(0, engine=engine))


def test_nothing_is_said_of_what_was_not_recorded() -> None:
    assert condition_lines(record(0)) == []
    assert lines(failed_requests=0) == []


def test_the_engine() -> None:
    engine = {"device": "NVIDIA H200", "vllm_version": "0.26.0", "capture_sizes": [1, 512, 8]}
    assert lines(**engine, kv_cache_tokens=65536) == [
        "NVIDIA H200, vLLM 0.26.0, KV cache of 65536 tokens, CUDA graphs up to 512 tokens"
    ]
    assert lines(**{**engine, "capture_sizes": []}, kv_cache_tokens=None) == [
        "NVIDIA H200, vLLM 0.26.0"
    ]


@pytest.mark.parametrize(
    ("warmup", "said"),
    [
        ({"passes": 1, "drift": None}, "warm-up: 160 requests in 1 pass, 20 s"),
        (
            {"passes": 2, "drift": -0.004},
            "warm-up: 160 requests in 2 passes, 20 s; step times at equal work moved by -0.4 %",
        ),
    ],
)
def test_the_warm_up(warmup: dict[str, Any], said: str) -> None:
    assert lines(warmup={"requests": 160, "seconds": 20.1, **warmup}) == [said]


def test_a_gpu() -> None:
    assert lines(hardware=hardware()) == [
        (
            "GPU-665cc1a5: busy (NVML) 98 %, SMs 86 %, warps 15 %, tensor 55 %, DRAM 42 %, "
            "131.8 GiB, 660 W (most 699), 60 °C, 1683 MHz"
        ),
        "GPU-665cc1a5 clocks, share of samples: sw_power_cap 79 %",
    ]


def test_a_gpu_that_answers_little_leaves_the_rest_out() -> None:
    figures = dict.fromkeys(FIGURES) | {"gpu_busy_ratio": spread(1.0)}
    some = {UUID: {"figures": figures, "clock_reasons": None}}
    assert lines(hardware=hardware(gpus=some)) == ["GPU-665cc1a5: busy (NVML) 100 %"]


@pytest.mark.parametrize(
    "gpus", [{}, {UUID: {"figures": dict.fromkeys(FIGURES), "clock_reasons": None}}]
)
def test_the_machine_where_no_gpu_answers(gpus: dict[str, Any]) -> None:
    assert lines(hardware=hardware(gpus=gpus)) == ["machine: CPU busy 4 %, by the engine 4 %"]
    machine = {**dict.fromkeys(MACHINE), "own_memory_bytes": spread(3 * 2**30)}
    assert lines(hardware=hardware(gpus=gpus, machine=machine)) == [
        "machine: engine memory 3.0 GiB"
    ]
    assert lines(hardware=hardware(gpus=gpus, machine=dict.fromkeys(MACHINE))) == []


def test_a_host_that_lends_its_processors_to_others_is_a_warning() -> None:
    machine = {**MACHINE, "cpu_stolen_ratio": spread(0.07)}
    assert lines(hardware=hardware(machine=machine))[-1] == (
        "warning: the host gave 7 % of the processors' time to others"
    )


@pytest.mark.parametrize(
    ("busy", "own", "said"),
    [
        (1.0, 0.45, "beside other work, which had 55 % of the processors"),
        (0.5, 0.5 - BESIDE_FROM, ""),
        (1.0, 1.0, ""),
        (1.0, None, ""),
        (None, 0.2, ""),
    ],
)
def test_other_work_on_the_processors(busy: float | None, own: float | None, said: str) -> None:
    shares = {"cpu_busy_ratio": busy, "own_cpu_ratio": own}
    machine = {**MACHINE, **{name: mean and spread(mean) for name, mean in shares.items()}}
    engine = {"hardware": hardware(machine=machine)}
    assert beside_line(record(0, engine=engine)) == said
    warned = f"warning: this ran {said}" in condition_lines(record(0, engine=engine))
    assert warned is bool(said)


def test_others_on_the_gpu_are_a_warning_that_drives_no_terminal() -> None:
    others = [
        {"gpu_uuid": UUID, "pid": 41, "name": "py\x1b[31mthon", "memory_bytes": 2**31},
        {"gpu_uuid": UUID, "pid": 42, "name": None, "memory_bytes": None},
    ]
    assert lines(hardware=hardware(others=others))[-1] == (
        "warning: others had memory of the GPU: py�[31mthon (pid 41, 2.0 GiB, GPU-665cc1a5) and "
        "a process without a name (pid 42, size unknown, GPU-665cc1a5)"
    )
    assert lines(hardware=hardware(others=others, pids_comparable=False))[-1] == (
        "others on the GPU: not known, as the driver's pids are another namespace's"
    )


def test_sampling_that_ended_early() -> None:
    assert lines(hardware=hardware(fault="NVMLError: gone"))[-1] == (
        "the hardware was not watched to the end: NVMLError: gone"
    )


@pytest.mark.parametrize(
    ("bound_ms", "said"), [(1234.5, "at least 1234.5 ms"), (None, "without bound")]
)
def test_a_replay_that_was_cut_short(bound_ms: float | None, said: str) -> None:
    cut = {
        "limit": "ttft_p95", "limit_ms": 300.0, "bound_ms": bound_ms, "at_s": 12.34,
        "sent": 100, "ended": 80, "requests": 400, "bounds": {}, "classes": "",
    }  # fmt: skip
    lost = record(4, state="infeasible", fidelity="live", engine={"censored": cut})
    assert condition_lines(lost) == [
        (
            f"cut short at 12.3 s: ttft_p95 would be {said}, of 300.0 allowed; 100 of 400 "
            "requests had left, 80 had ended"
        )
    ]
    again = record(4, state="interrupted", fidelity="live", engine={"censored": cut})
    assert condition_lines(again)[0].startswith("cut short at 12.3 s under a stricter budget: ")
