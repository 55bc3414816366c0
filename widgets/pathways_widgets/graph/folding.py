"""From a program's graph to the boxes and edges that are drawn, with repeated nodes folded into one box.

A graph of more than ``MOST_NODES`` nodes, or with ``MOST_LAYERS`` layers or more, does not fit a screen. Its nodes of
the same kind, name and virtual slice become one box with a count: the microbatches of a stage, for instance. Of more
than ``MOST_ARGUMENTS`` arguments, as the leaves of a model and its optimiser, those that are numbered and read alike
are folded in any graph. Folding may turn a chain into a cycle, so the layout must not rely on an order of the boxes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pathways_nb.plan.graph import Edge, Graph, Node
from pathways_nb.trace.metrics import size
from pathways_widgets.drawing.views import DrawnProgram
from pathways_widgets.graph.layered_layout import layers_of

MOST_NODES = 60
MOST_LAYERS = 12
MOST_ARGUMENTS = 8
MOST_LAYOUTS = 3
"""Different layouts that an edge for several others names."""
_ROUTES = ("", "local", "host", "ICI", "DCN")
"""From the nearest to the farthest."""
NETWORKS = frozenset({"ICI", "DCN"})
_NUMBER = re.compile(r"_\d+$")


@dataclass(frozen=True)
class DrawnNode:
    """One box.

    Args:
        node: the first of the nodes that it stands for.
        count: how many nodes it stands for.
        bytes: bytes that all of them produce.
        shapes: shapes of their outputs, as text.
        ids: ids of all of them.
    """

    node: Node
    count: int
    bytes: int
    shapes: str
    ids: tuple[int, ...]
    """Ids of the nodes that it stands for."""

    @property
    def title(self) -> str:
        """The name, with the count if there are several."""
        return f"{self.node.name} ×{self.count}" if self.count > 1 else self.node.name


@dataclass(frozen=True)
class DrawnEdge:
    """All values that flow from one box to another.

    Args:
        source: position of the box that produces them.
        target: position of the box that reads them.
        bytes: their size in all.
        route: ``"local"``, ``"host"``, ``"ICI"`` or ``"DCN"``.
        layouts: how they are laid out, as text; equal texts once.
    """

    source: int
    target: int
    bytes: int
    route: str
    layouts: str = ""

    @property
    def is_transfer(self) -> bool:
        """Whether the values cross a network."""
        return self.route in NETWORKS

    @property
    def label(self) -> str:
        """How much crosses which network, as text."""
        return f"{size(self.bytes)} {self.route}"


def drawn(program: DrawnProgram, folded: bool | None = None) -> tuple[list[DrawnNode], list[DrawnEdge]]:
    """Return the boxes and the edges between them; boxes are in an order that respects dependencies where there is one.

    Args:
        program: what to draw.
        folded: whether to fold repeated nodes; ``None`` for those of a large graph.
    """
    graph = program.graph
    edges = list(graph.edges())
    groups = _folded(graph, edges, is_large(graph) if folded is None else folded)
    box = {node.id: i for i, group in enumerate(groups) for node in group}
    size: dict[tuple[int, int], int] = {}
    route: dict[tuple[int, int], str] = {}
    layouts: dict[tuple[int, int], dict[str, None]] = {}
    for edge in edges:
        pair = box[edge.source], box[edge.target]
        # Edges between nodes of one box have no place to be drawn.
        if pair[0] != pair[1]:
            size[pair] = size.get(pair, 0) + edge.bytes
            way = program.routes.get((edge.source, edge.target), "local")
            # One edge stands for many values: it shows the farthest way that any of them takes.
            route[pair] = max(route.get(pair, ""), way, key=lambda one: _ROUTES.index(one) if one in _ROUTES else 0)
            if text := program.layouts.get((edge.source, edge.target)):
                # A dict and not a set, so that texts stay in the order of their edges.
                layouts.setdefault(pair, {})[text] = None
    found = []
    for pair, count in size.items():
        texts = list(layouts.get(pair, ()))  # of very many, a tooltip has room for the first only
        named = [*texts[:MOST_LAYOUTS], *(["…"] if len(texts) > MOST_LAYOUTS else [])]
        found.append(DrawnEdge(*pair, count, route[pair], "; ".join(named)))
    return [_box(graph, group) for group in groups], found


def is_large(graph: Graph) -> bool:
    """Return whether a graph has too many nodes, or too long a chain, for a screen."""
    if len(graph.nodes) > MOST_NODES:
        return True
    position = {node.id: i for i, node in enumerate(graph.nodes)}
    pairs = [(position[edge.source], position[edge.target]) for edge in graph.edges()]
    return max(layers_of(len(graph.nodes), pairs), default=0) >= MOST_LAYERS


def _folded(graph: Graph, edges: list[Edge], is_folded: bool) -> list[list[Node]]:
    """Return the nodes in groups of the same kind, name and virtual slice; arguments by what reads them, too.

    Args:
        graph: whose nodes.
        edges: of the graph.
        is_folded: whether to fold what is no argument, and few arguments.
    """
    arguments = sum(node.kind == "argument" for node in graph.nodes)
    if not is_folded and arguments <= MOST_ARGUMENTS:
        return [[node] for node in graph.nodes]
    # The slice counts as well: what runs elsewhere is another box, or edges between slices would vanish.
    keys = {
        node.id: (node.kind, node.name, node.place.serial if node.place else -1) if is_folded else node.id
        for node in graph.nodes
    }
    readers: dict[int, set[object]] = {node.id: set() for node in graph.nodes}
    for edge in edges:
        readers[edge.source].add(keys[edge.target])
    groups: dict[object, list[Node]] = {}
    for node in graph.nodes:
        # Arguments of calls that are repeated are numbered, and would be a column of boxes as long as the loop.
        named_alike = _NUMBER.sub("", node.name), frozenset(readers[node.id])
        groups.setdefault(named_alike if node.kind == "argument" else keys[node.id], []).append(node)
    return list(groups.values())


def _box(graph: Graph, group: list[Node]) -> DrawnNode:
    """Return the box of a group of nodes; at most four shapes of its outputs are named."""
    made = [graph.values[value] for node in group for value in node.outputs]
    shapes = ", ".join(dict.fromkeys(map(str, made[:4]))) + (" …" if len(made) > 4 else "")
    return DrawnNode(group[0], len(group), sum(value.bytes for value in made), shapes, tuple(node.id for node in group))
