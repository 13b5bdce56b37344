from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import Trial, TrialState

from autotune.candidates.lattice import SEQS, TOKENS, Candidate, Lattice, cell_key, integer
from autotune.study import sampler as sampler_module
from autotune.study.sampler import (
    SPREAD_TRIALS,
    UntestedCellSampler,
    ask,
    distributions,
    seed_of,
    spread_point,
)
from storage.errors import StorageUnavailable
from storage.steady import Patience
from storage.study import close_optuna_study, open_optuna_study
from tests.autotune.study.scripted import clear_knee

LATTICE = Lattice(
    {TOKENS: (128, 256, 384, 512, 768, 1024, 1536, 2048), SEQS: (8, 16, 24, 32, 48, 64)}
)
SMALL = Lattice({TOKENS: (512, 1024), SEQS: (16, 32)})


class Search:
    """An Optuna study whose cells are each tried once; on a file, it can be opened again."""

    def __init__(
        self, folder: Path | None = None, *, lattice: Lattice = LATTICE, seed: int = 0
    ) -> None:
        self._folder = folder
        self.lattice = lattice
        self.closed: set[str] = set()
        self._seed = seed
        self.open()

    def open(self) -> None:
        sampler = UntestedCellSampler(self.lattice, lambda: self._is_open, seed=self._seed)
        if self._folder is None:
            self.study = optuna.create_study(directions=["minimize"] * 3, sampler=sampler)
        else:
            url = f"sqlite:///{self._folder / 'study.db'}"
            self.study = open_optuna_study(url, "s", directions=3, sampler=sampler)

    def close(self) -> None:
        close_optuna_study(self.study)

    def _is_open(self, candidate: Candidate) -> bool:
        return cell_key(candidate) not in self.closed

    def step(self, candidate: Candidate | None = None) -> Candidate:
        """Ask, measure and tell one cell."""
        number, asked = ask(self.study, self.lattice, candidate, {})
        speed = clear_knee(asked)
        self.study.tell(number, [speed.ttft_ms, speed.tpot_ms, 1.0])
        self.closed.add(cell_key(asked))
        return asked


@pytest.fixture
def search() -> Search:
    return Search()


@pytest.fixture
def small() -> Search:
    return Search(lattice=SMALL)


def test_no_cell_is_suggested_twice_until_all_are_done(small: Search) -> None:
    asked = [cell_key(small.step()) for _ in range(4)]
    assert sorted(asked) == sorted(map(cell_key, SMALL.cells()))
    with pytest.raises(LookupError, match="no cell is left"):
        small.step()


def test_a_closed_cell_is_never_suggested(small: Search) -> None:
    small.closed |= {cell_key(cell) for cell in SMALL.cells() if cell[SEQS] == 32}
    assert [small.step()[SEQS] for _ in range(2)] == [16, 16]


def test_an_enqueued_cell_wins_even_when_every_cell_is_done(small: Search) -> None:
    wanted = {TOKENS: 1024, SEQS: 16}
    for _ in range(4):
        small.step()
    assert small.step(wanted) == wanted


def test_attributes_are_kept_with_the_trial(small: Search) -> None:
    number, _ = ask(small.study, SMALL, {TOKENS: 512, SEQS: 16}, {"rule": "chats"})
    assert small.study.get_trials()[number].user_attrs == {"rule": "chats"}


def test_the_first_cells_are_spread(search: Search) -> None:
    """The first four cells lie in the four quarters of the lattice."""
    asked = [search.step() for _ in range(4)]
    assert len({(integer(cell[TOKENS]) > 512, integer(cell[SEQS]) > 24) for cell in asked}) == 4


