"""Signals in each phase of a study."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

from faulty import Ended, Seen, Study

SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGKILL)
PHASES = ("describe", "begin", "start", "replay", "store", "tell", "stop", "report")
ENDS_WITHIN_S = 20.0


def interrupted(study: Study, signum: signal.Signals) -> Iterator[tuple[str, Seen]]:
    """End a study by a signal in one phase after the other; yield the names, and what was seen.

    It goes on each time, and is left unfinished, or finished and not yet printed.
    """
    for phase in PHASES:
        run = study.begin(hold=phase)
        held = run.reach()
        sent_s = time.monotonic()
        run.process.send_signal(signum)
        ended = run.end()
        took_s = round(time.monotonic() - sent_s, 2)
        problems = [*_problems(ended, signum, took_s), *study.orphans(), *study.unsound()]
        if not held:
            problems.append(f"{phase} never came")
        words = ended.line(signum.name)
        yield f"{signum.name} in {phase}", Seen(ended.code, words, took_s, problems)


def _problems(ended: Ended, signum: signal.Signals, took_s: float) -> list[str]:
    promised = -signum if signum == signal.SIGKILL else 128 + signum
    found = []
    if ended.code != promised:
        found.append(f"exit code {ended.code}, not {promised}: {ended.errors[-300:]}")
    if took_s > ENDS_WITHIN_S:
        found.append(f"took {took_s} s")
    return found
