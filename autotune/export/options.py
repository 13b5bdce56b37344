"""Engine arguments as options of ``vllm serve``.

The command's parser decides what can be said. A switch set to false needs a ``--no-`` form;
lists take one word or more; dictionaries are JSON; a word that begins with a dash is read as
an option, and null has no form at all.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from autotune.errors import UsageError
from autotune.export.document import FlagFacts
from objectives.errors import nearest

_NAME = re.compile(r"[a-z_][a-z0-9_]*")
_SAFE_WORD = re.compile(r"(?!-)|-\d+\Z")


@dataclass(frozen=True, slots=True)
class Option:
    """One option: ``flag`` with its leading dashes, ``value`` True for a bare switch."""

    name: str
    flag: str
    value: object


@dataclass(frozen=True, slots=True)
class Options:
    """The options to write, and by name those left out because the default says the same."""

    given: tuple[Option, ...]
    implied: Mapping[str, object]


def resolve(engine_args: Mapping[str, object], flags: FlagFacts | None) -> Options:
    """Map engine arguments to options; without ``flags`` by vLLM's naming rule alone.

    Raises:
        UsageError: ``vllm serve`` cannot be told the value of an argument.
    """
    given: list[Option] = []
    implied: dict[str, object] = {}
    for name, argument in engine_args.items():
        if argument is None or name == "model":
            continue
        value = list(argument) if isinstance(argument, tuple) else argument
        fact = _fact(name, flags)
        flag = fact["negative"] if value is False else fact["flag"]
        if flag is None or value == []:
            if fact["default"] != json.dumps(value):
                raise _unsayable(name, value)
            implied[name] = value
        else:
            given.append(Option(name, flag, value is False or _checked(name, value)))
    return Options(tuple(given), implied)


def words(option: Option) -> list[str]:
    """Return the command-line words of one option."""
    value = option.value
    if value is True:
        return [option.flag]
    if isinstance(value, list):
        return [option.flag, *map(str, value)]
    word = json.dumps(value) if isinstance(value, dict) else str(value)
    return [option.flag, word] if stands_alone(word) else [f"{option.flag}={word}"]


def stands_alone(word: str) -> bool:
    """Tell whether vLLM's parser reads the word as a value and not as an option."""
    return _SAFE_WORD.match(word) is not None


def model_words(model: str | None) -> list[str]:
    """Return the model as a word, none where it has no name to be served under.

    Raises:
        UsageError: it would be read as an option.
    """
    if model is None:
        return []
    if not model or not stands_alone(model):
        raise UsageError(
            f"The model {model!r} cannot be exported.",
            hint="vllm serve would read it as an option; write a path as ./NAME.",
        )
    return [model]


def _fact(name: str, flags: FlagFacts | None) -> Mapping[str, str | None]:
    if _NAME.fullmatch(name) is None:
        raise UsageError(f"{name!r} is no name of an engine argument.")
    if flags is None:
        kebab = name.replace("_", "-")
        return {"flag": f"--{kebab}", "negative": f"--no-{kebab}", "default": None}
    if name not in flags:
        raise UsageError(
            f"vllm serve knows no engine argument {name!r}.", hint=nearest(name, flags)
        )
    return flags[name]


def _checked(name: str, value: object) -> object:
    """Return the value unless its words would not come back as they are."""
    items = value if isinstance(value, list) else []
    scalars = all(isinstance(item, str | int | float) and item is not True for item in items)
    if not scalars or not all(stands_alone(str(item)) for item in items):
        raise _unsayable(name, value)
    if not isinstance(value, str | int | float | list | dict):
        raise _unsayable(name, value)
    return value


def _unsayable(name: str, value: object) -> UsageError:
    return UsageError(
        f"vllm serve has no way to be told {name}={value!r}.",
        hint="Leave the argument out of the study, or give it a value with an option of its own.",
    )
