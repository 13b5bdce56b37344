"""A study that follows forecasts, on simulated engines, and what its screen says on the way."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from autotune import lease, tuning
from autotune.candidates.lattice import SEQS, TOKENS, Candidate, Lattice, cell_key
from autotune.controller import Controller
from autotune.study import screen as screens
from autotune.study.job import Job
from autotune.study.outcomes import Yardstick
from autotune.study.plan import Plan
from autotune.study.screen import Looked, Screen, Simulations
from autotune.study.standing import Nobody
from objectives.limits import parse_budget
from storage.records import StudyRecord, TrialRecord
from storage.repository import open_repository
from tests.autotune.study.scripted import Notes, settings_of

pytestmark = pytest.mark.study

TRIALS = 9
BUDGET = "ttft_p95:500 itl_p99:60"
KNOBS = {TOKENS: [256, 512, 768, 1024, 2048], SEQS: [128]}


class Stopped(Exception):
    """Somebody has stopped the study."""


@dataclass(slots=True)
class Told(Notes):
    """A watcher that stops the study once so many of its trials have finished."""

    stop_after: int | None = None

    def opened(self, study: StudyRecord, trials: Sequence[TrialRecord]) -> None:
        self.said.append(f"opened {study.name} with {len(trials)} trials")

    def finished(self, row: TrialRecord) -> None:
        if row.number + 1 == self.stop_after:
            raise Stopped


@dataclass(frozen=True, slots=True, eq=False)
class Study:
    """What a study left behind."""

    job: Job
    rows: tuple[TrialRecord, ...]
    samples: Mapping[int, Mapping[str, NDArray[Any]]]
    said: Sequence[str]
    simulations: Simulations | None

    @property
    def phases(self) -> list[str]:
        return [row.phase for row in self.rows]

    @property
    def results(self) -> list[tuple[object, ...]]:
        return [(row.phase, cell_key(row.candidate), row.state, row.metrics) for row in self.rows]

    def screen(self, budget: str = BUDGET) -> Screen:
        job = replace(self.job, budget=parse_budget(budget))
        found = Screen.of(job, Yardstick.of(job), self.samples.__getitem__)
        assert found is not None
        return found

    def row_of(self, trial: TrialRecord) -> int:
        return list(map(cell_key, self.job.lattice.cells())).index(cell_key(trial.candidate))

    def untested(self, rows: Sequence[TrialRecord]) -> Callable[[Candidate], bool]:
        lattice = self.job.lattice
        return Plan(TRIALS, self.job.baseline, (), lattice, Nobody()).untested(rows)


@dataclass(slots=True)
class Tuner:
    """Runs studies in a folder of its own."""

    folder: Path
    jobs: list[Job] = field(default_factory=list)

    def run(self, name: str, *, stop_after: int | None = None, **changes: Any) -> Study:
        url = f"sqlite:///{self.folder / 'study.db'}"
        settings = settings_of(
            **{
                "model": "tiny-llama",
                "engine": "sim:cpu-tiny-llama",
                "trace": "demo:mixed",
                "window": "0:0.7",
                "budget": BUDGET,
                "classes": "",
                "knobs": KNOBS,
                "trials": TRIALS,
                "storage": url,
                "study_name": name,
                "log_folder": self.folder / "logs",
                **changes,
            }
        )
        watcher = Told(stop_after=stop_after)
        simulations = None
        try:
            simulations = tuning.run_study(settings, watcher, environ={}).simulations
        except Stopped:
            assert stop_after is not None
        with open_repository(url, create=False) as repository:
            record = repository.study(name)
            rows = repository.trials(record.id)
            samples = {
                row.number: repository.samples(record.id, row.number)
                for row in rows
                if row.state == "complete"
            }
        return Study(self.jobs[-1], rows, samples, watcher.said, simulations)


@pytest.fixture(scope="module")
def tuner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tuner]:
    found = Tuner(tmp_path_factory.mktemp("screen"))

    class Watched(Controller):
        def __init__(self, *, job: Job, **given: Any) -> None:
            found.jobs.append(job)
            super().__init__(job=job, **given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lease, "LOCKS", found.folder)
        patch.setattr(tuning, "Controller", Watched)
        yield found


@pytest.fixture(scope="module")
def study(tuner: Tuner) -> Study:
    return tuner.run("whole")


@pytest.fixture(scope="module")
def early(study: Study) -> Screen:
    """A screen that is only asked of the first two trials, whose simulations it keeps."""
    return study.screen()


def test_the_search_follows_forecasts_and_ends_when_they_expect_nothing_better(
    study: Study,
) -> None:
    assert study.phases[:2] == ["baseline", "sentinel"]
    first = study.phases.index("confirm")
    assert set(study.phases[2:first]) == {"screen"}
    assert set(study.phases[first:]) == {"confirm"}
    assert len(study.phases[first:]) >= 2
    assert len(study.rows) <= TRIALS
    assert len({cell_key(row.candidate) for row in study.rows}) >= screens.LEAST_MEASURED
    if len(study.rows) < TRIALS:
        ended = f"the study ends with {len(study.rows)} of {TRIALS} trials"
        settled = "no candidate that was not tried is expected to be better"
        assert study.said[-1] == f"{settled}: {ended}"


def test_simulations_that_were_made_before_serve_as_long_as_replays_have_not_doubled(
    study: Study,
) -> None:
    given = study.simulations
    job, said = study.job, list[str]()
    found = Screen.of(
        job, Yardstick.of(job), study.samples.__getitem__, say=said.append, simulations=given
    )
    assert found is not None
    assert looked_at(found, study.rows).simulations is given
    assert not said
    assert looked_at(found, study.rows[:1]).simulations is not given
    assert len(said) == 1


def test_cells_far_beyond_the_budget_have_forecasts_that_change_no_others(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, budget = study.rows[:2], "ttft_p95:500 itl_p99:5"
    found = looked_at(study.screen(budget), rows)
    monkeypatch.setattr(screens, "WORTH", math.inf)
    whole = looked_at(study.screen(budget), rows)
    own_logs, all_logs = (each.simulations.forecasts.logs for each in (found, whole))
    far = (own_logs != all_logs).any(axis=1)
    assert far.any()
    assert not far.all()
    assert (found.goal.excess(all_logs[far]) > math.log(2)).all()
    assert not far[study.row_of(rows[0])]
    for name in ("logs", "sigma"):
        own, full = getattr(found.corrected, name), getattr(whole.corrected, name)
        np.testing.assert_allclose(own[~far], full[~far], rtol=1e-12)
    for name in ("hopeless", "improvement", "expected", "doubts"):
        own, full = getattr(found.outlook, name), getattr(whole.outlook, name)
        np.testing.assert_allclose(own[~far], full[~far], rtol=1e-12)


@pytest.mark.parametrize(("limit", "doubted"), [(1.005, True), (0.995, True), (3.0, False)])
def test_what_was_measured_next_to_a_limit_is_doubtful(
    study: Study, limit: float, doubted: bool
) -> None:
    rows = study.rows[:2]
    own_ms = float((rows[0].metrics or {})["ttft_p95"] or 0)
    found = study.screen(f"ttft_p95:{limit * own_ms:.6f}")
    assert found.doubtful(rows, rows[0].candidate) is doubted
    assert not found.doubtful([], rows[0].candidate)


def test_what_is_picked_follows_from_the_stored_trials_alone(study: Study) -> None:
    count = study.phases.index("confirm") - 1
    before, row = study.rows[:count], study.rows[count]
    assert row.phase == "screen"
    assert study.screen().pick(before, study.untested(before)) == row.candidate


def test_a_cap_that_makes_no_difference_is_left_as_it_is(study: Study) -> None:
    lattice = Lattice({TOKENS: (512, 2048), SEQS: (64, 96, 128, 256)})
    job, rows = replace(study.job, lattice=lattice), study.rows[:2]
    found = Screen.of(job, Yardstick.of(job), study.samples.__getitem__)
    assert found is not None
    logs = looked_at(found, rows).simulations.forecasts.logs
    smaller = [row for row, cell in enumerate(found.cells) if cell[TOKENS] == 512]
    assert (logs[smaller] == logs[smaller[0]]).all()
    picked = found.pick(rows, lambda cell: cell[TOKENS] == 512)
    assert picked == {TOKENS: 512, SEQS: study.job.baseline[SEQS]}


def test_a_study_that_was_stopped_goes_on_as_it_would_have(tuner: Tuner, study: Study) -> None:
    stopped = tuner.run("stopped", stop_after=4)
    assert stopped.results == study.results[:4]
    assert tuner.run("stopped").results == study.results


def test_without_step_times_rules_of_thumb_and_the_sampler_search(tuner: Tuner) -> None:
    found = tuner.run("plain", calibrate=False, fidelity="restart", trials=6)
    assert Screen.of(found.job, Yardstick.of(found.job), found.samples.__getitem__) is None
    assert set(found.phases) == {"baseline", "starts", "search", "confirm"}


def test_with_a_knob_that_nobody_can_simulate_there_are_no_forecasts(study: Study) -> None:
    lattice = replace(
        study.job.lattice, ladders={**study.job.lattice.ladders, "dtype": ("a", "b")}
    )
    job, said = replace(study.job, lattice=lattice), list[str]()
    assert Screen.of(job, Yardstick.of(job), study.samples.__getitem__, say=said.append) is None
    assert said == ["searching without forecasts: a simulation does not know dtype"]


def test_of_an_engine_that_nobody_can_simulate_there_are_no_forecasts(study: Study) -> None:
    info = replace(study.job.info, forecast_obstacle="pipeline_parallel_size is more than 1")
    job, said = replace(study.job, info=info), list[str]()
    assert Screen.of(job, Yardstick.of(job), study.samples.__getitem__, say=said.append) is None
    assert said == ["searching without forecasts: pipeline_parallel_size is more than 1"]


@pytest.mark.parametrize("numbers", [(), (1,), (1, 2, 3)])
def test_before_the_baseline_was_restarted_forecasts_have_no_say(
    study: Study, numbers: tuple[int, ...]
) -> None:
    rows = [study.rows[number] for number in numbers]
    found = study.screen()
    assert found.look(rows) is None
    assert found.pick(rows, everything) is None
    assert not found.settled(rows, everything)


def test_a_search_is_settled_only_after_four_cells_and_simulates_when_replays_have_doubled(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(screens, "SETTLED_GAIN", math.inf)
    found = study.screen()
    simulated = []
    for count in range(1, len(study.rows)):
        rows = study.rows[:count]
        cells = {cell_key(row.candidate) for row in rows}
        assert found.settled(rows, everything) is (len(cells) >= 4)
        simulated.append(looked_at(found, rows).simulations)
    assert simulated[1] is simulated[2]
    assert len(set(map(id, simulated[:4]))) == 3
    assert len(set(map(id, simulated[3:7]))) == 1


def test_forecasts_settle_nothing_if_they_are_not_trusted_or_nothing_is_left(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, rows = study.screen(), study.rows[:-2]
    assert found.settled(rows, study.untested(rows))
    assert found.pick(rows, everything) is not None
    assert not found.settled(rows, nothing)
    assert found.pick(rows, nothing) is None
    monkeypatch.setattr(screens, "SETTLED_TRUST", 1.1)
    monkeypatch.setattr(screens, "LEAST_TRUST", 1.1)
    assert not found.settled(rows, study.untested(rows))
    assert found.pick(rows, everything) is None


def test_no_cell_is_tried_that_even_an_optimist_sees_at_twice_the_budget(study: Study) -> None:
    found = study.screen("ttft_p95:5 itl_p99:60")
    rows = study.rows[:2]
    assert found.pick(rows, everything) is None
    assert not found.settled(rows, everything)


def test_a_replay_that_was_cut_short_counts_as_its_bounds(study: Study, early: Screen) -> None:
    rows, trial = study.rows[:2], study.rows[2]
    row = study.row_of(trial)
    expected = seen(early, rows, row)
    above = seen(early, [*rows, cut_short(trial, 2, expected, 1.5)], row)
    below = seen(early, [*rows, cut_short(trial, 3, expected, 0.9)], row)
    for name in ("ttft_p95", "itl_p99"):
        assert below[name] == pytest.approx(expected[name])
        assert expected[name] + 0.1 < above[name] < expected[name] + math.log(1.5) + 0.1


def test_who_was_cut_short_is_never_the_best(study: Study, early: Screen) -> None:
    rows, trial = study.rows[:2], study.rows[2]
    ours, other = study.row_of(rows[0]), study.row_of(trial)
    cut = cut_short(trial, 2, seen(early, rows, other), 0.9)
    outlook = looked_at(study.screen("ttft_p95:500 itl_max:40"), [*rows, cut]).outlook
    # The baseline breaks this budget, and the other was not seen to break it.
    assert outlook.expected[other] < outlook.expected[ours]
    assert outlook.best == ours


def test_tokens_come_a_little_after_their_step_as_in_the_baseline(
    study: Study, early: Screen
) -> None:
    def late(number: int) -> Mapping[str, NDArray[Any]]:
        arrays = study.samples[number]
        return {**arrays, "first_token_s": arrays["first_token_s"] + 5e-4}

    found = Screen.of(study.job, Yardstick.of(study.job), late)
    assert found is not None
    assert looked_at(found, study.rows[:1]).simulations.shape.delivery_s == pytest.approx(5e-4)
    assert looked_at(early, study.rows[:2]).simulations.shape.delivery_s == 0


def everything(_candidate: Candidate) -> bool:
    return True


def nothing(_candidate: Candidate) -> bool:
    return False


def looked_at(screen: Screen, rows: Sequence[TrialRecord]) -> Looked:
    looked = screen.look(rows)
    assert looked is not None
    return looked


def cut_short(
    trial: TrialRecord, number: int, expected: Mapping[str, float], factor: float
) -> TrialRecord:
    """The trial, cut short when its latencies were so many times what was expected."""
    bounds = {name: math.exp(expected[name]) * factor for name in ("ttft_p95", "itl_p99")}
    engine = {"censored": {"bounds": bounds}}
    return replace(trial, number=number, state="infeasible", metrics=None, engine=engine)


def seen(screen: Screen, rows: Sequence[TrialRecord], row: int) -> dict[str, float]:
    """Return what is expected of a cell, as logs."""
    logs = looked_at(screen, rows).corrected.logs[row].tolist()
    return dict(zip(screen.keys, logs, strict=True))
