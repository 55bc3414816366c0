"""``prefetch``: a gather begins before the one in front of it is waited for, so that computation hides it."""

from __future__ import annotations

from collections.abc import Mapping

from pathways_nb.parallel.fsdp.passes.moving import moved
from pathways_nb.parallel.fsdp.step_graph import Collective, StepGraph


def prefetch(graph: StepGraph, distance: int = 1) -> StepGraph:
    """Return a step that issues each gather before the first use of the gather ``distance`` in front of it.

    That is the order in which SimpleFSDP issues them (section 3.2): ``AG12 AG34 wait12 C1 C2 wait34 …``. A distance of
    1 holds two buckets at once, and each more holds one more.

    Args:
        graph: the step.
        distance: how many gathers are under way before their turn.
    """
    return moved(graph, issues(graph, distance)) if distance else graph


def issues(graph: StepGraph, distance: int) -> Mapping[Collective, int]:
    """Return the position in front of which each gather is issued."""
    gathers = [op for op in graph.collectives if op.is_gather]
    waits = [graph.first_reader(op.outputs) for op in gathers]
    return {
        op: min(waits[max(number - distance, 0)], graph.positions[op]) for number, op in enumerate(gathers) if number
    }
