from __future__ import annotations

from objectives.errors import ObjectiveError, nearest


def test_error_carries_message_and_hint() -> None:
    error = ObjectiveError("no.", hint="yes.")
    assert (str(error), error.message, error.hint) == ("no.", "no.", "yes.")
    assert isinstance(error, ValueError)


def test_nearest_names_the_closest_or_lists_all() -> None:
    assert nearest("ttf", ("ttft", "tpot")) == "did you mean 'ttft'?"
    assert nearest("zzz", ("ttft", "tpot")) == "known: ttft, tpot."
    assert nearest("zzz", ()) == ""
