from __future__ import annotations

import subprocess
import sys

from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.traffic.capture.blocks import PIECE_BYTES, BlockHasher, scaled, unlike_any

SALT = bytes(range(32))
TOKENS = st.lists(st.integers(0, 200_000), max_size=70)


def hasher(salt: bytes = SALT, block_size: int = 16) -> BlockHasher:
    return BlockHasher(salt, block_size=block_size, pause=lambda: None)


@settings(max_examples=60)
@given(TOKENS, TOKENS, TOKENS)
def test_equal_ids_mean_equal_prefixes(shared: list[int], one: list[int], two: list[int]) -> None:
    first, second = shared + one, shared + two
    ids, others = hasher().of_tokens(first), hasher().of_tokens(second)
    assert len(ids) == -(-len(first) // 16)
    for number, (left, right) in enumerate(zip(ids, others, strict=False), start=1):
        assert (left == right) == (first[: 16 * number] == second[: 16 * number])
        assert 0 <= left < 2**63


def test_the_same_block_elsewhere_has_another_id() -> None:
    ids = hasher().of_tokens([7] * 64)
    assert len(set(ids)) == 4


def test_ids_depend_on_salt_and_context_and_on_nothing_else() -> None:
    tokens = list(range(40))
    ids = hasher().of_tokens(tokens, context="llama")
    assert set(ids).isdisjoint(hasher(b"\1" * 32).of_tokens(tokens, context="llama"))
    assert set(ids).isdisjoint(hasher().of_tokens(tokens, context="qwen"))
    code = (
        "from autotune.traffic.capture.blocks import BlockHasher\n"
        "print(*BlockHasher(bytes(range(32))).of_tokens(range(40), context='llama'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        env={"PYTHONHASHSEED": "77"},
    )
    assert tuple(int(each) for each in done.stdout.split()) == ids


def test_long_prompts_let_other_threads_run() -> None:
    pauses: list[None] = []
    BlockHasher(SALT, block_size=1, pause=lambda: pauses.append(None)).of_tokens([1] * 1024)
    assert len(pauses) == 8


def ids_of(text: str, tokens: int, *, bytes_per_token: float = 4.0) -> tuple[int, ...]:
    pieces = hasher().of_text(text.encode())
    return scaled(pieces, tokens=tokens, bytes_per_token=bytes_per_token, block_size=16)


def test_texts_that_begin_alike_share_ids_in_the_same_places() -> None:
    system = "You are a helpful assistant. " * 40
    short, long = system + "Why?", system + "Tell me all about it. " * 30
    few, many = ids_of(short, len(short) // 4), ids_of(long, len(long) // 4)
    same = [left == right for left, right in zip(few, many, strict=False)]
    # Of 64 bytes a block, 18 blocks lie in the first 1160 bytes.
    assert same == [True] * 18 + [False] * (len(few) - 18)
    assert ids_of(short, len(short) // 4) == few


def test_texts_keep_their_common_ids_whatever_their_own_ratio() -> None:
    system = "x" * 1024
    dense, sparse = ids_of(system + "a" * 500, 700), ids_of(system + "b" * 500, 300)
    assert dense[:16] == sparse[:16]
    assert dense[16] != sparse[16]
    assert (len(dense), len(sparse)) == (44, 19)
    assert len(set(dense)) == 44


def test_a_text_that_differs_at_its_end_differs_in_the_last_block() -> None:
    text = "z" * 900
    assert ids_of(text + "1", 226)[:-1] == ids_of(text + "2", 226)[:-1]
    assert ids_of(text + "1", 226)[-1] != ids_of(text + "2", 226)[-1]
    # With fewer tokens than the ratio of all says, the end of the text is still in the last id.
    assert ids_of(text + "1", 40)[-1] != ids_of(text + "2", 40)[-1]


def test_one_piece_is_enough() -> None:
    assert len(hasher().of_text(b"x" * PIECE_BYTES)) == 1
    assert len(set(ids_of("hello", 33))) == 3


def test_what_is_unknown_is_like_nothing_else() -> None:
    assert set(unlike_any(3, 1)).isdisjoint(unlike_any(3, 2))
    assert len(set(unlike_any(100, 5))) == 100
    assert unlike_any(0, 5) == ()
