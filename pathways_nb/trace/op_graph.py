"""The operations inside a launch as a graph, folded by module: what of a step reads what, and for how long it runs.

Operations that are alike are one: those of the same module, line, phase and kind, in every block and pass of a loop. So
ten thousand instructions become a few hundred operations. They are made in ``adopt.module_graph`` and drawn in
``widgets.graph``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from pathways_nb.plan.source_texts import SourceTexts
from pathways_nb.trace.launch_ops import OpKind, Phase

REPEATED = " × "
"""Between the name of repeated blocks and their number."""


class GraphOp(NamedTuple):
    """Operations of one module that are alike.

    Args:
        path: the modules and scopes that they are in, the outermost first; repeated blocks are one, ``"layers × 32"``.
        name: such as ``"dot_general"``; of a collective HLO's word, ``"all-gather"``.
        kind: of work.
        phase: part of the step.
        line: of the user's code; empty if unknown.
        times: executions in a step.
        seconds: in a step.
        exposed: seconds in a step in which a collective or a copy has no computation over it.
        in_others: whether blocks that were not compiled have it, too; see ``OpGraph.others``.
    """

    path: tuple[str, ...]
    name: str
    kind: OpKind
    phase: Phase
    line: str
    times: float
    seconds: float
    exposed: float
    in_others: bool = False


class GraphEdge(NamedTuple):
    """Values that some operations make and others read.

    Args:
        source: position of what makes them.
        target: position of what reads them.
        bytes: of all of them in a step.
    """

    source: int
    target: int
    bytes: float


@dataclass(frozen=True)
class OpGraph:
    """The operations of a launch, and what reads what.

    ``Op.node`` of an op of the launch is the position of its operation here, counted from 1.

    Args:
        ops: in the order in which they first run.
        edges: between different ones.
        texts: of the lines that they are from.
    """

    ops: tuple[GraphOp, ...] = ()
    edges: tuple[GraphEdge, ...] = ()
    texts: SourceTexts = field(default_factory=SourceTexts)

    @property
    def others(self) -> int:
        """``Op.node`` of an op that stands for the blocks that were not compiled."""
        return len(self.ops) + 1

    def nodes_of(self, position: int) -> tuple[int, ...]:
        """Return ``Op.node`` of all ops that have part in an operation.

        Args:
            position: of the operation.
        """
        return (position + 1, self.others) if self.ops[position].in_others else (position + 1,)
