"""``autotune doctor``: whether this machine is fit for a study, a model for it, or an endpoint."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.cli.options import (
    EndpointConfig,
    Format,
    OutputFormat,
    Storage,
    StudyName,
    Window,
    folder_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autotune.study.checkup import Checkup
    from autotune.study.findings import Finding


def doctor(
    model: Annotated[
        str | None,
        typer.Argument(
            help="Path or hub name of the model, or demo:tiny-llama.", show_default=False
        ),
    ] = None,
    *,
    endpoint: Annotated[
        str | None,
        typer.Option(help="Try this endpoint of the --config file step by step instead."),
    ] = None,
    config: EndpointConfig = Path("autotune.yaml"),
    storage: Storage = None,
    study_name: StudyName = None,
    trace: Annotated[
        str | None, typer.Option(help="Trace file, or demo:mixed, to see what it needs.")
    ] = None,
    window: Window = None,
    engine_arg: Annotated[
        list[str] | None, typer.Option(help="vLLM engine argument, key=value. Repeatable.")
    ] = None,
    start: Annotated[
        bool,
        typer.Option("--start", help="Start one engine with these arguments and ask it."),
    ] = False,
    log_folder: Annotated[
        Path,
        typer.Option(help="Where the engine's log goes.", parser=folder_of, metavar="PATH"),
    ] = Path("autotune-logs"),
    output_format: Format = OutputFormat.TABLE,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Of this machine: one document for an issue, without secrets and names.",
        ),
    ] = False,
) -> None:
    """Check this machine, a model, or an endpoint.

    Of this machine, where neither is given: versions, GPUs, disks, database, leases, clock,
    environment, sockets. Exit code 4 if anything fails.
    Of a model: what the KV cache costs, how many tokens fit, and which max_model_len is enough.
    Of an endpoint: what each step to a token finds. Exit code 2 if it will not work.
    """
    from autotune.errors import UsageError
    from autotune.settings import parse_engine_args

    of_machine = as_json or storage is not None or study_name is not None
    if model is not None and (endpoint is not None or of_machine):
        other = "an --endpoint" if endpoint is not None else "--storage, --study-name or --json"
        raise UsageError(
            f"give a model or {other}, not both",
            hint="autotune doctor MODEL --format json says as JSON what a model needs; without a "
            "model it is about this machine",
        )
    if endpoint is not None and not of_machine:
        from autotune.cli.endpoint_doctor import check_up_endpoint

        check_up_endpoint(endpoint, config, as_json=output_format is OutputFormat.JSON)
        return
    if model is None:
        from autotune.cli.machine_doctor import examine_machine

        if trace is not None or window is not None or engine_arg or start:
            raise UsageError(
                "--trace, --window, --engine-arg and --start need a model",
                hint="autotune doctor MODEL --trace FILE says whether that traffic fits",
            )
        as_json = as_json or output_format is OutputFormat.JSON
        examine_machine(storage, study_name, log_folder, endpoint, config, as_json=as_json)
        return
    if window is not None and trace is None:
        raise UsageError("--window needs a --trace", hint="give the trace that it is cut from")
    given = {
        "model": model,
        "trace": trace or "",
        "window": window,
        "engine_args": parse_engine_args(engine_arg or []),
        "log_folder": log_folder,
    }
    _check_up_model(given, start=start, as_json=output_format is OutputFormat.JSON)


def _check_up_model(given: Mapping[str, object], *, start: bool, as_json: bool) -> None:
    """Print what a model needs, and whether that works.

    Raises:
        UsageError: it does not; after all was printed.
        EnvironmentFault: the engine did not start; likewise.
    """
    import json

    from autotune.cli.watch import ScreenWatcher
    from autotune.errors import EnvironmentFault, UsageError
    from autotune.settings import load_settings
    from autotune.study.checkup import check_up, checkup_json
    from autotune.study.findings import findings_of

    settings = load_settings(None, given, command="doctor")
    with ScreenWatcher() as watcher:
        checkup = check_up(settings, watcher, start=start)
    findings = findings_of(checkup)
    if as_json:
        found = [
            {"name": each.name, "state": each.state, "sentence": each.sentence}
            for each in findings
        ]
        typer.echo(json.dumps({**checkup_json(checkup), "findings": found}, indent=2))
    else:
        typer.echo("\n".join(_lines(checkup, findings)))
    if any(each.state == "fail" and each.name != "engine" for each in findings):
        raise UsageError("it will not work like this", hint="what is marked fail says why")
    if checkup.engine.failure is not None:
        raise EnvironmentFault(
            f"the engine did not start: {checkup.engine.failure}",
            hint=f"its log is {checkup.engine.log}",
        )


def _lines(checkup: Checkup, findings: Sequence[Finding]) -> list[str]:
    """Return the figures, and below them the findings, of at most 80 columns each."""
    import textwrap

    from autotune.traffic.picture import WIDTH

    width = max(len(name) for name, _ in _figures(checkup))
    figures = [f"{name:{width}}  {value}" for name, value in _figures(checkup)]
    found = (
        textwrap.wrap(
            each.sentence,
            WIDTH,
            initial_indent=f"{each.state:4}  ",
            subsequent_indent=" " * 6,
            break_long_words=False,
            break_on_hyphens=False,
        )
        for each in findings
    )
    return [*figures, "", *(line for lines in found for line in lines)]


def _figures(checkup: Checkup) -> list[tuple[str, str]]:
    from autotune.hardware.model_shape import EngineDecides
    from autotune.study.findings import layers_text, size

    bill, engine = checkup.bill, checkup.engine
    rows = [("model", checkup.model)]
    if isinstance(bill, EngineDecides):
        rows.append(("bytes per token", "the engine decides"))
    else:
        rows += [("layers", layers_text(each)) for each in bill.shape.layers]
        rows.append(("bytes per token", f"{bill.bytes_per_token} ({size(bill.bytes_per_token)})"))
    for name in ("max_model_len", "max_num_batched_tokens", "max_num_seqs"):
        if (value := engine.number(name)) is not None:
            rows.append((name, str(value)))
    for name, tokens in (
        ("tokens that fit, estimate", checkup.estimated_tokens),
        ("tokens that fit, engine", engine.reported_tokens),
    ):
        if tokens is not None:
            rows.append((name, f"{tokens:,}"))
    if checkup.traffic is not None:
        rows.append(("tokens at the peak", f"{checkup.traffic.need.tokens:,}"))
        rows.append(("longest request", f"{checkup.traffic.trace.longest_request:,} tokens"))
    return rows
