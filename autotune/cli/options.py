"""Options that several commands share."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class OutputFormat(StrEnum):
    """How a result is printed."""

    TABLE = "table"
    JSON = "json"


Storage = Annotated[
    str | None,
    typer.Option(
        help="Database URL.",
        show_default="AUTOTUNE_STORAGE, OPTUNA_STORAGE or sqlite:///autotune.db",
    ),
]
StudyName = Annotated[
    str | None,
    typer.Option("--study-name", help="The study.", show_default="the most recent one"),
]
Format = Annotated[OutputFormat, typer.Option("--format", help="How to print it.")]
