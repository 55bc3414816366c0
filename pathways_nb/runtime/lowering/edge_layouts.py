"""How values are laid out where they leave and where they arrive, in words for the edges of a graph's picture."""

from __future__ import annotations

from typing import Any

from jax.sharding import NamedSharding

from pathways_nb.plan.graph import Edge, Node
from pathways_nb.program.specs import show, trimmed
from pathways_nb.runtime.lowering.compiled_plan import CompiledPlan

MOST_VALUES = 3
"""Values of an edge that are named one by one."""


def edge_layouts(compiled: CompiledPlan) -> dict[tuple[int, int], str]:
    """Return, by source and target, how the values of each edge are laid out; they have one layout on the host."""
    plan = compiled.plan
    slots = {(slot.value, slot.place): number for number, slot in enumerate(plan.slots)}
    nodes = {node.id: node for node in plan.graph.nodes}

    def layout(value: int, node: Node) -> str:
        number = slots.get((value, node.place.serial)) if node.place is not None else None
        if number is None or node.place is None:
            return ""
        return f"{_words(compiled.shardings[number], plan.graph.values[value].shape)} on {node.place.label}"

    def words(edge: Edge, value: int) -> str:
        ends = [layout(value, nodes[node]) for node in (edge.source, edge.target)]
        return f"{plan.graph.values[value]} as {' → '.join(dict.fromkeys(filter(None, ends)))}" if any(ends) else ""

    found = {}
    for edge in plan.graph.edges():
        texts = [text for value in edge.values[:MOST_VALUES] if (text := words(edge, value))]
        more = ["…"] if len(edge.values) > MOST_VALUES else []
        if texts:
            found[edge.source, edge.target] = "; ".join([*texts, *more])
    return found


def _words(sharding: Any, shape: tuple[int, ...]) -> str:
    """Return a sharding in words, with the shape of its blocks if it splits the array."""
    words = show(trimmed(sharding.spec)) if isinstance(sharding, NamedSharding) else type(sharding).__name__
    block = sharding.shard_shape(shape)
    return f"{words} (blocks of {' × '.join(map(str, block))})" if block != shape else words
