"""The end of a window, held out so that what was chosen can be confirmed on other traffic."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from autotune.errors import TraceError
from autotune.traffic.model import Trace


@dataclass(frozen=True, slots=True)
class Holdout:
    """The last share of a window's time.

    Attributes:
        text: as the setting of this name has it, ``20%``.
    """

    text: str

    @property
    def share(self) -> float:
        """Of the time up to the last arrival, above 0 and below 1."""
        return float(self.text.removesuffix("%")) / 100

    @property
    def words(self) -> str:
        """The share as a sentence names it."""
        return self.text.replace("%", " %")

    def split(self, trace: Trace) -> tuple[Trace, Trace]:
        """Return what may be chosen on, and what is held out with times from its own start.

        Each keeps the notes of the whole.

        Raises:
            TraceError: no request arrives before the part that is held out.
        """
        end_s = trace.duration_s
        cut_s = end_s * (1 - self.share)
        if not trace.timestamps_s[0] < cut_s:
            raise TraceError(
                f"--holdout {self.text}: no request of {trace.meta.source} arrives before the "
                "part that is held out",
                hint="choose a longer --window, or a smaller share",
            )
        parts = trace.window(0.0, cut_s), trace.window(cut_s, math.nextafter(end_s, math.inf))
        first, last = (replace(part, notes=trace.notes) for part in parts)
        return first, last
