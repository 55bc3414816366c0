"""Plans that need no cost, and the passes that carry a plan out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
from jax.sharding import PartitionSpec

from pathways_nb.parallel.fsdp.modes import Mode
from pathways_nb.parallel.fsdp.parameters import Parameter, name_of, split_dimension
from pathways_nb.parallel.fsdp.passes import bucket, finish, pace, prefetch, regather, sink
from pathways_nb.parallel.fsdp.plan import FsdpPlan, plan_of
from pathways_nb.parallel.fsdp.step_graph import StepGraph


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
    parts = mode.axes.shard[1]
    more = tuple((axis, size) for axis, size in sizes.items() if axis not in mode.axes.names)
    leaves = jax.tree_util.tree_leaves_with_path(params)
    found = []
    for (path, leaf), wanted, stack, spec in zip(leaves, trainable, stacked, others, strict=True):
        dim = split_dimension(leaf.shape, parts, int(stack), tuple(spec))
        found.append(Parameter(name_of(path), tuple(leaf.shape), leaf.dtype, parts, dim, wanted, stack, spec, more))
    return tuple(found)


def split_again(parameters: Sequence[Parameter], mode: Mode, sizes: Mapping[str, int]) -> tuple[Parameter, ...]:
    """Return the same parameters as another mode or another place splits them; arguments as for ``parameters_of``."""
    parts = mode.axes.shard[1]
    more = tuple((axis, size) for axis, size in sizes.items() if axis not in mode.axes.names)
    return tuple(
        replace(one, parts=parts, other_sizes=more,
                dim=split_dimension(one.shape, parts, int(one.stacked), tuple(one.others)))
        for one in parameters
    )  # fmt: skip


def per_parameter(parameters: Sequence[Parameter], mode: Mode, prefetch: int = 0) -> FsdpPlan:
    """Return the plan with a collective for each parameter."""
    plan = plan_of([[one.name] for one in parameters], prefetch=prefetch, name="per parameter")
    return plan.keeping(not mode.gathers_again)


def per_block(parameters: Sequence[Parameter], mode: Mode, prefetch: int = 1) -> FsdpPlan:
    """Return the plan with a bucket for each block, as FSDP2 wraps transformer blocks.

    A block is everything whose name begins alike up to its last number, such as ``layers.3``; what has no number in its
    name is a bucket of its own for each first part of its name.
    """
    groups: dict[tuple[str, str], list[str]] = {}
    for one in parameters:
        groups.setdefault((block_of(one.name), str(one.dtype)), []).append(one.name)
    return plan_of(groups.values(), prefetch=prefetch, name="per block").keeping(not mode.gathers_again)


def block_of(name: str) -> str:
    """Return the block to which a parameter belongs: its name up to the first number, or its first part."""
    found = re.match(r"(.*?(?:^|\.)\d+)(?:\.|$)", name)
    return found[1] if found else name.split(".")[0]


def applied(graph: StepGraph, plan: FsdpPlan, mode: Mode) -> StepGraph:
    """Return a traced step after the passes that carry out a plan."""
    *_, (_, graph) = stages(graph, plan, mode)
    return graph


def stages(graph: StepGraph, plan: FsdpPlan, mode: Mode) -> Iterator[tuple[str, StepGraph]]:
    """Yield the step after each pass that carries out a plan, with the name of the pass."""
    at = {one.name: position for position, one in enumerate(graph.parameters)}

    def positions(buckets: Iterable[Any]) -> list[list[int]]:
        return [[at[name] for name in one.params] for one in buckets]

    yield "sink", (graph := sink(graph))
    if mode.gathers_again:
        yield "regather", (graph := regather(graph, keep={at[name] for name in plan.kept}))
    yield "bucket", (graph := bucket(graph, positions(plan.buckets), positions(plan.reduced)))
    yield "prefetch", (graph := prefetch(graph, plan.prefetch))
    yield "finish", (graph := finish(graph))
    yield "pace", pace(graph)
