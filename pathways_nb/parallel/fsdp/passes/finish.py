"""``finish``: what only completes gradients is done last, so that computation does not wait for a reduction."""

from __future__ import annotations

from pathways_nb.parallel.flat_function import Runnable
from pathways_nb.parallel.fsdp.step_graph import Collective, StepGraph


def finish(graph: StepGraph) -> StepGraph:
    """Return a step that unpacks and converts reduced gradients behind everything else.

    Otherwise the operation behind each reduction would wait for it, although the backward pass needs none of them.
    """
    sent = _sent(graph)
    after = {value for op in graph.collectives if not op.is_gather for value in op.outputs}
    last = list[Runnable]()
    for op in graph.ops:
        if not isinstance(op, Collective) and op not in sent and not after.isdisjoint(op.inputs):
            after.update(op.outputs)
            last.append(op)
    mine = set(last)
    return graph.reordered([*(op for op in graph.ops if op not in mine), *last])


def _sent(graph: StepGraph) -> set[Runnable]:
    """Return the operations on which a collective depends, such as the pack of shards for a second reduction."""
    needed, found = set[int](), set[Runnable]()
    for op in reversed(graph.ops):
        if isinstance(op, Collective) or not needed.isdisjoint(op.outputs):
            needed.update(op.inputs)
            found.add(op)
    return found
