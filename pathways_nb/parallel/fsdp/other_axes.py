"""Parameters that are split over further axes of a place as well, such as those of tensor parallelism.

The axes of the batch are manual in a step: its collectives are in the list. Other axes are left to the compiler, which
adds what they need. A parameter is split over the axis of the batch along a dimension that no other axis splits.
All collectives are manual over the other axes, too: the compiler would have every device of those axes
gather all their parts in front of a collective over the axis of the batch, and it ends the process at a sum of 16-bit
numbers that is not manual over all axes (both measured on CPU).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
from jax.sharding import PartitionSpec

from pathways_nb.errors import UsageError
from pathways_nb.parallel.fsdp.parameters import Parameter
from pathways_nb.parallel.parameter_trees import name_of
from pathways_nb.plan.virtual_slice import VirtualSlice
from pathways_nb.program import specs


def partitions(params: Any, shardings: Any, on: VirtualSlice, data: Collection[str]) -> list[PartitionSpec]:
    """Return the partition of each parameter over the axes that do not split the batch.

    Args:
        params: the tree of parameters, as shapes.
        shardings: a tree of ``pw.P`` or a prefix of it; ``None`` for no further partition.
        on: the place.
        data: the axes that split the batch.

    Raises:
        UsageError: it names an axis that splits the batch.
        ShardingError: it is no tree of specs over axes of the place, or does not divide a parameter.
    """
    specs.check_tree(shardings, "shardings", "fsdp", on)
    found = specs.spread(shardings, params, "shardings", "fsdp")
    for (path, leaf), spec in zip(jax.tree_util.tree_leaves_with_path(params), found, strict=True):
        what = f"fsdp: parameter {name_of(path)}"
        for axis in (axis for entry in spec or () for axis in specs.axes_of(entry) if axis in data):
            others = ", ".join(repr(other) for other in on.axes if other not in data) or "none"
            raise UsageError(
                f"{what} has shardings={specs.show(spec)}, which names {axis!r}, the axis that splits the batch. "
                f"Name other axes only ({others}); fsdp chooses the dimension that {axis!r} splits."
            )
        specs.check_leaf(leaf.shape, spec, on, what, "shardings")
    return [specs.trimmed(spec) for spec in found]


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
    return jax.shard_map(
        lambda *arrays: list(run(*arrays)), in_specs=tuple(inputs), out_specs=list(outputs),
        axis_names={axis for axis, _ in one.other_sizes}, check_vma=False,
    )  # fmt: skip


def joint_axes(parameters: Sequence[Parameter]) -> tuple[tuple[str, ...], int]:
    """Return the other axes that split any of some parameters, and the product of their sizes."""
    sizes = dict(parameters[0].other_sizes)
    used = {axis for one in parameters for entry in one.others for axis in specs.axes_of(entry)}
    axes = tuple(axis for axis in sizes if axis in used)
    return axes, math.prod(sizes[axis] for axis in axes)
