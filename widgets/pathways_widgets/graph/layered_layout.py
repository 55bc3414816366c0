"""A layered layout for graphs whose nodes come in an order that respects their dependencies (after Sugiyama).

Four steps: layers by the longest path; an invisible node (a bend) wherever an edge passes through a layer; sweeps that
order each layer by the barycentre of its neighbours, against crossings; heights by isotonic regression, so that each
node is as near to its neighbours as order and spacing allow. Edges against the order, which folding can make, are not
layered. Positions are in pixels, y downwards.

Written here because the libraries with as few crossings are external programs, under the GPL or EPL, or JavaScript.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

Edges = Sequence[tuple[int, int]]

LONGEST_BENT = 8
"""Edges over more layers are drawn straight: bends for all edges would be quadratic in long chains."""
SWEEPS = 8
_BEND_HEIGHT = 10.0


@dataclass(frozen=True)
class LayeredLayout:
    """Positions of nodes and bends.

    Args:
        layer: layer of each node.
        y: centre height of each node.
        bends: for each edge the (layer, height) where it passes through the layers between.
        height: height of the whole in pixels.
    """

    layer: list[int]
    y: list[float]
    bends: dict[tuple[int, int], list[tuple[int, float]]]
    height: float


def layered(heights: Sequence[float], edges: Edges, gap: float = 16.0) -> LayeredLayout:
    """Return a layout of the nodes.

    Args:
        heights: height of each node in pixels.
        edges: pairs of positions of nodes.
        gap: least space in pixels between two nodes of a layer.
    """
    count = len(heights)
    layer = layers_of(count, edges)
    # An edge back to an earlier layer gets no bends: it is drawn as one curve below both boxes.
    forward, bends = _with_bends(layer, [edge for edge in edges if layer[edge[0]] < layer[edge[1]]])
    total = len(layer)
    above: list[list[int]] = [[] for _ in range(total)]
    below: list[list[int]] = [[] for _ in range(total)]
    for source, target in forward:
        above[target].append(source)
        below[source].append(target)
    rows: list[list[int]] = [[] for _ in range(max(layer, default=-1) + 1)]
    for node, row in enumerate(layer):
        rows[row].append(node)
    _untangle(rows, above, below)
    # (nodes and bends,) pixels. A bend takes room like a thin node, so that no box lies on its edge.
    sizes = np.array([*heights, *[_BEND_HEIGHT] * (total - count)])
    y = _straighten(rows, above, below, sizes, gap)
    # Heights were fitted around 0; a picture begins at the upper side of its highest node.
    y -= min((y - sizes / 2).tolist(), default=0.0)
    through = {edge: [(layer[bend], float(y[bend])) for bend in chain] for edge, chain in bends.items()}
    return LayeredLayout(layer[:count], y[:count].tolist(), through, float(max((y + sizes / 2).tolist(), default=0.0)))


def layers_of(count: int, edges: Edges) -> list[int]:
    """Return the layer of each node: after all its producers; a node without producers just before its first consumer.

    Arguments are drawn next to their consumers in this way, not all in the first layer.

    Args:
        count: number of nodes.
        edges: pairs of positions of nodes; those against the order are ignored.
    """
    layer = [0] * count
    # By target: all edges into a node come before those out of it, so one pass finds the longest path to each.
    forward = sorted((edge for edge in edges if edge[0] < edge[1]), key=lambda edge: edge[1])
    for source, target in forward:
        layer[target] = max(layer[target], layer[source] + 1)
    consumed = {target for _, target in forward}
    first: dict[int, int] = {}
    for source, target in forward:
        first[source] = min(first.get(source, layer[target]), layer[target])
    for source, nearest in first.items():
        # Nothing before an argument forces its layer; next to its first consumer its edge is shortest.
        if source not in consumed:
            layer[source] = nearest - 1
    return layer


def _with_bends(layer: list[int], edges: Edges) -> tuple[list[tuple[int, int]], dict[tuple[int, int], list[int]]]:
    """Split edges at the layers they pass through; append the layer of each bend to ``layer``.

    Args:
        layer: layer of each node; extended here.
        edges: pairs of positions of nodes.

    Returns:
        The parts of all edges, and the bends of each edge.
    """
    split: list[tuple[int, int]] = []
    bends: dict[tuple[int, int], list[int]] = {}
    for source, target in edges:
        span = layer[target] - layer[source]
        # Bends are nodes with the next free numbers, one for each layer that the edge passes through.
        chain = list(range(len(layer), len(layer) + span - 1)) if span <= LONGEST_BENT else []
        layer.extend(layer[source] + step + 1 for step in range(len(chain)))
        bends[source, target] = chain
        stops = [source, *chain, target]
        split.extend(pairwise(stops))
    return split, bends


def _untangle(rows: list[list[int]], above: list[list[int]], below: list[list[int]]) -> None:
    """Order each layer by the mean position of its neighbours, sweeping down and up in turn."""
    position = {node: float(i) for row in rows for i, node in enumerate(row)}
    for sweep in range(SWEEPS):
        # Downwards a layer follows the one before it, upwards the one after it: sweeps in one direction only would
        # never move the layer they start from.
        near = below if sweep % 2 else above
        for row in reversed(rows) if sweep % 2 else rows:
            # A node without neighbours in that direction stays where it is.
            mean = {
                node: sum(position[other] for other in near[node]) / len(near[node]) if near[node] else position[node]
                for node in row
            }
            row.sort(key=mean.__getitem__)
            position.update((node, float(i)) for i, node in enumerate(row))


def _straighten(
    rows: list[list[int]], above: list[list[int]], below: list[list[int]], sizes: np.ndarray, gap: float
) -> np.ndarray:
    """Return heights: in each layer the least squares fit to the neighbours' heights that keeps order and spacing.

    Args:
        rows: nodes of each layer, in order.
        above: for each node its neighbours in the layer before.
        below: for each node its neighbours in the layer after.
        sizes: height of each node.
        gap: least space between two nodes.
    """
    y = np.zeros(len(sizes))
    for sweep in range(SWEEPS):
        for row in reversed(rows) if sweep % 2 else rows:
            near = [above[node] + below[node] for node in row]
            # (nodes of the layer,) the mean height of the neighbours of each.
            wanted = [
                float(np.mean(y[other])) if other else float(y[node]) for node, other in zip(row, near, strict=True)
            ]
            half = sizes[row] / 2
            # Least distance from the first node of the layer. Without it, order and spacing together say only that
            # heights must not fall, and for that the nearest fit has a simple exact solution.
            offset = np.concatenate([[0.0], np.cumsum(half[:-1] + half[1:] + gap)])
            y[row] = _isotonic(np.array(wanted) - offset) + offset
    return y


def _isotonic(wanted: np.ndarray) -> np.ndarray:
    """Return the non-decreasing sequence nearest to ``wanted``, by pooling adjacent violators."""
    pools: list[tuple[float, int]] = []
    for value in wanted.tolist():
        mean, size = value, 1
        # A value below the mean before it cannot stay: the nearest that both can be is their common mean.
        while pools and pools[-1][0] > mean:
            before, many = pools.pop()
            mean, size = (before * many + mean * size) / (many + size), many + size
        pools.append((mean, size))
    return np.concatenate([np.full(size, mean) for mean, size in pools])
