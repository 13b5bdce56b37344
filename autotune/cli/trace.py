"""``autotune trace``: import, inspect, cut, dial and make traces."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.cli.options import Format, OutputFormat, Window

if TYPE_CHECKING:
    from autotune.traffic.formats.base import ReadOptions
    from autotune.traffic.model import Trace
    from autotune.traffic.scenarios import Scenario
    from autotune.traffic.window import WindowSpec
    from objectives.classes import LengthClass

app = typer.Typer(
    name="trace",
    help="Import, inspect, cut, redact and make traces.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


class ScenarioName(StrEnum):
    """The scenarios of ``autotune.traffic.scenarios``, named here so that help stays light."""

    SHORT_CHAT = "short_chat"
    LONG_DOCUMENTS = "long_documents"
    MIXED = "mixed"


class LoadMethod(StrEnum):
    """The methods of ``autotune.traffic.load``, named here so that help stays light."""

    AUTO = "auto"
    COMPRESS = "compress"
    SUPERPOSE = "superpose"
    THIN = "thin"


class TraceFormat(StrEnum):
    """The readers of ``autotune.traffic.formats``, named here so that help stays light."""

    AUTO = "auto"
    NATIVE = "native"
    MOONCAKE = "mooncake"
    AZURE = "azure"
    BURSTGPT = "burstgpt"
    BAILIAN = "bailian"
    CUSTOM = "custom"
    SHAREGPT = "sharegpt"
    OPENAI_BATCH = "openai-batch"
    LITELLM = "litellm"
    LANGFUSE = "langfuse"
    OTLP = "otlp"
    GUIDELLM = "guidellm"
    VLLM_BENCH = "vllm-bench"


Source = Annotated[str, typer.Argument(help="A trace file, or demo:mixed.", show_default=False)]
Destination = Annotated[
    Path,
    typer.Argument(help="The JSON Lines file to write.", dir_okay=False, show_default=False),
]
ReadAs = Annotated[TraceFormat, typer.Option("--format", help="The form of the source.")]


@app.command("import")
def import_(
    source: Source,
    destination: Destination,
    *,
    trace_format: ReadAs = TraceFormat.AUTO,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            help="Count texts with this tokenizer, a folder, a tokenizer.json or a model's name. "
            "[default: estimated at 4 characters a token]"
        ),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(help="Requests per second, where the source has no times: Poisson arrivals."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Of the arrivals that --rate makes. [default: 0]")
    ] = None,
    answers: Annotated[
        Path | None,
        typer.Option(help="The output file of a batch, for lengths.", dir_okay=False),
    ] = None,
) -> None:
    """Convert a trace, a log or a data set to a trace of our own."""
    from autotune.traffic.formats.base import ReadOptions

    _check(destination)
    options = ReadOptions(tokenizer=tokenizer, rate_per_s=rate, seed=seed, answers=answers)
    _save(_load(source, trace_format, options), destination)


@app.command()
def inspect(
    source: Annotated[str, typer.Argument(metavar="TRACE", help="A trace file, or demo:mixed.")],
    *,
    budget_tokens: Annotated[
        int, typer.Option(min=1, max=2**31 - 1, help="A step budget to compare the prompts with.")
    ] = 2048,
    classes: Annotated[
        str | None,
        typer.Option(
            help="Classes of prompt length, as in 'short:0-2000 long:2000-'. "
            "[default: one cut, if lengths form two groups]"
        ),
    ] = None,
    window: Window = None,
    output_format: Format = OutputFormat.TABLE,
) -> None:
    """Show rates, lengths, classes and shared prefixes of a trace."""
    import json
    from dataclasses import asdict

    from autotune.cli.tables import console
    from autotune.traffic.inspect import describe
    from autotune.traffic.picture import picture
    from autotune.traffic.window import parse_window

    wanted = None if window is None else parse_window(window)
    trace = _load(source)
    if wanted is not None:
        trace = _cut(trace, wanted)
    chosen = None if classes is None else _parse_classes(classes)
    summary = describe(trace, budget_tokens=budget_tokens, classes=chosen)
    if output_format is OutputFormat.JSON:
        typer.echo(json.dumps({"source": trace.meta.source, **asdict(summary)}, indent=2))
    else:
        typer.echo(picture(trace, summary, width=console().width))


@app.command()
def window(
    source: Source,
    destination: Destination,
    *,
    spec: Annotated[
        str,
        typer.Option("--window", help="600:900 in seconds, or busiest:10m.", show_default=False),
    ],
) -> None:
    """Cut a window out of a trace. Times then count from its start."""
    from autotune.traffic.window import parse_window

    wanted = parse_window(spec)
    _check(destination)
    trace = _load(source)
    _save(_cut(trace, wanted), destination)


@app.command()
def load(
    source: Source,
    destination: Destination,
    *,
    factor: Annotated[
        float,
        typer.Option("--load", help="How many times the traffic, such as 1.4 or 0.5."),
    ],
    method: Annotated[
        LoadMethod, typer.Option(help="How. auto superposes copies above 1 and thins below.")
    ] = LoadMethod.AUTO,
    seed: Annotated[int, typer.Option(help="Of what is thinned, and of the times of copies.")] = 0,
) -> None:
    """Turn the load of a trace up or down.

    Says what that does to rate, burstiness and shared prefixes.
    """
    from autotune.traffic.load import Load

    wanted = Load.of(factor, method)
    _check(destination)
    trace = _load(source)
    changed = wanted.apply(trace, seed=seed)
    for sentence in changed.notes.since(trace.notes):
        _note(sentence)
    _save(changed, destination)


@app.command()
def redact(
    source: Source,
    destination: Destination,
    *,
    salt_file: Annotated[
        Path | None,
        typer.Option(
            help="Make ids with this salt, so that traces share them. "
            "[default: a new random salt, which is not kept]",
            dir_okay=False,
        ),
    ] = None,
    drop_models: Annotated[
        bool, typer.Option("--drop-models", help="Remove the names of models as well.")
    ] = False,
) -> None:
    """Remove texts from a trace and replace its ids by others. Times and lengths stay."""
    from autotune.traffic.redact import read_salt, redacted

    _check(destination)
    salt = None if salt_file is None else read_salt(salt_file)
    trace = _load(source)
    clean = redacted(trace, salt=salt, drop_models=drop_models)
    for sentence in clean.notes.since(trace.notes):
        _note(sentence)
    _save(clean, destination)


_LENGTHS_HELP = "such as median=200,sigma=0.6,min=60,max=600, each part optional."


@app.command()
def synth(
    destination: Destination,
    *,
    scenario: Annotated[ScenarioName, typer.Option(help="The kind of traffic.")],
    rate: Annotated[float, typer.Option(help="Requests per second.")],
    duration: Annotated[str, typer.Option(help="Length of the traffic: 600 (seconds), 10m, 2h.")],
    seed: Annotated[int, typer.Option(help="Same seed, same bytes.")] = 0,
    burstiness: Annotated[
        float, typer.Option(help="Shape of the Gamma gaps: 1 is Poisson, less is burstier.")
    ] = 1.0,
    prefix_sharing: Annotated[
        float, typer.Option(help="Share of requests that begin with a shared prefix.")
    ] = 0.0,
    block_size: Annotated[int, typer.Option(help="Prompt tokens of one hash id.")] = 16,
    document_share: Annotated[
        float | None,
        typer.Option(help="Share of documents. [default: that of the scenario]"),
    ] = None,
    chat_prompt: Annotated[str | None, typer.Option(help=f"Prompts, {_LENGTHS_HELP}")] = None,
    chat_output: Annotated[str | None, typer.Option(help=f"Outputs, {_LENGTHS_HELP}")] = None,
    document_prompt: Annotated[str | None, typer.Option(help=f"Prompts, {_LENGTHS_HELP}")] = None,
    document_output: Annotated[str | None, typer.Option(help=f"Outputs, {_LENGTHS_HELP}")] = None,
) -> None:
    """Make traffic of chats, documents or both.

    The same arguments give the same bytes.
    """
    from autotune.traffic.synth import synthesize
    from autotune.traffic.window import parse_duration

    _check(destination)
    chosen = _adjusted_scenario(
        scenario,
        document_share=document_share,
        chat=(chat_prompt, chat_output),
        document=(document_prompt, document_output),
    )
    trace = synthesize(
        chosen,
        rate=rate,
        duration_s=parse_duration(duration),
        seed=seed,
        burstiness=burstiness,
        prefix_sharing=prefix_sharing,
        block_size=block_size,
    )
    _save(trace, destination)


def _adjusted_scenario(
    name: str,
    *,
    document_share: float | None,
    chat: tuple[str | None, str | None],
    document: tuple[str | None, str | None],
) -> Scenario:
    from dataclasses import replace

    from autotune.traffic.scenarios import Population, adjusted, scenario_named

    base = scenario_named(name)
    share = base.document_share if document_share is None else document_share
    _refuse_idle("document", document, 1 - share)
    _refuse_idle("chat", chat, share)

    def changed(kind: str, population: Population, texts: tuple[str | None, ...]) -> Population:
        prompt, output = texts
        return Population(
            prompt=adjusted(population.prompt, prompt, option=f"--{kind}-prompt"),
            output=adjusted(population.output, output, option=f"--{kind}-output"),
        )

    return replace(
        base,
        document_share=share,
        chat=changed("chat", base.chat, chat),
        document=changed("document", base.document, document),
    )


def _refuse_idle(kind: str, texts: tuple[str | None, ...], others_share: float) -> None:
    """Refuse lengths of requests of which there are none."""
    from autotune.errors import UsageError

    for part, text in zip(("prompt", "output"), texts, strict=True):
        if text is not None and others_share == 1:
            raise UsageError(
                f"--{kind}-{part}: this traffic has no {kind}s",
                hint="choose --scenario mixed, or a --document-share between 0 and 1",
            )


def _parse_classes(text: str) -> tuple[LengthClass, ...]:
    from autotune.errors import UsageError
    from objectives.classes import parse_classes
    from objectives.errors import ObjectiveError

    try:
        return parse_classes(text)
    except ObjectiveError as error:
        raise UsageError(error.message, hint=error.hint) from error


def _load(source: str, trace_format: str = "auto", options: ReadOptions | None = None) -> Trace:
    """Read a trace and say on stderr what reading changed."""
    from autotune.demo import resolve_trace
    from autotune.traffic.formats.base import NO_OPTIONS
    from autotune.traffic.trace import load_trace

    trace = load_trace(resolve_trace(source), format=trace_format, options=options or NO_OPTIONS)
    for sentence in trace.notes.sentences():
        _note(sentence)
    return trace


def _cut(trace: Trace, wanted: WindowSpec) -> Trace:
    """Return the window of a trace, and say on stderr where it lies."""
    start_s, end_s = wanted.bounds(trace)
    _note(f"The window is {start_s:g} s to {end_s:g} s.")
    cut = wanted.apply(trace)
    for sentence in cut.notes.since(trace.notes):
        _note(sentence)
    return cut


def _check(destination: Path) -> None:
    """Refuse a place that no trace can be written to, before the work."""
    from autotune.traffic.trace import check_trace_destination

    check_trace_destination(destination)


def _save(trace: Trace, destination: Path) -> None:
    """Write a trace, say so on stderr and print its path, for scripts."""
    from autotune.traffic.trace import save_trace

    save_trace(trace, destination)
    _note(f"{trace.meta.requests} requests, {trace.duration_s:.1f} s, sha256 {trace.sha256}.")
    typer.echo(str(destination))


def _note(text: str) -> None:
    typer.echo(text, err=True)
