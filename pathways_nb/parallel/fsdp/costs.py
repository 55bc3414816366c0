"""What each operation of a step costs on a chip: seconds of compute, seconds of a collective, bytes.

Seconds come from the one cost model. They are counted in whole ticks, so that sums do not depend on their order: the
planner adds up whole stretches of the list, the timeline single operations, and both agree to the last digit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pathways_nb.cost.hardware.topology import Topology
from pathways_nb.cost.jaxpr.exchange import Collective as Exchange
from pathways_nb.cost.jaxpr.node_work import Amount, Work, work_of, works_of
from pathways_nb.cost.jaxpr.operations import Flat, Op, ShardedValue
from pathways_nb.cost.jaxpr.sharded_flat import operation_of, value_of
from pathways_nb.cost.jaxpr.traffic import Traffic, traffic_of
from pathways_nb.cost.model import CostModel
from pathways_nb.jaxpr.flat import called
from pathways_nb.parallel.flat_function import Runnable
from pathways_nb.parallel.fsdp.sharded_scan import ShardedScan
from pathways_nb.parallel.fsdp.step_graph import Collective, StepGraph
from pathways_nb.parallel.fsdp.tracing import is_kernel

TICK = 1e-12
"""Seconds of one tick."""
_KINDS: dict[str, Any] = {
    "all_gather": "all-gather", "reduce_scatter": "reduce-scatter", "all_reduce": "all-reduce",
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class StepCosts:
    """Costs of the operations of a step, and of what passes make of them.

    Args:
        model: the cost model.
        topology: the island.
        sizes: axes of the place and their sizes.
        compute: ticks of each operation that is no collective, by the first value that it makes: passes change what an
            operation reads, not what it makes.
        fused: values that a fusion never writes to memory.
        views: by value that lies in the memory of an operand, the position of that operand.
    """

    model: CostModel
    topology: Topology
    sizes: Mapping[str, int]
    compute: dict[int, int]
    fused: set[int]
    views: dict[int, int]
    _known: dict[tuple[str, int, str], int] = field(default_factory=dict)
    """Ticks of collectives and copies that were asked for before."""

    @classmethod
    def of(cls, graph: StepGraph, model: CostModel, sizes: Mapping[str, int]) -> StepCosts:
        """Return the costs of a step as it was traced.

        Args:
            graph: the step before its passes.
            model: the cost model.
            sizes: axes of the place and their sizes; an island of as many devices is taken.
        """
        made = cls(model, model.topology(math.prod(sizes.values())), dict(sizes), {}, set(), {})
        made._read(graph)
        return made

    def ticks(self, graph: StepGraph, op: Runnable) -> int:
        """Return the ticks of an operation of a step after passes."""
        if isinstance(op, Collective):
            return self.exchange(op.name, self.bytes_of(graph, op), op.axis)
        if op.name in ("pack", "unpack"):  # an unpack makes values that a gather made before
            return self.copy(sum(graph.flat.bytes(value) for value in op.inputs))
        found = self.compute.get(op.outputs[0]) if op.outputs else 0
        if found is None:  # repeated for the backward pass: a conversion is made again, a view costs nothing
            found = self.copy(sum(graph.flat.bytes(value) for value in op.inputs)) if op.name == "convert" else 0
            self.compute[op.outputs[0]] = found
        return found

    def bytes_of(self, graph: StepGraph, op: Collective) -> int:
        """Return the bytes of the whole array that a collective exchanges."""
        return graph.flat.bytes(op.outputs[0] if op.is_gather else op.inputs[0])

    def exchange(self, name: str, bytes: int, axis: str) -> int:
        """Return the ticks of a collective over an axis.

        Args:
            name: ``"all_gather"``, ``"reduce_scatter"`` or ``"all_reduce"``.
            bytes: of the whole array.
            axis: of the place.
        """
        key = name, bytes, axis
        if key not in self._known:
            work = Work(collectives=(Exchange(_KINDS[name], bytes, (axis,), self.sizes[axis]),))
            self._known[key] = _ticks(self.model.node(work, self.topology, self.sizes).collective)
        return self._known[key]

    def copy(self, bytes: int) -> int:
        """Return the ticks of reading and writing so many bytes."""
        key = "copy", bytes, ""
        if key not in self._known:
            self._known[key] = self._ticks_of(Work((Amount("movement", read=bytes, written=bytes),)))
        return self._known[key]

    def _ticks_of(self, work: Work) -> int:
        return _ticks(self.model.node(work, self.topology, self.sizes).compute)

    def _read(self, graph: StepGraph) -> None:
        """Find the costs and the memory of the operations of a traced step."""
        values: dict[int, ShardedValue] = {}

        def read(value: int) -> ShardedValue:
            if value not in values:
                values[value] = value_of(graph.flat.avals[value])
            return values[value]

        pairs = list[tuple[Runnable, Op]]()
        for op in graph.ops:
            if isinstance(op, Collective) or not op.outputs:
                continue
            made = _cost_operation(op, read, self.sizes)
            values.update(zip(op.outputs if _is_whole(op) else op.results, made.outputs, strict=True))
            pairs.append((op, made))
        ends = [tuple(map(read, side)) for side in (graph.flat.inputs, graph.flat.outputs)]
        flat = Flat(tuple(made for _, made in pairs), ends[0], ends[1], self.sizes)
        traffic = traffic_of(flat)
        for (op, made), work in zip(pairs, works_of(flat), strict=True):
            self.compute[op.outputs[0]] = self._ticks_of(_kernel(op, made, traffic) if is_kernel(op.eqn) else work)
        self.fused.update(value for value, made in values.items() if made.root not in traffic.stored)
        for op, _ in pairs:
            if isinstance(op, ShardedScan):
                continue
            operands = [values[value] for value in op.inputs]
            for value in op.outputs:
                source = values[value].source
                if source is not None and source in operands:
                    self.views[value] = operands.index(source)


def _is_whole(op: Runnable) -> bool:
    """Return whether an operation is counted by what it reads and makes, not by its equation."""
    return op.eqn is None or is_kernel(op.eqn)


def _cost_operation(op: Runnable, read: Callable[[int], ShardedValue], sizes: Mapping[str, int]) -> Op:
    if not _is_whole(op):
        return operation_of(op.eqn, [read(value) for value in op.operands], sizes)
    name = {"convert": "convert_element_type"}.get(op.name, "concatenate")
    inputs, outputs = tuple(map(read, op.inputs)), tuple(map(read, op.outputs))
    if op.name == "barrier":
        outputs = tuple(replace(made, source=given) for given, made in zip(inputs, outputs, strict=True))
        name = "optimization_barrier"
    return Op(name, inputs, outputs)


def _kernel(op: Runnable, made: Op, traffic: Traffic) -> Work:
    """Return the work of a kernel: its products, and the bytes that it reads and writes at its ends."""
    products = [amount for amount in work_of(called(op.eqn)).amounts if amount.kind == "matmul"]
    widest = max(products, key=lambda amount: amount.flops, default=Amount("matmul", "float32"))
    flops = sum(amount.flops for amount in products)
    return Work((Amount("matmul", widest.dtype, flops, traffic.read[made], traffic.written[made]),))


def _ticks(seconds: float) -> int:
    return round(seconds / TICK)
