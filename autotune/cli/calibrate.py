"""``autotune calibrate``: what the steps of an engine take, and which limits that favours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.cli.options import Format, OutputFormat, folder_of

if TYPE_CHECKING:
    from autotune.forecast.calibration import Calibration
    from autotune.study.calibrate import Measured

_ON_STDOUT = "the result is on stdout"
_NOT_WHOLE = "Not all was measured: the time was up, or the engine ran other batches than planned."


def calibrate(
    *,
    model: Annotated[str, typer.Option(help="Path or hub name of the model, or demo:tiny-llama.")],
    engine_arg: Annotated[
        list[str] | None, typer.Option(help="vLLM engine argument, key=value. Repeatable.")
    ] = None,
    tile: Annotated[
        str, typer.Option(help="Quanta of the two limits: tokens,sequences.")
    ] = "128,8",
    log_folder: Annotated[
        Path,
        typer.Option(help="Where the engine's log goes.", parser=folder_of, metavar="PATH"),
    ] = Path("autotune-logs"),
    output: Annotated[
        Path | None,
        typer.Option(help="Write the JSON here as well, all steps in it.", show_default=False),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(
            help="Write a profile here, for `autotune tune --engine sim:PATH`.", show_default=False
        ),
    ] = None,
    output_format: Format = OutputFormat.TABLE,
) -> None:
    """Measure an engine's step times.

    Takes under two minutes, and one step at a time. Shows where one more token makes a step
    dearer, and the ladders that follow.
    """
    import json

    from autotune.cli.files import write_text
    from autotune.cli.watch import ScreenWatcher
    from autotune.errors import EnvironmentFault
    from autotune.settings import load_settings, parse_engine_args
    from autotune.simulated.profile import spelt
    from autotune.study.calibrate import calibrate_once
    from autotune.user_files import check_destination

    for path in (output, save):
        if path is not None:
            check_destination(path)
    settings = load_settings(
        None,
        {
            "model": model,
            "trace": "",
            "engine_args": parse_engine_args(engine_arg or []),
            "tile": tile,
            "log_folder": log_folder,
        },
        command="calibrate",
    )
    with ScreenWatcher() as watcher:
        measured = calibrate_once(settings, watcher, for_profile=save is not None)
    text = json.dumps(measured.to_json(), allow_nan=False)
    as_json = output_format is OutputFormat.JSON
    typer.echo(text if as_json else "\n".join(_lines(measured)))
    try:
        if save is not None:
            write_text(save, measured.profile(save.stem).to_text(), hint=_ON_STDOUT)
            typer.echo(f"wrote {save}: autotune tune --engine {spelt(save)}", err=True)
    finally:
        if output is not None:
            try:
                write_text(output, text + "\n", hint=_ON_STDOUT)
            except EnvironmentFault:
                # The steps are in no table.
                if not as_json:
                    typer.echo(text)
                raise


def _lines(measured: Measured) -> list[str]:
    """Return table, plot and ladders."""
    info, calibrated = measured.info, measured.calibrated
    return step_lines(
        f"{info.device}, vLLM {info.vllm_version}",
        calibrated.calibration,
        whole=calibrated.whole,
        ladders_head="Ladders that follow:",
        ladders=measured.ladders,
    )


def step_lines(
    head: str,
    calibration: Calibration,
    *,
    whole: bool,
    ladders_head: str,
    ladders: Mapping[str, Sequence[object]],
) -> list[str]:
    """Return a calibration as it is printed.

    Args:
        head: of what engine it is.
        calibration: what its steps take.
        whole: whether all of the plan was measured.
        ladders_head: what the ladders are.
        ladders: by name.
    """
    from autotune.cli.tables import console, cropped, plain_line
    from autotune.forecast.words import plot_lines, table_lines

    width, plot = console().width, plot_lines(calibration)
    # Part of a plot is none.
    plot = plot if max(map(len, plot), default=0) <= width else []
    lines = [
        head,
        "",
        *(cropped(line, width) for line in table_lines(calibration)),
        "",
        *([*plot, ""] if plot else []),
        ladders_head,
        *(f"{name}: {', '.join(map(str, rungs))}" for name, rungs in ladders.items()),
        *([] if whole else [_NOT_WHOLE]),
    ]
    return [plain_line(line) for line in lines]
