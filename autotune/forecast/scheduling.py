"""vLLM's V1 scheduler as a simulation sees it: who computes how many tokens in a step.

Running requests first, in their order; then those that wait, by arrival or by priority, as the
token budget, the cap and the KV cache allow. Written after the behaviour of vLLM 0.26 and 0.32,
and tested against the schedules that they record.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from autotune.forecast.blocks import (
    Keys,
    Pool,
    cached_blocks,
    free_blocks,
    give_back,
    remember,
    take,
    unused_among,
    use_cached,
)
from autotune.forecast.compiled import compiled, numbers
from objectives.arrays import F8, I8

# States of a request.
WAITING, RUNNING, PREEMPTED, DONE = 0, 1, 2, 3

# Counters of a scheduler.
ADMITTED = 0  # requests that run
QUEUED = 1  # entries of the queue
LEFT = 2  # requests that have not ended

# Columns of a step's summary.
PREFILL_TOKENS, DECODES, SHARES, ADMITTED_AFTER, QUEUED_AFTER, FREE_AFTER = 0, 1, 2, 3, 4, 5
PREEMPTIONS, CONTEXT_TOKENS, DECODE_KV_TOKENS, PAIRS = 6, 7, 8, 9
WIDTH = 10


class Load(NamedTuple):
    """The requests, by row in order of arrival: lengths in tokens, and the rank in the queue.

    A lower rank goes first; among equals the one that came first.
    """

    prompt: I8
    output: I8
    rank: I8


class Tokens(NamedTuple):
    """When tokens of output came, request after request.

    Attributes:
        first: [requests], where each request's begin.
        at_s: [tokens of all requests]; NaN for those that did not come.
    """

    first: I8
    at_s: F8


class Rules(NamedTuple):
    """What a scheduler goes by.

    Attributes:
        tokens: the most of a step.
        seqs: the most requests that run.
        threshold: the most tokens of one prompt in a step, 0 for no such limit.
        threshold_alone: 1 if that holds for a request that is alone, too.
        block_size: tokens of a block.
        blocks: that requests can have.
        watermark: blocks kept free on admission, beside others.
        whole_prompt: 1 if a prompt is admitted only when all of it fits.
        chunked: 1 if a prompt may be computed in parts.
        by_rank: 1 if who has the highest rank is preempted, 0 if who came last is.
    """

    tokens: int
    seqs: int
    threshold: int
    threshold_alone: int
    block_size: int
    blocks: int
    watermark: int
    whole_prompt: int
    chunked: int
    by_rank: int


class State(NamedTuple):
    """Where all requests are; changed in place.

    Attributes:
        counters: ``ADMITTED``, ``QUEUED`` and ``LEFT``.
        status: [requests].
        computed: [requests], tokens computed or being computed.
        generated: [requests], tokens of output that are known.
        promised: [requests], tokens of output that steps in flight will yield.
        flying: [requests], steps in flight with a part of the request.
        hits: [requests], tokens found in the prefix cache on the first admission; -1 before.
        running: [requests], rows of those that run, in order.
        queue: [requests], a heap of those that wait.
        shares: [steps in flight, requests], rows of those with a part in the step.
        parts: [steps in flight, requests], tokens of each; 0 where it lost its place again.
        yields: [steps in flight, requests], whether the part ends with a token of output.
        share_count: [steps in flight].
        summary: [WIDTH], of the last step that was planned.
    """

    counters: I8
    status: I8
    computed: I8
    generated: I8
    promised: I8
    flying: I8
    hits: I8
    running: I8
    queue: I8
    shares: I8
    parts: I8
    yields: I8
    share_count: I8
    summary: I8


class Scheduler(NamedTuple):
    """All that a step is planned with."""

    state: State
    load: Load
    rules: Rules
    pool: Pool
    keys: Keys


def new_state(requests: int, *, in_flight: int) -> State:
    def zeros(*shape: int) -> I8:
        return numbers(np.zeros(shape, dtype=np.int64))

    state = State(
        counters=zeros(3),
        status=zeros(requests),
        computed=zeros(requests),
        generated=zeros(requests),
        promised=zeros(requests),
        flying=zeros(requests),
        hits=numbers(np.full(requests, -1)),
        running=zeros(requests),
        queue=zeros(requests + 1),
        shares=zeros(in_flight, requests),
        parts=zeros(in_flight, requests),
        yields=zeros(in_flight, requests),
        share_count=zeros(in_flight),
        summary=zeros(WIDTH),
    )
    state.counters[LEFT] = requests
    return state


@compiled
def _before(load: Load, one: int, other: int) -> bool:
    if load.rank[one] != load.rank[other]:
        return bool(load.rank[one] < load.rank[other])
    return one < other


@compiled
def enqueue(state: State, load: Load, request: int) -> None:
    place = state.counters[QUEUED]
    state.counters[QUEUED] += 1
    while place > 0:
        above = (place - 1) // 2
        if not _before(load, request, state.queue[above]):
            break
        state.queue[place] = state.queue[above]
        place = above
    state.queue[place] = request


@compiled
def arrive(its: Scheduler, request: int) -> None:
    """Let a request wait. One too long for this engine ends at once, since vLLM refuses it."""
    state, load, rules = its.state, its.load, its.rules
    most = load.prompt[request] + load.output[request] - 1
    if _blocks(most, rules) > rules.blocks or (rules.chunked == 0 and most > rules.tokens):
        state.status[request] = DONE
        state.counters[LEFT] -= 1
    else:
        enqueue(state, load, request)


@compiled
def _withdraw(state: State, load: Load, request: int) -> None:
    """Take a request out of the queue, wherever it stands."""
    size = state.counters[QUEUED]
    state.counters[QUEUED] = 0
    for place in range(size):
        other = state.queue[place]
        if other != request:
            enqueue(state, load, other)


@compiled
def _dequeue(state: State, load: Load) -> int:
    first = state.queue[0]
    state.counters[QUEUED] -= 1
    size = state.counters[QUEUED]
    last = state.queue[size]
    place = 0
    while 2 * place + 1 < size:
        below = 2 * place + 1
        if below + 1 < size and _before(load, state.queue[below + 1], state.queue[below]):
            below += 1
        if not _before(load, state.queue[below], last):
            break
        state.queue[place] = state.queue[below]
        place = below
    state.queue[place] = last
    return int(first)


@compiled
def _blocks(tokens: int, rules: Rules) -> int:
    return (tokens + rules.block_size - 1) // rules.block_size


@compiled
def _extend(its: Scheduler, request: int, tokens: int) -> bool:
    """Make room for a running request's next tokens; return whether there was any."""
    state, rules, pool = its.state, its.rules, its.pool
    after = state.computed[request] + tokens
    wanted = max(0, _blocks(after, rules) - pool.held[request])
    if wanted > free_blocks(pool):
        return False
    take(pool, request, wanted)
    finished = min(after, its.load.prompt[request] + state.generated[request])
    remember(pool, its.keys, request, finished, rules.block_size)
    return True


