from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.traffic.sessions import LEAST_LARGEST, sessions
from tests.autotune.traffic.examples import request, trace


@settings(max_examples=40)
@given(st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=4), min_size=1, max_size=60))
def test_every_request_is_in_one_session_of_bounded_size(ids: list[list[int]]) -> None:
    built = trace(*(request(n, hash_ids=tuple(row)) for n, row in enumerate(ids)))
    found = sessions(built)
    assert sorted(row for each in found for row in each) == list(range(len(ids)))
    assert all(each == sorted(each) for each in found)
    assert [each[0] for each in found] == sorted(each[0] for each in found)
    assert max(map(len, found)) <= LEAST_LARGEST


def test_turns_of_a_conversation_are_one_session() -> None:
    built = trace(
        request(0, hash_ids=(1,)),
        request(1, hash_ids=(50,)),
        request(2, hash_ids=(1, 2)),
        request(3, hash_ids=(1, 2, 3)),
    )
    assert sessions(built) == [[0, 2, 3], [1]]


def test_a_system_prompt_joins_nobody() -> None:
    rows = [request(n, hash_ids=(0, 1 + n // 2)) for n in range(40)]
    assert sessions(trace(*rows)) == [[n, n + 1] for n in range(0, 40, 2)]


def test_the_rarest_blocks_join_first() -> None:
    # Twelve and eight share a block each, and all of them another that nineteen have.
    rows = [request(n, hash_ids=(0, 1 if n < 12 else 2)) for n in range(20)]
    assert sessions(trace(*rows)) == [list(range(12)), list(range(12, 20))]


def test_without_known_prefixes_everybody_is_alone() -> None:
    built = trace(request(0, hash_ids=(1,)), request(1, hash_ids=(1,)), prefixes_known=False)
    assert sessions(built) == [[0], [1]]
