"""Plans that need no cost, and the passes that carry a plan out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
from jax.sharding import PartitionSpec

from pathways_nb.parallel.fsdp.fsdp_plan import FsdpPlan, plan_of
from pathways_nb.parallel.fsdp.modes import Mode
from pathways_nb.parallel.fsdp.passes.plan_passes import IndexedPlan, carried_out
from pathways_nb.parallel.fsdp.sharded_parameter import Parameter, split_dimension
from pathways_nb.parallel.fsdp.step_graph import StepGraph
from pathways_nb.parallel.parameter_trees import name_of

MOST_WHOLE, SHARE_WHOLE = 2**20, 1e-3
"""Up to how many bytes, and up to which share of all parameters, a parameter is small."""


def parameters_of(
    params: Any,
    trainable: Sequence[bool],
    stacked: Sequence[bool],
    others: Sequence[PartitionSpec],
    mode: Mode,
    sizes: Mapping[str, int],
) -> tuple[Parameter, ...]:
    """Return the leaves of a tree of parameters, each with the dimension that is split.

    Args:
        params: the tree, as shapes.
        trainable: of each leaf, whether it has a gradient.
        stacked: of each leaf, whether it is a stack of layers, which is not split along its first dimension.
        others: of each leaf, its partition over axes that do not split the batch.
        mode: the mode.
        sizes: of the axes of the place.
    """
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return split_again(
        [Parameter(name_of(path), tuple(leaf.shape), leaf.dtype, 1, None, wanted, stack, spec)
         for (path, leaf), wanted, stack, spec in zip(leaves, trainable, stacked, others, strict=True)],
        mode, sizes,
    )  # fmt: skip


def split_again(parameters: Sequence[Parameter], mode: Mode, sizes: Mapping[str, int]) -> tuple[Parameter, ...]:
    """Return the same parameters as another mode or another place splits them; arguments as for ``parameters_of``."""
    # The limit is that of the model, not of the parts, so that another number of devices keeps the same ones whole.
    parts, limit = mode.axes.shard[1], whole_below(parameters)
    more = tuple((axis, size) for axis, size in sizes.items() if axis not in mode.axes.names)
    split = [
        replace(one, parts=parts, other_sizes=more,
                dim=split_dimension(one.shape, parts, int(one.stacked), tuple(one.others)))
        for one in parameters
    ]  # fmt: skip
    return tuple(one.whole if one.padded != one.shape and one.bytes < limit else one for one in split)


def whole_below(parameters: Sequence[Parameter]) -> float:
    """Return the bytes below which a parameter that no number of devices divides stays whole on each device."""
    return min(MOST_WHOLE, sum(one.bytes for one in parameters) * SHARE_WHOLE)


def per_parameter(parameters: Sequence[Parameter], mode: Mode, prefetch: int = 0) -> FsdpPlan:
    """Return the plan with a collective for each parameter."""
    plan = plan_of([[one.name] for one in parameters], prefetch=prefetch, name="per parameter")
    return plan.keeping(not mode.gathers_again)


def per_block(parameters: Sequence[Parameter], mode: Mode, prefetch: int = 1) -> FsdpPlan:
    """Return the plan with a bucket for each block, as FSDP2 wraps transformer blocks.

    A block is everything whose name begins alike up to its last number, such as ``layers.3``; what has no number in its
    name is a bucket of its own for each first part of its name.
    """
    groups: dict[tuple[str, str], list[str]] = {}  # by dtype as well: one collective carries one dtype
    for one in parameters:
        groups.setdefault((block_of(one.name), str(one.dtype)), []).append(one.name)
    return plan_of(groups.values(), prefetch=prefetch, name="per block").keeping(not mode.gathers_again)


def block_of(name: str) -> str:
    """Return the block to which a parameter belongs: its name up to the first number, or its first part."""
    found = re.match(r"(.*?(?:^|\.)\d+)(?:\.|$)", name)
    return found[1] if found else name.split(".")[0]


def applied(graph: StepGraph, plan: FsdpPlan, mode: Mode) -> StepGraph:
    """Return a traced step after the passes that carry out a plan."""
    *_, (_, graph) = after_each_pass(graph, plan, mode)
    return graph


def after_each_pass(graph: StepGraph, plan: FsdpPlan, mode: Mode) -> Iterator[tuple[str, StepGraph]]:
    """Return the step after each pass that carries out a plan, with the name of the pass."""
    return carried_out(graph, indexed_plan(plan, graph.parameters), mode.gathers_again)


def indexed_plan(plan: FsdpPlan, parameters: Sequence[Parameter]) -> IndexedPlan:
    """Return a plan by positions of parameters."""
    at = {one.name: position for position, one in enumerate(parameters)}
    forward, backward = (tuple(tuple(at[name] for name in one.params) for one in side)
                         for side in (plan.buckets, plan.reduced))  # fmt: skip
    return IndexedPlan(forward, backward, plan.prefetch, frozenset(at[name] for name in plan.kept), plan.passes)
