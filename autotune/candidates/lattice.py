"""The lattice: finite ladders of tile-aligned values from which candidates are drawn.

It is frozen when a study starts. Optuna sees indices into the ladders; the values are ours.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

from autotune.errors import UsageError

TOKENS = "max_num_batched_tokens"
SEQS = "max_num_seqs"

Scalar = int | float | str | bool
Value = Scalar | tuple[Scalar, ...]
"""Of an engine argument that is searched; JSON has a list where we have a tuple."""
Candidate = Mapping[str, Value]

MAX_TOKEN_STEPS = 12
MAX_SEQ_STEPS = 11
MAX_CELLS = 100_000
"""More than any study could try; all cells are looked at between trials."""


def value_of(plain: Any) -> Any:
    """Return a value as ladders hold it, whether it comes from YAML, JSON or a ladder."""
    return tuple(plain) if isinstance(plain, list) else plain


def plain_value(value: Any) -> Any:
    """Return a value as YAML, JSON and vLLM have it: a list for a tuple."""
    return list(value) if isinstance(value, tuple) else value


def plain_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``plain_value`` of each."""
    return {name: plain_value(value) for name, value in values.items()}


def integer(value: Value) -> int:
    """Return the value of an argument that only has whole numbers, such as the two limits.

    Raises:
        TypeError: it is a list.
    """
    if isinstance(value, tuple):
        raise TypeError(f"{value!r} is no number")
    return int(value)


# Cells are compared by the thousand; ``json.dumps`` would make an encoder for each.
_compact_json = json.JSONEncoder(separators=(",", ":")).encode


def cell_key(candidate: Candidate) -> str:
    """Return the text that equal candidates share."""
    return _compact_json(dict(sorted(candidate.items())))


# Of more digits there is no limit that is a multiple.
_QUANTUM = re.compile(r"0{0,8}[1-9][0-9]{0,8}")


