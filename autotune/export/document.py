"""What an export says, before it has a format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Format = Literal["args", "yaml", "json", "env"]

FlagFacts = Mapping[str, Mapping[str, str | None]]
"""What ``vllm serve`` calls each engine argument, as the measured version answered.

Argument name to ``flag`` (None: the command has no option for it), ``negative`` (the flag that
sets false, or None) and ``default`` (JSON text, None where JSON cannot write it).
"""

Interval = tuple[float | None, float | None]


@dataclass(frozen=True, slots=True)
class Export:
    """One measured configuration with its evidence.

    ``engine_args`` are exactly the arguments of the measured engine by their names in vLLM,
    without the model; ``candidate`` is the part of them that the study searched. ``metrics``
    hold the measured values, ``intervals`` their confidence bounds by the same names (an end
    is None where the sample gives no finite one), ``baseline`` the same metrics of the user's
    own configuration. ``provenance`` says where all this comes from. ``model`` is None where the
    engine had none that could be served; ``model_words`` then say which one is to be put there.
    ``notice`` is what the header of a text format begins with, such as that nothing was measured.

    All values are such as JSON holds. ``headline`` names the metrics that the header of a text
    format shows, () for all of them.
    """

    model: str | None
    candidate: Mapping[str, object]
    engine_args: Mapping[str, object]
    provenance: Mapping[str, object]
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    intervals: Mapping[str, Interval] = field(default_factory=dict)
    baseline: Mapping[str, float | None] | None = None
    verdict: Mapping[str, object] | None = None
    headline: tuple[str, ...] = ()
    notice: str = ""
    model_words: str = ""
