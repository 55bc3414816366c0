"""``sink``: each parameter is gathered where it is first used, so that its whole array lives no longer than needed."""

from __future__ import annotations

from pathways_nb.parallel.fsdp.passes.moving import moved
from pathways_nb.parallel.fsdp.step_graph import StepGraph


def sink(graph: StepGraph) -> StepGraph:
    """Return a step that gathers each parameter immediately before the first operation that reads it.

    Before the pass, every gather stands in front of the whole step, as a function that gathers its parameters when it
    is called would write it.
    """
    gathers = [op for op in graph.collectives if op.is_gather]
    return moved(graph, {op: graph.first_reader(op.outputs) for op in gathers})
