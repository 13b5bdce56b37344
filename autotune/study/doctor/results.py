"""A check and its result; one that goes wrong itself is a result too, and the others go on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Result:
    """What one check found.

    Attributes:
        name: of the check, in a word or two.
        state: ``fail`` means that a study would not begin or not last, ``warn`` that somebody
            should know.
        words: what was found.
        hint: what to do; '' where there is nothing to do.
    """

    name: str
    state: State
    words: str
    hint: str = ""


Check = Callable[[], Iterable[Result]]


def run_checks(checks: Mapping[str, Check]) -> Iterator[Result]:
    """Yield the results of all checks in order, each as soon as it is known."""
    for name, check in checks.items():
        try:
            yield from check()
        # A machine that needs a doctor may break any of them, in ways that nobody foresaw.
        except Exception as error:  # noqa: BLE001
            reason = " ".join(str(error).split()) or "no reason given"
            yield Result(name, "fail", f"could not be checked: {type(error).__name__}: {reason}")


def worst(results: Iterable[Result]) -> State:
    """Return the state of the worst result, ``ok`` of none."""
    states = {each.state for each in results}
    return "fail" if "fail" in states else "warn" if "warn" in states else "ok"
