from __future__ import annotations

from storage.errors import Difference, FingerprintMismatch, UnknownStudy


def test_an_unknown_study_names_the_nearest() -> None:
    error = UnknownStudy("nihgtly", ["nightly", "weekly"])
    assert error.message == "There is no study named 'nihgtly'."
    assert error.hint.startswith("Did you mean 'nightly'?")


def test_an_unknown_study_far_from_all_names_the_list() -> None:
    assert UnknownStudy("q", ["nightly"]).hint == "`autotune studies` lists them all."


def test_an_empty_database_says_how_to_start() -> None:
    error = UnknownStudy(None, [])
    assert error.message == "The database holds no study yet."
    assert "autotune tune" in error.hint
    assert error.hint.endswith("is here once its calibration has ended.")


def test_a_mismatch_shows_both_sides_and_stays_short() -> None:
    diff = [Difference(f"key{index}", "x" * 500, index) for index in range(8)]
    error = FingerprintMismatch("night", diff)
    assert error.diff == diff
    assert "key0: 'xxx" in error.message
    assert "0 now" in error.message
    assert error.message.endswith("and 3 more.")
    assert len(error.message) < 600
