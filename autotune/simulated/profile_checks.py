"""What a profile may say: a file that somebody edited must not end a study in the middle."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from autotune.engine.simulable import argument_obstacle
from autotune.simulated.profile_schema import objection
from autotune.simulated.shape import kv_blocks

if TYPE_CHECKING:
    from autotune.simulated.profile import Profile

_MOST_BLOCKS = 2**23
_LONGEST_NUMBER = 400


def parsed(text: str) -> Any:
    """Return the values of JSON.

    Raises:
        ValueError: says what keeps the text from being JSON and where, as far as that is known.
    """
    try:
        return json.loads(
            text, parse_constant=_no_number, parse_int=_whole, object_pairs_hook=_each_once
        )
    except json.JSONDecodeError as error:
        raise ValueError(f"line {error.lineno}, column {error.colno}") from error
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def check_values(data: Mapping[str, Any]) -> None:
    """Refuse keys and values of which no profile can be made.

    Raises:
        ValueError: says which is the first, and what is wrong with it.
    """
    if (found := objection(data)) is not None:
        raise ValueError(found)


def check_profile(profile: Profile) -> None:
    """Refuse what no engine can be like, though each value may be.

    Raises:
        ValueError: says what is wrong.
    """
    if (found := next(_objections(profile), None)) is not None:
        raise ValueError(found)


def _objections(profile: Profile) -> Iterator[str]:
    info = profile.info
    if (obstacle := argument_obstacle(info.resolved)) is not None:
        yield f"its engine cannot be simulated: info.resolved says that {obstacle}"
    tokens = info.kv_cache_tokens or 0
    if tokens < info.max_model_len:
        yield (
            f"info.kv_cache_tokens ({tokens}) is smaller than info.resolved.max_model_len "
            f"({info.max_model_len}): no request of that length fits, and no such engine starts"
        )
    if kv_blocks(info) > _MOST_BLOCKS:
        yield f"info.kv_cache_tokens ({tokens}) makes more than {_MOST_BLOCKS} blocks"


def _no_number(constant: str) -> None:
    raise ValueError(f"{constant} is no number of JSON")


def _whole(digits: str) -> int:
    if len(digits) > _LONGEST_NUMBER:
        raise ValueError(f"a number has {len(digits)} digits")
    return int(digits)


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r} is there twice")
    return values
