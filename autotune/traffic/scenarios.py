"""The shapes of traffic that can be synthesized: chats, documents and their mixture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from autotune.errors import UsageError
from autotune.traffic.model import MAX_TOKENS
from objectives.errors import nearest


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """A log-normal distribution of token counts, cut off (not clipped) at both ends.

    Attributes:
        median: of the distribution before it is cut off.
        sigma: standard deviation of the logarithm.
        minimum: least length.
        maximum: greatest length.

    Raises:
        UsageError: these make no distribution.
    """

    median: float
    sigma: float
    minimum: int
    maximum: int

    def __post_init__(self) -> None:
        ordered = 1 <= self.minimum <= self.median <= self.maximum <= MAX_TOKENS
        if not (ordered and 0 <= self.sigma <= 5):
            raise UsageError(
                f"no distribution of lengths: min {self.minimum}, median {self.median:g}, "
                f"max {self.maximum}, sigma {self.sigma:g}",
                hint="1 <= min <= median <= max <= 10000000 and sigma from 0 to 5",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Population:
    """Requests of one kind."""

    prompt: Lengths
    output: Lengths


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A mixture of chats and documents.

    Attributes:
        name: for people.
        document_share: share of requests that are documents, 0 to 1.
        chat: lengths of the chats.
        document: lengths of the documents.
    """

    name: str
    document_share: float
    chat: Population
    document: Population

    def __post_init__(self) -> None:
        if not 0 <= self.document_share <= 1:
            raise UsageError(
                f"the share of documents is {self.document_share:g}, not 0 to 1",
                hint="for example --document-share 0.1",
            )


_CHAT = Population(
    prompt=Lengths(median=400, sigma=0.5, minimum=32, maximum=2000),
    output=Lengths(median=130, sigma=0.8, minimum=4, maximum=1000),
)
_DOCUMENT = Population(
    prompt=Lengths(median=6000, sigma=0.5, minimum=2000, maximum=30_000),
    output=Lengths(median=250, sigma=0.6, minimum=16, maximum=1500),
)
_MIXED = Scenario(name="mixed", document_share=0.15, chat=_CHAT, document=_DOCUMENT)

SCENARIOS: dict[str, Scenario] = {
    "short_chat": replace(_MIXED, name="short_chat", document_share=0.0),
    "long_documents": replace(_MIXED, name="long_documents", document_share=1.0),
    "mixed": _MIXED,
}


def scenario_named(name: str) -> Scenario:
    """Return the scenario called ``name``.

    Raises:
        UsageError: there is none.
    """
    if name not in SCENARIOS:
        hint = nearest(name, SCENARIOS) or "scenarios: " + ", ".join(SCENARIOS)
        raise UsageError(f"unknown scenario {name!r}", hint=hint)
    return SCENARIOS[name]


def adjusted(lengths: Lengths, text: str | None, *, option: str = "lengths") -> Lengths:
    """Return ``lengths`` changed as in ``median=200,sigma=0.6,min=60,max=600``.

    Raises:
        UsageError: not of that form, or the result is no distribution; the message begins with
            ``option``.
    """
    fields = {"median": "median", "sigma": "sigma", "min": "minimum", "max": "maximum"}
    changes: dict[str, float] = {}
    for item in filter(None, (text or "").split(",")):
        name, _, value = (part.strip() for part in item.partition("="))
        if name not in fields:
            raise UsageError(f"{option}: unknown part {item!r}", hint=_LENGTHS_HINT)
        try:
            changes[fields[name]] = int(value) if name in ("min", "max") else float(value)
        except ValueError as error:
            raise UsageError(f"{option}: no number: {item!r}", hint=_LENGTHS_HINT) from error
    try:
        return replace(lengths, **changes)  # type: ignore[arg-type]  # min and max are integers
    except UsageError as error:
        hint = _missing_part(lengths, changes) or error.hint
        raise UsageError(f"{option}: {error.message}", hint=hint) from error


def _missing_part(lengths: Lengths, changes: Mapping[str, float]) -> str:
    """Say which end a new median lies beyond, where that end was not given; '' for all else."""
    median = changes.get("median", lengths.median)
    if "maximum" not in changes and median > lengths.maximum:
        return f"give max as well: it is {lengths.maximum} where it is not given"
    if "minimum" not in changes and 1 <= median < lengths.minimum:
        return f"give min as well: it is {lengths.minimum} where it is not given"
    return ""


_LENGTHS_HINT = "lengths are written median=200,sigma=0.6,min=60,max=600, each part optional"
