"""The simulated scheduler, beside a slow one and by what holds of any."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.forecast.blocks import PLAIN, UNUSED, block_keys, new_pool
from autotune.forecast.scheduling import (
    ADMITTED,
    DONE,
    LEFT,
    PREEMPTIONS,
    QUEUED,
    Load,
    Rules,
    Scheduler,
    Tokens,
    arrive,
    deliver,
    new_state,
    plan,
)
from autotune.traffic.model import Trace, TraceRequest
from tests.autotune.forecast.reference import Reference, requests_of

COLUMNS = (
    *("prefill_tokens", "decodes", "shares", "admitted", "queued", "free", "preemptions"),
    *("context_tokens", "decode_kv_tokens", "pairs"),
)
HASHED = 4
"""Tokens that a hash id stands for."""


@dataclass(frozen=True)
class Case:
    """Traffic that arrives by turn, and who schedules it."""

    trace: Trace
    turns: Sequence[int]
    ranks: Sequence[int]
    rules: Rules
    caching: bool
    in_flight: int


def rules(**changes: int) -> Rules:
    """Return rules under which nothing is scarce, with some changed."""
    plain = Rules(
        tokens=1000,
        seqs=100,
        threshold=0,
        threshold_alone=0,
        block_size=4,
        blocks=1000,
        watermark=0,
        whole_prompt=1,
        chunked=1,
        by_rank=0,
    )
    return plain._replace(**changes)


def case(
    *lengths: tuple[int, int],
    turns: Sequence[int] = (),
    ranks: Sequence[int] = (),
    ids: Sequence[tuple[int, ...]] = (),
    by: Rules | None = None,
    caching: bool = False,
    in_flight: int = 1,
) -> Case:
    """Return requests of so many tokens of prompt and output; all come at once, unless said."""
    rows = []
    for number, (prompt, output) in enumerate(lengths):
        own = tuple(1000 * (number + 1) + k for k in range(-(-prompt // HASHED)))
        rows.append(TraceRequest(0.0, prompt, output, ids[number] if ids else own))
    trace = Trace.build(rows, block_size=HASHED, prefixes_known=True, source="made up")
    none = [0] * len(rows)
    return Case(trace, turns or none, ranks or none, by or rules(), caching, in_flight)


class Run:
    """A case that was scheduled to its end: what was planned in each step.

    Attributes:
        parts: tokens by request.
        rows: summaries, by the names of ``COLUMNS``.
        firsts: step in which each request had its first part.
        preemptions: all of them, also where nobody computed.
    """

    def __init__(self, given: Case) -> None:
        requests = len(given.trace.requests)
        keys = block_keys(given.trace, block_size=given.rules.block_size, caching=given.caching)
        load = Load(
            np.array(given.trace.input_lengths),
            np.array(given.trace.output_lengths),
            np.array(given.ranks),
        )
        ends = np.cumsum([0, *given.trace.output_lengths])
        self.case = given
        self.tokens = Tokens(ends[:-1], np.full(ends[-1], np.nan))
        self.scheduler = Scheduler(
            new_state(requests, in_flight=given.in_flight),
            load,
            given.rules,
            new_pool(keys, requests=requests, blocks=given.rules.blocks + 1),
            keys,
        )
        self.parts: list[dict[int, int]] = []
        self.rows: list[dict[str, int]] = []
        self.firsts: dict[int, int] = {}
        self.preemptions = 0
        self._play()

    @property
    def failed(self) -> list[int]:
        state = self.scheduler.state
        ended = enumerate(zip(state.generated, self.scheduler.load.output, strict=True))
        return [number for number, (generated, output) in ended if generated < output]

    @property
    def computed(self) -> dict[int, int]:
        total: defaultdict[int, int] = defaultdict(int)
        for parts in self.parts:
            for request, tokens in parts.items():
                total[request] += tokens
        return dict(total)

    def column(self, name: str) -> list[int]:
        return [row[name] for row in self.rows]

    def _play(self) -> None:
        state, size = self.scheduler.state, self.case.in_flight
        arrived = steps = flying = turn = 0
        turns = self.case.turns
        while state.counters[LEFT] > 0:
            while arrived < len(turns) and turns[arrived] <= turn:
                self.on_arrival(arrived)
                arrived += 1
            if flying < size and self._plan(steps % size):
                steps, flying = steps + 1, flying + 1
            elif flying > 0:
                deliver(self.scheduler, (steps - flying) % size, self.tokens, float(turn))
                self.on_delivery()
                flying -= 1
            else:
                # An engine plans again as well where all it did was to preempt.
                preempted = state.summary[PREEMPTIONS] > 0
                waits = state.counters[QUEUED] + state.counters[ADMITTED] > 0
                assert preempted or not waits or arrived < len(turns), "nobody can go on"
            turn += 1
            assert turn < 5000, "it goes on for ever"

    def _plan(self, slot: int) -> bool:
        """Plan a step; return whether anybody computes in it."""
        computed = plan(self.scheduler, slot)
        state = self.scheduler.state
        places = range(state.share_count[slot])
        pairs = [(state.shares[slot][place], state.parts[slot][place]) for place in places]
        parts = {int(request): int(tokens) for request, tokens in pairs if tokens > 0}
        row = dict(zip(COLUMNS, map(int, state.summary), strict=True))
        assert sum(parts.values()) == computed
        self.on_plan(parts, row)
        self.preemptions += row["preemptions"]
        if not parts:
            return False
        self.parts.append(parts)
        self.rows.append(row)
        for request in parts:
            self.firsts.setdefault(request, len(self.parts) - 1)
        return True

    def on_arrival(self, request: int) -> None:
        arrive(self.scheduler, request)

    def on_plan(self, parts: dict[int, int], row: dict[str, int]) -> None:
        pass

    def on_delivery(self) -> None:
        pass


class Beside(Run):
    """The same, held against the slow scheduler at every turn."""

    def __init__(self, given: Case) -> None:
        size = given.rules.block_size
        self.slow = Reference(given.rules)
        self.theirs = requests_of(given.trace, given.ranks, block_size=size, caching=given.caching)
        super().__init__(given)

    def on_arrival(self, request: int) -> None:
        super().on_arrival(request)
        waits = self.slow.arrive(self.theirs[request])
        assert waits == (self.scheduler.state.status[request] != DONE)

    def on_plan(self, parts: dict[int, int], row: dict[str, int]) -> None:
        assert self.slow.plan() == parts
        assert self.slow.summary == row
        state = self.scheduler.state
        running = list(state.running[: state.counters[ADMITTED]])
        assert running == [each.number for each in self.slow.running]
        queued = sorted(state.queue[: state.counters[QUEUED]])
        assert queued == sorted(each.number for each in self.slow.waiting)

    def on_delivery(self) -> None:
        self.slow.deliver()
        assert list(self.scheduler.state.generated) == [each.generated for each in self.theirs]


@st.composite
def cases(draw: st.DrawFn, *, in_flight: int | None = None) -> Case:
    """Few requests and blocks, so that everything is scarce at times."""
    small = st.integers(0, 2)
    count = draw(st.integers(1, 8))
    lengths = st.tuples(st.integers(1, 14), st.integers(1, 6))
    # Prompts that begin alike are common.
    ids = st.lists(small, min_size=4, max_size=4).map(tuple)
    by = draw(
        st.builds(
            Rules,
            tokens=st.integers(1, 16),
            seqs=st.integers(1, 5),
            threshold=st.integers(0, 5),
            threshold_alone=st.integers(0, 1),
            block_size=st.integers(1, 4),
            blocks=st.integers(2, 20),
            watermark=small,
            whole_prompt=st.integers(0, 1),
            chunked=st.sampled_from((1, 1, 0)),
            by_rank=st.integers(0, 1),
        )
    )
    rows = [draw(lengths) for _ in range(count)]
    return case(
        *rows,
        turns=np.cumsum(draw(st.lists(small, min_size=count, max_size=count))).tolist(),
        ranks=[draw(small) if by.by_rank else 0 for _ in rows],
        ids=[draw(ids)[: -(-prompt // HASHED)] for prompt, _ in rows],
        by=by,
        caching=draw(st.booleans()),
        in_flight=in_flight or draw(st.integers(1, 2)),
    )


@given(cases())
@settings(max_examples=250)
def test_every_step_is_that_of_the_slow_scheduler(given: Case) -> None:
    Beside(given)


@given(cases())
def test_what_holds_of_any_traffic(given: Case) -> None:
    run = Run(given)
    by, requests = given.rules, given.trace.requests
    state, pool = run.scheduler.state, run.scheduler.pool
    assert all(sum(parts.values()) <= by.tokens for parts in run.parts)
    assert max(run.column("admitted"), default=0) <= by.seqs
    assert min(run.column("free"), default=0) >= 0
    # All blocks are given back, and nobody is left anywhere.
    assert pool.counters[PLAIN] + pool.counters[UNUSED] == by.blocks
    assert not any(pool.held)
    assert not any(use > 0 for use in pool.uses)
    assert list(state.counters) == [0, 0, 0]
    # Whoever fits ends, with all its tokens.
    most = [each.input_length + each.output_length - 1 for each in requests]
    alone = [by.chunked == 1 or each <= by.tokens for each in most]
    fits = [-(-each // by.block_size) <= by.blocks for each in most]
    wanted = [n for n in range(len(most)) if not (alone[n] and fits[n])]
    assert run.failed == wanted
    assert np.isfinite(run.tokens.at_s).sum() == sum(state.generated)
    # All tokens but the last are computed, but for those found in the cache; after a preemption
    # that may be other ones, and what is not found is computed again.
    for request, tokens in run.computed.items():
        if not run.preemptions:
            assert tokens == most[request] - max(0, state.hits[request])
        elif not run.scheduler.keys.different:
            assert tokens >= most[request]


@given(cases())
def test_without_preemptions_first_parts_come_in_order(given: Case) -> None:
    run = Run(given)
    if run.preemptions or given.rules.by_rank:
        return
    steps = [run.firsts[request] for request in sorted(run.firsts)]
    assert steps == sorted(steps)


def test_who_runs_goes_before_who_waits() -> None:
    run = Run(case((6, 3), (9, 1), turns=(0, 1), by=rules(tokens=8)))
    assert run.parts == [{0: 6}, {0: 1, 1: 7}, {0: 1, 1: 2}]


def test_two_in_flight_have_a_newcomer_wait_for_a_step_more() -> None:
    run = Run(case((4, 4), (4, 1), turns=(0, 2), in_flight=2))
    assert run.parts == [{0: 4}, {0: 1}, {0: 1, 1: 4}, {0: 1}]


def test_a_step_has_no_more_requests_than_the_cap() -> None:
    run = Run(case(*[(4, 2)] * 5, by=rules(seqs=2)))
    assert run.column("admitted") == [2, 2, 2, 2, 1, 1]
    assert run.column("queued") == [3, 3, 1, 1, 0, 0]


def test_without_blocks_who_came_last_is_preempted_and_computes_anew() -> None:
    run = Beside(case((8, 6), (8, 6), by=rules(blocks=5)))
    assert run.column("preemptions") == [0, 1, *[0] * 9]
    assert run.parts[:2] == [{0: 8, 1: 8}, {0: 1}]
    # Its prompt, and the token that it had.
    assert run.parts[6] == {1: 9}
    assert run.computed == {0: 13, 1: 8 + 13}
    assert not run.failed


def test_of_lower_priority_is_preempted_even_if_it_came_first() -> None:
    run = Beside(case((8, 6), (8, 6), ranks=(1, 0), by=rules(blocks=5, by_rank=1)))
    assert run.parts[:2] == [{1: 8, 0: 8}, {1: 1}]
    assert run.computed == {1: 13, 0: 8 + 13}


def test_priority_goes_before_arrival() -> None:
    run = Run(case((4, 2), (4, 2), (4, 2), ranks=(2, 1, 1), by=rules(seqs=1, by_rank=1)))
    assert [list(parts) for parts in run.parts[::2]] == [[1], [2], [0]]


def test_the_threshold_holds_a_prompt_back_only_beside_others() -> None:
    assert Run(case((9, 1), by=rules(threshold=4))).parts == [{0: 9}]
    always = rules(threshold=4, threshold_alone=1)
    assert Run(case((9, 1), by=always)).parts == [{0: 4}, {0: 4}, {0: 1}]
    both = Run(case((9, 1), (1, 4), by=rules(threshold=4)))
    assert [parts[0] for parts in both.parts[:3]] == [4, 4, 1]


def test_the_watermark_keeps_blocks_free_unless_nobody_runs() -> None:
    eight = (8, 1)
    admitted = Run(case(eight, eight, by=rules(blocks=5, watermark=1))).column("admitted")
    assert admitted == [2]
    assert Run(case(eight, eight, by=rules(blocks=5, watermark=2))).column("admitted") == [1, 1]
    assert Run(case((20, 1), by=rules(blocks=5, watermark=2))).column("admitted") == [1]


def test_a_whole_prompt_is_reserved_or_only_its_part() -> None:
    both = (5, 8), (16, 1)
    reserved = Run(case(*both, by=rules(tokens=8, blocks=5)))
    assert reserved.firsts == {0: 0, 1: 8}
    greedy = Run(case(*both, by=rules(tokens=8, blocks=5, whole_prompt=0)))
    assert greedy.firsts == {0: 0, 1: 0}
    assert sum(greedy.column("preemptions")) > 0
    assert not greedy.failed


def test_without_chunks_a_prompt_waits_for_a_step_that_holds_it() -> None:
    run = Run(case((6, 1), (6, 1), (2, 1), by=rules(tokens=8, chunked=0)))
    assert run.parts == [{0: 6}, {1: 6, 2: 2}]


def test_who_fits_nowhere_fails_alone() -> None:
    run = Run(case((30, 1), (8, 2), by=rules(blocks=5)))
    assert run.failed == [0]
    assert run.parts == [{1: 8}, {1: 1}]
    unchunked = Run(case((9, 1), (8, 1), by=rules(tokens=8, chunked=0)))
    assert unchunked.failed == [0]


def test_a_request_that_ends_while_it_waits_leaves_the_queue() -> None:
    """Its last token was in flight when it was preempted."""
    run = Beside(case((7, 4), (8, 2), (4, 1), turns=(0, 0, 2), by=rules(blocks=4), in_flight=2))
    assert not run.failed
    assert 1 in run.parts[0]
    assert run.column("preemptions")[1] == 1
    assert run.scheduler.state.counters[QUEUED] == 0


def test_what_is_cached_is_not_computed() -> None:
    ids = ((7, 8, 9), (7, 8, 5), (7, 8, 9))
    alike = case((12, 1), (12, 1), (12, 1), ids=ids, turns=(0, 2, 4), caching=True)
    run = Beside(alike)
    # One token at least is left to compute, so a block is.
    assert run.computed == {0: 12, 1: 4, 2: 4}
    assert list(run.scheduler.state.hits) == [0, 8, 8]
    assert run.column("context_tokens") == [12, 12, 12]
    assert run.column("pairs") == [sum(range(1, 13)), *[sum(range(9, 13))] * 2]


def test_prompts_of_one_step_share_what_the_first_computes() -> None:
    ids = ((7, 8), (7, 8))
    run = Beside(case((8, 1), (8, 1), ids=ids, caching=True))
    assert run.parts == [{0: 8, 1: 4}]


@pytest.mark.parametrize("in_flight", [1, 2])
def test_the_block_that_the_last_computed_token_fills_is_cached(in_flight: int) -> None:
    run = Beside(case((6, 3), caching=True, in_flight=in_flight))
    # Eight tokens are computed, two blocks of four; nobody needs them any more.
    assert run.computed == {0: 8}
    assert run.scheduler.pool.counters[UNUSED] == 2
