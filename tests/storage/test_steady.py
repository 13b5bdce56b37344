from __future__ import annotations

from collections.abc import Callable

import pytest

from storage.errors import StorageError, StorageUnavailable
from storage.steady import IMPATIENT, Patience


def away(reason: str = "database is locked") -> StorageUnavailable:
    return StorageUnavailable(f"Cannot use it: {reason}.", hint="Wait.", passing=True)


class Waiting:
    """Time that passes only while somebody waits, and calls that fail until it has."""

    def __init__(self, limit_s: float = 600.0) -> None:
        self.now_s = 0.0
        self.said: list[str] = []
        self.patience = Patience(
            limit_s, self.said.append, clock=lambda: self.now_s, pause=self.pass_by
        )

    def pass_by(self, seconds: float) -> None:
        self.now_s += seconds

    def until(self, back_s: float, error: StorageError | None = None) -> Callable[[], str]:
        def work() -> str:
            if self.now_s < back_s:
                raise error or away()
            return "done"

        return work


def test_what_succeeds_is_done_once_and_not_talked_about() -> None:
    waiting = Waiting()
    assert waiting.patience.steadily(waiting.until(0)) == "done"
    assert waiting.said == []


def test_what_fails_for_now_is_repeated_and_said_at_once_and_each_minute() -> None:
    waiting = Waiting()
    assert waiting.patience.steadily(waiting.until(150)) == "done"
    assert waiting.said[0] == (
        "the database cannot be used for now, and is tried again for up to 600 s: "
        "Cannot use it: database is locked."
    )
    assert [line.split(":")[0][:30] for line in waiting.said[1:3]] == [
        "still waiting for the database"
    ] * 2
    assert waiting.said[3].startswith("the database is back after 15")
    assert len(waiting.said) == 4


def test_beyond_the_limit_it_is_given_up_and_no_outer_call_goes_on() -> None:
    waiting = Waiting(90)
    with pytest.raises(StorageUnavailable, match="tried again for 90 s") as caught:
        waiting.patience.steadily(lambda: waiting.patience.steadily(waiting.until(1000)))
    assert not caught.value.passing
    assert caught.value.hint.endswith("The same command goes on where this one ends.")
    assert waiting.now_s == pytest.approx(90)


@pytest.mark.parametrize(
    "error", [StorageUnavailable("malformed"), StorageError("another content")]
)
def test_what_stays_wrong_is_not_repeated(error: StorageError) -> None:
    waiting = Waiting()
    with pytest.raises(StorageError) as caught:
        waiting.patience.steadily(waiting.until(1, error))
    assert caught.value is error
    assert waiting.now_s == 0


def test_another_fault_while_waiting_ends_it() -> None:
    waiting = Waiting()
    faults = iter([away(), StorageUnavailable("disk is full", full=True)])

    def work() -> None:
        raise next(faults)

    with pytest.raises(StorageUnavailable, match="disk is full"):
        waiting.patience.steadily(work)


def test_what_a_failed_attempt_left_is_mended_before_each_other_one() -> None:
    waiting = Waiting()
    did: list[str] = []

    def work() -> None:
        did.append("work")
        if len(did) < 4:
            raise away()

    waiting.patience.steadily(work, mend=lambda: did.append("mend"))
    assert did == ["work", "mend", "work", "mend", "work"]


def test_who_ends_waits_no_more() -> None:
    waiting = Waiting()
    assert waiting.patience.waits
    waiting.patience.end()
    for patience in (waiting.patience, IMPATIENT):
        assert not patience.waits
        with pytest.raises(StorageUnavailable, match="locked"):
            patience.steadily(waiting.until(1))
