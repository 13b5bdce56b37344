"""What a study does next, from its stored trials alone, so that a resumed one goes on the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from autotune.candidates.equivalence import Observed, equivalent_cells
from autotune.candidates.lattice import Candidate, Lattice, cell_key
from autotune.candidates.starts import Start
from autotune.study.confirm import (
    ATTEMPTS,
    FINISHED,
    Confirmation,
    confirmed,
    given_up,
    searches,
    trials_of,
)
from autotune.study.costs import Fidelity
from autotune.study.standing import Standing
from storage.records import TrialRecord

EndedBy = Literal["trials", "settled", "exhausted", "deadline"]
"""Why a study has ended: all of its trials; forecasts expect nothing better, or no untested
candidate is left; or the time was over."""

CONFIRM_FROM = 6
"""Studies of at least so many trials keep the last ones to measure winner and baseline again.

Shorter ones restart for each trial, whatever is possible live: every candidate that they measure
may then win, which five trials, two of them spent on confirming, could not promise.
"""

CONFIRM_TRIALS = 2

CONFIRM_TWICE_FROM = 12
"""Studies with live trials, and of at least so many, confirm two finalists, and twice."""

FINALISTS = 2
CONFIRM_REPEATS = 2

SENTINEL_EVERY = 6
"""Finished live trials between two measurements of the baseline among them."""

GIVEN_UP_AFTER = 2
"""Live trials that fail one after the other, with which the search ends to be live."""

DOUBTED_REPEATS = 2
"""How often, at most, what luck may have made the best is measured again."""

BASELINE_ATTEMPTS = 4
"""The same as ``ATTEMPTS`` of a baseline that slow spells of the machine have hit: without a
baseline there is no study, and spells come by chance."""

CONTESTED_REPEATS = 8
"""Restarts of a candidate after which more of them would not tell it from its rivals either."""

STARTS_SHARE = 3
"""At most one trial in so many is spent on rules of thumb."""


class Screening(Protocol):
    """What is asked of forecasts; see ``autotune.study.screen``."""

    def pick(
        self, rows: Sequence[TrialRecord], allowed: Callable[[Candidate], bool]
    ) -> Candidate | None: ...

    def settled(
        self, rows: Sequence[TrialRecord], allowed: Callable[[Candidate], bool]
    ) -> bool: ...

    def doubtful(self, rows: Sequence[TrialRecord], candidate: Candidate) -> bool: ...


class Timing(Protocol):
    """What is asked of the time that is left; see ``autotune.study.timekeeper``."""

    def left_s(self) -> float: ...

    def needed_s(
        self, step: Step, rows: Sequence[TrialRecord], *, confirmations: int | None
    ) -> float: ...

    def confirmations(self, wanted: int, least: int, rows: Sequence[TrialRecord]) -> int: ...


_WITHOUT_RESULT = ("failed", "invalid", "interrupted")


@dataclass(frozen=True, slots=True)
class Step:
    """The next trial; ``candidate`` None lets the sampler choose."""

    phase: str
    candidate: Candidate | None
    replicate_of: int | None = None
    rule: str | None = None
    fidelity: Fidelity = "restart"


@dataclass(frozen=True, slots=True)
class Plan:
    """Baseline, search, confirmation: within a number of trials in all.

    The search follows forecasts, and ends when they expect nothing better. Where there are none,
    or none that can be trusted, rules of thumb come first and then what the sampler chooses.

    Where limits can be changed on a running engine, rules of thumb and search do so. The
    baseline is then measured live too, after its own trial and at times again, and whoever
    seems best is restarted in the end, in turn with the baseline: only restarts decide.

    A search that ends with trials left spends them on what is still in question: on the best
    again, where luck may have made it that, and on confirming who else may be the best.

    Args:
        trials: finished trials of any phase at the end.
        baseline: the user's own limits.
        starts: rules of thumb, in order.
        lattice: the frozen ladders.
        standing: who is in question by what was measured.
        live: whether limits can be changed on a running engine. A study may go on with another
            answer; what was measured live before stays so.
        screen: forecasts of the cells, None where there are none.
        timing: what the deadline still allows, None where there is none. The search ends while
            there is time to confirm what it has found, and nothing begins that ends too late.
    """

    trials: int
    baseline: Candidate
    starts: Sequence[Start]
    lattice: Lattice
    standing: Standing
    live: bool = False
    screen: Screening | None = None
    timing: Timing | None = None

    def next_step(self, rows: Sequence[TrialRecord]) -> Step | None:
        """Return what to measure next, None when the study is complete or its time is over."""
        if self.live and live_given_up(rows):
            return replace(self, live=False).next_step(rows)
        step = self.wanted(rows)
        if step is None or self.timing is None or self._in_time(self.timing, step, rows):
            return step
        return self._late(self.timing, rows)

    def needed_s(self, timing: Timing, step: Step, rows: Sequence[TrialRecord]) -> float:
        """Return the time for a trial, and of the search for confirming after it."""
        if step.phase == "baseline":
            return timing.needed_s(step, rows, confirmations=None)
        if step.phase == "confirm":
            # The first restart of the best and of the baseline matter more than what is held out.
            first = confirmed(rows) < CONFIRM_TRIALS and self._confirm(rows) is not None
            return timing.needed_s(step, rows, confirmations=None if first else 0)
        wanted = confirm_trials(self.trials, live=self._searches_live)
        kept = timing.confirmations(wanted, CONFIRM_TRIALS, rows)
        return timing.needed_s(step, rows, confirmations=kept)

    def _in_time(self, timing: Timing, step: Step, rows: Sequence[TrialRecord]) -> bool:
        return self.needed_s(timing, step, rows) <= timing.left_s()

    def _late(self, timing: Timing, rows: Sequence[TrialRecord]) -> Step | None:
        """Return what there is time for where there is none for what would be next."""
        if not measured(rows, self.baseline):
            return None
        ways = (self._confirm, self._rival, self._contested)
        steps = (step for way in ways if (step := way(rows)) is not None)
        return next((step for step in steps if self._in_time(timing, step, rows)), None)

    def wanted(self, rows: Sequence[TrialRecord]) -> Step | None:
        """Return what would be next, in time or not; None when the study is complete."""
        if self.live and live_given_up(rows):
            return replace(self, live=False).wanted(rows)
        left = self.trials - finished_trials(rows)
        if left <= 0:
            return None
        if (again := retry(rows)) is not None:
            return again if self._searches_live else replace(again, fidelity="restart")
        if not measured(rows, self.baseline):
            return Step("baseline", self.baseline)
        if left > confirm_trials(self.trials, live=self._searches_live):
            return self._searching(rows)
        return self._confirm(rows) or self._searching(rows)

    def _searching(self, rows: Sequence[TrialRecord]) -> Step | None:
        any_step = Step("search", None, fidelity=self._fidelity)
        if self.timing is not None and not self._in_time(self.timing, any_step, rows):
            # Which it would be needs forecasts, and they need time that confirming has to have.
            return any_step
        if self.settled(rows):
            return self._ending(rows)
        return (
            self._sentinel(rows)
            or self._screened(rows)
            or self._start(rows)
            or self._search(rows)
            or self._ending(rows)
        )

    def _ending(self, rows: Sequence[TrialRecord]) -> Step | None:
        return (
            self._doubted(rows)
            or self._confirm(rows)
            or self._rival(rows)
            or self._contested(rows)
        )

    def unconfirmed(self, rows: Sequence[TrialRecord]) -> int:
        """Return how many restarts are missing that would confirm who is best so far."""
        if self.live and live_given_up(rows):
            return replace(self, live=False).unconfirmed(rows)
        if not measured(rows, self.baseline) or self._confirm(rows) is None:
            return 0
        wanted = confirm_trials(self.trials, live=self._searches_live)
        return max(0, wanted - confirmed(rows))

    def ended_by(self, rows: Sequence[TrialRecord]) -> EndedBy:
        """Return why there is no next trial."""
        if self.wanted(rows) is not None:
            return "deadline"
        if finished_trials(rows) >= self.trials:
            return "trials"
        return "settled" if self.settled(rows) else "exhausted"

    def settled(self, rows: Sequence[TrialRecord]) -> bool:
        """Whether forecasts expect nothing better of what was not tried."""
        return self.screen is not None and self.screen.settled(rows, self.untested(rows))

    @property
    def _searches_live(self) -> bool:
        return self.live and self.trials >= CONFIRM_FROM

    @property
    def _fidelity(self) -> Fidelity:
        return "live" if self._searches_live else "restart"

    def untested(self, rows: Sequence[TrialRecord]) -> Callable[[Candidate], bool]:
        """Return whether a cell may be tried: never tried, and not equal to one that was."""
        closed = {cell_key(row.candidate) for row in rows} | set(
            equivalent_cells(self.lattice, observed(rows, live=self._searches_live))
        )
        return lambda candidate: cell_key(candidate) not in closed

    def _sentinel(self, rows: Sequence[TrialRecord]) -> Step | None:
        """Measure the baseline live: at first, and after every so many live trials."""
        if not self._searches_live:
            return None
        finished, latest = 0, list[TrialRecord]()
        for row in rows:
            if row.phase == "sentinel":
                latest.append(row)
            elif row.fidelity == "live" and row.state in FINISHED:
                finished += 1
                latest = [] if finished % SENTINEL_EVERY == 0 else latest
        if given_up(latest) or any(row.state in FINISHED for row in latest):
            return None
        first = first_trial(rows, self.baseline)
        return Step("sentinel", self.baseline, replicate_of=first, fidelity="live")

    def _screened(self, rows: Sequence[TrialRecord]) -> Step | None:
        if self.screen is None:
            return None
        candidate = self.screen.pick(rows, self.untested(rows))
        if candidate is None:
            return None
        return Step("screen", candidate, fidelity=self._fidelity)

    def _start(self, rows: Sequence[TrialRecord]) -> Step | None:
        allowed = self.untested(rows)
        begun = sum(row.phase == "starts" and row.replicate_of is None for row in rows)
        if begun >= self.trials // STARTS_SHARE:
            return None
        for start in self.starts:
            if allowed(start.candidate):
                return Step("starts", start.candidate, rule=start.rule, fidelity=self._fidelity)
        return None

    def _search(self, rows: Sequence[TrialRecord]) -> Step | None:
        allowed = self.untested(rows)
        if not any(map(allowed, self.lattice.cells())):
            return None
        return Step("search", None, fidelity=self._fidelity)

    def _doubted(self, rows: Sequence[TrialRecord]) -> Step | None:
        """Measure again, in the way that decides, whom luck may have made the best."""
        if self._restarts_alone(rows):
            best = self.standing.finalist()
        else:
            best = next(iter(self.standing.finalists()), None)
        if self.screen is None or best is None or not self.screen.doubtful(rows, best):
            return None
        if repeated_in_a_row(rows, best) >= DOUBTED_REPEATS:
            return None
        fidelity: Fidelity = "restart" if measured(rows, best) else self._fidelity
        return Step("screen", best, replicate_of=first_trial(rows, best), fidelity=fidelity)

    def _confirm(self, rows: Sequence[TrialRecord]) -> Step | None:
        """Measure the baseline and whoever is best by then again, by restarts."""
        if self._restarts_alone(rows):
            return self._confirm_once(rows)
        return self._confirm_of(self.standing.finalists, rows)

    def _rival(self, rows: Sequence[TrialRecord]) -> Step | None:
        """Confirm who else may be the best by what was measured."""
        if not self._restarts_alone(rows):
            return self._confirm_of(
                lambda: [each for each in self.standing.rivals() if not measured(rows, each)], rows
            )
        confirmed = {cell_key(row.candidate) for row in rows if row.phase == "confirm"}
        left = (each for each in self.standing.rivals() if cell_key(each) not in confirmed)
        rival = next(left, None)
        return None if rival is None else self._again(rows, rival)

    def _contested(self, rows: Sequence[TrialRecord]) -> Step | None:
        """Measure again who cannot be told apart, the least measured first."""
        able = []
        for each in self.standing.contested():
            own = trials_of(rows, each)
            restarts = sum(row.fidelity == "restart" and row.state in FINISHED for row in own)
            confirms = [row for row in own if row.phase == "confirm"]
            if restarts < CONTESTED_REPEATS and not given_up(confirms):
                able.append((restarts, each))
        if not able:
            return None
        return self._again(rows, min(able, key=lambda counted: counted[0])[1])

    def _restarts_alone(self, rows: Sequence[TrialRecord]) -> bool:
        return not self._searches_live and all(row.fidelity == "restart" for row in rows)

    def _confirm_of(
        self, finalists: Callable[[], Sequence[Candidate]], rows: Sequence[TrialRecord]
    ) -> Step | None:
        twice = self.trials >= CONFIRM_TWICE_FROM
        confirmation = Confirmation(
            self.baseline,
            finalists,
            most=FINALISTS if twice else 1,
            repeats=CONFIRM_REPEATS if twice else 1,
        )
        candidate = confirmation.next_candidate(rows)
        return None if candidate is None else self._again(rows, candidate)

    def _confirm_once(self, rows: Sequence[TrialRecord]) -> Step | None:
        """Measure the baseline again, then whoever is best by then, once each."""
        confirmed = {cell_key(row.candidate) for row in rows if row.phase == "confirm"}
        if cell_key(self.baseline) not in confirmed:
            return self._again(rows, self.baseline)
        finalist = self.standing.finalist()
        if finalist is None or cell_key(finalist) in confirmed:
            return None
        return self._again(rows, finalist)

    def _again(self, rows: Sequence[TrialRecord], candidate: Candidate) -> Step:
        return Step("confirm", candidate, replicate_of=first_trial(rows, candidate))


def is_search(row: TrialRecord, rows: Sequence[TrialRecord]) -> bool:
    """Whether a trial is to find something, so that its replay may end once the budget is lost.

    The others are for comparing: of baseline and finalists, and of what was measured before.
    """
    key = cell_key(row.candidate)
    known = any(cell_key(each.candidate) == key for each in rows if each.state == "complete")
    return searches(row.phase) and not known


def confirm_trials(trials: int, *, live: bool) -> int:
    """Return how many of a study's trials are kept to confirm its winner."""
    if trials < CONFIRM_FROM:
        return 0
    twice = live and trials >= CONFIRM_TWICE_FROM
    return (FINALISTS + 1) * CONFIRM_REPEATS if twice else CONFIRM_TRIALS


