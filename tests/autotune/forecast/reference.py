"""vLLM's scheduler again: slow, of lists and dictionaries, with blocks that know their tokens."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from autotune.forecast.scheduling import Rules
from autotune.traffic.model import Trace


@dataclass(eq=False)
class Block:
    content: Hashable = None
    users: int = 0


@dataclass(eq=False)
class Request:
    number: int
    prompt: int
    output: int
    rank: int
    contents: Sequence[Hashable]
    computed: int = 0
    generated: int = 0
    coming: int = 0
    flying: int = 0
    looked_at: int = 0
    hits: int | None = None

    def __post_init__(self) -> None:
        self.blocks: list[Block] = []

    @property
    def known(self) -> int:
        return self.prompt + self.generated

    @property
    def order(self) -> tuple[int, int]:
        return self.rank, self.number


def requests_of(
    trace: Trace, ranks: Sequence[int], *, block_size: int, caching: bool
) -> list[Request]:
    """Return the requests of a trace, each block with all tokens up to its end."""
    found = []
    for number, each in enumerate(trace.requests):
        size = trace.meta.block_size
        tokens: list[Hashable] = [
            (each.hash_ids[place // size], place % size) for place in range(each.input_length)
        ]
        tokens += [("written", number, place) for place in range(each.output_length)]
        ends = range(block_size, len(tokens) + 1, block_size) if caching else ()
        contents = [tuple(tokens[:end]) for end in ends]
        lengths = each.input_length, each.output_length
        found.append(Request(number, *lengths, ranks[number], contents))
    return found


class Reference:
    """Plans and delivers steps; ``summary`` is that of the last that was planned."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.free = [Block() for _ in range(rules.blocks)]
        self.cache: dict[Hashable, Block] = {}
        self.running: list[Request] = []
        self.waiting: list[Request] = []
        self.in_flight: deque[dict[Request, bool]] = deque()
        self.summary: dict[str, int] = {}

    def arrive(self, request: Request) -> bool:
        most = request.prompt + request.output - 1
        fits = self._blocks(most) <= self.rules.blocks
        if fits and (self.rules.chunked or most <= self.rules.tokens):
            self.waiting.append(request)
            return True
        return False

    def plan(self) -> dict[int, int]:
        """Return the tokens that each request computes in the next step."""
        crowd = len(self.running) + len(self.waiting)
        exempt = crowd == 1 and not self.rules.threshold_alone
        most = self.rules.threshold if self.rules.threshold and not exempt else 10**9
        parts: dict[Request, int] = {}
        preemptions = self._plan_running(parts, most)
        if not preemptions:
            self._plan_waiting(parts, most)
        self._tally(parts, preemptions)
        if parts:
            self.in_flight.append({each: self._advance(each, parts[each]) for each in parts})
        return {each.number: tokens for each, tokens in parts.items()}

    def deliver(self) -> None:
        for request, yields in self.in_flight.popleft().items():
            request.flying -= 1
            if not yields:
                continue
            request.generated += 1
            request.coming = max(0, request.coming - 1)
            if request in self.running:
                self._remember(request, request.computed - request.coming)
            if request.generated == request.output:
                self._free(request)
                here = self.running if request in self.running else self.waiting
                here.remove(request)

    def _plan_running(self, parts: dict[Request, int], most: int) -> int:
        preemptions = 0
        for request in list(self.running):
            left = self.rules.tokens - sum(parts.values())
            if left == 0:
                break
            complete = request.generated + request.coming >= request.output
            if request not in self.running or complete:
                continue
            tokens = min(request.known + request.coming - request.computed, most, left)
            if tokens == 0:
                continue
            while request in self.running and not self._extend(request, tokens):
                by_rank = max(self.running, key=lambda each: each.order)
                victim = by_rank if self.rules.by_rank else self.running[-1]
                parts.pop(victim, None)
                self.running.remove(victim)
                self._free(victim)
                victim.computed = victim.coming = 0
                self.waiting.append(victim)
                preemptions += 1
            if request not in self.running:
                break
            parts[request] = tokens
        return preemptions

    def _plan_waiting(self, parts: dict[Request, int], most: int) -> None:
        for request in sorted(self.waiting, key=lambda each: each.order):
            left = self.rules.tokens - sum(parts.values())
            if left == 0 or len(self.running) == self.rules.seqs:
                break
            if request.flying:
                continue
            found = self._cached(request)
            start = len(found) * self.rules.block_size
            tokens = min(request.known - start, most)
            if tokens > left and not self.rules.chunked:
                break
            tokens = min(tokens, left)
            reach = max(start + tokens, request.known if self.rules.whole_prompt else 0)
            needed = self._blocks(reach) - sum(block.users > 0 for block in found)
            if needed + (self.rules.watermark if self.running else 0) > len(self.free):
                break
            for block in found:
                if block.users == 0:
                    self.free.remove(block)
                block.users += 1
            request.blocks, request.computed = found, start
            request.looked_at = len(found)
            request.hits = start if request.hits is None else request.hits
            assert self._extend(request, tokens)
            self.waiting.remove(request)
            self.running.append(request)
            parts[request] = tokens

    def _tally(self, parts: Mapping[Request, int], preemptions: int) -> None:
        decodes = [
            each
            for each, tokens in parts.items()
            if tokens == 1
            and each.computed >= each.prompt
            and each.computed + 1 == each.known + each.coming
        ]
        chunks = {each: tokens for each, tokens in parts.items() if each not in decodes}
        self.summary = {
            "prefill_tokens": sum(chunks.values()),
            "decodes": len(decodes),
            "shares": len(parts),
            "admitted": len(self.running),
            "queued": len(self.waiting),
            "free": len(self.free),
            "preemptions": preemptions,
            "context_tokens": sum(each.computed + tokens for each, tokens in parts.items()),
            "decode_kv_tokens": sum(each.computed + 1 for each in decodes),
            "pairs": sum(
                reached
                for each, tokens in chunks.items()
                for reached in range(each.computed + 1, each.computed + tokens + 1)
            ),
        }

    def _advance(self, request: Request, tokens: int) -> bool:
        request.computed += tokens
        request.flying += 1
        yields = request.computed == request.known + request.coming
        request.coming += yields
        return yields

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.rules.block_size)

    def _cached(self, request: Request) -> list[Block]:
        """Return the cached blocks at a request's start, so that one token is left to compute."""
        found: list[Block] = []
        for content in request.contents[: (request.known - 1) // self.rules.block_size]:
            if content not in self.cache:
                break
            found.append(self.cache[content])
        return found

    def _extend(self, request: Request, tokens: int) -> bool:
        after = request.computed + tokens
        more = self._blocks(after) - len(request.blocks)
        if more > len(self.free):
            return False
        for _ in range(more):
            block = self.free.pop(0)
            self.cache.pop(block.content, None)
            block.content, block.users = None, 1
            request.blocks.append(block)
        self._remember(request, min(after, request.known))
        return True

    def _remember(self, request: Request, tokens: int) -> None:
        full = tokens // self.rules.block_size
        for place in range(request.looked_at, full if request.contents else 0):
            content = request.contents[place]
            if content not in self.cache:
                self.cache[content] = request.blocks[place]
                request.blocks[place].content = content
        request.looked_at = max(full, request.looked_at)

    def _free(self, request: Request) -> None:
        """Give back all blocks, the last first: with content to the end, else to the front."""
        for block in reversed(request.blocks):
            block.users -= 1
            if block.users == 0:
                self.free.insert(0 if block.content is None else len(self.free), block)
        request.blocks, request.looked_at = [], 0
