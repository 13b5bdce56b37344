"""The fuzz script finds what it is there to find, and nothing in a short run."""

from __future__ import annotations

import importlib.util
import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from autotune.errors import UsageError

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "fuzz.py"


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("fuzz_script", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def rounds() -> Callable[[], float]:
    """Return a clock by which every round takes a second."""
    return itertools.count(-1.0).__next__


def test_only_documented_errors_come_out(script: ModuleType, tmp_path: Path) -> None:
    chosen = script.targets(tmp_path)
    counts, failure = script.fuzz(chosen, seconds=41, seed=5, clock=rounds())
    assert failure is None
    assert {name for name, _ in counts} == {target.name for target in chosen}
    assert sum(counts.values()) == 40 * len(chosen)


def test_valid_input_is_accepted(script: ModuleType, tmp_path: Path) -> None:
    for target in script.targets(tmp_path):
        for seed in target.seeds:
            assert script.tried(target, seed) == "accepted", (target.name, seed)


def test_the_same_seed_tries_the_same(script: ModuleType) -> None:
    def tried(seed: int) -> list[bytes]:
        contents: list[bytes] = []
        target = script.Target("all", [b"a", b"bc"], contents.append, ())
        script.fuzz([target], seconds=20, seed=seed, clock=rounds())
        return contents

    assert tried(1) == tried(1) != tried(2)


def raising(error: BaseException) -> Callable[[bytes], object]:
    def parse(_content: bytes) -> object:
        raise error

    return parse


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ValueError("oh"), "ValueError: oh"),
        (MemoryError("no room"), "MemoryError: no room"),
        (UsageError(""), "a message of 0 characters"),
        (UsageError("x" * 5000), "a message of 5000 characters"),
    ],
)
def test_what_should_not_come_out_is_a_failure(
    script: ModuleType, error: Exception, told: str
) -> None:
    target = script.Target("bad", [b"a"], raising(error), (UsageError,))
    counts, failure = script.fuzz([target], seconds=5, seed=0, clock=rounds())
    assert told in failure.told
    assert (failure.target, sum(counts.values())) == ("bad", 0)


def test_a_hang_is_a_failure(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    target = script.Target("slow", [b"a"], raising(script.Hang("no answer within 10 s")), ())
    failure: Any = script.tried(target, b"x")
    assert "Hang: no answer within 10 s" in failure.told


def test_a_failure_is_saved_and_ends_with_1(
    script: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(script.resource, "setrlimit", lambda _kind, _limits: None)
    bad = script.Target("bad one", [b"abc"], raising(KeyError("k")), (UsageError,))
    monkeypatch.setattr(script, "targets", lambda _folder: [bad])
    assert script.main(["5", "7"]) == 1
    assert (tmp_path / "fuzz-bad-one-7.input").exists()
    shown = capsys.readouterr()
    assert "0 inputs, seed 7" in shown.out
    assert "KeyError" in shown.err
    monkeypatch.setattr(script, "targets", lambda _folder: [])
    assert script.main(["0", "7"]) == 0