@dataclass(frozen=True, slots=True)
class Tiles:
    """The quanta of the two limits: tokens of a step, sequences of a batch."""

    tokens: int = 128
    seqs: int = 8

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``128,8`` or ``128``.

        Raises:
            UsageError: not one or two positive integers.
        """
        parts = [part.strip() for part in text.split(",")]
        if not 1 <= len(parts) <= 2 or not all(_QUANTUM.fullmatch(part) for part in parts):
            raise UsageError(
                f"--tile {text!r} is not one or two positive whole numbers",
                hint="write tokens,sequences, for example --tile 128,8",
            )
        return cls(*(int(part) for part in parts))


@dataclass(frozen=True, slots=True)
class Lattice:
    """Named ladders of ascending or listed values; a cell takes one value of each.

    Attributes:
        ladders: the values of each argument, in order.
        off_tile: values that are on a ladder only because the baseline has them.
    """

    ladders: Mapping[str, tuple[Value, ...]]
    off_tile: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)

    def cells(self) -> list[dict[str, Value]]:
        """Return all candidates that vLLM's own rule allows: a step has room for each sequence."""
        names = list(self.ladders)
        products = itertools.product(*self.ladders.values())
        cells = [dict(zip(names, values, strict=True)) for values in products]
        return [cell for cell in cells if is_consistent(cell)]

    def indices(self, candidate: Candidate) -> dict[str, int]:
        """Return the position of each value on its ladder; lists may be such as JSON has.

        Raises:
            ValueError: a value is not on its ladder.
        """
        return {
            name: ladder.index(value_of(candidate[name])) for name, ladder in self.ladders.items()
        }

    def at(self, indices: Mapping[str, int]) -> dict[str, Value]:
        """Return the candidate at these positions."""
        return {name: ladder[indices[name]] for name, ladder in self.ladders.items()}

    def nearest(
        self, candidate: Candidate, allowed: Callable[[Candidate], bool]
    ) -> dict[str, Value] | None:
        """Return the allowed cell with the fewest ladder steps to ``candidate``, None if none.

        ``candidate`` may lie off the ladders in its numbers. Ties go to the smaller step budget
        and the smaller cap, then to what stands first, so that the choice is the same on every
        run.
        """
        cells = [cell for cell in self.cells() if allowed(cell)]
        if not cells:
            return None
        return min(
            cells,
            key=lambda cell: (self._steps(cell, candidate), list(self.indices(cell).values())),
        )

    def _steps(self, cell: Candidate, target: Candidate) -> float:
        return sum(
            abs(ladder.index(cell[name]) - _position(ladder, value_of(target[name])))
            for name, ladder in self.ladders.items()
        )

    def to_json(self) -> dict[str, Any]:
        return {"ladders": _plain_ladders(self.ladders), "off_tile": _plain_ladders(self.off_tile)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(
            **{
                part: {name: tuple(map(value_of, values)) for name, values in data[part].items()}
                for part in ("ladders", "off_tile")
            }
        )


def _plain_ladders(ladders: Mapping[str, tuple[Value, ...]]) -> dict[str, list[Any]]:
    return {name: list(map(plain_value, values)) for name, values in ladders.items()}


def is_consistent(candidate: Candidate) -> bool:
    """Whether the step budget has room for one token of each sequence, as vLLM demands."""
    tokens, seqs = candidate.get(TOKENS), candidate.get(SEQS)
    return tokens is None or seqs is None or integer(tokens) >= integer(seqs)


def _position(ladder: Sequence[Value], value: Value) -> float:
    """Return where a value lies on a ladder, between rungs on a logarithmic scale."""
    if value in ladder:
        return float(ladder.index(value))
    numbers = [float(rung) for rung in ladder if isinstance(rung, int | float)]
    if not isinstance(value, int | float) or len(numbers) < len(ladder):
        return 0.0
    if value <= numbers[0]:
        return 0.0
    for below, (low, high) in enumerate(itertools.pairwise(numbers)):
        if value <= high:
            return below + math.log(value / low) / math.log(high / low)
    return float(len(numbers) - 1)


def half_octaves(tile: int, low: int, high: int) -> list[int]:
    """Return tile × {1, 2, 3, 4, 6, 8, 12, …} from ``low`` to ``high``.

    1.5 tiles are no whole tile and left out.
    """
    values: set[int] = set()
    power = 1
    while tile * power <= high:
        values.update((tile * power, tile * power * 3 // 2 if power > 1 else tile))
        power *= 2
    return sorted(value for value in values if low <= value <= high)


def next_power_of_two(value: int) -> int:
    return 1 << max(0, value - 1).bit_length()


def thin(values: Sequence[int], limit: int, *, keep: Sequence[int]) -> tuple[int, ...]:
    """Return at most ``limit`` of the values, evenly spread, ``keep`` and the ends among them."""
    kept = sorted({values[0], values[-1], *(value for value in keep if value in values)})
    rest = [value for value in values if value not in kept]
    while len(kept) + len(rest) > limit and rest:
        # The rung nearest to its lower neighbour, in ratio, is missed least. Powers of two
        # are spared as long as there are others.
        everything = sorted([*kept, *rest])
        rest.remove(
            min(
                rest,
                key=lambda v: (
                    next_power_of_two(v) == v,
                    v / everything[everything.index(v) - 1],
                    v,
                ),
            )
        )
    return tuple(sorted([*kept, *rest]))


def check_size(counts: Iterable[int]) -> None:
    """Refuse ladders of these lengths if they make more cells than can be looked at.

    Raises:
        UsageError: their product is more than ``MAX_CELLS``.
    """
    cells = math.prod(counts)
    if cells > MAX_CELLS:
        raise UsageError(
            f"the knobs make {cells:.4g} candidates, more than {MAX_CELLS}",
            hint="give fewer --knob, or fewer values: each knob multiplies the candidates",
        )


class Measured(Protocol):
    """What measured step times say of the rungs of a ladder."""

    @property
    def kept(self) -> Sequence[int]:
        """Values that stay where a ladder gets too long."""
        ...

    def budgets(self, tile: int, low: int, top: int) -> Sequence[int]:
        """Return the step budgets from ``low`` to ``top`` that are worth trying."""
        ...

    def caps(self, tile: int, top: int) -> Sequence[int]:
        """Return the sequence caps up to ``top`` that are worth trying."""
        ...


class _Plain:
    """The rungs where nothing was measured."""

    kept: Sequence[int] = ()

    def budgets(self, tile: int, low: int, top: int) -> Sequence[int]:
        return half_octaves(tile, low, top)

    def caps(self, tile: int, top: int) -> Sequence[int]:
        return half_octaves(tile, tile, top)


def build_lattice(
    *,
    tiles: Tiles,
    default_tokens: int,
    default_seqs: int,
    longest_prompt: int,
    peak_concurrency: int,
    baseline: Candidate,
    knobs: Mapping[str, Sequence[Value]] | None = None,
    measured: Measured | None = None,
) -> Lattice:
    """Return the ladders for a study.

    Step budgets run from the larger of the tile and twice the smallest sequence cap up to the
    power of two at or above the larger of the server's default and the longest prompt; sequence
    caps up to the larger of the default and twice the peak concurrency. Within these bounds the
    rungs are those that measured step times call for, without them half octaves. The baseline's
    values join, marked where they are off the tile. A knob's values replace the ladder of its
    name.

    Raises:
        UsageError: the tile leaves no value for a limit, or there are more than ``MAX_CELLS``.
    """
    knobs = dict(knobs or {})
    seq_top = max(default_seqs, 2 * peak_concurrency)
    rungs = measured or _Plain()
    seqs = rungs.caps(tiles.seqs, seq_top)
    token_low = max(tiles.tokens, 2 * tiles.seqs)
    token_top = next_power_of_two(max(default_tokens, longest_prompt))
    tokens = rungs.budgets(tiles.tokens, token_low, token_top)
    for name, values, top in ((TOKENS, tokens, token_top), (SEQS, seqs, seq_top)):
        if not values:
            raise UsageError(
                f"the tile leaves no value for {name}: nothing up to {top} is a multiple",
                hint=_smaller_tile(tiles, token_top, seq_top),
            )
    ladders: dict[str, tuple[Value, ...]] = {
        TOKENS: _with_baseline(tokens, integer(baseline[TOKENS]), MAX_TOKEN_STEPS, rungs.kept),
        SEQS: _with_baseline(seqs, integer(baseline[SEQS]), MAX_SEQ_STEPS, rungs.kept),
    }
    for name, options in knobs.items():
        own = baseline.get(name)
        ladders[name] = _ladder(options if own is None or own in options else (own, *options))
    check_size(map(len, ladders.values()))
    tile_of = {TOKENS: tiles.tokens, SEQS: tiles.seqs}
    off_tile = {
        name: tuple(value for value in ladders[name] if integer(value) % tile)
        for name, tile in tile_of.items()
        if name not in knobs
    }
    return Lattice(ladders, {name: values for name, values in off_tile.items() if values})


def _smaller_tile(tiles: Tiles, token_top: int, seq_top: int) -> str:
    usual = Tiles(min(tiles.tokens, Tiles().tokens), min(tiles.seqs, Tiles().seqs))
    for each in (usual, Tiles(usual.tokens, 1), Tiles(1, 1)):
        low = max(each.tokens, 2 * each.seqs)
        if half_octaves(each.seqs, each.seqs, seq_top) and half_octaves(
            each.tokens, low, token_top
        ):
            return f"choose a smaller --tile, such as --tile {each.tokens},{each.seqs}"
    return "raise the limits: no --tile has a value up to them"


def _ladder(values: Sequence[Value]) -> tuple[Value, ...]:
    """Return numbers in ascending order, so that ladder steps mean ratios; others as given."""
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    return tuple(sorted(numbers)) if len(numbers) == len(values) else tuple(values)


def _with_baseline(
    values: Sequence[int], own: int, limit: int, kept: Sequence[int]
) -> tuple[int, ...]:
    return thin(sorted({*values, own}), limit, keep=[own, *kept])
