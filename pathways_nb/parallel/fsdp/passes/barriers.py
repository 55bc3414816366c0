"""Makes the compiler keep the order of gathers, which it would otherwise move to the front (measured on CPU).

An order is kept only where data make it necessary. A bound gather reads its shards through a barrier together with a
value that the operations in front of it have made, and later operations read that value behind the barrier, too: a
barrier whose results nobody reads is removed.
"""

from __future__ import annotations

import jax.numpy as jnp

from pathways_nb.parallel.flat_function import Runnable
from pathways_nb.parallel.fsdp.passes.ordering import feeders
from pathways_nb.parallel.fsdp.step_graph import Collective, StepGraph, barrier, operation, renamed


def with_barriers(graph: StepGraph) -> StepGraph:
    """Return the step with the barriers that bind its bound gathers; the last thing that is done before it runs."""
    ties = {tie.anchor: tie for op in graph.collectives if op.bound if (tie := _tie(graph, op)) is not None}
    names: dict[int, int] = {}
    ops: list[Runnable] = []
    inside: dict[Runnable, dict[int, int]] = {}
    for op in graph.ops:
        if (tie := ties.get(op)) is not None:
            outside = names.get(tie.value, tie.value)
            fresh = {value: graph.new(graph.flat.avals[value]) for value in (*tie.shards, tie.value)}
            ops.append(operation("barrier", (*tie.shards, outside), tuple(fresh.values()), barrier))
            names[tie.value] = fresh.pop(tie.value)
            inside.update(dict.fromkeys(tie.members, fresh))
        ops.append(renamed(renamed(op, inside.get(op, {})), names))
    return graph.with_ops(ops)


class _Tie:
    """What binds one gather: its shards, a value that was made in front of it, and the operations that send it."""

    def __init__(self, members: list[Runnable], shards: tuple[int, ...], value: int):
        self.members, self.shards, self.value, self.anchor = members, shards, value, members[0]


def _tie(graph: StepGraph, gather: Collective) -> _Tie | None:
    members: list[Runnable] = [*feeders(graph, gather), gather]
    made = {value for op in members for value in op.outputs}
    shards = tuple(dict.fromkeys(value for op in members for value in op.inputs if value not in made))
    at = graph.positions[members[0]]
    for op in reversed(graph.ops[:at]):
        if not isinstance(op, Collective) and op.name not in ("pack", "unpack", "convert"):
            for value in op.outputs:
                floating = jnp.issubdtype(graph.flat.avals[value].dtype, jnp.floating)
                if floating and any(graph.positions[r] > at and r not in members for r in graph.readers.get(value, ())):
                    return _Tie(members, shards, value)
    return None
