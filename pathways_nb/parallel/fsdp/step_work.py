"""What each operation of a traced step computes and moves, whatever the chip: ``operation_costs`` makes seconds of it.

It is read once for each loss. Other modes and other numbers of devices change what is exchanged and the sizes of
shards; what the loss itself computes stays the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from jax.sharding import PartitionSpec

from pathways_nb.cost.jaxpr.backward_splits import propagate_from_readers
from pathways_nb.cost.jaxpr.node_work import Amount, Work, layouts_of, work_of, works_of
from pathways_nb.cost.jaxpr.operations import ShardedJaxpr, ShardedOperation, ShardedValue
from pathways_nb.cost.jaxpr.partial_sums import partial_sums
from pathways_nb.cost.jaxpr.sharded_flat import operation_of, value_of
from pathways_nb.cost.jaxpr.splits import Split, bytes_on_device, read_spec
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
        shares: by value, among how many devices axes beside those of the batch split it; 1 of values left out.
    """

    works: Mapping[int, Work]
    fused: frozenset[int]
    views: Mapping[int, int]
    shares: Mapping[int, int]

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
        works, views, arrays = dict(fused.works), dict(fused.views), _Arrays(graph, sizes)
        for op in graph.ops:
            if not _computes(op):
                continue
            made = arrays.add(op)
            if isinstance(op, ShardedScan) or is_kernel(op.eqn):
                continue
            if made.name in _STRIDED and op.inputs:  # a view of its operand, which takes no time
                works[op.outputs[0]], views[op.outputs[0]] = Work(), 0
            else:
                (alone,) = works_of(ShardedJaxpr((made,), made.inputs, made.outputs, sizes))
                works[op.outputs[0]] = alone + Work(collectives=fused.works[op.outputs[0]].collectives)
        return cls(works, frozenset(), views, fused.shares)

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
        shares = {value: share for value, share in self.shares.items() if value < graph.traced_values}
        # Of values behind ``traced_values`` the numbers are those of this mode alone.
        fused.update(value for value in self.fused if value < graph.traced_values)
        for op in ops:
            if not _is_apart(graph, op):
                one = old[_key(graph, op)]
                works[op.outputs[0]] = self.works[one.outputs[0]]
                pairs = list(zip(one.outputs, op.outputs, strict=True))
                fused.update(new for value, new in pairs if value in self.fused)
                views.update((new, self.views[value]) for value, new in pairs if value in self.views)
        return StepWork(works, frozenset(fused), views, {**shares, **made.shares})

    @classmethod
    def _read(cls, graph: StepGraph, ops: Sequence[Runnable], sizes: Mapping[str, int]) -> StepWork:
        """Return the work of some operations."""
        arrays = _Arrays(graph, sizes)
        made = [arrays.add(op) for op in ops]
        # Inputs and outputs lie in memory, whoever reads them: the cost model fuses only what is between.
        inputs, outputs = (tuple(map(arrays.read, side)) for side in (graph.flat.inputs, graph.flat.outputs))
        flat = arrays.settled(ShardedJaxpr(tuple(made), inputs, outputs, sizes), ops)
        traffic, works, joined = traffic_of(flat), dict[int, Work](), partial_sums(flat)
        for op, one, work in zip(ops, flat.ops, works_of(flat), strict=True):
            found = _kernel(op, one, traffic, arrays) if is_kernel(op.eqn) else work
            works[op.outputs[0]] = found + Work(collectives=joined[one]) if one in joined else found
        values = arrays.values
        fused = frozenset(value for value, one in values.items() if one.root not in traffic.stored)
        return cls(works, fused, dict(_views(ops, values)), arrays.shares)


