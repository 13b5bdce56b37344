"""``autotune show``: one trial, or the study in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from autotune.cli.options import Format, OutputFormat, Storage, StudyName
from autotune.cli.tables import console, figure, limits, plain_line

if TYPE_CHECKING:
    from autotune.study.view import StudyView
    from objectives.limits import Budget
    from storage.records import StudyRecord, TrialRecord


def show(
    trial: Annotated[
        int | None,
        typer.Argument(
            min=0,
            max=2**63 - 1,
            help="Number of a trial. [default: the study's verdict]",
        ),
    ] = None,
    *,
    storage: Storage = None,
    study_name: StudyName = None,
    calibration: Annotated[
        bool,
        typer.Option("--calibration", help="Show the step times that the study measured first."),
    ] = False,
    output_format: Format = OutputFormat.TABLE,
) -> None:
    """Show one trial, or without a number the study."""
    import json
    import os

    from autotune.cli.words import (
        calibration_lines,
        forecast_lines,
        simulation_lines,
        state_line,
        study_verdict,
    )
    from autotune.errors import UsageError
    from autotune.study.view import load_json, load_view, shown_verdict
    from storage.codec import plain
    from storage.database import resolve_url
    from storage.repository import open_repository

    if calibration and trial is not None:
        raise UsageError(
            "--calibration is of a study, not of a trial", hint="leave out the trial's number"
        )
    with open_repository(resolve_url(storage, os.environ), create=False) as repository:
        view = load_view(repository, study_name)
        record = None if trial is None else repository.trial(view.study.id, trial)
    if record is not None:
        _show_trial(view, record, output_format)
        return
    if calibration:
        _show_calibration(view.study, output_format)
        return
    if output_format is OutputFormat.JSON:
        verdict = shown_verdict(view)
        study = view.study
        named = {"study": study.name, "state": study.state, **load_json(study)}
        body = {**named, "verdict": verdict}
        typer.echo(json.dumps(plain(body, name="verdict"), indent=2, allow_nan=False))
    elif view.judgement is None:
        typer.echo(f"Study {plain_line(view.study.name)!r} has no finished trial yet.")
    else:
        calibrated = calibration_lines(view.study)
        lines = study_verdict(view)
        simulated = simulation_lines(view.study)
        lines = [*simulated, *calibrated, *lines, *forecast_lines(view.study)]
        typer.echo("\n".join([state_line(view), *lines]))


def _show_calibration(study: StudyRecord, output_format: OutputFormat) -> None:
    import json

    from autotune.candidates.lattice import SEQS, TOKENS
    from autotune.cli.calibrate import step_lines
    from autotune.cli.words import simulation_lines
    from autotune.errors import UsageError
    from autotune.study.view import calibration_of, label
    from storage.codec import plain

    measured, known = calibration_of(study), study.fingerprint
    if measured is None:
        raise UsageError(
            f"study {study.name!r} measured no step times",
            hint="tune without --no-calibrate, and with 6 trials or more, does; or autotune "
            "calibrate, without a study",
        )
    stored = study.spec["calibration"]
    ladders = {name: known["ladders"][name] for name in (TOKENS, SEQS)}
    if output_format is OutputFormat.JSON:
        engine = {name: known[name] for name in ("vllm_version", "device")}
        body = {**label(study), "study": study.name, **engine, "ladders": ladders, **stored}
        typer.echo(json.dumps(plain(body, name="calibration"), allow_nan=False))
        return
    lines = step_lines(
        f"{known['device']}, vLLM {known['vllm_version']}",
        measured,
        whole=stored.get("whole", True),
        ladders_head="Ladders of the study:",
        ladders=ladders,
    )
    typer.echo("\n".join([*simulation_lines(study), *lines]))


def _show_trial(view: StudyView, record: TrialRecord, output_format: OutputFormat) -> None:
    import json

    from autotune.cli.conditions import condition_lines
    from autotune.cli.metric_table import metric_lines
    from autotune.cli.words import simulation_lines
    from autotune.study.view import absolute_budget, trial_json
    from storage.codec import plain

    body = {**trial_json(view, record), "engine": record.engine, "intervals": record.intervals}
    if output_format is OutputFormat.JSON:
        typer.echo(json.dumps(plain(body, name="trial"), indent=2, allow_nan=False))
        return
    typer.echo(
        f"Trial {record.number} of study {plain_line(view.study.name)!r}: "
        f"{limits(record.candidate)}, {record.phase}, {record.fidelity}, {record.state}"
    )
    for line in simulation_lines(view.study):
        typer.echo(line)
    if record.failure_class is not None:
        typer.echo(f"{record.failure_class}: {record.failure_evidence}")
    if record.diagnosis is not None:
        knob = record.diagnosis["next_knob"] or "nothing to move"
        typer.echo(f"{record.diagnosis['code']}: {record.diagnosis['reason']}; {knob}.")
    budget = absolute_budget(view.study, view.trials)
    if budget is not None:
        for line in limit_lines(record, budget):
            typer.echo(line)
    width = console().width
    for line in metric_lines(body["metrics"] or {}, record.intervals or {}, width=width):
        typer.echo(line)
    for line in condition_lines(record):
        typer.echo(line)
    for name, seconds in (record.timings or {}).items():
        typer.echo(f"{name:24}{figure(seconds, 3):>10} s")
    typer.echo(f"engine log: {record.log_path}")


def limit_lines(record: TrialRecord, budget: Budget) -> list[str]:
    """Return how a trial's own values and their upper bounds stand to each limit."""
    if not record.metrics or not budget.limits:
        return []
    lines = []
    for limit in budget.limits:
        value = record.metrics.get(limit.key)
        upper = (record.intervals or {}).get(limit.key, (None, None))[1]
        met = "broken" if value is None or value > (limit.limit_ms or 0.0) else "met"
        bound = "no upper bound" if upper is None else f"at most {figure(upper)} with 95 %"
        lines.append(
            f"{limit.key}: {figure(value)} ms of {figure(limit.limit_ms)}, {met} ({bound})"
        )
    failed = int((record.engine or {}).get("failed_requests", 0))
    return lines + ([f"failed requests: {failed}, which breaks any budget"] if failed else [])
