"""What each operation of a step costs on a chip: seconds of compute, seconds of a collective, bytes.

Seconds come from the one cost model. They are counted in whole ticks, so that sums do not depend on their order: the
planner adds up whole stretches of the list, the timeline single operations, and both agree to the last digit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from pathways_nb.cost.collectives.collective import Collective as Exchange
from pathways_nb.cost.collectives.kinds import BY_NAME
from pathways_nb.cost.hardware.topology import Topology
from pathways_nb.cost.jaxpr.node_work import Amount, Work
from pathways_nb.cost.model import CostModel
from pathways_nb.errors import PlanError
from pathways_nb.parallel.flat_function import Runnable
from pathways_nb.parallel.fsdp.collectives import pieces_of
from pathways_nb.parallel.fsdp.optimizer_update import OptimizerUpdate
from pathways_nb.parallel.fsdp.step_graph import CollectiveOp, StepGraph, kind_of
from pathways_nb.parallel.fsdp.step_work import StepWork


class UpdateCosts(NamedTuple):
    """What the optimizer's update costs on one device.

    Args:
        ticks: of the update.
        gather_ticks: of the gathers of new parameters behind it.
        gather_bytes: of the parameters that are gathered.
        gathered: their positions.
        flops: of the update.
    """

    ticks: int = 0
    gather_ticks: int = 0
    gather_bytes: int = 0
    gathered: tuple[int, ...] = ()
    flops: float = 0.0


TICK = 1e-12
"""Seconds of one tick."""
_MOST = 2**53
"""Limit in ticks of one operation, 2.5 hours: up to it they are exact as floats, and a step of many is an int64."""


@dataclass(frozen=True, eq=False)
class OperationCosts:
    """Costs of the operations of a step, and of what passes make of them.

    Args:
        model: the cost model.
        topology: the island.
        sizes: axes of the place and their sizes.
        compute: ticks of each operation that is no collective, by the first value that it makes: passes change what an
            operation reads, not what it makes.
        fused: values that a fusion never writes to memory.
        views: by value that lies in the memory of an operand, the position of that operand.
        joined: of the operations in ``compute``, the ticks in it of what the compiler exchanges over other axes.
        shares: by value that other axes split, among how many devices.
        flops: of one device, in all operations of ``compute``.
        update: the optimizer's update; ``None`` of gradients only.
    """

    model: CostModel
    topology: Topology
    sizes: Mapping[str, int]
    compute: dict[int, int]
    fused: set[int]
    views: dict[int, int]
    joined: dict[int, int]
    shares: dict[int, int]
    flops: float = 0.0
    update: OptimizerUpdate | None = None
    _known: dict[tuple[str, int, str], int] = field(default_factory=dict)
    """Ticks of collectives and copies that were asked for before."""

    @classmethod
    def of(
        cls, graph: StepGraph, model: CostModel, sizes: Mapping[str, int], work: StepWork | None = None,
        update: OptimizerUpdate | None = None, topology: Topology | None = None,
    ) -> OperationCosts:  # fmt: skip
        """Return the costs of a step as it was traced.

        Args:
            graph: the step before its passes.
            model: the cost model.
            sizes: axes of the place and their sizes.
            work: of its operations, if it is known.
            update: the optimizer's update.
            topology: of the island; ``None`` for one of as many devices.
        """
        work = work or StepWork.of(graph, sizes)
        topology = topology or model.topology(math.prod(sizes.values()))
        flops = sum(one.flops for one in work.works.values())
        fused, views, shares = set(work.fused), dict(work.views), dict(work.shares)
        made = cls(model, topology, dict(sizes), {}, fused, views, {}, shares, flops, update)
        known: dict[Work, tuple[int, int]] = {}  # layers of a model have equal works, and pricing one is the slow part
        for value, one in work.works.items():
            if one not in known:
                cost = model.node(one, topology, made.sizes)
                known[one] = _ticks(cost.compute), _ticks(cost.collective)
            compute, joined = known[one]
            made.compute[value] = compute + joined
            if joined:
                made.joined[value] = joined
        return made

    def ticks(self, graph: StepGraph, op: Runnable) -> int:
        """Return the ticks of an operation of a step after passes."""
        if isinstance(op, CollectiveOp):
            return self.exchange(op.name, self.bytes_of(graph, op), op.axis)
        # Not by the value that it makes: an unpack makes values that a gather made before, and ``compute`` has none.
        if op.name in ("pack", "unpack"):
            return self.copy(sum(self.bytes(graph, value) for value in op.inputs))
        found = self.compute.get(op.outputs[0]) if op.outputs else 0
        if found is None:  # repeated for the backward pass: a conversion is made again, a view costs nothing
            found = self.copy(sum(self.bytes(graph, value) for value in op.inputs)) if op.name == "convert" else 0
            self.compute[op.outputs[0]] = found
        return found

    def bytes_of(self, graph: StepGraph, op: CollectiveOp) -> int:
        """Return the bytes of the whole array that a collective exchanges, with its padding.

        Of an array that other axes split, it is the part on one device of them.
        """
        kind, pieces = BY_NAME[op.name], pieces_of(graph, op.carries)
        if kind.begins_whole and kind.ends_whole:
            return graph.flat.bytes(op.inputs[0]) // pieces
        # The part, not the whole, which may be cropped.
        part = op.outputs[0] if kind.begins_whole else op.inputs[0]
        return graph.flat.bytes(part) // pieces * self.sizes[op.axis]

    def bytes(self, graph: StepGraph, value: int) -> int:
        """Return the bytes of a value on one device, also of one that a pass made."""
        if not self.shares:
            return graph.flat.bytes(value)
        if value not in self.shares:
            self.shares[value] = self._share(graph, value)
        return graph.flat.bytes(value) // self.shares[value]

    def _share(self, graph: StepGraph, value: int) -> int:
        """Return among how many devices other axes split a value that is not known from the trace."""
        maker = graph.makers.get(value)
        if maker is None or not maker.inputs:
            return 1
        if isinstance(maker, CollectiveOp):
            return pieces_of(graph, maker.carries)
        if maker.name == "pack":
            return next(pieces_of(graph, op.carries) for op in graph.readers[value] if isinstance(op, CollectiveOp))
        if maker.name == "unpack":
            (bucket,) = (op for op in [graph.makers[maker.inputs[0]]] if isinstance(op, CollectiveOp))
            return graph.parameters[bucket.carries[maker.outputs.index(value)]].pieces
        # Repeated for the backward pass: a view or a conversion has as many parts as what it reads.
        source = maker.inputs[0]
        return graph.flat.bytes(source) // max(self.bytes(graph, source), 1) or 1

    @cached_property
    def of_update(self) -> UpdateCosts:
        """The costs of the optimizer's update."""
        if self.update is None:
            return UpdateCosts()
        work = self.update.work(self.sizes)
        cost = self.model.node(work, self.topology, self.sizes)
        gathers = [(one, self.exchange("all_gather", one.bytes, self.update.axis)) for one in self.update.gathers]
        return UpdateCosts(
            _ticks(cost.compute + cost.collective), sum(ticks for _, ticks in gathers),
            sum(one.bytes for one, _ in gathers), tuple(one.param for one, _ in gathers), work.flops,
        )  # fmt: skip

    def exchange(self, name: str, bytes: int, axis: str) -> int:
        """Return the ticks of a collective over an axis.

        Args:
            name: ``"all_gather"``, ``"reduce_scatter"`` or ``"all_reduce"``.
            bytes: of the whole array.
            axis: of the place.
        """
        key = name, bytes, axis
        if key not in self._known:
            work = Work(collectives=(Exchange(kind_of(name), bytes, (axis,), self.sizes[axis]),))
            self._known[key] = _ticks(self.model.node(work, self.topology, self.sizes).collective)
        return self._known[key]

    def copy(self, bytes: int) -> int:
        """Return the ticks of reading and writing so many bytes."""
        key = "copy", bytes, ""
        if key not in self._known:
            work = Work((Amount("movement", read=bytes, written=bytes),))
            self._known[key] = _ticks(self.model.node(work, self.topology, self.sizes).compute)
        return self._known[key]


def _ticks(seconds: float) -> int:
    # A bandwidth typed in another unit: the sums would be no times, and be shown as if they were.
    if not seconds < _MOST * TICK:
        raise PlanError(
            f"one operation of the step takes {seconds:.3g} s on this chip and network; a plan counts up to "
            f"{_MOST * TICK:.0f} s. Bandwidths are in bytes/s, latencies in seconds."
        )
    # Whole numbers: the outline adds up in another order than the timeline, and a sum of floats depends on it.
    return round(seconds / TICK)
