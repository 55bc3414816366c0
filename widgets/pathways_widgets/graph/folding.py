"""From a program's graph to what is drawn of it: repeated nodes folded into one, edges with bytes and route.

A graph of more than ``MOST_NODES`` nodes, or deeper than a screen is wide, has nodes of the same kind, name and
place folded into one that says how many it stands for. Folding may turn a chain into a cycle.
"""

from __future__ import annotations

from dataclasses import dataclass

from pathways_nb.plan.graph import Edge, Graph, Node
from pathways_widgets.drawing.views import DrawnProgram
from pathways_widgets.graph.layered_layout import layers_of

MOST_NODES = 60
MOST_LAYERS = 12
_ROUTES = ("", "local", "host", "ICI", "DCN")
NETWORKS = frozenset({"ICI", "DCN"})


@dataclass(frozen=True)
class DrawnNode:
    """One box: the first of ``count`` nodes that it stands for, and the bytes that all of them produce."""

    node: Node
    count: int
    bytes: int
    shapes: str
    ids: tuple[int, ...]
    """The nodes that it stands for."""

    @property
    def title(self) -> str:
        """The name, with how many."""
        return f"{self.node.name} ×{self.count}" if self.count > 1 else self.node.name


@dataclass(frozen=True)
class DrawnEdge:
    """``bytes`` that flow between two boxes, over ``route``."""

    source: int
    target: int
    bytes: int
    route: str

    @property
    def is_transfer(self) -> bool:
        """Whether it leaves a place over a network."""
        return self.route in NETWORKS


def drawn(program: DrawnProgram, folded: bool = False) -> tuple[list[DrawnNode], list[DrawnEdge]]:
    """The boxes, in an order that respects dependencies where there is one, and the edges between them.

    Args:
        program: what to draw.
        folded: whether repeats are folded even in a small graph.
    """
    graph = program.graph
    edges = list(graph.edges())
    groups = _folded(graph) if folded or _is_large(graph, edges) else [[node] for node in graph.nodes]
    box = {node.id: i for i, group in enumerate(groups) for node in group}
    size: dict[tuple[int, int], int] = {}
    route: dict[tuple[int, int], str] = {}
    for edge in edges:
        pair = box[edge.source], box[edge.target]
        if pair[0] != pair[1]:
            size[pair] = size.get(pair, 0) + edge.bytes
            way = program.routes.get((edge.source, edge.target), "local")
            route[pair] = max(route.get(pair, ""), way, key=_distance)
    return [_box(graph, group) for group in groups], [DrawnEdge(*pair, size[pair], route[pair]) for pair in size]


def _is_large(graph: Graph, edges: list[Edge]) -> bool:
    position = {node.id: i for i, node in enumerate(graph.nodes)}
    pairs = [(position[edge.source], position[edge.target]) for edge in edges]
    return len(graph.nodes) > MOST_NODES or max(layers_of(len(graph.nodes), pairs), default=0) >= MOST_LAYERS


def _folded(graph: Graph) -> list[list[Node]]:
    groups: dict[tuple[str, str, int], list[Node]] = {}
    for node in graph.nodes:
        key = node.kind, node.name, node.place.serial if node.place else -1
        groups.setdefault(key, []).append(node)
    return list(groups.values())


def _box(graph: Graph, group: list[Node]) -> DrawnNode:
    made = [graph.values[value] for node in group for value in node.outputs]
    shapes = ", ".join(dict.fromkeys(map(str, made[:4]))) + (" …" if len(made) > 4 else "")
    return DrawnNode(group[0], len(group), sum(value.bytes for value in made), shapes, tuple(node.id for node in group))


def _distance(route: str) -> int:
    """Further is greater: folded edges show the furthest way that any of them goes."""
    return _ROUTES.index(route) if route in _ROUTES else 0