def test_afterwards_it_learns(search: Search, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = []

    class Recorded(optuna.samplers.TPESampler):
        def __init__(self, *, n_startup_trials: int, seed: int) -> None:
            super().__init__(n_startup_trials=n_startup_trials, seed=seed)
            assert n_startup_trials <= SPREAD_TRIALS
            seeds.append(seed)

    monkeypatch.setattr(sampler_module, "TPESampler", Recorded)
    for _ in range(SPREAD_TRIALS):
        search.step()
    assert seeds == []
    search.step()
    search.step()
    assert seeds == [seed_of(0, SPREAD_TRIALS), seed_of(0, SPREAD_TRIALS + 1)]


def test_learning_asks_for_better_cells_than_chance(search: Search) -> None:
    """Only TTFT differs here, so that the largest budgets are best."""

    def tokens_of_next() -> int:
        number, asked = ask(search.study, LATTICE, None, {})
        search.study.tell(number, [1e6 / int(asked[TOKENS]), 1.0, 1.0])
        search.closed.add(cell_key(asked))
        return int(asked[TOKENS])

    for _ in range(SPREAD_TRIALS):
        tokens_of_next()
    later = [tokens_of_next() for _ in range(8)]
    assert sum(tokens >= 1024 for tokens in later) >= 6


def test_reopening_changes_nothing(tmp_path: Path) -> None:
    asked = []
    for folder, stop_after in ((None, None), (tmp_path, 4)):
        search = Search(folder, seed=3)
        cells = []
        for count in range(9):
            if count == stop_after:
                search.close()
                search.open()
            cells.append(search.step())
        search.close()
        asked.append(cells)
    assert asked[0] == asked[1]


def test_trials_without_a_result_change_no_suggestion() -> None:
    asked = []
    for interrupted in (False, True):
        search = Search()
        cells = [search.step() for _ in range(3)]
        if interrupted:
            number, cell = ask(search.study, LATTICE, None, {})
            search.study.tell(number, state=TrialState.FAIL)
            cells.append(search.step(cell))
        cells += [search.step() for _ in range(8 - len(cells))]
        asked.append(cells)
    assert asked[0] == asked[1]


def test_spread_points_fill_the_lattice_evenly() -> None:
    points = [spread_point(LATTICE, number) for number in range(96)]
    for name, ladder in LATTICE.ladders.items():
        counts = [sum(point[name] == index for point in points) for index in range(len(ladder))]
        assert max(counts) - min(counts) <= 2
    cells = {(point[TOKENS], point[SEQS]) for point in points}
    assert len(cells) >= 40


def test_one_ladder_is_spread_too() -> None:
    single = Lattice({TOKENS: (1, 2, 3, 4)})
    assert {spread_point(single, number)[TOKENS] for number in range(5)} == {0, 1, 2, 3}


def test_optuna_sees_indices() -> None:
    assert distributions(SMALL) == {
        TOKENS: optuna.distributions.IntDistribution(0, 1),
        SEQS: optuna.distributions.IntDistribution(0, 1),
    }


def test_seeds_differ_and_stay() -> None:
    assert seed_of(0, 1) == 3278692055
    assert len({seed_of(seed, number) for seed in range(10) for number in range(10)}) == 100


def test_a_full_disk_is_said_as_a_fault_of_the_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = Search(tmp_path)

    def full(*_: object, **__: object) -> None:
        raise optuna.exceptions.StorageInternalError("commit") from OSError("disk is full")

    monkeypatch.setattr(search.study, "enqueue_trial", full)
    with pytest.raises(StorageUnavailable, match="disk is full"):
        ask(search.study, LATTICE, LATTICE.cells()[0], {})
    search.close()


class _Breaking:
    """Beginnings of which one fails when Optuna has begun it, and is then repeated."""

    def __init__(self, study: optuna.Study, monkeypatch: pytest.MonkeyPatch) -> None:
        real, self.asked = study.ask, 0

        def first_lost(*given: Any) -> Trial:
            trial = real(*given)
            self.asked += 1
            if self.asked == 1:
                raise StorageUnavailable("the connection is lost", passing=True)
            return trial

        monkeypatch.setattr(study, "ask", first_lost)
        self.steadily = Patience(1.0, lambda _text: None, pause=lambda _s: None).steadily


@pytest.mark.parametrize("chosen", [None, {TOKENS: 512, SEQS: 16}])
def test_a_beginning_of_which_nobody_heard_is_failed_before_the_next(
    chosen: Candidate | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = Search(lattice=SMALL)
    breaking = _Breaking(search.study, monkeypatch)
    number, candidate = ask(search.study, SMALL, chosen, {}, steadily=breaking.steadily)
    assert number == 1
    assert chosen in (None, candidate)
    assert [trial.state for trial in search.study.trials] == [TrialState.FAIL, TrialState.RUNNING]