def engine_starts(trials: int, *, live: bool) -> int:
    """Return how many of a study's trials start an engine, if none has to be repeated."""
    if not live or trials < CONFIRM_FROM:
        return trials
    return 1 + confirm_trials(trials, live=True)


def live_to_come(rows: Sequence[TrialRecord], trials: int, *, live: bool) -> int:
    """Return how many of the trials behind the next one are live, if none has to be repeated."""
    if not live or trials < CONFIRM_FROM:
        return 0
    behind = trials - finished_trials(rows) - 1
    confirmed = sum(row.phase == "confirm" and row.state in FINISHED for row in rows)
    return max(0, behind - max(0, confirm_trials(trials, live=True) - confirmed))


def finished_trials(rows: Sequence[TrialRecord]) -> int:
    """Return how many trials count towards the total: those with a result."""
    return sum(row.state in FINISHED for row in rows)


def measured(rows: Sequence[TrialRecord], candidate: Candidate) -> bool:
    """Whether a restart has measured a candidate."""
    key = cell_key(candidate)
    restarts = (row for row in rows if row.state == "complete" and row.fidelity == "restart")
    return any(cell_key(row.candidate) == key for row in restarts)


def first_trial(rows: Sequence[TrialRecord], candidate: Candidate) -> int | None:
    key = cell_key(candidate)
    return next((row.number for row in rows if cell_key(row.candidate) == key), None)


