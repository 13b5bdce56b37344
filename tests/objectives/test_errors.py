from __future__ import annotations

from objectives.errors import ObjectiveError, nearest, nearest_or_all


def test_error_carries_message_and_hint() -> None:
    error = ObjectiveError("no.", hint="yes.")
    assert (str(error), error.message, error.hint) == ("no.", "no.", "yes.")
    assert isinstance(error, ValueError)


def test_nearest_names_the_closest() -> None:
    assert nearest("ttf", ("ttft", "tpot")) == "did you mean 'ttft'?"
    assert nearest("zzz", ("ttft", "tpot")) == ""
    assert nearest("itl", ("ttft", "tpot")) == ""


def test_all_are_listed_where_none_is_close() -> None:
    assert nearest_or_all("ttf", ("ttft", "tpot")) == "did you mean 'ttft'?"
    assert nearest_or_all("zzz", ("ttft", "tpot")) == "known: ttft, tpot."
    assert nearest_or_all("zzz", ()) == ""
