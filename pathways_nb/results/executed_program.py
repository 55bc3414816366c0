"""A program that ran: its graph, where it was placed, and where Python waited for its values.

Runs collect these while they record, files store them, and views draw them. They hold plain data and the graph, not
the program itself, so that a file can hold all of it and a loaded run needs neither JAX nor devices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pathways_nb.plan.graph import Graph


@dataclass
class ExecutedProgram:
    """A program of a run.

    Args:
        graph: the sharded dataflow graph.
        where: island and devices of each virtual slice, by its serial, as text.
        routes: how values travel from one node to another: ``"local"``, ``"ICI"``, ``"DCN"`` or ``"host"``.
        layouts: how the values of each edge are laid out, as text; empty for a run saved before they were recorded.
        runs: how many times it ran.
        needed: where Python waited for its values.
    """

    graph: Graph
    where: Mapping[int, str]
    routes: Mapping[tuple[int, int], str]
    runs: int = 0
    needed: dict[int, tuple[str, int]] = field(default_factory=dict)
    """Nodes for whose value Python waited: the first line that waited, and in how many runs one did."""
    layouts: Mapping[tuple[int, int], str] = field(default_factory=dict)

    def need(self, node: int, line: str, count: int = 1) -> None:
        """Count that Python waited for the value of a node.

        Args:
            node: the node's id.
            line: the line of Python; only the first one is kept.
            count: how many more times.
        """
        # The first line is kept, since a loop waits at one line a million times.
        first, before = self.needed.get(node, (line, 0))
        self.needed[node] = first, before + count
