from __future__ import annotations

import numpy as np
import pytest

from objectives.classes import LengthClass, class_mask, default_classes, parse_classes
from objectives.errors import ObjectiveError
from tests.objectives.builders import mixed_lengths


def test_parse_reads_sorts_and_writes_back() -> None:
    classes = parse_classes("long:2000-, short:0-2000")
    assert classes == (LengthClass("short", 0, 2000), LengthClass("long", 2000, None))
    assert parse_classes(" ".join(each.text for each in classes)) == classes
    assert parse_classes("  ") == ()


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("short:0-2000 long:1999-", "overlap", "short:0-1999"),
        ("all:0- long:2000-", "overlap", "all:0-2000"),
        ("a:0-10 a:10-", "'a' is given twice", "rename"),
        ("a:10-10", "holds no length", "above"),
        ("a:x-10", "'a:x-10' is no class", "NAME:LOW-HIGH"),
        ("a:0-" + "9" * 5000, "is no class", "at most 9 digits"),
        ("a:0-٣", "is no class", "NAME:LOW-HIGH"),
        ("a:0-1e3", "is no class", "NAME:LOW-HIGH"),
        ("a:-5-10", "is no class", "NAME:LOW-HIGH"),
        ("short", "'short' is no class", "NAME:LOW-HIGH"),
    ],
)
def test_parse_refuses(text: str, message: str, hint: str) -> None:
    with pytest.raises(ObjectiveError, match=message) as caught:
        parse_classes(text)
    assert hint in caught.value.hint


def test_mask_includes_the_lower_end_only() -> None:
    lengths = np.array([9, 10, 19, 20, 30])
    assert class_mask(lengths, LengthClass("a", 10, 20)).tolist() == [
        False,
        True,
        True,
        False,
        False,
    ]
    assert class_mask(lengths, LengthClass("b", 20, None)).tolist() == [False] * 3 + [True] * 2


@pytest.mark.parametrize("requests", [30, 100, 400, 3000])
@pytest.mark.parametrize("sigma", [0.7, 0.9, 1.2])
@pytest.mark.parametrize("median", [40, 300, 1500])
def test_one_group_is_not_cut(requests: int, sigma: float, median: int) -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        lengths = np.maximum(1, rng.lognormal(np.log(median), sigma, requests)).astype(np.int64)
        assert default_classes(lengths) == (), seed


@pytest.mark.parametrize("requests", [200, 1000])
def test_chats_and_documents_are_cut_between_them(requests: int) -> None:
    for seed in range(20):
        short, long = default_classes(mixed_lengths(requests, seed=seed).astype(np.int64))
        assert short.high is not None
        assert 1000 < short.high <= 6100
        assert (short.low, long.low, long.high) == (0, short.high, None)


def test_two_lengths_are_two_groups() -> None:
    lengths = np.array([200] * 50 + [2000] * 50)
    short, _ = default_classes(lengths)
    assert short.high == 1000


def test_a_few_odd_prompts_are_no_group() -> None:
    assert default_classes(np.array([200] * 96 + [2000] * 4)) == ()


@pytest.mark.parametrize("lengths", [[], [5], [5, 5000], [7] * 500, list(range(1, 6)) * 100])
def test_little_or_equal_prompts_are_one_group(lengths: list[int]) -> None:
    assert default_classes(np.array(lengths, dtype=np.int64)) == ()