@compiled
def _fits(its: Scheduler, request: int, found: int, tokens: int) -> bool:
    """Return whether a waiting request's blocks are free, what its cached ones take included."""
    state, rules = its.state, its.rules
    spare = free_blocks(its.pool) - unused_among(its.pool, its.keys, request, found)
    if state.counters[ADMITTED] > 0:
        spare -= rules.watermark
    reach = found * rules.block_size + tokens
    if rules.whole_prompt == 1:
        reach = max(reach, its.load.prompt[request] + state.generated[request])
    return _blocks(reach, rules) - found <= spare


@compiled
def _share(state: State, slot: int, request: int, tokens: int) -> None:
    place = state.share_count[slot]
    state.shares[slot][place], state.parts[slot][place] = request, tokens
    state.share_count[slot] += 1


@compiled
def _victim(its: Scheduler) -> int:
    """Return the place in the running list of who is preempted first."""
    running = its.state.running
    last = its.state.counters[ADMITTED] - 1
    if its.rules.by_rank == 0:
        return int(last)
    worst = 0
    for place in range(1, last + 1):
        if _before(its.load, running[worst], running[place]):
            worst = place
    return worst


@compiled
def _preempt(its: Scheduler, place: int, slot: int) -> int:
    """Send a running request back to the queue; return the tokens of this step that it frees."""
    state = its.state
    request = state.running[place]
    for later in range(place, state.counters[ADMITTED] - 1):
        state.running[later] = state.running[later + 1]
    state.counters[ADMITTED] -= 1
    freed = 0
    for share in range(state.share_count[slot]):
        if state.shares[slot][share] == request:
            freed += state.parts[slot][share]
            state.parts[slot][share] = 0
    give_back(its.pool, its.keys, request)
    state.status[request] = PREEMPTED
    state.computed[request] = state.promised[request] = 0
    enqueue(state, its.load, request)
    return freed


@compiled
def _threshold(state: State, rules: Rules) -> int:
    alone = state.counters[ADMITTED] + state.counters[QUEUED] <= 1
    return 0 if alone and rules.threshold_alone == 0 else rules.threshold


@compiled
def _plan_running(its: Scheduler, slot: int) -> tuple[int, int]:
    """Give the running requests their tokens; return the budget that is left and preemptions."""
    state, load, rules = its.state, its.load, its.rules
    budget, preemptions = rules.tokens, 0
    threshold = _threshold(state, rules)
    place = 0
    while place < state.counters[ADMITTED] and budget > 0:
        request = state.running[place]
        promised, computed = state.promised[request], state.computed[request]
        ends = load.prompt[request] + load.output[request]
        if promised > 0 and computed + 2 - promised >= ends:
            place += 1  # Its last token is in flight.
            continue
        tokens = load.prompt[request] + state.generated[request] + promised - computed
        if 0 < threshold < tokens:
            tokens = threshold
        tokens = min(tokens, budget)
        if tokens <= 0:
            place += 1
            continue
        # Most tokens go into a block that is there and stays open: nothing to look up for them.
        after = computed + tokens
        within = after < its.pool.held[request] * rules.block_size
        fits = within or _extend(its, request, tokens)
        while not fits:
            lost = _victim(its)
            itself = state.running[lost] == request
            budget += _preempt(its, lost, slot)
            preemptions += 1
            if itself:
                break
            place -= lost < place
            fits = _extend(its, request, tokens)
        if not fits:
            break
        _share(state, slot, request, tokens)
        budget -= tokens
        place += 1
    return budget, preemptions


