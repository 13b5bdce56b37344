"""Options that several commands share."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class OutputFormat(StrEnum):
    """How a result is printed."""

    TABLE = "table"
    JSON = "json"


def folder_of(text: str | Path) -> Path:
    """Return the folder of that name; as a path, an empty one would be the current folder."""
    if text == "":
        raise typer.BadParameter("must name a folder; `.` is the current one")
    return Path(text)


Storage = Annotated[
    str | None,
    typer.Option(
        help="Database URL. [default: AUTOTUNE_STORAGE, OPTUNA_STORAGE or sqlite:///autotune.db]",
    ),
]
StudyName = Annotated[
    str | None,
    typer.Option("--study-name", help="The study. [default: the most recent one]"),
]
Format = Annotated[OutputFormat, typer.Option("--format", help="How to print it.")]

# What is replayed, and how its requests are told apart.
Window = Annotated[
    str | None, typer.Option(help="Part of the trace: 600:900 (seconds) or busiest:10m.")
]
Load = Annotated[
    float | None,
    typer.Option(
        help="How many times the traffic: copies are superposed above 1, requests thinned below. "
        "[default: 1]"
    ),
]
LoadOrAuto = Annotated[
    str | None,
    typer.Option(
        "--load",
        help="The same, or auto: where the baseline is at the edge of the budget, by simulation. "
        "[default: 1]",
        metavar="NUMBER|auto",
    ),
]
Holdout = Annotated[
    str | None,
    typer.Option(
        help="Share of the window, its end, that nothing is chosen on: the winner is confirmed on "
        "it. From 1% to 50%, such as 20%. [default: none]",
        show_default=False,
    ),
]
Classes = Annotated[
    str | None, typer.Option(help="Classes of prompt length: 'short:0-2000 long:2000-'.")
]


class TooLongPolicy(StrEnum):
    """``autotune.settings.TooLong``, named here so that help stays light."""

    ERROR = "error"
    SKIP = "skip"
    TRUNCATE = "truncate"


TooLong = Annotated[
    TooLongPolicy | None,
    typer.Option(help="What becomes of requests longer than max_model_len. [default: error]"),
]


class FidelityPolicy(StrEnum):
    """``autotune.settings.Fidelity``, named here so that help stays light."""

    AUTO = "auto"
    RESTART = "restart"


Engine = Annotated[
    str | None,
    typer.Option(
        help="vllm, or sim:PROFILE to simulate a measured engine: a name that is shipped, such as "
        "sim:h200-llama8b, or a file. [default: vllm]"
    ),
]
Fidelity = Annotated[
    FidelityPolicy | None,
    typer.Option(
        help="auto searches on a running engine and confirms by restarts; restart starts an "
        "engine for each trial. [default: auto]"
    ),
]
Calibrate = Annotated[
    bool | None,
    typer.Option(
        "--calibrate/--no-calibrate",
        help="Measure step times first, and search the sizes that they favour. "
        "[default: calibrate]",
    ),
]

EndpointConfig = Annotated[
    Path, typer.Option("--config", help="YAML file whose endpoints are meant.")
]

# When a study gives up, and when it does not even begin.
StartTimeout = Annotated[
    float | None, typer.Option(help="Longest time for an engine start. [default: 1800]")
]
SilenceTimeout = Annotated[
    float | None,
    typer.Option(help="Longest time without a token while requests wait. [default: 120]"),
]
SettleTimeout = Annotated[
    float | None,
    typer.Option(help="Longest time until what an engine held has been given back. [default: 60]"),
]
MaxFailures = Annotated[
    int | None, typer.Option(help="Of one class, before giving up. [default: 5]")
]
Timeout = Annotated[
    str | None,
    typer.Option(
        help="Time that this run may take: 90m, 8h. It confirms and ends by then, and the same "
        "command goes on. [default: none]",
        show_default=False,
    ),
]
Until = Annotated[
    str | None,
    typer.Option(
        help="The same as a moment: the next 07:00 of the local clock, or 2026-12-01T07:00. Of "
        "both the earlier counts. [default: none]",
        show_default=False,
    ),
]


class LogFormatName(StrEnum):
    """``autotune.watching_settings.LogFormat``, named here so that help stays light."""

    TEXT = "text"
    JSON = "json"


# Who learns of a study that nobody sits before.
StatusPath = Annotated[
    str | None,
    typer.Option(
        "--status-file",
        help="Where the study says how far it is. [default: status.json in its folder of logs]",
        metavar="PATH",
        show_default=False,
    ),
]
LogPath = Annotated[
    str | None,
    typer.Option(
        "--log-file",
        help="Write what is said on stderr there too, with the time; rotated. [default: nowhere]",
        metavar="PATH",
        show_default=False,
    ),
]
LogLines = Annotated[
    LogFormatName | None, typer.Option("--log-format", help="Of that file. [default: text]")
]
Notify = Annotated[
    str | None,
    typer.Option(
        help="Command to run, without a shell, at the first candidate that keeps the budget and "
        "at the end; the event is JSON on its stdin. [default: none]",
        metavar="COMMAND",
        show_default=False,
    ),
]
NotifyUrl = Annotated[
    str | None,
    typer.Option(
        help="URL to post the same to. [default: AUTOTUNE_NOTIFY_URL, or none]",
        metavar="URL",
        show_default=False,
    ),
]
Budget = Annotated[
    str | None,
    typer.Option(help="Latency limits in ms: 'ttft_p95:800 tpot_p95:40 itl_p99@short:60'."),
]
OtherBudget = Annotated[
    str | None,
    typer.Option(
        help="Judge what is stored by these limits instead; nothing is measured.",
        show_default=False,
    ),
]
EngineArgs = Annotated[
    list[str] | None,
    typer.Option(help="vLLM engine argument for every candidate, key=value. Repeatable."),
]
Knobs = Annotated[
    list[str] | None,
    typer.Option(help="Further engine argument to search, name=a,b,c. Repeatable."),
]
EngineLogs = Annotated[
    Path | None,
    typer.Option(
        help="Where engine logs go. [default: autotune-logs]", parser=folder_of, metavar="PATH"
    ),
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Check trace, budget and engine arguments, and print the plan; start no engine.",
    ),
]

Tile = Annotated[
    str | None,
    typer.Option(help="Only multiples of these are searched: tokens,sequences. [default: 128,8]"),
]
Warmup = Annotated[
    float | None,
    typer.Option(
        help="Seconds of the window that warm up before each measurement; 30 at first on an "
        "engine. [default: 10]"
    ),
]


JsonOutput = Annotated[
    Path | None, typer.Option(help="Write the JSON here as well.", show_default=False)
]

PromptSeed = Annotated[int, typer.Option(min=0, help="Of the prompts.")]
