"""``autotune check``: whether an export still applies, alone or where it is served."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autotune.cli.options import (
    Classes,
    Format,
    JsonOutput,
    OutputFormat,
    PromptSeed,
    SilenceTimeout,
    StartTimeout,
    Storage,
    StudyName,
    TooLong,
    Window,
    folder_of,
)

if TYPE_CHECKING:
    from autotune.settings import TuneSettings
    from autotune.study.check import Checked
    from autotune.study.check_against import Stored
    from autotune.study.check_export import Exported
    from autotune.study.view import StudyView
    from objectives.samples import RequestSamples
    from storage.repository import Repository


def check(
    file: Annotated[
        Path | None,
        typer.Argument(
            help="Export of autotune best, YAML or JSON. [default: what the study would export]",
            show_default=False,
        ),
    ] = None,
    *,
    serve: Annotated[
        bool,
        typer.Option("--serve", help="Start vLLM's own server with it, and replay against that."),
    ] = False,
    against: Annotated[
        Path | None,
        typer.Option(
            help="An earlier export, or result of check --serve or replay, to lay beside it.",
            show_default=False,
        ),
    ] = None,
    trace: Annotated[
        str | None,
        typer.Option(
            help="Traffic of now, to say how far it has moved; with --serve what is replayed. "
            "[default: that of the study]",
            show_default=False,
        ),
    ] = None,
    window: Window = None,
    load: Annotated[
        float | None,
        typer.Option(help="With --serve: how many times the traffic. [default: as in the study]"),
    ] = None,
    classes: Classes = None,
    too_long: TooLong = None,
    storage: Storage = None,
    study_name: StudyName = None,
    warmup_s: Annotated[
        float, typer.Option(help="With --serve: seconds of the window that warm up.")
    ] = 30.0,
    seed: PromptSeed = 0,
    start_timeout_s: StartTimeout = None,
    silence_timeout_s: SilenceTimeout = None,
    log_folder: Annotated[
        Path,
        typer.Option(help="Where the server's log goes.", parser=folder_of, metavar="PATH"),
    ] = Path("autotune-logs"),
    output: JsonOutput = None,
    output_format: Format = OutputFormat.TABLE,
) -> None:
    """Say whether an export still applies.

    To the vLLM, device and model that are here, and to traffic of now. With --serve: serve it,
    prove that its values are in force, and compare with what the study promised. Exit code 3 if
    it no longer applies.
    """
    import os

    from autotune.study.check_against import read_stored
    from autotune.user_files import check_destination
    from storage.database import resolve_url

    if output is not None:
        check_destination(output)
    before = None if against is None else read_stored(against)
    at_hand = _at_hand(file, resolve_url(storage, os.environ), study_name)
    given = {
        "trace": trace,
        "window": window,
        "load": load,
        "classes": classes,
        "too_long": too_long,
        "warmup_s": warmup_s,
        "seed": seed,
        "start_timeout_s": start_timeout_s,
        "silence_timeout_s": silence_timeout_s,
        "log_folder": log_folder,
    }
    checked = _checked(at_hand, before, given, serve=serve)
    _print(checked, output, as_json=output_format is OutputFormat.JSON)


def _checked(
    at_hand: tuple[Exported, StudyView | None, RequestSamples | None],
    before: Stored | None,
    given: Mapping[str, Any],
    *,
    serve: bool,
) -> Checked:
    from dataclasses import replace

    from autotune.cli.watch import ScreenWatcher
    from autotune.study.check import check_here, stored_of
    from autotune.study.check_against import side_by_side
    from autotune.study.check_here import look_around
    from autotune.study.check_serve import check_served

    exported, view, samples = at_hand
    settings = _replayed(exported, view, given) if serve else None
    checked = check_here(
        exported,
        look_around(),
        view=view,
        samples=samples,
        trace=None if serve else given["trace"],
        window=given["window"],
    )
    if settings is not None:
        flags = None if view is None else view.study.spec["flags"]
        with ScreenWatcher() as watcher:
            served = check_served(exported, settings, watcher, flags=flags)
        checked = replace(checked, served=served)
    if before is not None:
        checked = replace(checked, sides=side_by_side(before, stored_of(checked)))
    return checked


def _print(checked: Checked, output: Path | None, *, as_json: bool) -> None:
    import json

    from autotune.cli.check_words import check_lines
    from autotune.cli.files import write_text
    from autotune.cli.tables import console
    from autotune.errors import EnvironmentFault, NoLongerApplies
    from storage.codec import plain

    text = json.dumps(plain(checked.to_json(), name="check"), indent=2, allow_nan=False)
    typer.echo(text if as_json else "\n".join(check_lines(checked, width=console().width)))
    if output is not None:
        write_text(output, text + "\n", hint="the result is on stdout")
    if checked.against:
        raise NoLongerApplies(
            f"{checked.exported.source} no longer applies: {'; '.join(checked.against)}",
            hint="measure anew with `autotune tune`, or correct what was changed",
        )
    if checked.served is not None and checked.served.late is not None:
        raise EnvironmentFault(
            f"the replay does not count: {checked.served.late}",
            hint="client and server share this machine: let nothing else run, or send less of the "
            "traffic with --load 0.5",
        )


def _at_hand(
    file: Path | None, url: str, study_name: str | None
) -> tuple[Exported, StudyView | None, RequestSamples | None]:
    """Return an export, and of its study what a database has; a file needs no database."""
    from autotune.study.check_export import read_export
    from storage.errors import StorageError
    from storage.repository import open_repository

    exported = None if file is None else read_export(file)
    with ExitStack() as stack:
        try:
            repository = stack.enter_context(open_repository(url, create=False))
            if exported is None:
                return _of_study(repository, study_name)
            name = study_name or str(exported.provenance.get("study") or "")
            if not name:
                return exported, None, None
            return _with_study(exported, repository, name)
        except StorageError:
            if exported is None or study_name is not None:
                raise
            return exported, None, None


def _of_study(
    repository: Repository, study_name: str | None
) -> tuple[Exported, StudyView, RequestSamples | None]:
    from autotune.errors import NothingFeasible, UsageError
    from autotune.study.check_export import of_export
    from autotune.study.view import load_view, make_export

    view = load_view(repository, study_name)
    name = view.study.name
    if view.judgement is None:
        raise UsageError(
            f"study {name!r} has no finished trial yet",
            hint="autotune trials shows what happened",
        )
    if view.judgement.chosen is None:
        raise NothingFeasible(
            f"study {name!r} has nothing to export", hint="autotune best says why"
        )
    exported = of_export(make_export(view, view.judgement.chosen), f"study {name!r}")
    return exported, view, _samples(exported, repository, view)


def _with_study(
    exported: Exported, repository: Repository, name: str
) -> tuple[Exported, StudyView, RequestSamples | None]:
    from autotune.study.view import StudyView

    study = repository.study(name)
    view = StudyView(study, repository.trials(study.id), judgement=None)
    return exported, view, _samples(exported, repository, view)


def _samples(exported: Exported, repository: Repository, view: StudyView) -> RequestSamples | None:
    """Return those of the trial that an export names, None without it."""
    from objectives.samples import RequestSamples
    from objectives.steps import Steps

    numbers = exported.provenance.get("trials")
    if not isinstance(numbers, list) or numbers[-1] not in [t.number for t in view.trials]:
        return None
    arrays = repository.samples(view.study.id, numbers[-1])
    return RequestSamples.from_arrays(Steps.split(arrays)[1]) if arrays else None


def _replayed(
    exported: Exported, view: StudyView | None, given: Mapping[str, Any]
) -> TuneSettings:
    """Return what is replayed against the server: what was given, else that of the study."""
    from autotune.errors import UsageError
    from autotune.settings import load_settings

    own = exported.traffic()
    if given["trace"] is not None:
        own = {"model": own["model"]}
    elif own["trace"] is None:
        raise UsageError(
            f"{exported.source} does not say which traffic it was measured with",
            hint="give one with --trace",
        )
    own["budget"] = exported.provenance.get("budget") or ""
    if view is not None:
        own["classes"] = view.study.spec["classes"] or None
    chosen = {name: value for name, value in given.items() if value is not None}
    return load_settings(None, {**own, **chosen}, command="check")
