"""The collectives of a step as operations: what each device sends and receives, for one parameter or a bucket.

A single parameter is gathered and reduced along its own dimension. A bucket is packed into one array, one row for each
device, so that one collective carries all of it: ``pack``, the collective, ``unpack``.

Parameters may be split over further axes of the place as well, such as those of tensor parallelism. The axes of the
batch are manual in a step: its collectives are in the list. Other axes are left to the compiler, which adds what they
need; only collectives are manual over them, too (``on_pieces``).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from pathways_nb.parallel.flat_function import Runnable
from pathways_nb.parallel.fsdp.sharded_parameter import Parameter
from pathways_nb.parallel.fsdp.step_graph import CollectiveOp, StepGraph, operation
from pathways_nb.program.specs import axes_of

UNSPLIT = PartitionSpec()
"""The partition of what no other axis splits."""


@dataclass(frozen=True)
class DataAxes:
    """The axes over which the batch is split.

    Args:
        shard: the axis that splits parameters, and its size.
        replicate: the axis that repeats them (hybrid sharding), and its size; ``None`` if there is none.
    """

    shard: tuple[str, int]
    replicate: tuple[str, int] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the axes, the replicating one first."""
        return tuple(name for name, _ in (self.replicate, self.shard) if name) if self.replicate else (self.shard[0],)

    @property
    def size(self) -> int:
        """Number of parts of the batch."""
        return self.shard[1] * (self.replicate[1] if self.replicate else 1)


def on_pieces(
    one: Parameter, run: Callable[..., list[Any]], inputs: Sequence[PartitionSpec], outputs: Sequence[PartitionSpec]
) -> Callable[..., list[Any]]:
    """Return a function of arrays that other axes split; ``run`` gets and returns the pieces on one device of them.

    Args:
        one: any parameter of the step; it knows the other axes.
        run: a function of arrays; it may exchange over the axis of the batch.
        inputs: the partition of each argument over the other axes.
        outputs: the partition of each result.
    """
    if not one.other_sizes:
        return run
    # Left to the compiler, every device of the other axes would gather all their parts in front of a collective over
    # the axis of the batch; and it ends the process at a sum of 16-bit numbers that is not manual over all axes (both
    # measured on CPU).
    return jax.shard_map(
        lambda *arrays: list(run(*arrays)), in_specs=tuple(inputs), out_specs=list(outputs),
        axis_names={axis for axis, _ in one.other_sizes}, check_vma=False,
    )  # fmt: skip


def gather(graph: StepGraph, axis: str, param: int, shard: int, whole: int) -> CollectiveOp:
    """Return the operation that gathers one parameter."""
    run = gathering(graph.parameters[param], axis)
    return CollectiveOp("all_gather", (shard,), (whole,), run=run, axis=axis, carries=(param,))


def gathering(one: Parameter, axis: str) -> Callable[[Any], list[Any]]:
    """Return the function from a parameter's shard to the parameter."""
    piece = one.piece

    def run(array: Any) -> list[Any]:
        # Cropped here, so that every read of the parameter sees its true shape.
        return [piece.crop(jax.lax.all_gather(array, axis, axis=piece.dim, tiled=True))]

    return on_pieces(one, run, [one.others], [one.others])


def scatter(graph: StepGraph, axis: str, param: int, whole: int, shard: int) -> CollectiveOp:
    """Return the operation that adds up one gradient over all devices and leaves each its shard."""
    run = scattering(graph.parameters[param], axis)
    return CollectiveOp("reduce_scatter", (whole,), (shard,), run=run, axis=axis, carries=(param,))


def scattering(one: Parameter, axis: str) -> Callable[[Any], list[Any]]:
    """Return the function from one device's gradient to its shard of the sum over all devices."""
    piece = one.piece

    def run(array: Any) -> list[Any]:
        # Padded with zeros: the gradient of padding, which no read of the parameter sees.
        return [jax.lax.psum_scatter(piece.pad(array), axis, scatter_dimension=piece.dim, tiled=True)]

    return on_pieces(one, run, [one.others], [one.others])


