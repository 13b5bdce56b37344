"""Small traces for the tests of this folder."""

from __future__ import annotations

from pathlib import Path

from autotune.traffic.model import Trace, TraceRequest

SHARED_DATA = Path(__file__).resolve().parents[4] / "shared" / "data"
AZURE_CONVERSATION = SHARED_DATA / "azure_conv_2023_first_2400s.csv"
MOONCAKE = SHARED_DATA / "mooncake_conversation_first_4000.jsonl"


def request(
    at_s: float, prompt: int = 100, output: int = 10, hash_ids: tuple[int, ...] = (0,)
) -> TraceRequest:
    return TraceRequest(at_s * 1e3, prompt, output, hash_ids)


def trace(*requests: TraceRequest, block_size: int = 512, prefixes_known: bool = True) -> Trace:
    return Trace.build(
        requests, block_size=block_size, prefixes_known=prefixes_known, source="test"
    )
