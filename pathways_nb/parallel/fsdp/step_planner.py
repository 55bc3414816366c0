"""Everything that a plan of one step can be asked before it runs: plans, timelines, the bound, the search."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from pathways_nb.cost.hardware.topology import Topology
from pathways_nb.cost.model import CostModel
from pathways_nb.errors import PlanError, size
from pathways_nb.parallel.fsdp import plans
from pathways_nb.parallel.fsdp.bound import exposed_bound
from pathways_nb.parallel.fsdp.fsdp_plan import Bucket, FsdpPlan
from pathways_nb.parallel.fsdp.modes import Mode
from pathways_nb.parallel.fsdp.operation_costs import OperationCosts
from pathways_nb.parallel.fsdp.optimizer_update import OptimizerUpdate
from pathways_nb.parallel.fsdp.outline import Outline, outline_of
from pathways_nb.parallel.fsdp.passes.pass_registry import own_passes
from pathways_nb.parallel.fsdp.passes.plan_passes import (
    IndexedPlan,
    Partition,
    PassChoice,
    carried_out,
    configured_passes,
)
from pathways_nb.parallel.fsdp.plan_search import PlanSearch, greedy_buckets
from pathways_nb.parallel.fsdp.step_graph import StepGraph
from pathways_nb.parallel.fsdp.step_work import StepWork
from pathways_nb.parallel.fsdp.timeline import StepAbout, StepTimeline, timeline
from pathways_nb.trace.metrics import duration
from pathways_nb.util.collecting import uncollected
from pathways_nb.util.progress import tell_reader

# An evaluation takes time in proportion to the parameters, so that a search takes about as long for every model.
_WORK, _LEAST = 120_000, 80
"""Evaluations of a search times parameters, and the fewest evaluations."""


@dataclass(frozen=True, eq=False, repr=False)
class Planner:
    """The plans of one step on one kind of chip.

    Args:
        traced: the step before any pass.
        mode: what is split.
        model: the cost model.
        sizes: axes of the place and their sizes.
        state_bytes: bytes of the optimizer's state on each device.
        streams: 3 for gathers and reductions on streams of their own, 2 for both on one.
        name: of the loss.
        work: of the operations of ``traced``, if it is known.
        update: the optimizer's update; ``None`` for a step that makes gradients only.
        topology: of the island, used if it is of that chip and large enough; else it has as many devices as the place.
    """

    traced: StepGraph
    mode: Mode
    model: CostModel
    sizes: Mapping[str, int]
    state_bytes: int = 0
    streams: Literal[2, 3] = 2
    name: str = "step"
    work: StepWork | None = None
    update: OptimizerUpdate | None = None
    topology: Topology | None = None

    def __repr__(self) -> str:
        devices = math.prod(self.sizes.values())
        return (
            f"<planner of {self.name} {self.mode.name} on {devices} × {self.model.chip.name}, {self.streams} streams>"
        )

    @cached_property
    def costs(self) -> OperationCosts:
        """The costs of the operations."""
        island = self.topology
        if island is not None and (island.chip != self.model.chip or island.devices < math.prod(self.sizes.values())):
            island = None
        return OperationCosts.of(self.traced, self.model, self.sizes, self.work, self.update, island)

    @cached_property
    def outline(self) -> Outline:
        """What the time of the step depends on, apart from its plan."""
        return outline_of(self.traced, self.costs, self.mode.gathers_again)

    @cached_property
    def bound(self) -> float:
        """Seconds of exposed communication that no order and no buckets can avoid, where nothing stays gathered."""
        return exposed_bound(self.outline, streams=self.streams)

    def bound_of(self, plan: FsdpPlan, streams: Literal[2, 3] | None = None) -> float:
        """Return the seconds that no order and no buckets can avoid where the same parameters stay gathered.

        Args:
            plan: says which stay gathered.
            streams: ``None`` for those of the planner.
        """
        kept = plans.indexed_plan(plan, self.traced.parameters).kept
        return exposed_bound(self.outline, kept, streams or self.streams)

    def timeline(self, plan: FsdpPlan) -> StepTimeline:
        """Return the step under a plan in simulated time.

        Raises:
            PlanError: the plan is for another model.
        """
        plan.check([one.name for one in self.traced.parameters])
        graph = plans.applied(self.traced, plan, self.mode)
        step = f"{self.name} {self.mode.name}"
        about = StepAbout(step, plan.name, self.model.chip.name, math.prod(self.sizes.values()), self.bound_of(plan))
        return timeline(graph, self.costs, self.streams, self.state_bytes, about)

    def greedy(self, memory: float | None = None) -> FsdpPlan:
        """Return the plan of the paper's greedy rule (SimpleFSDP, section 4.2).

        Args:
            memory: bytes that a device has; ``None`` for no limit. The rule estimates what a bucket needs: the plan may
                need more.
        """
        room = math.inf if memory is None else memory - self._without_gathered()
        forward, backward = greedy_buckets(self.outline, room)
        return self._plan(forward, backward, 1, "greedy")

    def per_block(self, prefetch: int = 1) -> FsdpPlan:
        """Return the plan with a bucket for each block, as FSDP2 wraps them."""
        return plans.per_block(self.traced.parameters, self.mode, prefetch)

    def per_parameter(self, prefetch: int = 0) -> FsdpPlan:
        """Return the plan with a collective for each parameter."""
        return plans.per_parameter(self.traced.parameters, self.mode, prefetch)

    def ticks(self, plan: FsdpPlan) -> int:
        """Return when the step under a plan ends, in ticks: what ``timeline`` finds, much faster if its passes edit.

        Collectives inside loops, which are the same in every plan, are left out.
        """
        plan.check([one.name for one in self.traced.parameters])
        return self._exact(plans.indexed_plan(plan, self.traced.parameters))

    def _exact(self, plan: IndexedPlan) -> int:
        """Return the ticks of the step under a plan, from its outline if its passes are edits, else from its graph."""
        if not plan.needs_graph:
            update = self.costs.of_update.ticks + self.costs.of_update.gather_ticks
            return self.outline.ticks(configured_passes(plan, self.mode.gathers_again), self.streams) + update
        # The outline knows collectives only; a pass on the graph may have changed anything.
        *_, (_, graph) = carried_out(self.traced, plan, self.mode.gathers_again)
        return timeline(graph, self.costs, self.streams).end

    def search(
        self, memory: float | None = None, budget: int | None = None, say: Callable[[str], object] = tell_reader
    ) -> FsdpPlan:
        """Return the best plan that a search finds; it tries the passes that the user registered, too.

        Args:
            memory: bytes that a device has; ``None`` for no limit.
            budget: the most plans that are evaluated; by default fewer for more parameters, so that a search of
                hundreds of layers takes seconds, too.
            say: is called with a line about each pass of the user's that makes the search slower, or cannot be used.

        Raises:
            PlanError: even the plan that needs least does not fit.
        """
        room = None if memory is None else memory - self._without_gathered()
        blocks = [plans.block_of(one.name) for one in self.traced.parameters]
        most = max(_LEAST, _WORK // len(blocks)) if budget is None else budget
        own = {one.name: [PassChoice.of(one.name, dict(settings)) for settings in one.choices] for one in own_passes()}
        search = PlanSearch(self.outline, blocks, self._exact, room, most, own)
        try:
            with uncollected():  # sketches are many short-lived objects without cycles
                return self._searched(search, memory)
        finally:
            for line in _remarks(search):
                say(line)

    def _searched(self, search: PlanSearch, memory: float | None) -> FsdpPlan:
        """Return the plan that a search finds within a bound on memory, which ``room`` only estimates."""
        # ``gathered_bytes`` estimates what gathers hold; the timeline knows. Whenever the best plan needs more than the
        # memory, the room of the search becomes smaller by as much, until the plan fits or is the smallest.
        while True:
            found = search.run()
            plan = self._plan(found.forward, found.backward, found.prefetch, "searched", found.own)
            if memory is None:
                return plan
            peak = self.timeline(plan).memory.peak
            if peak <= memory:
                return plan
            if found.own:  # the estimate knows nothing of what they hold
                search.leave_out(f"the best plan with {', '.join(search.own)} needs {size(peak)}, more than the memory")
                continue
            tighter = search.gathered_bytes(found) - (peak - memory)
            if (search.room is not None and tighter >= search.room) or found == search.smallest():
                raise PlanError(
                    f"no plan fits {size(memory)} per device: the smallest needs {size(peak)}, of which gathered "
                    f"parameters take {size(search.gathered_bytes(found))}. Use more devices, jax.checkpoint, or a "
                    f"smaller batch."
                )
            search.room = tighter

    def _without_gathered(self) -> int:
        """Return the most bytes of everything but gathered parameters."""
        # With single parameters gathered late, the rest of the step is what every plan needs.
        curve = self.timeline(self.per_parameter()).memory
        return int((curve.total - curve.bytes["gathered"]).max(initial=0))

    def _plan(
        self, forward: Partition | Sequence[Sequence[int]], backward: Partition | Sequence[Sequence[int]],
        prefetch: int, name: str, own: tuple[PassChoice, ...] = (),
    ) -> FsdpPlan:  # fmt: skip
        keep = not self.mode.gathers_again  # a mode that gathers once has nothing else
        left = self._unused(forward)
        return FsdpPlan(
            tuple(Bucket(self.traced.names(bucket), keep) for bucket in (*forward, *left)),
            tuple(Bucket(self.traced.names(bucket)) for bucket in (*backward, *self._unused(backward))),
            prefetch, name, own,
        )  # fmt: skip

    def _unused(self, buckets: Partition | Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
        """Return a bucket for each parameter that is never gathered or reduced."""
        there = {param for bucket in buckets for param in bucket}
        return [(param,) for param in range(len(self.traced.parameters)) if param not in there]


def _remarks(search: PlanSearch) -> Iterator[str]:
    """Yield a line about passes that make a search slower, and one about each reason for which plans were left out."""
    slow = [one.name for one in own_passes() if one.edits == "graph"]
    if slow and len(search.seconds) == 2:
        graph, outline = search.seconds[True], search.seconds[False]
        yield (
            f"search: {', '.join(slow)} changes the graph itself, so a plan with it takes {duration(graph)}, "
            f"{graph / outline:.0f} times as long as one of edits ({duration(outline)}); fewer are tried."
        )
    yield from (f"search: plans were left out, because {reason}" for reason in search.refused)
