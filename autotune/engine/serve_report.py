"""What a server of vLLM's says of its own configuration, and what that proves of a file.

Two reports count. ``/server_info`` has the configuration as vLLM resolved it, the very object
that its engine is started with: a value that is found there is in force. The line ``non-default
args`` of the log has what the command line's parser took: a value that is found there alone was
read, and what came of it is not known. ``/metrics`` repeats a part of the first.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

ProofState = Literal["in_force", "resolved", "differs", "not_provable"]

ARGUMENTS_LINE = "non-default args: "
"""What vLLM says before the arguments that it was given."""

_READ = re.compile(ARGUMENTS_LINE + r"(\{.*\})\s*$", re.M)
_RENAMED: Mapping[str, tuple[str, ...]] = {
    "scheduling_policy": ("scheduler_config", "policy"),
    "kv_cache_dtype": ("cache_config", "cache_dtype"),
    "attention_backend": ("attention_config", "backend"),
    "mamba_backend": ("mamba_config", "backend"),
}
"""What the sub-configurations call otherwise than the command line does."""

_SECRETS = ("hf_token", "api_key")
_DEPTH = 3
_AUTO: Mapping[str, object] = {"max_model_len": -1}
"""Beside the word ``auto``, what asks vLLM to choose."""


@dataclass(frozen=True, slots=True)
class Proof:
    """What a server's report says of one value of a file.

    Attributes:
        name: of the engine argument.
        wanted: as the file says it.
        found: as the server says it; None where it does not.
        state: ``resolved`` where the file leaves the choice to vLLM.
        where: in which report it was found; why it was not.
    """

    name: str
    wanted: object
    found: object
    state: ProofState
    where: str


@dataclass(frozen=True, slots=True)
class Report:
    """What a server says.

    Attributes:
        config: ``vllm_config`` of ``/server_info``; {} where there is none.
        read: the arguments that the parser took and that are no defaults; None if not told.
    """

    config: Mapping[str, Any]
    read: Mapping[str, Any] | None

    @classmethod
    def of(cls, server_info: str, log: str) -> Report:
        """Read both reports, as far as they can be read."""
        try:
            config = json.loads(server_info)["vllm_config"]
        except (ValueError, RecursionError, KeyError, TypeError):
            config = None
        return cls(config if isinstance(config, dict) else {}, _read_arguments(log))

    @property
    def kv_cache_tokens(self) -> int | None:
        """Tokens that the KV cache holds, None where the server does not say."""
        tokens = self.config.get("cache_config", {}).get("kv_cache_size_tokens")
        return tokens if isinstance(tokens, int) else None

    def resolved(self) -> dict[str, object]:
        """Return every single value of the resolved configuration by its dotted path."""
        return dict(_leaves(self.config, ""))

    def prove(self, wanted: Mapping[str, object]) -> tuple[Proof, ...]:
        """Return what is proved of each engine argument of a file."""
        return tuple(self._prove(name, value) for name, value in wanted.items())

    def _prove(self, name: str, value: object) -> Proof:
        places = list(self._places(name))
        verdicts = {agrees(value, found) for _, found in places}
        if len(verdicts) == 1 and (same := verdicts.pop()) is not None:
            where, found = places[0]
            left_open = value == "auto" or (name in _AUTO and value == _AUTO[name])
            state: ProofState = "in_force" if same else "resolved" if left_open else "differs"
            return Proof(name, value, found, state, f"/server_info {where}")
        if self.read is None or name not in self.read:
            return Proof(name, value, None, "not_provable", "no report of the server has it")
        found = self.read[name]
        if agrees(value, found) is False:
            return Proof(name, value, found, "differs", "the log's non-default args")
        words = "the server has read it, and does not report what came of it"
        return Proof(name, value, found, "not_provable", words)

    def _places(self, name: str) -> Iterator[tuple[str, Any]]:
        """Yield where the resolved configuration has a value, of the least depth alone."""
        if name in _RENAMED:
            part, own = _RENAMED[name]
            if own in (self.config.get(part) or {}):
                yield f"{part}.{own}", self.config[part][own]
            return
        level = [("", self.config)]
        for _ in range(_DEPTH):
            found = [(f"{path}{name}", part[name]) for path, part in level if name in part]
            if found:
                yield from found
                return
            level = [
                (f"{path}{key}.", child)
                for path, part in level
                for key, child in part.items()
                if isinstance(child, dict)
            ]


def _leaves(part: Mapping[str, Any], path: str) -> Iterator[tuple[str, object]]:
    for key, value in part.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{path}{key}.")
        elif key not in _SECRETS:
            yield f"{path}{key}", value


def agrees(wanted: object, found: object) -> bool | None:
    """Whether a server's value is that of a file; None where the two cannot be compared."""
    if wanted is None or isinstance(wanted, bool) or isinstance(found, bool):
        # What was not resolved says nothing of a switch.
        return None if found is None and wanted is not None else wanted is found
    if isinstance(wanted, int | float) and isinstance(found, int | float):
        return wanted == found
    if isinstance(wanted, str) and isinstance(found, str):
        return found.removeprefix("torch.").lower() == wanted.lower()
    return _contents_agree(wanted, found)


def _contents_agree(wanted: object, found: object) -> bool | None:
    """Compare lists, and what a mapping says with the same of another."""
    if isinstance(wanted, Mapping) and isinstance(found, Mapping):
        return _all(agrees(value, found.get(name)) for name, value in wanted.items())
    if isinstance(wanted, list) and isinstance(found, list):
        same_length = len(wanted) == len(found)
        return same_length and _all(map(agrees, wanted, found))
    return None


def _all(verdicts: Iterator[bool | None]) -> bool | None:
    found = set(verdicts)
    if False in found:
        return False
    return None if None in found else True


def _read_arguments(log: str) -> dict[str, Any] | None:
    """Return what vLLM logs as Python's notation of a dictionary; objects in it have none."""
    match = _READ.search(log)
    if match is None:
        return None
    try:
        found = ast.literal_eval(match.group(1))
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