@compiled
def _plan_waiting(its: Scheduler, slot: int, budget: int) -> None:
    """Admit who waits, as long as there is room."""
    state, load, rules = its.state, its.load, its.rules
    threshold = _threshold(state, rules)
    passed = 0
    # Above the heap is room for who is passed over: together they are no more than all requests.
    top = len(state.queue)
    while budget > 0 and state.counters[QUEUED] > 0 and state.counters[ADMITTED] < rules.seqs:
        request = state.queue[0]
        if state.flying[request] > 0:
            # Preempted, and a token of it is still on its way.
            _dequeue(state, load)
            passed += 1
            state.queue[top - passed] = request
            continue
        known = load.prompt[request] + state.generated[request]
        found = cached_blocks(its.pool, its.keys, request, known, rules.block_size)
        tokens = known - found * rules.block_size
        if 0 < threshold < tokens:
            tokens = threshold
        if rules.chunked == 0 and tokens > budget:
            break
        tokens = min(tokens, budget)
        if not _fits(its, request, found, tokens):
            break
        _dequeue(state, load)
        use_cached(its.pool, its.keys, request, found)
        state.computed[request] = found * rules.block_size
        _extend(its, request, tokens)
        if state.hits[request] < 0:
            state.hits[request] = found * rules.block_size
        state.status[request] = RUNNING
        state.running[state.counters[ADMITTED]] = request
        state.counters[ADMITTED] += 1
        _share(state, slot, request, tokens)
        budget -= tokens
    for number in range(passed):
        enqueue(state, load, state.queue[top - 1 - number])


@compiled
def plan(its: Scheduler, slot: int) -> int:
    """Plan a step into a slot of those in flight; return its tokens, 0 if nobody can compute."""
    state, load = its.state, its.load
    state.share_count[slot] = 0
    budget, preemptions = _plan_running(its, slot)
    if preemptions == 0:
        _plan_waiting(its, slot, budget)
    requests, parts, yields = state.shares[slot], state.parts[slot], state.yields[slot]
    prefill = decodes = shares = kv = pairs = context = 0
    for place in range(state.share_count[slot]):
        tokens = parts[place]
        if tokens == 0:
            continue
        request = requests[place]
        before = state.computed[request]
        known = load.prompt[request] + state.generated[request] + state.promised[request]
        shares += 1
        context += before + tokens
        if tokens == 1 and before == known - 1 and before >= load.prompt[request]:
            decodes += 1
            kv += before + 1
        else:
            prefill += tokens
            pairs += tokens * before + tokens * (tokens + 1) // 2
        state.computed[request] = before + tokens
        state.flying[request] += 1
        whole = before + tokens >= known
        yields[place] = whole
        state.promised[request] += whole
    row = state.summary
    row[PREFILL_TOKENS], row[DECODES], row[SHARES] = prefill, decodes, shares
    row[ADMITTED_AFTER], row[QUEUED_AFTER] = state.counters[ADMITTED], state.counters[QUEUED]
    row[FREE_AFTER], row[PREEMPTIONS] = free_blocks(its.pool), preemptions
    row[CONTEXT_TOKENS], row[DECODE_KV_TOKENS], row[PAIRS] = context, kv, pairs
    return prefill + decodes


@compiled
def deliver(its: Scheduler, slot: int, tokens: Tokens, done_s: float) -> None:
    """Take up the tokens of the step in a slot, and let go who is complete."""
    state = its.state
    requests, parts, yields = state.shares[slot], state.parts[slot], state.yields[slot]
    # With two in flight, a plan comes too early to cache the block that its token fills.
    fills = its.keys.different > 0 and len(state.shares) > 1
    block_size = its.rules.block_size
    ended = 0
    for place in range(state.share_count[slot]):
        if parts[place] == 0:
            continue
        request = requests[place]
        state.flying[request] -= 1
        if yields[place] == 0:
            continue
        before = state.generated[request]
        tokens.at_s[tokens.first[request] + before] = done_s
        state.generated[request] = before + 1
        if state.promised[request] > 0:
            state.promised[request] -= 1
        if fills:
            computed = its.load.prompt[request] + before
            if computed % block_size == 0 and state.status[request] == RUNNING:
                remember(its.pool, its.keys, request, computed, block_size)
        if before + 1 == its.load.output[request]:
            give_back(its.pool, its.keys, request)
            if state.status[request] == RUNNING:
                ended += 1
            else:
                _withdraw(state, its.load, request)
            state.status[request] = DONE
            state.counters[LEFT] -= 1
    if ended > 0:
        kept = 0
        for place in range(state.counters[ADMITTED]):
            request = state.running[place]
            if state.status[request] == RUNNING:
                state.running[kept] = request
                kept += 1
        state.counters[ADMITTED] = kept
