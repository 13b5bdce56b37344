from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.errors import UsageError
from autotune.traffic.scenarios import SCENARIOS, Lengths, adjusted, scenario_named

LENGTHS = Lengths(median=400, sigma=0.5, minimum=32, maximum=2000)


def test_scenarios_differ_by_their_share_of_documents() -> None:
    assert {name: each.document_share for name, each in SCENARIOS.items()} == {
        "short_chat": 0.0,
        "long_documents": 1.0,
        "mixed": 0.15,
    }
    assert all(each.name == name for name, each in SCENARIOS.items())


def test_an_unknown_scenario_names_the_nearest() -> None:
    with pytest.raises(UsageError) as caught:
        scenario_named("short_chats")
    assert caught.value.hint == "did you mean 'short_chat'?"


def test_lengths_are_adjusted_in_parts() -> None:
    assert adjusted(LENGTHS, None) == LENGTHS
    assert adjusted(LENGTHS, "median=200.5, max=600") == Lengths(
        median=200.5, sigma=0.5, minimum=32, maximum=600
    )


@pytest.mark.parametrize("text", ["mean=5", "median", "median=", "min=2.5", "median=x"])
def test_what_is_no_length_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        adjusted(LENGTHS, text)
    assert "median=200,sigma=0.6" in caught.value.hint


@pytest.mark.parametrize(
    "text", ["min=0", "min=401", "max=399", "max=10000001", "sigma=-1", "sigma=6", "median=nan"]
)
def test_impossible_lengths_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="no distribution of lengths"):
        adjusted(LENGTHS, text)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("median=20000", "give max as well: it is 2000 where it is not given"),
        ("median=20000,max=10000", "1 <= min <= median <= max"),
        ("median=8", "give min as well: it is 32 where it is not given"),
        ("min=401", "1 <= min <= median <= max"),
    ],
)
def test_a_median_beyond_an_end_says_which_end_to_give(text: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        adjusted(LENGTHS, text, option="--chat-prompt")
    assert caught.value.message.startswith("--chat-prompt: no distribution of lengths: min ")
    assert "Lengths(" not in caught.value.message
    assert hint in caught.value.hint


@pytest.mark.parametrize("share", [-0.1, 1.1])
def test_an_impossible_share_is_refused(share: float) -> None:
    with pytest.raises(UsageError, match="share of documents"):
        replace(SCENARIOS["mixed"], document_share=share)
