"""A stored study as commands show it; needs neither vLLM nor Optuna."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from autotune import __version__
from autotune.export.document import Export
from autotune.forecast.calibration import Calibration
from autotune.settings import SIMULATED
from autotune.simulated.arguments import carried
from autotune.simulated.profile import name_in
from autotune.study.costs import RATE, UTILIZATION, Cell
from autotune.study.counted import censored, is_restart_of
from autotune.study.ending import ending_of
from autotune.study.held import KEY, Confirmed
from autotune.study.judgement import Judgement, judge, verdict_json
from autotune.traffic.load import Load
from objectives.budget import is_feasible, resolve
from objectives.classes import parse_classes
from objectives.errors import ObjectiveError
from objectives.limits import Budget, check_classes, parse_budget
from storage.records import StudyRecord, TrialRecord
from storage.repository import Repository


@dataclass(frozen=True, slots=True, eq=False)
class StudyView:
    """A study, its trials, and what they say; ``judgement`` is None before the first result."""

    study: StudyRecord
    trials: tuple[TrialRecord, ...]
    judgement: Judgement | None


def load_view(repository: Repository, name: str | None, *, budget: str | None = None) -> StudyView:
    """Read a study and judge it, by its own budget or by another; nothing is stored.

    Raises:
        UnknownStudy: there is none of this name, or none at all.
        ObjectiveError: the budget cannot be read, or names a class that the study has not.
    """
    study = repository.study(name)
    if budget is not None:
        other_budget(study, budget)
        study = replace(study, spec={**study.spec, "budget": budget})
    trials = repository.trials(study.id)
    judgement = judge(
        trials,
        lambda number: repository.samples(study.id, number),
        budget=parse_budget(study.spec["budget"]),
        classes=parse_classes(study.spec["classes"]),
        baseline=study.fingerprint["baseline"],
    )
    return StudyView(study, trials, judgement)


def other_budget(study: StudyRecord, text: str) -> Budget:
    """Return a budget by which a stored study can be judged instead of its own.

    Raises:
        ObjectiveError: it cannot be read, or names a class that the study has not.
    """
    budget, classes = parse_budget(text), parse_classes(study.spec["classes"])
    try:
        check_classes(budget, classes)
    except ObjectiveError as error:
        if classes:
            raise
        raise ObjectiveError(
            error.message,
            hint=f"study {study.name!r} has no classes; the same autotune tune with --classes "
            "gives it some, and judges its trials again",
        ) from error
    return budget


def simulated_by(study: StudyRecord) -> str | None:
    """Return the name of the profile by which a study was simulated, None of a real one."""
    engine = study.fingerprint.get("engine")
    return None if engine is None else name_in(engine)


def load_of(study: StudyRecord) -> Load | None:
    """Return what a study made of the recorded traffic, None if nothing."""
    factor = study.spec.get("load")
    return None if factor is None else Load(factor, study.spec["load_method"])


def shown_verdict(view: StudyView) -> dict[str, Any] | None:
    """Return the verdict for programs.

    With why the study ended, with the profile's name if it is of a simulation, and with how the
    winner did on traffic that is held out, if any is; null without a winner.
    """
    if view.judgement is None:
        return None
    told = {**verdict_json(view.judgement), **ending_of(view.study), **label(view.study)}
    if KEY not in view.study.spec:
        return told
    confirmed = confirmed_on_held(view)
    return {**told, KEY: None if confirmed is None else confirmed.shown()}


def confirmed_on_held(view: StudyView) -> Confirmed | None:
    """Return how the winner did on held-out traffic; None without a winner or such traffic."""
    chosen = None if view.judgement is None else view.judgement.chosen
    return None if chosen is None else Confirmed.of(view.study, chosen.candidate)


def label(study: StudyRecord) -> dict[str, str]:
    """Return what programs are told of a simulated study, nothing of a real one."""
    name = simulated_by(study)
    return {} if name is None else {"simulated": name}


def trial_json(view: StudyView, trial: TrialRecord) -> dict[str, Any]:
    """Return one trial as ``autotune trials --format json`` shows it."""
    failure = None
    if trial.failure_class is not None:
        failure = {"class": trial.failure_class, "evidence": trial.failure_evidence}
    return {
        "number": trial.number,
        "state": trial.state,
        "phase": trial.phase,
        "fidelity": trial.fidelity,
        "replicate_of": trial.replicate_of,
        "candidate": dict(trial.candidate),
        "metrics": None if trial.metrics is None else dict(trial.metrics),
        "feasible": feasible(None if view.judgement is None else view.judgement.budget, trial),
        "failure": failure,
        "censored": censored(trial),
        "diagnosis": None if trial.diagnosis is None else dict(trial.diagnosis),
        "timings": None if trial.timings is None else dict(trial.timings),
        "started_at": trial.started_at,
        "finished_at": trial.finished_at,
        **label(view.study),
    }


def feasible(budget: Budget | None, trial: TrialRecord) -> bool | None:
    """Whether a trial's own values keep the budget; None if there is nothing to judge, or by.

    ``budget`` has no relative limits any more.
    """
    if trial.state == "infeasible":
        return False
    if trial.state != "complete" or trial.metrics is None or budget is None:
        return None
    failed = int((trial.engine or {}).get("failed_requests", 0))
    return is_feasible(budget, trial.metrics, failed)


def absolute_budget(study: StudyRecord, trials: Sequence[TrialRecord]) -> Budget | None:
    """Return the budget in ms, None as long as the baseline has nothing to be relative to."""
    own = study.fingerprint["baseline"]
    measured = [
        trial.metrics or {}
        for trial in trials
        if trial.state == "complete" and is_restart_of(trial, own)
    ]
    try:
        return resolve(parse_budget(study.spec["budget"]), next(iter(measured), {}))
    except ObjectiveError:
        return None


def is_calibrated(study: StudyRecord) -> bool:
    """Whether the trials of a study have a utilization; else their work is a rate."""
    calibration = calibration_of(study)
    return calibration is not None and calibration.best_flops_per_s is not None


def calibration_of(study: StudyRecord) -> Calibration | None:
    """Return what the steps of a study's engine take, None where that was not measured."""
    stored = study.spec.get("calibration")
    return None if stored is None else Calibration.from_json(stored["calibration"])


