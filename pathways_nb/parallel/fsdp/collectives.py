"""The collectives of a step as operations: what each device sends and receives, for one parameter or a bucket.

A single parameter is gathered and reduced along its own dimension. A bucket is packed into one array, one row for each
device, so that one collective carries all of it: ``pack``, the collective, ``unpack``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from pathways_nb.parallel.flat_function import Runnable
from pathways_nb.parallel.fsdp.step_graph import Collective, StepGraph, operation


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


def gather(graph: StepGraph, axis: str, param: int, shard: int, whole: int) -> Collective:
    """Return the operation that gathers one parameter."""
    one = graph.parameters[param]

    def run(array: Any) -> list[Any]:
        return [one.crop(jax.lax.all_gather(array, axis, axis=one.dim, tiled=True))]

    return Collective("all_gather", (shard,), (whole,), run=run, axis=axis, carries=(param,))


def scatter(graph: StepGraph, axis: str, param: int, whole: int, shard: int) -> Collective:
    """Return the operation that adds up one gradient over all devices and leaves each its shard."""
    one = graph.parameters[param]

    def run(array: Any) -> list[Any]:
        return [jax.lax.psum_scatter(one.pad(array), axis, scatter_dimension=one.dim, tiled=True)]

    return Collective("reduce_scatter", (whole,), (shard,), run=run, axis=axis, carries=(param,))


def all_reduce(axis: str, params: Sequence[int], value: int, total: int) -> Collective:
    """Return the operation that adds up an array over all devices."""
    return Collective(
        "all_reduce",
        (value,),
        (total,),
        run=lambda array: [jax.lax.psum(array, axis)],
        axis=axis,
        carries=tuple(params),
    )


def bucket_gather(graph: StepGraph, members: Sequence[Collective]) -> tuple[list[Runnable], list[Runnable]]:
    """Return the operations that gather several parameters at once: those up to the collective, and those after."""
    first, params = members[0], [param for op in members for param in op.carries]
    parameters = [graph.parameters[param] for param in params]
    aval, local = graph.flat.avals[first.inputs[0]], [math.prod(one.local) for one in parameters]
    packed, gathered = graph.new(aval, (sum(local),)), graph.new(aval, (parameters[0].parts, sum(local)))

    def pack(*shards: Any) -> list[Any]:
        return [jnp.concatenate([shard.reshape(-1) for shard in shards])]

    def unpack(rows: Any) -> list[Any]:
        return [one.from_rows(part) for one, part in zip(parameters, _columns(rows, local), strict=True)]

    collective = Collective(
        "all_gather", (packed,), (gathered,), run=lambda array: [jax.lax.all_gather(array, first.axis)],
        axis=first.axis, carries=tuple(params), again=first.again, bound=first.bound,
    )  # fmt: skip
    inputs, outputs = [op.inputs[0] for op in members], [op.outputs[0] for op in members]
    return [operation("pack", inputs, (packed,), pack), collective], [operation("unpack", (gathered,), outputs, unpack)]


def bucket_scatter(graph: StepGraph, members: Sequence[Collective], then: Sequence[Collective] = ()) -> list[Runnable]:
    """Return the operations that reduce several gradients at once and leave each device its shards.

    Args:
        graph: the step.
        members: the reductions.
        then: with hybrid sharding, the all-reduce of each member's shard over the other axis; they become one, too.
    """
    first, params = members[0], [param for op in members for param in op.carries]
    parameters = [graph.parameters[param] for param in params]
    aval, local = graph.flat.avals[first.inputs[0]], [math.prod(one.local) for one in parameters]
    packed, reduced = graph.new(aval, (parameters[0].parts, sum(local))), graph.new(aval, (sum(local),))

    def pack(*gradients: Any) -> list[Any]:
        return [jnp.concatenate([one.rows(array) for one, array in zip(parameters, gradients, strict=True)], axis=1)]

    def unpack(row: Any) -> list[Any]:
        parts = _columns(row[None], local)
        return [part.reshape(one.local) for one, part in zip(parameters, parts, strict=True)]

    collective = Collective(
        "reduce_scatter", (packed,), (reduced,), run=lambda rows: [jax.lax.psum_scatter(rows, first.axis)],
        axis=first.axis, carries=tuple(params),
    )  # fmt: skip
    ops: list[Runnable] = [operation("pack", [op.inputs[0] for op in members], (packed,), pack), collective]
    if then:
        before, reduced = reduced, graph.new(aval, (sum(local),))
        ops.append(all_reduce(then[0].axis, params, before, reduced))
    return [*ops, operation("unpack", (reduced,), [op.outputs[0] for op in then or members], unpack)]


def bucket_all_reduce(graph: StepGraph, members: Sequence[Collective]) -> list[Runnable]:
    """Return the operations that add up several arrays over all devices at once."""
    first, params = members[0], [param for op in members for param in op.carries]
    avals = [graph.flat.avals[op.inputs[0]] for op in members]
    sizes = [math.prod(aval.shape) for aval in avals]
    packed, total = (graph.new(avals[0], (sum(sizes),)) for _ in range(2))

    def pack(*arrays: Any) -> list[Any]:
        return [jnp.concatenate([array.reshape(-1) for array in arrays])]

    def unpack(row: Any) -> list[Any]:
        return [part.reshape(aval.shape) for aval, part in zip(avals, _columns(row[None], sizes), strict=True)]

    inputs, outputs = [op.inputs[0] for op in members], [op.outputs[0] for op in members]
    collective = all_reduce(first.axis, params, packed, total)
    return [operation("pack", inputs, (packed,), pack), collective, operation("unpack", (total,), outputs, unpack)]


def _columns(rows: Any, widths: Sequence[int]) -> list[Any]:
    """Return the columns of a matrix in groups of these widths."""
    ends = list(itertools.accumulate(widths))
    return [rows[:, end - width : end] for end, width in zip(ends, widths, strict=True)]
