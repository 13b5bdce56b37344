"""``autotune tune``: run a study."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.cli.options import (
    Budget,
    Calibrate,
    Classes,
    DryRun,
    Engine,
    EngineArgs,
    EngineLogs,
    Fidelity,
    Format,
    Holdout,
    Knobs,
    LoadOrAuto,
    LogLines,
    LogPath,
    MaxFailures,
    Notify,
    NotifyUrl,
    OutputFormat,
    SettleTimeout,
    SilenceTimeout,
    StartTimeout,
    StatusPath,
    Storage,
    Tile,
    Timeout,
    TooLong,
    Until,
    Warmup,
    Window,
)

if TYPE_CHECKING:
    from autotune.settings import TuneSettings
    from autotune.study.screen import Simulations


def tune(
    *,
    config: Annotated[
        Path | None, typer.Option(help="YAML file with these settings; flags win.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="Path or hub name of the model, or demo:tiny-llama. Required, or in --config."
        ),
    ] = None,
    engine: Engine = None,
    trace: Annotated[
        str | None, typer.Option(help="Trace file, or demo:mixed. Required, or in --config.")
    ] = None,
    window: Window = None,
    load: LoadOrAuto = None,
    holdout: Holdout = None,
    budget: Budget = None,
    classes: Classes = None,
    too_long: TooLong = None,
    engine_arg: EngineArgs = None,
    knob: Knobs = None,
    tile: Tile = None,
    trials: Annotated[
        int | None,
        typer.Option(help="Finished trials in all, resumed ones included. [default: 24]"),
    ] = None,
    timeout: Timeout = None,
    until: Until = None,
    fidelity: Fidelity = None,
    calibrate: Calibrate = None,
    warmup_s: Warmup = None,
    seed: Annotated[int | None, typer.Option(help="Of prompts and sampler. [default: 0]")] = None,
    storage: Storage = None,
    study_name: Annotated[
        str | None, typer.Option(help="Name of the study. [default: from model and trace]")
    ] = None,
    log_folder: EngineLogs = None,
    status_file: StatusPath = None,
    log_file: LogPath = None,
    log_format: LogLines = None,
    notify: Notify = None,
    notify_url: NotifyUrl = None,
    start_timeout_s: StartTimeout = None,
    silence_timeout_s: SilenceTimeout = None,
    settle_timeout_s: SettleTimeout = None,
    max_failures_in_a_row: MaxFailures = None,
    dry_run: DryRun = False,
    output_format: Format = OutputFormat.TABLE,
) -> None:
    """Replay a trace on real engines and find the limits at the knee.

    The same command again goes on where it stopped.
    """
    from autotune.settings import load_settings, parse_engine_args, parse_knobs

    settings = load_settings(
        config,
        {
            "model": model,
            "engine": engine,
            "trace": trace,
            "window": window,
            "load": load,
            "holdout": holdout,
            "budget": budget,
            "classes": classes,
            "too_long": too_long,
            "engine_args": parse_engine_args(engine_arg) if engine_arg else None,
            "knobs": parse_knobs(knob) if knob else None,
            "tile": tile,
            "trials": trials,
            "timeout": timeout,
            "until": until,
            "fidelity": fidelity,
            "calibrate": calibrate,
            "warmup_s": warmup_s,
            "seed": seed,
            "storage": storage,
            "study_name": study_name,
            "log_folder": log_folder,
            "status_file": status_file,
            "log_file": log_file,
            "log_format": log_format,
            "notify": notify,
            "notify_url": notify_url,
            "start_timeout_s": start_timeout_s,
            "silence_timeout_s": silence_timeout_s,
            "settle_timeout_s": settle_timeout_s,
            "max_failures_in_a_row": max_failures_in_a_row,
        },
    )
    if dry_run:
        _plan(settings, output_format)
    else:
        _run(settings, output_format)


def _run(settings: TuneSettings, output_format: OutputFormat) -> None:
    """Run the study, then print what it found."""
    import os

    from autotune.cli.followed import followed
    from autotune.cli.signals import Interrupted
    from autotune.tuning import run_study

    try:
        with followed(settings, environ=os.environ) as following:
            ended = run_study(settings, following.watcher, environ=os.environ)
            found = ended.judgement is not None and ended.judgement.chosen is not None
            following.exit_code = 0 if found else 3
    except Interrupted as interruption:
        interruption.add_note("the same command goes on from here")
        raise
    _print(settings, output_format, ended.simulations)
    if not found:
        raise typer.Exit(3)


def _print(
    settings: TuneSettings, output_format: OutputFormat, simulations: Simulations | None
) -> None:
    """Print table, verdict and exported configuration of the study."""
    import json
    import os

    from autotune.cli.foreseen import last_words_of
    from autotune.cli.tables import console
    from autotune.cli.trial_table import print_trials
    from autotune.cli.words import forecast_lines, simulation_lines, study_verdict, time_line
    from autotune.export.render import render
    from autotune.study.session import study_name
    from autotune.study.view import (
        load_view,
        make_export,
        shown_verdict,
        simulated_by,
        trial_json,
    )
    from storage.codec import plain
    from storage.database import resolve_url
    from storage.repository import open_repository

    url = resolve_url(settings.storage, os.environ)
    with open_repository(url, create=False) as repository:
        view = load_view(repository, study_name(settings))
        foreseen = []
        if output_format is OutputFormat.TABLE:
            foreseen = last_words_of(view, repository, simulations)
    judgement = view.judgement
    if output_format is OutputFormat.JSON:
        body = {
            "study": view.study.name,
            "verdict": shown_verdict(view),
            "trials": [trial_json(view, trial) for trial in view.trials],
        }
        typer.echo(json.dumps(plain(body, name="study"), indent=2, allow_nan=False))
        return
    for line in simulation_lines(view.study):
        typer.echo(line)
    print_trials(view, console())
    typer.echo("")
    if judgement is None:
        typer.echo("No trial has a result.")
        return
    calibration_s = (view.study.spec.get("calibration") or {}).get("seconds", 0.0)
    simulated = simulated_by(view.study) is not None
    spent = time_line(view.trials, calibration_s=calibration_s, simulated=simulated)
    lines = [*study_verdict(view), *foreseen, *forecast_lines(view.study), spent]
    typer.echo("\n".join(lines))
    if judgement.chosen is not None:
        typer.echo("")
        export = make_export(view, judgement.chosen)
        typer.echo(render(export, "yaml", flags=view.study.spec["flags"]), nl=False)


def _plan(settings: TuneSettings, output_format: OutputFormat) -> None:
    """Check everything that can be checked without an engine, and print what would be run."""
    import json
    import os

    from autotune.cli.plan_words import plan_lines
    from autotune.cli.tables import plain_line
    from autotune.tuning import plan_study

    plan = plan_study(settings, lambda text: typer.echo(text, err=True), environ=os.environ)
    if output_format is OutputFormat.JSON:
        typer.echo(json.dumps(plan, indent=2))
        return
    if settings.simulated:
        typer.echo("engines: simulated; none starts, and the times below pass on paper alone")
    study = plan.pop("study")
    earlier = f", {study['finished_trials']} trials finished" if study["state"] != "new" else ""
    typer.echo(plain_line(f"study: {study['name']!r} is {study['state']}{earlier}"))
    typer.echo("\n".join(plan_lines(plan)))