def all_reduce(
    graph: StepGraph, axis: str, params: Sequence[int], value: int, total: int, others: PartitionSpec = UNSPLIT,
    reduction: Callable[[Any, str], Any] = jax.lax.psum,
) -> CollectiveOp:  # fmt: skip
    """Return the operation that adds up an array over all devices.

    Args:
        graph: the step.
        axis: over which it is added up.
        params: positions of the parameters whose gradients it is.
        value: the array.
        total: the sum.
        others: the partition of the array over other axes.
        reduction: another than the sum, such as ``jax.lax.pmax``.
    """

    def run(array: Any) -> list[Any]:
        return [reduction(array, axis)]

    run = on_pieces(graph.parameters[0], run, [others], [others]) if graph.parameters else run
    return CollectiveOp("all_reduce", (value,), (total,), run=run, axis=axis, carries=tuple(params))


def bucket_gather(graph: StepGraph, members: Sequence[CollectiveOp]) -> tuple[list[Runnable], list[Runnable]]:
    """Return the operations that gather several parameters at once: those up to the collective, and those after."""
    first, params = members[0], [param for op in members for param in op.carries]
    packing = _Packing.of(graph, params)
    aval, parameters, local = graph.flat.avals[first.inputs[0]], packing.pieces, packing.local
    packed = graph.new(aval, (packing.size,))  # (elements of all shards,)
    gathered = graph.new(aval, (parameters[0].parts, packing.size))  # (devices, elements of all shards)

    def pack(*shards: Any) -> list[Any]:
        return [jnp.concatenate([shard.reshape(-1) for shard in shards])]

    def unpack(rows: Any) -> list[Any]:
        return [one.from_rows(part) for one, part in zip(parameters, _columns(rows, local), strict=True)]

    def run(array: Any) -> list[Any]:
        return [jax.lax.all_gather(array, first.axis)]

    collective = CollectiveOp(
        "all_gather", (packed,), (gathered,), run=packing.manual(run, [packing.row], [packing.rows]), axis=first.axis,
        carries=tuple(params), again=first.again, paced=first.paced,
    )  # fmt: skip
    inputs, outputs = [op.inputs[0] for op in members], [op.outputs[0] for op in members]
    begin = operation("pack", inputs, (packed,), packing.manual(pack, packing.others, [packing.row]))
    end = operation("unpack", (gathered,), outputs, packing.manual(unpack, [packing.rows], packing.others))
    return [begin, collective], [end]


def bucket_scatter(
    graph: StepGraph, members: Sequence[CollectiveOp], then: Sequence[CollectiveOp] = ()
) -> list[Runnable]:
    """Return the operations that reduce several gradients at once and leave each device its shards.

    Args:
        graph: the step.
        members: the reductions.
        then: with hybrid sharding, the all-reduce of each member's shard over the other axis; they become one, too.
    """
    first, params = members[0], [param for op in members for param in op.carries]
    packing = _Packing.of(graph, params)
    aval, parameters, local = graph.flat.avals[first.inputs[0]], packing.pieces, packing.local
    packed = graph.new(aval, (parameters[0].parts, packing.size))  # (devices, elements of all shards)
    reduced = graph.new(aval, (packing.size,))  # (elements of all shards,)

    def pack(*gradients: Any) -> list[Any]:
        return [jnp.concatenate([one.rows(array) for one, array in zip(parameters, gradients, strict=True)], axis=1)]

    def unpack(row: Any) -> list[Any]:
        parts = _columns(row[None], local)
        return [part.reshape(one.local) for one, part in zip(parameters, parts, strict=True)]

    def run(rows: Any) -> list[Any]:
        return [jax.lax.psum_scatter(rows, first.axis)]

    collective = CollectiveOp(
        "reduce_scatter", (packed,), (reduced,), run=packing.manual(run, [packing.rows], [packing.row]),
        axis=first.axis, carries=tuple(params),
    )  # fmt: skip
    begin = packing.manual(pack, packing.others, [packing.rows])
    ops: list[Runnable] = [operation("pack", [op.inputs[0] for op in members], (packed,), begin), collective]
    if then:  # it reads the packed shards as they are, so nothing is unpacked between the two
        before, reduced = reduced, graph.new(aval, (packing.size,))
        ops.append(all_reduce(graph, then[0].axis, params, before, reduced, packing.row))
    end = packing.manual(unpack, [packing.row], packing.others)
    return [*ops, operation("unpack", (reduced,), [op.outputs[0] for op in then or members], end)]


