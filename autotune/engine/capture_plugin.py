"""Offers vLLM the stat logger that captures traffic, where that is asked for.

vLLM keeps statistics as soon as a distribution offers any stat logger, even where they were
switched off. So none is offered by this distribution's metadata: this plug-in, which vLLM calls
in each of its processes, adds one more distribution where ``AUTOTUNE_CAPTURE`` is set, and does
nothing elsewhere.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from importlib.metadata import Distribution, DistributionFinder
from pathlib import Path

from autotune.engine.parent_death import HOST_VARIABLE
from autotune.traffic.capture.variables import FOLDER_VARIABLE

_METADATA = "Metadata-Version: 2.1\nName: vllm-autotune-capture\nVersion: 0\n"
_ENTRY_POINTS = (
    "[vllm.stat_logger_plugins]\n"
    "autotune_capture = autotune.engine.stat_logger:CaptureStatLogger\n"
)


def offer_stat_logger(environ: Mapping[str, str] | None = None) -> None:
    """Make vLLM find the stat logger, unless this is an engine of ours; safe to repeat.

    Also vLLM's plug-in entry point.
    """
    given = os.environ if environ is None else environ
    if not given.get(FOLDER_VARIABLE) or HOST_VARIABLE in given:
        return
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())


class _Offer(Distribution):
    """A distribution that has nothing but an entry point."""

    def read_text(self, filename: str) -> str | None:
        return {"METADATA": _METADATA, "entry_points.txt": _ENTRY_POINTS}.get(filename)

    def locate_file(self, path: str | os.PathLike[str]) -> Path:
        return Path(path)


class _Finder(DistributionFinder):
    """Finds that distribution, and no module."""

    def find_spec(self, *_arguments: object) -> None:
        return None

    def find_distributions(
        self, context: DistributionFinder.Context | None = None
    ) -> Iterable[Distribution]:
        name = None if context is None else context.name
        return [_Offer()] if name in (None, "vllm-autotune-capture") else []
