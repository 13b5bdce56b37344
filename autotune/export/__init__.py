"""What a study found, in forms that ``vllm serve`` and people's scripts accept."""

from autotune.export.document import Export, FlagFacts, Format
from autotune.export.render import render

__all__ = ["Export", "FlagFacts", "Format", "render"]
