"""The order of a program with an exchange between islands (``pw.all_reduce``): what is made leaves at once.

Other values move just before they are read. Values that are added at several places move as soon as all places have
made their part, so that they travel under the rest of the backward pass. Programs without an exchange keep their order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping

from pathways_nb.plan.graph import Graph, Node


def interleaved(graph: Graph, island_of: Mapping[int, int]) -> list[Node]:
    """Return the nodes that run so that islands take turns, each in program order, and every dependency is respected.

    The islands of an exchange do the same at the same time, though a program has one's nodes before the other's. In
    this order, the transfer of a value stands where both islands have made their part.

    Args:
        graph: the graph.
        island_of: the island of each place, by the place's serial.
    """
    producer = graph.producer()
    queues: dict[int, deque[Node]] = {}
    # Arguments are there from the beginning.
    done = {node.id for node in graph.nodes if node.place is None}
    for node in graph.nodes:
        if node.place is not None:
            queues.setdefault(island_of[node.place.serial], deque()).append(node)
    found: list[Node] = []
    # It ends: of the nodes left, the first in program order depends on none of the others and heads its queue.
    while any(queues.values()):
        for waiting in filter(None, queues.values()):
            if all(producer[value] in done for value in waiting[0].inputs):
                found.append(waiting.popleft())
                done.add(found[-1].id)
    return found


class Exchanges:
    """The exchanged values of a graph that are still to be made.

    Args:
        graph: the graph.
        is_made: whether a node makes a value; an argument is there from the beginning.
    """

    def __init__(self, graph: Graph, is_made: Callable[[int], bool]):
        self._of: dict[int, list[tuple[tuple[int, ...], set[int]]]] = {}
        """By value: the values that it is added to, and those of them that are still to be made."""
        for values in graph.exchanged:
            made = tuple(filter(is_made, values))
            # One set for all values of the exchange, so that whichever is made last empties it.
            entry = made, set(made)
            for value in made:
                self._of.setdefault(value, []).append(entry)
        self._readers: dict[int, dict[int, int]] = {}
        """By value: the places that read it, each with the first node there that does."""
        # Most programs exchange nothing, and need no table of readers.
        for node in graph.nodes if self._of else ():
            for value in node.inputs if node.place is not None else ():
                assert node.place is not None
                self._readers.setdefault(value, {}).setdefault(node.place.serial, node.id)

    def after(self, made: tuple[int, ...]) -> Iterator[tuple[int, int, int]]:
        """Yield what is to be sent once a node has made these values: a value, the place, the first node to read it."""
        for values, missing in [entry for value in made for entry in self._of.get(value, ())]:
            # Sent once: by the node that makes the last of the values, and by none after it.
            before = bool(missing)
            missing.difference_update(made)
            if before and not missing:
                yield from ((value, *reader) for value in values for reader in self._readers.get(value, {}).items())
