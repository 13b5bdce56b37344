"""Step times that are easy to work out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np

from autotune.forecast.simulation import STEADY, Times


def a_second_each(**changes: Any) -> Times:
    """Return the times of an engine whose steps take a second, whatever is in them."""
    plain = Times(
        decode_s=np.array([0.0, *[1.0] * 1024]),
        mixed_s=np.array([0.0, *[1.0] * 1024]),
        kv_token_s=0.0,
        pair_s=0.0,
        request_s=0.0,
        host_s=0.0,
        host_request_s=0.0,
        between_s=0.0,
        between_request_s=0.0,
        jitter=STEADY,
    )
    return plain._replace(**changes)
