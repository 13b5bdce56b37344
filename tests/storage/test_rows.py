from __future__ import annotations

from dataclasses import replace

import pytest

from storage.errors import FingerprintMismatch
from storage.rows import check_fingerprint, differences
from tests.autotune.study.records import study_record


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


def test_what_a_fingerprint_does_not_say_is_named_in_words() -> None:
    given = {"trace": "t"}
    live = replace(study_record(), fingerprint={**given, "fidelity": "live"})
    with pytest.raises(FingerprintMismatch, match="fidelity: 'live' before, 'restart' now"):
        check_fingerprint(live, given)
    real = replace(live, fingerprint=given)
    with pytest.raises(FingerprintMismatch, match="engine: 'real' before, 'sim:one@1' now"):
        check_fingerprint(real, {**given, "engine": "sim:one@1"})
    check_fingerprint(real, given)
