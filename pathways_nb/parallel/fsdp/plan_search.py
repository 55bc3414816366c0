"""Searches for a plan with the simulated step as its objective, under a memory bound.

The search begins with buckets of blocks and of parts of blocks, with the greedy rule's, and with single parameters,
each with several distances of prefetching. Then it improves the best one: it merges neighbours, splits buckets and
moves their ends, as long as the step becomes shorter. It counts evaluations, not seconds, so that it finds the same
plan on every machine.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

from pathways_nb.errors import PlanError
from pathways_nb.parallel.fsdp.outline import Outline, ParameterGather
from pathways_nb.parallel.fsdp.passes.plan_passes import IndexedPlan, Partition, PassChoice
from pathways_nb.parallel.fsdp.passes.sketch import GatherCost

_DISTANCES = 1, 2, 4, 8, 16
# Without it, a search would spend its budget on changes that nobody sees.
_GAIN = 1e-4
"""The share of the step that a change must save."""
_BY_GRAPH = 30
"""As how many evaluations one by the graph counts; measured: a plan of Llama 3 8B takes 39 to 49 times longer by it."""


@dataclass(eq=False)
class PlanSearch:
    """A search over the plans of one step.

    Args:
        outline: of the step.
        block_of: the block of each parameter.
        exact: returns the ticks of the step under a plan, or raises ``PlanError``.
        room: bytes that gathered parameters may take at once; ``None`` for no limit.
        budget: the most evaluations, and as many again for the user's passes; one by the graph counts as ``_BY_GRAPH``.
        own: passes of the user's that it tries, each with the settings to try.
    """

    outline: Outline
    block_of: Sequence[str]
    exact: Callable[[IndexedPlan], int]
    room: float | None = None
    budget: int = 400
    own: Mapping[str, Sequence[PassChoice]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._ticks: dict[IndexedPlan, float] = {}
        self.evaluated = 0
        """Evaluations so far."""
        self.refused: dict[str, None] = {}
        """Why plans with passes of the user's could not be carried out."""
        self.seconds: dict[bool, float] = {}
        """Seconds of the first evaluation by the graph (``True``), and of the first by the outline."""

    def run(self) -> IndexedPlan:
        """Return the best plan that was found."""
        starts = sorted(self._starts(), key=lambda one: (self.ticks(one), self.gathered_bytes(one)))
        best = next((one for one in starts if self._fits(one)), min(starts, key=self.gathered_bytes))
        best = self._climbed(best, self._neighbours, self.budget)
        # The user's passes come after, within a budget of their own: with them a plan is never worse than without.
        return self._climbed(best, self._with_own, self.evaluated + self.budget) if self.own else best

    def _climbed(
        self, best: IndexedPlan, around: Callable[[IndexedPlan], Iterator[IndexedPlan]], budget: int
    ) -> IndexedPlan:
        """Return the plan to which steps to better plans around one lead, as long as the budget lasts."""
        improved = True
        while improved and self.evaluated < budget:
            improved = False
            for other in around(best):
                if self.evaluated >= budget:
                    break
                # The first better one, not the best of all: to time all neighbours would take most of the budget.
                if self.ticks(other) < self.ticks(best) * (1 - _GAIN) and self._fits(other):
                    best, improved = other, True
                    break
        return best

    def leave_out(self, why: str) -> None:
        """Go on without passes of the user's, with the whole budget: plans that were timed cost nothing again."""
        self.own, self.evaluated = {}, 0
        self.refused.setdefault(why)

    def smallest(self) -> IndexedPlan:
        """Return the plan that holds the fewest gathered bytes at once."""
        return min(self._starts(), key=self.gathered_bytes)

    def ticks(self, plan: IndexedPlan) -> float:
        """Return the ticks of the step under a plan; infinite for one that cannot be carried out."""
        if plan not in self._ticks:
            self._ticks[plan] = self._evaluated(plan)
        return self._ticks[plan]

    def _evaluated(self, plan: IndexedPlan) -> float:
        by_graph, began = plan.needs_graph, time.perf_counter()
        self.evaluated += _BY_GRAPH if by_graph else 1
        try:
            found = self.exact(plan)
        except PlanError as error:
            # Without passes of the user's these are buckets of several dtypes, which the search only tried.
            if plan.own:
                self.refused.setdefault(str(error))
            return math.inf
        self.seconds.setdefault(by_graph, time.perf_counter() - began)
        return found

    def gathered_bytes(self, plan: IndexedPlan) -> int:
        """Return bytes that gathered parameters take at most, if every gather is done when it is issued.

        What a bucket gathers lies there twice while it is unpacked.
        """
        most = 0
        if not self.outline.forward:
            return most
        for buckets in (plan.forward, plan.backward):
            sizes = [sum(self._sizes[p] for p in bucket) for bucket in buckets]
            # The packed array and what is unpacked from it; a single parameter is gathered in its place.
            twice = [size * (2 if len(bucket) > 1 else 1) for size, bucket in zip(sizes, buckets, strict=True)]
            ends = [0]
            for size in sizes:
                ends.append(ends[-1] + size)
            for at, size in enumerate(twice):
                before = sizes[at - 1] if at else 0  # of the block that still computes
                most = max(most, before + size + ends[min(at + 1 + plan.prefetch, len(sizes))] - ends[at + 1])
        return most

    @cached_property
    def _sizes(self) -> dict[int, int]:
        sent = {one.param: one.costs.whole_bytes for one in self.outline.reductions}
        return sent | {use.param: use.costs.whole_bytes for use in self.outline.forward}

    @cached_property
    def _orders(self) -> tuple[list[int], list[int]]:
        """The order in which parameters are used, and that in which their gradients are made."""
        forward = [use.param for use in self.outline.forward]
        backward = [one.param for one in self.outline.reductions]
        return forward, backward + [param for param in forward if param not in self.outline.trained]

    def _fits(self, plan: IndexedPlan) -> bool:
        return self.room is None or self.gathered_bytes(plan) <= self.room

    def _starts(self) -> Iterator[IndexedPlan]:
        forward, backward = self._orders
        pairs = [tuple(tuple(map(tuple, buckets)) for buckets in greedy_buckets(self.outline))]
        pairs += [(self._blocks(forward, parts), self._blocks(backward, parts)) for parts in (1, 2, 3)]
        pairs += [(self._light(forward), self._light(backward)), (_single(forward), _single(backward))]
        for one, other in pairs:
            yield from (IndexedPlan(one, other, distance) for distance in _DISTANCES)

    def _blocks(self, order: Sequence[int], parts: int) -> Partition:
        """Return a bucket for each block, or for each of several parts of about equal bytes."""
        found = list[tuple[int, ...]]()
        for block in _grouped(order, self.block_of):
            total, filled = sum(self._sizes[param] for param in block), 0
            cut: list[list[int]] = [[] for _ in range(parts)]
            for param in block:
                cut[min(parts - 1, filled * parts // max(total, 1))].append(param)
                filled += self._sizes[param]
            found += [tuple(part) for part in cut if part]
        return tuple(found)

    def _light(self, order: Sequence[int]) -> Partition:
        """Return a bucket for each parameter, and one for those of a block whose copies cost less than a latency."""
        # A bucket saves latencies and costs copies: worth it for norms and biases, not for large matrices.
        costs = self.outline.costs
        latency = costs.exchange("all_gather", 0, self.outline.axis)
        found = list[tuple[int, ...]]()
        for block in _grouped(order, self.block_of):
            light = [param for param in block if costs.copy(self._sizes[param]) < latency]
            at = {param: (param,) for param in block if param not in light} | (
                {light[0]: tuple(light)} if light else {}
            )
            found += [at[param] for param in block if param in at]
        return tuple(found)

    def _neighbours(self, at: IndexedPlan) -> Iterator[IndexedPlan]:
        """Yield plans that differ a little: the ends first, where nothing hides an exchange."""
        for prefetch in (at.prefetch - 1, at.prefetch + 1):
            if prefetch >= 1:
                yield replace(at, prefetch=prefetch)
        for other in _changed(at.backward):
            yield replace(at, backward=other)
        for other in _changed(at.forward):
            yield replace(at, forward=other)

    def _with_own(self, at: IndexedPlan) -> Iterator[IndexedPlan]:
        """Yield plans with another pass of the user's, without one or with one set otherwise; then all others."""
        for name, choices in self.own.items():
            others = tuple(one for one in at.own if one.name != name)
            yield from (replace(at, own=own) for own in (others, *((*others, one) for one in choices)) if own != at.own)
        yield from self._neighbours(at)


def _changed(buckets: Partition) -> Iterator[Partition]:
    """Yield partitions with one end moved, two neighbours merged, or one bucket split; from both ends to the middle."""
    # Parameters stay in the order of use: a bucket is gathered for its first one, and what is used much later would
    # only take memory until then.
    for i in sorted(range(len(buckets)), key=lambda i: min(i, len(buckets) - 1 - i)):
        before, one, after = buckets[:i], buckets[i], buckets[i + 1 :]
        for cut in sorted({1, len(one) // 2, len(one) - 1} - {0, len(one)}):
            yield (*before, one[:cut], one[cut:], *after)
        if after:
            following, *rest = after
            yield (*before, one + following, *rest)
            if len(following) > 1:
                yield (*before, (*one, following[0]), following[1:], *rest)
            if len(one) > 1:
                yield (*before, one[:-1], (one[-1], *following), *rest)


def _grouped(order: Sequence[int], block_of: Sequence[str]) -> Iterator[list[int]]:
    """Yield parameters that follow each other and belong to one block."""
    ends = [i + 1 for i, (one, two) in enumerate(pairwise(order)) if block_of[one] != block_of[two]]
    for start, stop in pairwise([0, *ends, len(order)]):
        yield list(order[start:stop])


def _single(order: Iterable[int]) -> Partition:
    return tuple((param,) for param in order)


# ---- the paper's greedy rule


def greedy_buckets(outline: Outline, room: float = math.inf) -> tuple[list[list[int]], list[list[int]]]:
    """Return the buckets of the paper's greedy rule (SimpleFSDP, section 4.2), of the forward and the backward pass.

    A parameter joins the bucket that is being filled if the time of the bucket's gather, in the backward pass together
    with the last bucket's reduction, stays below the computation of the bucket before it, which is to hide it, and if
    both buckets fit the memory.

    Args:
        outline: of the step.
        room: bytes that a device has for gathered parameters.
    """
    forward = _filled(outline, outline.forward, room, lambda bucket: 0)
    reductions = {one.param: one for one in outline.reductions}

    def reduce_ticks(bucket: list[ParameterGather]) -> int:
        sizes = Counter[tuple[str, str]]()
        for one in (reductions[use.param] for use in bucket if use.param in reductions):
            sizes[one.kinds[0]] += one.costs.padded_bytes
        return outline.together(sizes)

    # Where nothing is gathered again, reductions alone fill buckets: as gathers that cost nothing.
    free = (ParameterGather(one.param, one.at, one.at, one.dtype, GatherCost(0, 0, 0)) for one in outline.reductions)
    again = _filled(outline, outline.regathers or list(free), room, reduce_ticks)
    there = {param for bucket in again for param in bucket}
    # Every parameter must be in a bucket of a plan, so what the rule does not reach has one of its own.
    others = dict.fromkeys([*(one.param for one in outline.reductions), *(use.param for use in outline.forward)])
    return forward, [*again, *([param] for param in others if param not in there)]


def _filled(
    outline: Outline, uses: Sequence[ParameterGather], room: float, reduce_ticks: Callable[[list[ParameterGather]], int]
) -> list[list[int]]:
    """Return buckets of gathers in order; ``reduce_ticks`` returns what a closed bucket reduces during the next."""
    found, bucket = list[list[ParameterGather]](), list[ParameterGather]()
    hides = others = held = 0  # ticks of computation, ticks of reductions and bytes, of the bucket before
    for use in uses:
        size = sum(one.costs.whole_bytes for one in (*bucket, use))
        exchange = outline.costs.exchange("all_gather", size, outline.axis)
        if bucket and (exchange + others > hides or held + 2 * size > room):  # in the bucket, and unpacked
            # From the first use of this bucket to the first use of the next.
            hides, others = outline.passed[use.at] - outline.passed[bucket[0].at], reduce_ticks(bucket)
            held = sum(one.costs.whole_bytes for one in bucket)
            found.append(bucket)
            bucket = []
        bucket.append(use)
    return [[use.param for use in one] for one in (*found, bucket) if one]