class _Arrays:
    """The arrays of a step in the layouts that axes beside those of the batch give them.

    Shapes are those of one device of the batch's axes, so these axes split nothing here. Other axes split parameters
    as they are declared, and what is made of them as the compiler would split it.

    Args:
        graph: the step.
        sizes: axes of the place and their sizes.
    """

    def __init__(self, graph: StepGraph, sizes: Mapping[str, int]):
        self._graph, self.sizes = graph, sizes
        self._declared = _declared(graph)
        self.values: dict[int, ShardedValue] = {}

    def read(self, value: int) -> ShardedValue:
        """Return the array that is a value."""
        if value not in self.values:
            aval, spec = self._graph.flat.avals[value], self._declared.get(value)
            self.values[value] = value_of(aval, read_spec(spec, len(aval.shape)), self.sizes)
        return self.values[value]

    def add(self, op: Runnable) -> ShardedOperation:
        """Return an operation on such arrays, whose results are then known."""
        made = _cost_operation(op, self.read, self.sizes)
        self._know(op, made)
        return made

    def _know(self, op: Runnable, made: ShardedOperation) -> None:
        self.values.update(zip(op.outputs if _is_whole(op) else op.results, made.outputs, strict=True))

    def settled(self, flat: ShardedJaxpr, ops: Sequence[Runnable]) -> ShardedJaxpr:
        """Return operations with arrays made from constants in the layout of what reads them."""
        if not self._declared:
            return flat
        # What is reduced, such as a gradient, is wanted in the layout of its parameter.
        wanted = {op.inputs[0]: op.outputs[0] for op in self._graph.collectives if not op.is_gather}
        reduced = tuple(self.read(value) for value in wanted)
        specs = [
            read_spec(self._declared.get(total), len(one.shape))
            for total, one in zip(wanted.values(), reduced, strict=True)
        ]
        whole = replace(flat, outputs=(*flat.outputs, *reduced))
        found = propagate_from_readers(whole, [*(one.split for one in flat.outputs), *specs])
        for op, made in zip(ops, found.ops, strict=True):
            self._know(op, made)
        return replace(found, outputs=found.outputs[: len(flat.outputs)])

    @property
    def shares(self) -> dict[int, int]:
        """Among how many devices each value is split, of those that are."""
        for value in self._declared:
            self.read(value)
        found = {value: self._parts(one) for value, one in self.values.items() if any(one.split)}
        return {value: share for value, share in found.items() if share > 1}

    def _parts(self, array: ShardedValue) -> int:
        return math.prod(self.sizes[axis] for entry in array.split for axis in entry)


def _declared(graph: StepGraph) -> dict[int, PartitionSpec]:
    """Return the partition over other axes of parameters, gathered or not, and of reduced gradients."""
    carried = {value: op.carries[0] for op in graph.collectives for value in op.outputs if len(op.carries) == 1}
    for ends in (enumerate(graph.wholes), enumerate(graph.shards), graph.gradients.items()):
        carried.update((value, param) for param, value in ends)
    return {value: others for value, param in carried.items() if (others := graph.parameters[param].others)}


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
    inputs, outputs = tuple(map(read, op.inputs)), tuple(map(read, op.outputs))
    if is_kernel(op.eqn):
        splits = layouts_of(called(op.eqn), sizes, [one.split for one in map(read, op.operands)])
        made = dict(zip(op.results, splits, strict=True))
        outputs = tuple(_laid_out(one, made[value], sizes) for value, one in zip(op.outputs, outputs, strict=True))
        return ShardedOperation("copy", inputs, outputs)
    # What a mode adds has no equation: conversions, sums of shards, the scaling of the loss. They count by the bytes
    # that they move, as a copy does. Each result has the shape of an operand, and so its layout.
    name = {"convert": "convert_element_type"}.get(op.name, "copy")
    givens = inputs if op.name == "barrier" else inputs[:1] * len(outputs)
    outputs = tuple(_laid_out(made, given.split, sizes) for made, given in zip(outputs, givens, strict=True))
    if op.name == "barrier":  # its results lie in the memory of its operands
        outputs = tuple(replace(made, source=given) for given, made in zip(inputs, outputs, strict=True))
        name = "optimization_barrier"
    return ShardedOperation(name, inputs, outputs)


def _laid_out(value: ShardedValue, split: Split, sizes: Mapping[str, int]) -> ShardedValue:
    """Return an array in a layout."""
    return replace(value, split=split, bytes=bytes_on_device(value, split, sizes)) if any(split) else value


def _kernel(op: Runnable, made: ShardedOperation, traffic: Traffic, arrays: _Arrays) -> Work:
    """Return the work of a kernel: its products, and the bytes that it reads and writes at its ends."""
    # As if what else a kernel such as FlashAttention does, its softmax and masks, were hidden behind them.
    inside = work_of(called(op.eqn), arrays.sizes, [arrays.read(value).split for value in op.operands])
    products = [amount for amount in inside.amounts if amount.kind == "matmul"]
    widest = max(products, key=lambda amount: amount.flops, default=Amount("matmul", "float32"))
    flops = sum(amount.flops for amount in products)
    return Work((Amount("matmul", widest.dtype, flops, traffic.read[made], traffic.written[made]),))
