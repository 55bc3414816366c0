"""The outline of a step: when each parameter is used and each gradient is made, in ticks of computation.

It evaluates thousands of plans a second, because it adds up whole stretches of computation where ``timeline`` walks
through single operations. Both find the same step time to the last tick (tested), except for collectives inside loops,
which are the same in every plan and are left out here.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, TypeVar

from pathways_nb.parallel.fsdp.costs import StepCosts

Buckets = Sequence[Sequence[int]]
"""Positions of parameters, by bucket."""
Key = tuple[int, float]
"""A position in the list of operations, and what comes first there: 0 what moved to it, 1 the operation itself."""


class Use(NamedTuple):
    """The gather of one parameter.

    Args:
        param: position of the parameter.
        at: position of the gather.
        read: position of the first operation that reads what it makes.
        before: ticks of the conversions in front of it.
        sent: bytes of one shard.
        made: bytes of the whole.
    """

    param: int
    at: int
    read: int
    before: int
    sent: int
    made: int


class Reduction(NamedTuple):
    """The reduction of one gradient.

    Args:
        param: position of the parameter.
        at: position of the reduction.
        kinds: for each of its collectives one after another, name and axis.
        whole: bytes of the gradient without padding.
        padded: bytes of the gradient as it is exchanged.
        shard: bytes of one shard.
        after: ticks of what completes it.
    """

    param: int
    at: int
    kinds: tuple[tuple[str, str], ...]
    whole: int
    padded: int
    shard: int
    after: int


@dataclass(frozen=True, eq=False)
class Outline:
    """What the time of a step depends on, apart from its plan.

    Args:
        costs: of the operations.
        passed: by position in the list of operations, the ticks of computation in front of it.
        forward: the gathers of the forward pass, in order.
        again: the repeated gathers, in order.
        reductions: in order.
        loss: position and ticks of each reduction of the loss.
        axis: over which parameters are gathered, or gradients reduced where none are.
        tail: ticks of what completes the loss.
    """

    costs: StepCosts
    passed: tuple[int, ...]
    forward: tuple[Use, ...]
    again: tuple[Use, ...]
    reductions: tuple[Reduction, ...]
    loss: tuple[tuple[int, int], ...]
    axis: str
    tail: int

    @property
    def compute(self) -> int:
        """Ticks of all operations that every plan has."""
        converted = sum(use.before for use in (*self.forward, *self.again)) + sum(one.after for one in self.reductions)
        return int(self.passed[-1]) + converted + self.tail

    @cached_property
    def uses(self) -> tuple[dict[int, Use], dict[int, Use]]:
        """The gathers of the forward and of the backward pass, by parameter."""
        return {use.param: use for use in self.forward}, {use.param: use for use in self.again}

    @cached_property
    def reduced(self) -> dict[int, Reduction]:
        """The reductions, by parameter."""
        return {one.param: one for one in self.reductions}

    def together(self, sizes: Mapping[tuple[str, str], int]) -> int:
        """Return the ticks of reductions in one bucket for each kind: by name and axis, the bytes that it exchanges."""
        return sum(self.costs.exchange(name, size, axis) for (name, axis), size in sizes.items())

    def ticks(
        self, forward: Buckets, backward: Buckets, prefetch: int, kept: frozenset[int] = frozenset(),
        streams: Literal[2, 3] = 2,
    ) -> int:  # fmt: skip
        """Return the ticks of the step under a plan.

        Args:
            forward: buckets of the forward pass.
            backward: buckets of the backward pass.
            prefetch: how many gathers are under way before their turn.
            kept: parameters that stay gathered.
            streams: 3 for gathers and reductions on streams of their own, 2 for both on one.
        """
        return _Walk(self, streams).run(forward, backward, prefetch, kept)


class _Event(NamedTuple):
    """Something that happens at a position of the list."""

    key: Key
    kind: str
    bucket: int
    ticks: int
    exchange: int


class _Walk:
    """One evaluation of a plan."""

    def __init__(self, outline: Outline, streams: int):
        self.outline, self.costs, self.streams = outline, outline.costs, streams

    def run(self, forward: Buckets, backward: Buckets, prefetch: int, kept: frozenset[int]) -> int:
        """Return the ticks of the step."""
        first, again = self.outline.uses
        gathers = [*_chosen(forward, first, frozenset()), *_chosen(backward, again, kept)]
        gathers.sort(key=lambda bucket: bucket[0].at)
        events = self._gather_events(gathers, prefetch)
        reductions = self._reductions(backward)
        events += [event for number, bucket in enumerate(reductions) for event in self._reduce_events(number, bucket)]
        events += [_Event((at, 1), "loss", 0, 0, ticks) for at, ticks in self.outline.loss]
        events.sort()
        return self._walked(events, [self._after(bucket) for bucket in reductions])

    def _reductions(self, buckets: Buckets) -> list[list[Reduction]]:
        """Return what is reduced together: of a bucket, gradients with the same collectives."""
        chosen = _chosen(buckets, self.outline.reduced, frozenset())
        kinds = ({one.kinds for one in bucket} for bucket in chosen)
        groups = [[one for one in bucket if one.kinds == kind]
                  for bucket, each in zip(chosen, kinds, strict=True) for kind in each]  # fmt: skip
        return sorted(groups, key=lambda bucket: bucket[-1].at)

    def _gather_events(self, gathers: list[list[Use]], prefetch: int) -> list[_Event]:
        waits: list[Key] = [(bucket[0].at, 1) if len(bucket) > 1 else (bucket[0].read, 1) for bucket in gathers]
        events = []
        for number, bucket in enumerate(gathers):
            own: Key = (bucket[0].at, 0.5)
            issued = own
            if prefetch and number:
                position = min(waits[max(number - prefetch, 0)][0], bucket[0].at)
                issued = (position, 0.5 + number / (len(gathers) + 1) * 0.25)
            before = sum(use.before for use in bucket)
            size = sum(use.made for use in bucket)
            sent = self.costs.copy(sum(use.sent for use in bucket)) if len(bucket) > 1 else 0
            events.append(_Event(issued, "gather", number, before + sent, self._exchange("all_gather", size)))
            events.append(_Event(waits[number], "wait", number, self.costs.copy(size) if len(bucket) > 1 else 0, 0))
        return events

    def _exchange(self, name: str, size: int) -> int:
        return self.costs.exchange(name, size, self.outline.axis)

    def _reduce_events(self, number: int, bucket: list[Reduction]) -> list[_Event]:
        several = len(bucket) > 1
        whole = sum(one.whole for one in bucket)
        ticks = self.costs.copy(whole) if several else 0
        size, shard = sum(one.padded for one in bucket), sum(one.shard for one in bucket)
        exchange = sum(
            self.costs.exchange(name, size if turn == 0 else shard, axis)
            for turn, (name, axis) in enumerate(bucket[0].kinds)
        )
        return [_Event((bucket[-1].at, 1), "reduce", number, ticks, exchange)]

    def _after(self, bucket: list[Reduction]) -> int:
        unpack = self.costs.copy(sum(one.shard for one in bucket)) if len(bucket) > 1 else 0
        return unpack + sum(one.after for one in bucket)

    def _walked(self, events: list[_Event], after: list[int]) -> int:
        """Return when the step ends; ``after`` are the ticks of what completes each bucket's gradients."""
        passed, now, before = self.outline.passed, 0, 0
        free = {"gather": 0, "reduce": 0}
        arrives: dict[tuple[str, int], int] = {("loss", 0): 0}
        for (at, _), kind, bucket, ticks, exchange in events:
            now += passed[at] - before
            before = passed[at]
            if kind == "wait":
                now = max(now, arrives["gather", bucket]) + ticks
                continue
            now += ticks
            lane = "gather" if kind == "gather" or self.streams == 2 else "reduce"
            free[lane] = max(free[lane], now) + exchange
            arrives[kind, bucket] = free[lane]
        now = max(now + passed[-1] - before, arrives["loss", 0]) + self.outline.tail
        for bucket, ticks in enumerate(after):
            now = max(now, arrives["reduce", bucket]) + ticks
        return now


Each = TypeVar("Each", Use, Reduction)


def _chosen(buckets: Buckets, of: Mapping[int, Each], without: frozenset[int]) -> list[list[Each]]:
    """Return what is gathered or reduced together, in order, without empty buckets."""
    found = ([of[p] for p in bucket if p in of and p not in without] for bucket in buckets)
    return [sorted(bucket, key=_position) for bucket in found if bucket]


_position = operator.attrgetter("at")
