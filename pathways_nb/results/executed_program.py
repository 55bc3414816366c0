"""One program of a run: what ran, where it lay, and where Python stopped for its values.

Runs collect these as they record, files keep them, and views draw them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pathways_nb.plan.graph import Graph


@dataclass
class ExecutedProgram:
    """A program of a run: its graph, where its places lie, how values travel, how often it ran."""

    graph: Graph
    where: Mapping[int, str]
    routes: Mapping[tuple[int, int], str]
    runs: int = 0
    needed: dict[int, tuple[str, int]] = field(default_factory=dict)
    """Nodes for whose value Python stopped: the first line that did, and after how many of the runs."""

    def need(self, node: int, line: str, count: int = 1) -> None:
        """Count that Python stopped ``count`` more times for the value of ``node``, this time at ``line``."""
        first, before = self.needed.get(node, (line, 0))
        self.needed[node] = first, before + count
