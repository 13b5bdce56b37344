"""``autotune replay``: one engine, any limits, one trace; nothing is stored."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autotune.cli.options import Classes, Format, Load, OutputFormat, TooLong, Window, folder_of


def replay(
    *,
    model: Annotated[str, typer.Option(help="Path or hub name of the model, or demo:tiny-llama.")],
    trace: Annotated[str, typer.Option(help="Trace file, or demo:mixed.")],
    window: Window = None,
    load: Load = None,
    budget: Annotated[str, typer.Option(help="Limits that goodput counts by.")] = "",
    classes: Classes = None,
    too_long: TooLong = None,
    engine_arg: Annotated[
        list[str] | None, typer.Option(help="vLLM engine argument, key=value. Repeatable.")
    ] = None,
    warmup_s: Annotated[
        float, typer.Option(min=0.0, help="Seconds of the window that warm up; 30 at first.")
    ] = 10.0,
    seed: Annotated[int, typer.Option(min=0, help="Of the prompts.")] = 0,
    log_folder: Annotated[
        Path,
        typer.Option(help="Where the engine's log goes.", parser=folder_of, metavar="PATH"),
    ] = Path("autotune-logs"),
    output: Annotated[
        Path | None, typer.Option(help="Write the JSON here as well.", show_default=False)
    ] = None,
    output_format: Format = OutputFormat.TABLE,
) -> None:
    """Replay a trace against one engine.

    JSON has the key names of `vllm bench serve`.
    """
    import json

    from autotune.cli.files import write_text
    from autotune.cli.watch import ScreenWatcher
    from autotune.settings import load_settings, parse_engine_args
    from autotune.study.single import replay_once
    from autotune.user_files import check_destination

    if output is not None:
        check_destination(output)
    settings = load_settings(
        None,
        {
            "model": model,
            "trace": trace,
            "window": window,
            "load": load,
            "budget": budget,
            "classes": classes,
            "too_long": too_long,
            "engine_args": parse_engine_args(engine_arg or []),
            "warmup_s": warmup_s,
            "seed": seed,
            "log_folder": log_folder,
        },
        command="replay",
    )
    with ScreenWatcher() as watcher:
        result = replay_once(settings, watcher)
    text = json.dumps(result, indent=2, allow_nan=False)
    if output_format is OutputFormat.JSON:
        typer.echo(text)
    else:
        for name, value in result.items():
            if isinstance(value, int | float | str) or value is None:
                shown = f"{value:.3f}" if isinstance(value, float) else value
                typer.echo(f"{name:32} {shown}")
    if output is not None:
        write_text(output, text + "\n", hint="the result is on stdout")