def load_json(study: StudyRecord) -> dict[str, Any]:
    """Return the load of a study for programs; the method only where there is one."""
    load = load_of(study)
    return {"load": 1.0} if load is None else {"load": load.factor, "load_method": load.method}


def _holdout_json(study: StudyRecord, cell: Cell) -> dict[str, Any]:
    confirmed = Confirmed.of(study, cell.candidate)
    if confirmed is None:
        return {}
    part = confirmed.part
    return {
        "holdout": part.share,
        "holdout_sha256": part.sha256,
        "holdout_requests": part.requests,
        "holdout_met": confirmed.met,
    }


def make_export(view: StudyView, cell: Cell) -> Export:
    """Return a measured cell with its evidence, ready to be rendered.

    That of a simulated study has the arguments of the profile's engine too, and no model unless
    the user has named one.
    """
    study, judgement = view.study, view.judgement
    given = dict(study.fingerprint["engine_args"])
    profile = simulated_by(study)
    unnamed = str(study.fingerprint["model"]).startswith(SIMULATED)
    own = next((trial.engine for trial in view.trials if trial.engine), None) or {}
    like = {} if profile is None else carried(own.get("resolved", {}))
    baseline = None
    if judgement is not None and judgement.baseline is not None:
        baseline = dict(judgement.cells[judgement.baseline].metrics)
    return Export(
        model=None if unnamed else str(study.spec["model"]),
        candidate=dict(cell.candidate),
        engine_args={**like, **given, **cell.candidate},
        provenance=provenance(view, cell),
        metrics=dict(cell.metrics),
        intervals={name: (pair[0], pair[1]) for name, pair in cell.intervals.items()},
        baseline=baseline,
        verdict=shown_verdict(view),
        headline=headline(study),
        notice="" if profile is None else _NOTICE.format(profile),
        model_words=_MODEL_WORDS.format(study.spec["model"]) if unnamed else "",
    )


_NOTICE = (
    "SIMULATED, no engine was run: a forecast by the profile {}, with its engine's arguments; "
    "measure it before it is deployed"
)
_MODEL_WORDS = "put the one to serve here; the profile was measured with {}"


def headline(study: StudyRecord) -> tuple[str, ...]:
    """Return the metrics that people judge by: what the budget names, and the usual few."""
    budget = parse_budget(study.spec["budget"])
    named = [limit.key for limit in budget.limits]
    usual = ("ttft_p95", "tpot_p95", "itl_p99", "e2e_p95", "output_throughput")
    work = UTILIZATION if is_calibrated(study) else RATE
    return tuple(dict.fromkeys([*named, *usual, work]))


def provenance(view: StudyView, cell: Cell) -> dict[str, Any]:
    """Return where a configuration comes from."""
    study = view.study
    engine = next((t.engine for t in view.trials if t.number == cell.numbers[-1]), None) or {}
    return {
        "autotune": __version__,
        **label(study),
        "study": study.name,
        "trials": list(cell.numbers),
        "repeats": len(cell.numbers),
        "fidelity": cell.fidelity,
        "trace": study.spec["trace"],
        "window": study.spec["window"] or "all",
        **load_json(study),
        **_holdout_json(study, cell),
        "trace_sha256": study.fingerprint["trace"],
        "requests": study.spec["requests"],
        "budget": study.spec["budget"],
        "vllm": study.fingerprint["vllm_version"],
        "torch": study.spec["torch_version"],
        "device": study.fingerprint["device"],
        "kv_cache_tokens": engine.get("kv_cache_tokens"),
        "measured_at": next(
            (t.finished_at for t in view.trials if t.number == cell.numbers[-1]), None
        ),
    }
