"""What each operation of a traced step computes and moves, whatever the chip: ``operation_costs`` makes seconds of it.

It is read once for each loss. Other modes and other numbers of devices change what is exchanged and the sizes of
shards; what the loss itself computes stays the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pathways_nb.cost.jaxpr.node_work import Amount, Work, work_of, works_of
from pathways_nb.cost.jaxpr.operations import ShardedJaxpr, ShardedOperation, ShardedValue
from pathways_nb.cost.jaxpr.sharded_flat import operation_of, value_of
from pathways_nb.cost.jaxpr.traffic import Traffic, traffic_of
from pathways_nb.jaxpr.flat import called
from pathways_nb.parallel.flat_function import Runnable
from pathways_nb.parallel.fsdp.sharded_scan import ShardedScan
from pathways_nb.parallel.fsdp.step_graph import CollectiveOp, StepGraph
from pathways_nb.parallel.fsdp.tracing import is_kernel

_STRIDED = frozenset({"transpose", "broadcast_in_dim"})
"""Operations that eager frameworks do by other strides over the same memory."""


@dataclass(frozen=True, eq=False)
class StepWork:
    """The work of the operations of a step as it was traced.

    Args:
        works: of each operation that is no collective, by the first value that it makes: passes change what an
            operation reads, not what it makes.
        fused: values that a fusion never writes to memory.
        views: by value that lies in the memory of an operand, the position of that operand.
    """

    works: Mapping[int, Work]
    fused: frozenset[int]
    views: Mapping[int, int]

    @classmethod
    def of(cls, graph: StepGraph, sizes: Mapping[str, int]) -> StepWork:
        """Return the work of a step before its passes.

        Args:
            graph: the step.
            sizes: axes of the place and their sizes.
        """
        return cls._read(graph, [op for op in graph.ops if _computes(op)], sizes)

    @classmethod
    def eager(cls, graph: StepGraph, sizes: Mapping[str, int]) -> StepWork:
        """Return the work of a step whose operations run one by one, as they do without a compiler.

        Nothing is fused: each operation reads and writes memory, except that transposed and repeated arrays are views.
        """
        # Loops with exchanges, and kernels, keep their work; each other operation is a program of its own.
        fused = cls.of(graph, sizes)
        works, views = dict(fused.works), dict(fused.views)
        for op in graph.ops:
            if not _computes(op) or isinstance(op, ShardedScan) or is_kernel(op.eqn):
                continue
            made = _cost_operation(op, lambda value: value_of(graph.flat.avals[value]), sizes)
            if made.name in _STRIDED and op.inputs:  # a view of its operand, which takes no time
                works[op.outputs[0]], views[op.outputs[0]] = Work(), 0
            else:
                (works[op.outputs[0]],) = works_of(ShardedJaxpr((made,), made.inputs, made.outputs, sizes))
        return cls(works, frozenset(), views)

    def carried_to(self, graph: StepGraph, before: StepGraph, sizes: Mapping[str, int]) -> StepWork:
        """Return the work of a step that was traced from the same loss for other devices or another mode.

        If both gather the same parameters, only operations on shards and sums are read again.

        Args:
            graph: the step.
            before: the step whose work this is.
            sizes: axes of the place and their sizes.
        """
        ops = [op for op in graph.ops if _computes(op)]
        # A loop has its exchanges in its body, so it is another operation in every mode.
        has_loops = any(isinstance(op, ShardedScan) for op in (*ops, *before.ops))
        if has_loops or gathered_params(graph) != gathered_params(before):
            return self._read(graph, ops, sizes)
        # Both were made from one trace, so an operation of the loss makes the same values in both.
        old = {_key(before, op): op for op in before.ops if _computes(op) and not _is_apart(before, op)}
        made = self._read(graph, [op for op in ops if _is_apart(graph, op)], sizes)
        works, fused, views = dict(made.works), set(made.fused), dict(made.views)
        # Of values behind ``traced_values`` the numbers are those of this mode alone.
        fused.update(value for value in self.fused if value < graph.traced_values)
        for op in ops:
            if not _is_apart(graph, op):
                one = old[_key(graph, op)]
                works[op.outputs[0]] = self.works[one.outputs[0]]
                pairs = list(zip(one.outputs, op.outputs, strict=True))
                fused.update(new for value, new in pairs if value in self.fused)
                views.update((new, self.views[value]) for value, new in pairs if value in self.views)
        return StepWork(works, frozenset(fused), views)

    @classmethod
    def _read(cls, graph: StepGraph, ops: Sequence[Runnable], sizes: Mapping[str, int]) -> StepWork:
        """Return the work of some operations."""
        values: dict[int, ShardedValue] = {}

        def read(value: int) -> ShardedValue:
            if value not in values:
                values[value] = value_of(graph.flat.avals[value])
            return values[value]

        pairs = list[tuple[Runnable, ShardedOperation]]()
        for op in ops:
            made = _cost_operation(op, read, sizes)
            values.update(zip(op.outputs if _is_whole(op) else op.results, made.outputs, strict=True))
            pairs.append((op, made))
        # Inputs and outputs lie in memory, whoever reads them: the cost model fuses only what is between.
        ends = [tuple(map(read, side)) for side in (graph.flat.inputs, graph.flat.outputs)]
        flat = ShardedJaxpr(tuple(made for _, made in pairs), ends[0], ends[1], sizes)
        traffic, works = traffic_of(flat), dict[int, Work]()
        for (op, made), work in zip(pairs, works_of(flat), strict=True):
            works[op.outputs[0]] = _kernel(op, made, traffic) if is_kernel(op.eqn) else work
        fused = frozenset(value for value, made in values.items() if made.root not in traffic.stored)
        return cls(works, fused, dict(_views(ops, values)))


def gathered_params(graph: StepGraph) -> frozenset[int]:
    """Return the positions of the parameters that a step gathers."""
    return frozenset(param for op in graph.collectives if op.is_gather for param in op.carries)


def _computes(op: Runnable) -> bool:
    return not isinstance(op, CollectiveOp) and bool(op.outputs)


def _is_apart(graph: StepGraph, op: Runnable) -> bool:
    """Return whether an operation reads and makes only what collectives added: shards, sums and their conversions."""
    return min((*op.inputs, *op.outputs)) >= graph.traced_values  # numbers are given in order


def _key(graph: StepGraph, op: Runnable) -> tuple[str, int]:
    """Return what an operation is known by in every mode: one that converts a gradient makes another value in each."""
    return ("makes", op.outputs[0]) if op.outputs[0] < graph.traced_values else ("reads", op.inputs[0])


def _views(ops: Iterable[Runnable], values: Mapping[int, ShardedValue]) -> Iterator[tuple[int, int]]:
    """Yield each value that lies in the memory of an operand, with the position of that operand."""
    for op in ops:
        if isinstance(op, ShardedScan):
            continue
        operands = [values[value] for value in op.inputs]
        for value in op.outputs:
            source = values[value].source
            if source is not None and source in operands:
                yield value, operands.index(source)


def _is_whole(op: Runnable) -> bool:
    """Return whether an operation is counted by what it reads and makes, not by its equation."""
    return op.eqn is None or is_kernel(op.eqn)


def _cost_operation(op: Runnable, read: Callable[[int], ShardedValue], sizes: Mapping[str, int]) -> ShardedOperation:
    if not _is_whole(op):
        return operation_of(op.eqn, [read(value) for value in op.operands], sizes)
    # What a mode adds has no equation: conversions, sums of shards, the scaling of the loss. They count by the bytes
    # that they move, as a concatenation does.
    name = {"convert": "convert_element_type"}.get(op.name, "concatenate")
    inputs, outputs = tuple(map(read, op.inputs)), tuple(map(read, op.outputs))
    if op.name == "barrier":  # its results lie in the memory of its operands
        outputs = tuple(replace(made, source=given) for given, made in zip(inputs, outputs, strict=True))
        name = "optimization_barrier"
    return ShardedOperation(name, inputs, outputs)


def _kernel(op: Runnable, made: ShardedOperation, traffic: Traffic) -> Work:
    """Return the work of a kernel: its products, and the bytes that it reads and writes at its ends."""
    # As if what else a kernel such as FlashAttention does, its softmax and masks, were hidden behind them.
    products = [amount for amount in work_of(called(op.eqn)).amounts if amount.kind == "matmul"]
    widest = max(products, key=lambda amount: amount.flops, default=Amount("matmul", "float32"))
    flops = sum(amount.flops for amount in products)
    return Work((Amount("matmul", widest.dtype, flops, traffic.read[made], traffic.written[made]),))
