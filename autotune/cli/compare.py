"""``autotune compare``: endpoints, exported files and the default, on the same traffic."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.cli.options import (
    Classes,
    EndpointConfig,
    Engine,
    Format,
    JsonOutput,
    Load,
    LogLines,
    LogPath,
    OutputFormat,
    PromptSeed,
    TooLong,
    Window,
    folder_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from autotune.study.compare_results import Comparison
    from autotune.study.comparison import Difference

_RATES = {
    "request_throughput": "requests/s",
    "output_throughput": "output tokens/s",
    "total_token_throughput": "total tokens/s",
    "goodput": "goodput, requests/s",
}


def compare(
    sides: Annotated[
        list[str],
        typer.Argument(
            help="Two or more: endpoints of the --config file, YAML files that autotune best "
            "wrote, or default.",
            metavar="SIDES",
            show_default=False,
        ),
    ],
    *,
    trace: Annotated[str, typer.Option(help="Trace file, or demo:mixed.")],
    window: Window = None,
    load: Load = None,
    budget: Annotated[str, typer.Option(help="Limits that are compared too.")] = "",
    classes: Classes = None,
    too_long: TooLong = None,
    repeats: Annotated[
        int, typer.Option(min=1, max=20, help="Replays of each side, all in turn.")
    ] = 2,
    config: EndpointConfig = Path("autotune.yaml"),
    model: Annotated[
        str | None, typer.Option(help="Of engines whose file names none, and of default.")
    ] = None,
    engine: Engine = None,
    engine_arg: Annotated[
        list[str] | None,
        typer.Option(help="vLLM argument of all engines, key=value. A file wins. Repeatable."),
    ] = None,
    warmup_s: Annotated[
        float, typer.Option(help="Seconds of the window that warm up each replay.")
    ] = 10.0,
    seed: PromptSeed = 0,
    log_folder: Annotated[
        Path,
        typer.Option(help="Where the engines' logs go.", parser=folder_of, metavar="PATH"),
    ] = Path("autotune-logs"),
    log_file: LogPath = None,
    log_format: LogLines = None,
    output: JsonOutput = None,
    output_format: Format = OutputFormat.TABLE,
) -> None:
    """Compare endpoints and engines on the same traffic.

    Each side replays it in turn. Shows by how much each latency differs, and how sure that is.
    """
    import json
    import os

    from autotune.cli.files import write_text
    from autotune.cli.followed import logged
    from autotune.settings import SIMULATED, load_endpoints, load_settings, parse_engine_args
    from autotune.study.compare import NO_MODEL, Wanted
    from autotune.study.compare import compare as compared
    from autotune.study.compare_results import comparison_json
    from autotune.user_files import check_destination

    if output is not None:
        check_destination(output)
    simulated = (engine or "").startswith(SIMULATED)
    settings = load_settings(
        None,
        {
            "model": model if simulated else model or NO_MODEL,
            "engine": engine,
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
            "log_file": log_file,
            "log_format": log_format,
        },
        command="compare",
    )
    wanted = Wanted(
        settings=settings,
        names=sides,
        endpoints=lambda: load_endpoints(config),
        where=str(config),
        repeats=repeats,
    )
    with logged(settings, "compare", environ=os.environ) as watcher:
        found = compared(wanted, watcher)
    text = json.dumps(comparison_json(found), indent=2, allow_nan=False)
    typer.echo(text if output_format is OutputFormat.JSON else "\n".join(table_lines(found)))
    if output is not None:
        write_text(output, text + "\n", hint="the result is on stdout")


def table_lines(found: Comparison) -> list[str]:
    """Return the sides, the differences from the first, and what is not fair."""
    import textwrap

    from autotune.cli.tables import console, plain_line, ruled

    width = console().width
    requests = len(found.traffic.trace.requests)
    lines = [f"{requests} requests; in turn {', '.join(found.order)}", "", *_sides(found, width)]
    if found.simulated is not None:
        lines.insert(0, f"No engine was run: engines are simulated by {found.simulated}.")
    for side, own in zip(found.sides[1:], found.differences, strict=True):
        first, second = found.sides[0].about.name, side.about.name
        heading = ["ms", first, second, "difference", "90 % interval", ""]
        lines += ["", *ruled(heading, list(_rows(own)), width=width)]
    lines.append("")
    if any(each.shown for own in found.differences for each in own):
        lines.append("* the interval leaves no doubt which is lower")
    for sentence in found.caveats:
        lines += textwrap.wrap(
            sentence, width, initial_indent="- ", subsequent_indent="  ", break_long_words=False
        )
    return [plain_line(line) for line in lines]


def _sides(found: Comparison, width: int) -> list[str]:
    from autotune.cli.tables import figure, ruled

    sides = found.sides
    rows = [
        ["kind", *(side.about.kind for side in sides)],
        ["model", *(side.about.model for side in sides)],
        ["lengths", *("forced" if side.about.forced else "not forced" for side in sides)],
        ["failed", *(f"{side.failed} of {side.requests}" for side in sides)],
    ]
    if any(side.about.limits for side in sides):
        limits = ("/".join(map(str, side.about.limits.values())) or "-" for side in sides)
        rows.insert(2, ["limits", *limits])
    for name, label in _RATES.items():
        values = [side.mean(name) for side in sides]
        if any(value is not None for value in values):
            rows.append([label, *(figure(value, 2) for value in values)])
    return ruled(["", *(side.about.name for side in sides)], rows, width=width)


def _rows(own: Sequence[Difference]) -> Iterator[list[str]]:
    from autotune.cli.tables import figure

    for each in own:
        share = "" if each.share is None else f" ({each.share:+.1%})"
        gap = "-" if each.difference is None else f"{each.difference:+.2f}{share}"
        ends = "-"
        if each.low is not None or each.high is not None:
            ends = f"{_end(each.low)} to {_end(each.high)}"
        yield [
            each.metric.replace("_", " "),
            figure(each.first, 2),
            figure(each.second, 2),
            gap,
            ends,
            "*" if each.shown else "",
        ]


def _end(value: float | None) -> str:
    return "unbounded" if value is None else f"{value:+.2f}"
