"""A program that ran: its graph, where it was placed, and where Python waited for its values.

Runs collect these while they record, files store them, and views draw them. They hold plain data and the graph, not
the program itself, so that a file can hold all of it and a loaded run needs neither JAX nor devices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pathways_nb.plan.graph import Graph
from pathways_nb.runtime.lowering.edge_layouts import edge_layouts

if TYPE_CHECKING:
    from pathways_nb.runtime.entries import Entry
    from pathways_nb.runtime.run_state import RunState


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


class ExecutedPrograms:
    """The programs of one run, in the order of their first call."""

    def __init__(self) -> None:
        # By plan, not by graph: placed elsewhere, the same graph has other routes.
        self.by_plan: dict[Any, ExecutedProgram] = {}
        self._fetched: set[tuple[int, int]] = set()
        """Pairs (run, node) for which Python has waited; each counts once."""

    def add(self, run: RunState) -> None:
        """Count a call that was submitted."""
        plan = run.compiled_plan.plan
        if plan not in self.by_plan:
            layouts = edge_layouts(run.compiled_plan)
            self.by_plan[plan] = ExecutedProgram(plan.graph, plan.where(), plan.routes(), layouts=layouts)
        self.by_plan[plan].runs += 1

    def need(self, run: RunState, entry: Entry, line: str) -> None:
        """Count that Python waited for a value that a call made, before anything later is dispatched.

        Args:
            run: the call, one of those that were added.
            entry: the stored value.
            line: the line of Python.
        """
        plan = run.compiled_plan.plan
        step = plan.steps[entry.step]
        if step.kind == "move":  # a host made it, and it was put onto devices
            step = plan.steps[step.producers[0]]
        # A "bring" is no node: the program returns an argument, so Python waits for the result itself.
        node = step.node if step.kind in ("launch", "host") else plan.graph.nodes[-1].id
        if (run.serial, node) not in self._fetched:
            self._fetched.add((run.serial, node))
            self.by_plan[plan].need(node, line)

    def absorb(self, inner: ExecutedPrograms) -> None:
        """Add what a recording within this one contains."""
        for key, program in inner.by_plan.items():
            # A copy without counts: the inner recording keeps counting its own calls.
            same = ExecutedProgram(program.graph, program.where, program.routes, layouts=program.layouts)
            own = self.by_plan.setdefault(key, same)
            own.runs += program.runs
            for node, (line, count) in program.needed.items():
                own.need(node, line, count)
