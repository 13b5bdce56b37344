"""How many tokens fit into memory the way vLLM's V1 engine divides it into blocks.

After ``vllm/v1/core/kv_cache_utils.py`` of vLLM 0.32. Layers of one kind form groups of about
equal size; a block belongs to one group at a time and is as large as the largest group needs, so
a model with windows takes blocks for each of its groups. What the engine calls the size of its
cache is the number of requests of ``max_model_len`` that fit, times that length: block 0, which
it keeps for itself, and all rounding are in it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal

from autotune.hardware.kv_bill import KvBill
from autotune.hardware.model_shape import EngineDecides, Layers

GroupKind = Literal["full", "sliding", "chunked"]

_PADDING_LIMIT = 1.5


@dataclass(frozen=True, slots=True)
class PoolRules:
    """What the engine's arguments say about blocks.

    Attributes:
        block_size: tokens of one block.
        max_model_len: tokens of the longest request.
        in_flight_tokens: tokens scheduled but not yet computed, during which blocks that left
            a window are still held: the step budget, twice with asynchronous scheduling.
        hybrid_manager: whether blocks that left a window are freed where other layers are full.
    """

    block_size: int
    max_model_len: int
    in_flight_tokens: int
    hybrid_manager: bool = True


@dataclass(frozen=True, slots=True)
class Group:
    """Groups of like layers with a block table each: how many, and their window, if any."""

    kind: GroupKind
    tables: int
    window: int | None = None


@dataclass(frozen=True, slots=True)
class KvPool:
    """Memory for KV cache in blocks that all groups draw from."""

    rules: PoolRules
    groups: tuple[Group, ...]
    bytes_per_block: int

    def request_blocks(self, tokens: int) -> int:
        """Return the blocks that one request of that many tokens may hold at most."""
        return sum(group.tables * self._table_blocks(group, tokens) for group in self.groups)

    def request_bytes(self, tokens: int) -> int:
        """Return what the engine sets aside for one request of that many tokens."""
        return self.request_blocks(tokens) * self.bytes_per_block

    def blocks_in(self, memory_bytes: int) -> int:
        """Return how many blocks memory makes; the engine keeps one of them for itself."""
        return memory_bytes // self.bytes_per_block

    def tokens_in(self, memory_bytes: int) -> int:
        """Return the size of the cache in tokens as the engine reports it."""
        longest = self.rules.max_model_len
        return int(self.blocks_in(memory_bytes) / self.request_blocks(longest) * longest)

    def blocks_of_size(self, cache_tokens: int) -> int:
        """Return the blocks of a cache whose reported size is this many tokens."""
        longest = self.rules.max_model_len
        return round(cache_tokens * self.request_blocks(longest) / longest)

    def _table_blocks(self, group: Group, tokens: int) -> int:
        rules = self.rules
        if group.window is None:
            return _ceil(tokens, rules.block_size)
        if group.kind == "chunked":
            return _ceil(min(group.window + rules.in_flight_tokens, tokens), rules.block_size)
        held = min(group.window - 1 + rules.in_flight_tokens, tokens)
        # One more, since a window need not start where a block does.
        return _ceil(held, rules.block_size) + 1


def make_pool(bill: KvBill, rules: PoolRules) -> KvPool | EngineDecides:
    """Divide a model's layers into groups as vLLM does, or say why that is not for us to do."""
    if bill.keeps_state:
        return EngineDecides("recurrent layers keep states, for which vLLM resizes all blocks")
    kept = [each for each in bill.shape.layers if each.kind != "shared"]
    freed = rules.hybrid_manager or len({(each.kind, each.window) for each in kept}) == 1
    counts: Counter[tuple[GroupKind, int | None]] = Counter()
    for each in kept:
        counts[_bucket(each) if freed else ("full", None)] += each.count
    # Layers of different page sizes do not come this far: the shape would not have been read.
    (layer_bytes,) = {bill.layer_bytes(each) for each in kept}
    size = _group_size(list(counts.values()))
    groups = [Group(kind, _ceil(count, size), window) for (kind, window), count in counts.items()]
    widest = max(_ceil(counts[group.kind, group.window], group.tables) for group in groups)
    return KvPool(rules, tuple(groups), widest * rules.block_size * layer_bytes)


def _bucket(layers: Layers) -> tuple[GroupKind, int | None]:
    kind: GroupKind = layers.kind if layers.kind in ("sliding", "chunked") else "full"
    return kind, layers.window


def _group_size(counts: list[int]) -> int:
    """Return how many layers a group has: those of the rarest kind, or of the commonest if close.

    A group that is not full is padded, so nearly equal counts share the larger size.
    """
    fewest, most = min(counts), max(counts)
    return most if most < fewest * _PADDING_LIMIT else fewest


def _ceil(value: int, unit: int) -> int:
    return -(-value // unit)