def bucket_all_reduce(
    graph: StepGraph, members: Sequence[CollectiveOp], then: Sequence[CollectiveOp] = ()
) -> list[Runnable]:
    """Return the operations that add up several arrays over all devices at once; arguments as ``bucket_scatter``."""
    first, params = members[0], [param for op in members for param in op.carries]
    avals, packing = [graph.flat.avals[op.inputs[0]] for op in members], _Packing.of(graph, params)
    # Of what lies on one device of the other axes: each of those packs its own pieces.
    shapes = [graph.parameters[param].piece_of(aval.shape) for param, aval in zip(params, avals, strict=True)]
    sizes = [math.prod(shape) for shape in shapes]
    packed, total = (graph.new(avals[0], (sum(sizes) * packing.copies,)) for _ in range(2))

    def pack(*arrays: Any) -> list[Any]:
        return [jnp.concatenate([array.reshape(-1) for array in arrays])]

    def unpack(row: Any) -> list[Any]:
        return [part.reshape(shape) for shape, part in zip(shapes, _columns(row[None], sizes), strict=True)]

    inputs, outputs = [op.inputs[0] for op in members], [op.outputs[0] for op in then or members]
    begin = operation("pack", inputs, (packed,), packing.manual(pack, packing.others, [packing.row]))
    ops: list[Runnable] = [begin, all_reduce(graph, first.axis, params, packed, total, packing.row)]
    if then:  # the packed sums are reduced again as they are, so nothing is unpacked between the two
        before, total = total, graph.new(avals[0], (sum(sizes) * packing.copies,))
        ops.append(all_reduce(graph, then[0].axis, params, before, total, packing.row))
    return [*ops, operation("unpack", (total,), outputs, packing.manual(unpack, [packing.row], packing.others))]


def pieces_of(graph: StepGraph, params: Sequence[int]) -> int:
    """Return among how many devices of other axes what a collective exchanges is split."""
    return _Packing.of(graph, params).copies if params and graph.parameters[params[0]].other_sizes else 1


class _Packing(NamedTuple):
    """How parameters are packed for one collective, where further axes than that of the batch split them.

    Args:
        pieces: each parameter's part on one device of the other axes.
        others: the partition of each over them.
        axes: the other axes of any of them, by which the packed array is split.
        copies: number of their devices; what an axis does not split is packed by each of its devices.
    """

    pieces: list[Parameter]
    others: list[PartitionSpec]
    axes: tuple[str, ...]
    copies: int

    @classmethod
    def of(cls, graph: StepGraph, params: Sequence[int]) -> _Packing:
        parameters = [graph.parameters[param] for param in params]
        sizes = dict(parameters[0].other_sizes)
        used = {axis for one in parameters for entry in one.others for axis in axes_of(entry)}
        axes = tuple(axis for axis in sizes if axis in used)
        copies = math.prod(sizes[axis] for axis in axes)
        return cls([one.piece for one in parameters], [one.others for one in parameters], axes, copies)

    def manual(
        self, run: Callable[..., list[Any]], inputs: Sequence[PartitionSpec], outputs: Sequence[PartitionSpec]
    ) -> Callable[..., list[Any]]:
        """Return a function of arrays, of which ``run`` gets and returns the pieces; see ``on_pieces``."""
        return on_pieces(self.pieces[0], run, inputs, outputs)

    @property
    def local(self) -> list[int]:
        """Elements of each parameter's shard on one device."""
        return [math.prod(one.local) for one in self.pieces]

    @property
    def size(self) -> int:
        """Elements of all shards on all devices of the other axes."""
        return sum(self.local) * self.copies

    @property
    def row(self) -> PartitionSpec:
        """The partition of packed shards."""
        return PartitionSpec(self.axes) if self.axes else PartitionSpec()

    @property
    def rows(self) -> PartitionSpec:
        """The partition of packed shards of all devices."""
        return PartitionSpec(None, self.axes) if self.axes else PartitionSpec()


def _columns(rows: Any, widths: Sequence[int]) -> list[Any]:
    """Return the columns of a matrix in groups of these widths."""
    ends = list(itertools.accumulate(widths))
    return [rows[:, end - width : end] for end, width in zip(ends, widths, strict=True)]