def repeated_in_a_row(rows: Sequence[TrialRecord], candidate: Candidate) -> int:
    """Return how often a candidate was measured again since another was tried.

    Confirmations between do not count, and nor do interruptions.
    """
    key, count = cell_key(candidate), 0
    for row in reversed(rows):
        if row.state == "interrupted" or row.phase == "confirm":
            continue
        if row.phase != "screen" or row.replicate_of is None or cell_key(row.candidate) != key:
            break
        count += 1
    return count


def retry(rows: Sequence[TrialRecord]) -> Step | None:
    """Return a trial that is due again: without a result through no fault of its candidate.

    The first such one of the study. It need not be the last: a stricter budget can make a
    replay that counted an invalid one. Sentinels have a schedule instead.
    """
    groups: dict[tuple[str, str], list[TrialRecord]] = {}
    for row in rows:
        if row.phase == "sentinel":
            continue
        groups.setdefault((row.phase, cell_key(row.candidate)), []).append(row)
    for group in groups.values():
        last = group[-1]
        ended = [row for row in group if row.state != "interrupted"]
        # A restart is due to what failed live, even at its second try.
        failed_live = bool(ended) and ended[-1].fidelity == "live" and ended[-1].state == "failed"
        spells = bool(ended) and ended[-1].failure_class == "slow_spell"
        patient = spells and last.phase == "baseline"
        due = len(ended) < (BASELINE_ATTEMPTS if patient else ATTEMPTS) or failed_live
        if due and all(row.state in _WITHOUT_RESULT for row in group):
            first = last.number if last.replicate_of is None else last.replicate_of
            # What failed live may run by itself; only an engine of its own can tell.
            live = last.fidelity == "live" and last.state != "failed"
            fidelity: Fidelity = "live" if live else "restart"
            return Step(last.phase, last.candidate, replicate_of=first, fidelity=fidelity)
    return None


