"""The controller: replays traffic against vLLM engines and searches their scheduler limits."""

__version__ = "0.1.0"
