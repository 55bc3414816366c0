"""The outline of a step: when each parameter is used and each gradient is made, in ticks of computation.

It evaluates thousands of plans a second, because it adds up whole stretches of computation where ``timeline`` walks
through single operations. Both find the same step time to the last tick (tested), except for collectives inside loops,
which are the same in every plan and are left out here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from pathways_nb.parallel.fsdp.costs import StepCosts
from pathways_nb.parallel.fsdp.passes.edits import Gather, Position, Reduction, StepCollectives
from pathways_nb.parallel.fsdp.passes.registry import Stage
from pathways_nb.parallel.fsdp.passes.sketch import INF, Gathered, Reduced, Sketch, position_of

_MOST_KEPT = 16
"""The most sketches that are kept for plans that begin with the same passes."""


class Use(NamedTuple):
    """The gather of one parameter.

    Args:
        param: position of the parameter.
        at: position of the gather.
        read: position of the first operation that reads what it makes.
        dtype: of what it carries.
        costs: what it costs.
    """

    param: int
    at: int
    read: int
    dtype: str
    costs: Gathered

    @property
    def made(self) -> int:
        """Bytes of the whole."""
        return self.costs.made

    def gather(self, at: Position, again: bool) -> Gather:
        """Return it as passes see it, issued at a position."""
        return Gather((self.param,), at, position_of(self.read), again, self.dtype, self.costs)


class Made(NamedTuple):
    """The reduction of one gradient.

    Args:
        param: position of the parameter.
        at: position of the reduction.
        made: position of the operation that makes what it sends.
        kinds: for each of its collectives one after another, name and axis.
        dtype: of what it carries.
        costs: what it costs.
    """

    param: int
    at: int
    made: int
    kinds: tuple[tuple[str, str], ...]
    dtype: str
    costs: Reduced

    @property
    def reduction(self) -> Reduction:
        """It as passes see it."""
        made = position_of(self.made)
        return Reduction((self.param,), position_of(self.at), made, self.kinds, self.dtype, self.costs)


@dataclass(frozen=True, eq=False)
class Outline:
    """What the time of a step depends on, apart from its plan.

    Args:
        costs: of the operations.
        parameter_names: of the model.
        passed: by position in the list of operations, the ticks of computation in front of it.
        forward: the gathers of the forward pass, in order.
        again: the repeated gathers, in order; none where parameters stay gathered.
        copies: all gathers that can be repeated, in order.
        reductions: in order.
        loss: position and ticks of each reduction of the loss.
        completed: of each operation that completes the loss, its position, which of those reductions it reads, ticks.
        axis: over which parameters are gathered, or gradients reduced where none are.
    """

    costs: StepCosts
    parameter_names: tuple[str, ...]
    passed: tuple[int, ...]
    forward: tuple[Use, ...]
    again: tuple[Use, ...]
    copies: tuple[Use, ...]
    reductions: tuple[Made, ...]
    loss: tuple[tuple[int, int], ...]
    completed: tuple[tuple[int, int, int], ...]
    axis: str

    @property
    def compute(self) -> int:
        """Ticks of all operations that every plan has."""
        converted = sum(use.costs.before for use in (*self.forward, *self.again)) + sum(
            one.costs.after for one in self.reductions
        )
        return int(self.passed[-1]) + converted + sum(ticks for _, _, ticks in self.completed)

    @cached_property
    def made(self) -> frozenset[int]:
        """The parameters that have gradients."""
        return frozenset(one.param for one in self.reductions)

    def together(self, sizes: Mapping[tuple[str, str], int]) -> int:
        """Return the ticks of reductions in one bucket for each kind: by name and axis, the bytes that it exchanges."""
        return sum(self.costs.exchange(name, size, axis) for (name, axis), size in sizes.items())

    def ticks(self, stages: Sequence[Stage], streams: Literal[2, 3] = 2) -> int:
        """Return the ticks of the step after passes.

        Args:
            stages: the passes with their settings, in order; see ``passes.choice.stages_of``.
            streams: 3 for gathers and reductions on streams of their own, 2 for both on one.

        Raises:
            PlanError: a pass makes edits that cannot be carried out.
        """
        return _ended(self, self._sketch(tuple(one for one in stages if one[0].is_timed)), streams)

    def _sketch(self, stages: tuple[Stage, ...]) -> Sketch:
        """Return the collectives after passes; what plans that were asked for lately have in common is kept."""
        if not stages:
            return self._traced
        if (found := self._sketches.get(stages)) is None:
            before, (one, settings) = self._sketch(stages[:-1]), stages[-1]
            found = before.edited(one.edits_of(before.collectives, **dict(settings)))
            if len(self._sketches) >= _MOST_KEPT:
                self._sketches.clear()
            self._sketches[stages] = found
        return found

    @cached_property
    def _sketches(self) -> dict[tuple[Stage, ...], Sketch]:
        return {}

    @cached_property
    def _traced(self) -> Sketch:
        """The collectives before any pass, with all gathers in front."""
        known = {use.param for use in self.forward}
        late = [use for use in self.again if use.param not in known]  # the backward pass alone reads them
        ordered = sorted((*self.forward, *late), key=lambda use: use.read)
        gathers = [use.gather((0.0, -INF, number, INF), False) for number, use in enumerate(ordered)]
        again = {use.param: use.gather(position_of(use.at), True) for use in self.copies}
        end = position_of(len(self.passed) - 1)
        made = [one.reduction for one in self.reductions]
        step = StepCollectives(tuple(gathers), tuple(made), self.parameter_names, end)
        return Sketch(step, again, frozenset(use.param for use in late))


_Event = tuple[Position, bool, tuple[str, int], int, int]
"""What happens at a position: whether a collective is waited for (or issued), which, ticks of computation and of it."""


def _ended(outline: Outline, sketch: Sketch, streams: int) -> int:
    """Return when a step ends."""
    gathers, reductions = sketch.collectives.gathers, sketch.collectives.reductions
    events = list(_gather_events(outline, gathers))
    events += [_reduce_event(outline, number, one) for number, one in enumerate(reductions)]
    events += [(position_of(at), False, ("loss", number), 0, ticks) for number, (at, ticks) in enumerate(outline.loss)]
    events += [(position_of(at), True, ("loss", number), ticks, 0) for at, number, ticks in outline.completed]
    events.sort()
    completing = ((number, _after(outline, one)) for number, one in enumerate(reductions))
    return _walked(outline, events, [(number, ticks) for number, ticks in completing if ticks is not None], streams)


def _gather_events(outline: Outline, gathers: Sequence[Gather]) -> Iterator[_Event]:
    """Yield when each gather is issued, and when computation waits for it and unpacks it."""
    costs, axis = outline.costs, outline.axis
    for number, one in enumerate(gathers):
        before, sent, made = one.source
        several = len(one.params) > 1
        exchange = costs.exchange("all_gather", made, axis)
        yield one.at, False, ("gather", number), before + (costs.copy(sent) if several else 0), exchange
        yield one.read, True, ("gather", number), costs.copy(made) if several else 0, 0


def _reduce_event(outline: Outline, number: int, one: Reduction) -> _Event:
    whole, padded, shard, _, _ = one.source
    ticks = outline.costs.copy(whole) if len(one.params) > 1 else 0
    exchange = sum(
        outline.costs.exchange(name, shard if turn else padded, axis) for turn, (name, axis) in enumerate(one.kinds)
    )
    return one.at, False, ("reduce", number), ticks, exchange


def _after(outline: Outline, one: Reduction) -> int | None:
    """Return the ticks of what completes the gradients of a reduction; ``None`` if nothing does."""
    _, _, shard, after, operations = one.source
    if len(one.params) > 1:
        return int(after) + outline.costs.copy(shard)
    return int(after) if operations else None


def _walked(outline: Outline, events: Sequence[_Event], after: Sequence[tuple[int, int]], streams: int) -> int:
    """Return when the step ends; ``after`` has reductions by number, with the ticks of what completes them."""
    passed, now, before = outline.passed, 0, 0
    free = {"gather": 0, "reduce": 0}
    arrives: dict[tuple[str, int], int] = {}
    for at, waits, which, ticks, exchange in events:
        here = passed[int(at[0])]
        now += here - before
        before = here
        if waits:
            now = max(now, arrives[which]) + ticks
            continue
        now += ticks
        lane = "gather" if which[0] == "gather" or streams == 2 else "reduce"
        arrives[which] = free[lane] = max(free[lane], now) + exchange
    now += passed[-1] - before
    for number, ticks in after:
        now = max(now, arrives["reduce", number]) + ticks
    return max([now, *arrives.values()])
