"""An Optuna sampler for a finite lattice whose cells are each measured once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import optuna
from optuna.distributions import BaseDistribution, IntDistribution
from optuna.samplers import BaseSampler, TPESampler
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState

from autotune.candidates.lattice import Candidate, Lattice
from storage.steady import IMPATIENT
from storage.study import drop_unbegun, storing

SPREAD_TRIALS = 6
"""Finished trials before the sampler learns; until then cells are spread over the lattice."""


class Steadily(Protocol):
    """Calls the database, see ``storage.steady.Patience.steadily``."""

    def __call__(self, work: Callable[[], Trial], *, mend: Callable[[], object]) -> Trial: ...


class UntestedCellSampler(BaseSampler):
    """Multi-objective TPE, moved to the nearest cell that may still be tried.

    Optuna suggests a cell again and again where noise says so; here each repetition would cost an
    engine start and teach little. Repetitions are made on purpose, by the study. The first cells
    are spread by an additive recurrence, which needs no state but the number of trials: Roberts,
    "The unreasonable effectiveness of quasirandom sequences" (2018).

    Args:
        lattice: the frozen ladders.
        untested: returns, at this moment, which cells may be tried.
        seed: of the study. Each suggestion is seeded from it and the count of finished trials,
            so that interruptions, which take up trial numbers, change none.
    """

    def __init__(
        self, lattice: Lattice, untested: Callable[[], Callable[[Candidate], bool]], *, seed: int
    ) -> None:
        self._lattice = lattice
        self._untested = untested
        self._seed = seed

    def infer_relative_search_space(
        self,
        study: Study,
        trial: FrozenTrial,
    ) -> dict[str, BaseDistribution]:
        return distributions(self._lattice)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        finished = len(study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)))
        if finished < SPREAD_TRIALS:
            wanted = spread_point(self._lattice, finished)
        else:
            tpe = TPESampler(n_startup_trials=SPREAD_TRIALS, seed=seed_of(self._seed, finished))
            wanted = {
                name: int(tpe.sample_independent(study, trial, name, distribution))
                for name, distribution in search_space.items()
            }
        cell = self._lattice.nearest(self._lattice.at(wanted), self._untested())
        # Optuna samples for enqueued trials as well, also when every cell is done.
        return {} if cell is None else dict(self._lattice.indices(cell))

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        raise LookupError(f"no cell is left to try: nothing to suggest for {param_name}")


def distributions(lattice: Lattice) -> dict[str, BaseDistribution]:
    """Return Optuna's view of the lattice: one integer index per ladder."""
    return {name: IntDistribution(0, len(ladder) - 1) for name, ladder in lattice.ladders.items()}


def spread_point(lattice: Lattice, number: int) -> dict[str, int]:
    """Return the ``number``-th point of a sequence that fills the lattice evenly."""
    root = _generalised_golden_ratio(len(lattice.ladders))
    point = {}
    for axis, (name, ladder) in enumerate(lattice.ladders.items(), start=1):
        fraction = (0.5 + number * root**-axis) % 1.0
        point[name] = min(int(fraction * len(ladder)), len(ladder) - 1)
    return point


def _generalised_golden_ratio(dimensions: int) -> float:
    """Return the positive root of x^(d+1) = x + 1, by fixed-point iteration."""
    root = 2.0
    for _ in range(50):
        root = (1 + root) ** (1 / (dimensions + 1))
    return root


def seed_of(seed: int, number: int) -> int:
    """Return a seed that differs for each trial and is the same on every run."""
    digest = hashlib.blake2b(f"{seed}/{number}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big")


def ask(
    study: optuna.Study,
    lattice: Lattice,
    candidate: Candidate | None,
    attributes: Mapping[str, Any],
    *,
    steadily: Steadily = IMPATIENT.steadily,
) -> tuple[int, dict[str, Any]]:
    """Begin an Optuna trial for a given candidate, or for the sampler's choice if None.

    Args:
        study: in which nothing runs.
        lattice: the frozen ladders.
        candidate: None to have one chosen.
        attributes: of the trial.
        steadily: repeats it if the database cannot be used for now; what a failed attempt has
            left in Optuna's tables is failed before.

    Returns:
        Its number and its candidate.

    Raises:
        LookupError: the sampler was asked and has no cell left.
        StorageError: the trial cannot be stored.
    """

    def begun() -> Trial:
        with storing(study):
            if candidate is not None:
                study.enqueue_trial(lattice.indices(candidate), user_attrs=dict(attributes))
            return study.ask(distributions(lattice))

    trial = steadily(begun, mend=lambda: drop_unbegun(study))
    return trial.number, lattice.at({name: int(value) for name, value in trial.params.items()})
