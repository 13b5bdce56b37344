from __future__ import annotations

import numpy as np
import pytest

from objectives.latency import e2e_ms, itl_ms, itl_owner, send_lag_ms, tpot_ms, ttft_ms
from objectives.samples import RequestSamples
from tests.objectives.builders import from_deliveries

INF = float("inf")


@pytest.fixture
def samples() -> RequestSamples:
    """Three tokens, one token, failed after two tokens, failed without any."""
    return from_deliveries(
        [[1.0, 1.1, 1.4], [2.5], [3.0, 3.5], []],
        scheduled_s=[0.5, 2.0, 2.0, 3.0],
        failed=[False, False, True, True],
        send_lag_s=0.25,
    )


def test_latencies_count_from_the_scheduled_time(samples: RequestSamples) -> None:
    np.testing.assert_allclose(ttft_ms(samples), [500, 500, INF, INF])
    np.testing.assert_allclose(e2e_ms(samples), [900, 500, INF, INF])


def test_tpot_is_undefined_for_one_token(samples: RequestSamples) -> None:
    np.testing.assert_allclose(tpot_ms(samples), [200, np.nan, INF, INF])


def test_a_lost_request_adds_one_endless_gap_to_those_it_had(samples: RequestSamples) -> None:
    np.testing.assert_allclose(itl_ms(samples), [100, 300, 500, INF, INF])
    assert itl_owner(samples).tolist() == [0, 0, 2, 2, 3]


def test_send_lag_is_the_clients(samples: RequestSamples) -> None:
    np.testing.assert_allclose(send_lag_ms(samples), 250)
