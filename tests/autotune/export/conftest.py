from __future__ import annotations

import pytest

from autotune.export import Export


@pytest.fixture
def export() -> Export:
    return Export(
        "models/tiny",
        candidate={"max_num_batched_tokens": 2048, "max_num_seqs": 24},
        engine_args={
            "max_num_batched_tokens": 2048,
            "max_num_seqs": 24,
            "enable_prefix_caching": False,
            "quantization": None,
        },
        provenance={
            "study": "night",
            "trial": 17,
            "trace_sha256": "ab12",
            "budget": {"ttft_p95": 800},
            "repeats": 3,
            "device": None,
        },
        metrics={"ttft_p95": 712.34567, "tpot_p95": 31.5},
        intervals={"ttft_p95": (690.0, None)},
        baseline={"ttft_p95": 950.0, "tpot_p95": None},
        verdict={"code": "knee", "confidence": 0.93},
    )