def live_given_up(rows: Sequence[TrialRecord]) -> bool:
    """Whether live trials have failed so often that a study goes on by restarts alone."""
    ended = [row for row in rows if row.fidelity == "live" and row.state != "interrupted"]
    failed = [row.state == "failed" for row in ended]
    return any(
        all(failed[at : at + GIVEN_UP_AFTER]) for at in range(len(failed) - GIVEN_UP_AFTER + 1)
    )


def failures_in_a_row(rows: Sequence[TrialRecord]) -> tuple[str | None, int]:
    """Return the class of the latest failures and how many of it came in a row."""
    latest = rows[-1].failure_class if rows else None
    count = 0
    for row in reversed(rows):
        if latest is None or row.failure_class != latest:
            break
        count += 1
    return latest, count


def observed(rows: Sequence[TrialRecord], *, live: bool) -> list[Observed]:
    """Return the measured cells with the most requests that ran at once in them.

    Args:
        rows: trials of the study.
        live: whether others would be tried on an engine that runs, which keeps its CUDA graphs
            whatever the cap.
    """
    return [
        Observed(
            row.candidate,
            int(row.engine["load"]["peak_running"]) if row.engine["load"]["steps"] else None,
            graphs=not live and bool(row.engine["capture_sizes"]),
        )
        for row in rows
        if row.state == "complete" and row.engine is not None
    ]
