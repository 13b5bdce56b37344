"""``autotune replay``: one engine, any limits, one trace; nothing is stored."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autotune.cli.options import (
    Classes,
    EndpointConfig,
    Format,
    JsonOutput,
    Load,
    OutputFormat,
    PromptSeed,
    TooLong,
    Window,
    folder_of,
)

if TYPE_CHECKING:
    from autotune.endpoint_settings import EndpointSettings


def replay(
    *,
    model: Annotated[
        str | None, typer.Option(help="Path or hub name of the model, or demo:tiny-llama.")
    ] = None,
    endpoint: Annotated[
        str | None,
        typer.Option(help="Replay over HTTP against this endpoint of the --config file instead."),
    ] = None,
    config: EndpointConfig = Path("autotune.yaml"),
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
        float, typer.Option(help="Seconds of the window that warm up; 30 at first.")
    ] = 10.0,
    seed: PromptSeed = 0,
    log_folder: Annotated[
        Path,
        typer.Option(help="Where the engine's log goes.", parser=folder_of, metavar="PATH"),
    ] = Path("autotune-logs"),
    output: JsonOutput = None,
    output_format: Format = OutputFormat.TABLE,
) -> None:
    """Replay a trace against one engine, or an endpoint.

    JSON has the key names of `vllm bench serve`.
    """
    import json

    from autotune.cli.files import write_text
    from autotune.cli.watch import ScreenWatcher
    from autotune.errors import UsageError
    from autotune.settings import load_settings, parse_engine_args
    from autotune.study.single import replay_once
    from autotune.user_files import check_destination

    if output is not None:
        check_destination(output)
    named = None
    if endpoint is not None:
        named = _endpoint(endpoint, config, {"--model": model, "--engine-arg": engine_arg})
    elif model is None:
        raise UsageError(
            "neither --model nor --endpoint is given",
            hint="name the model of an engine to start, or a server that runs",
        )
    settings = load_settings(
        None,
        {
            "model": model if named is None else named.model,
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
        if endpoint is None or named is None:
            result = replay_once(settings, watcher)
        else:
            from autotune.study.endpoint_replay import replay_endpoint

            result = replay_endpoint(settings, endpoint, named, watcher)
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


def _endpoint(name: str, config: Path, others: dict[str, Any]) -> EndpointSettings:
    from autotune.endpoint_settings import endpoint_named
    from autotune.errors import UsageError
    from autotune.settings import load_endpoints

    for option, given in others.items():
        if given:
            raise UsageError(
                f"{option} is for an engine that is started here, and --endpoint for a server "
                "that runs",
                hint=f"leave out one of the two; the model of an endpoint stands in {config}",
            )
    return endpoint_named(load_endpoints(config), name, where=str(config))
