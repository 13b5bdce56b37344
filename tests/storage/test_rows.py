from __future__ import annotations

from storage.rows import differences


def test_equal_mappings_do_not_differ() -> None:
    fingerprint = {"engine": {"max_model_len": 4096}, "ladder": [128, 256]}
    assert differences(fingerprint, fingerprint) == []


def test_differences_carry_dotted_keys() -> None:
    stored = {"engine": {"model": "a", "dtype": "auto"}, "ladder": [128]}
    given = {"engine": {"model": "b", "dtype": "auto"}, "ladder": [128, 256]}
    assert differences(stored, given) == [
        ("engine.model", "a", "b"),
        ("ladder", [128], [128, 256]),
    ]


def test_an_absent_key_counts_as_none() -> None:
    assert differences({"a": 1}, {"a": 1, "b": None}) == []
    assert differences({}, {"b": 2}) == [("b", None, 2)]
