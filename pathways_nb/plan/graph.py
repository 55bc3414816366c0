"""The sharded dataflow graph: one node per *sharded* computation, whatever its number of shards.

This is the device-agnostic graph of Pathways, sections 4.2 and 4.3: a chain A -> B over N shards is four nodes
(argument, A, B, result) for any N. Edges between shards, of which M producers and N consumers would have M x N, never
exist in the controller.

``program`` traces Python into this graph, ``plan_lowering`` gives it devices. Nothing in this module knows JAX, devices
or threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple

from pathways_nb.plan.virtual_slice import VirtualSlice
from pathways_nb.util.words import counted

NodeKind = Literal["argument", "computation", "operations", "host", "result"]


@dataclass(frozen=True, slots=True)
class Value:
    """One logical array.

    Args:
        id: position in the graph's ``values``.
        shape: global shape.
        dtype: name of the type.
        bytes: size of all shards together, without copies.
    """

    id: int
    shape: tuple[int, ...]
    dtype: str
    bytes: int

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


class ActionKey(NamedTuple):
    """Which action of a pipeline a node is; ``token_slice`` is -1 if sequences are not sliced."""

    stage: int = -1
    microbatch: int = -1
    token_slice: int = -1


@dataclass(frozen=True, slots=True)
class Node:
    """One sharded computation, one group of ordinary operations, host work, one argument, or the result.

    Args:
        id: position in the program's order, which respects every dependency.
        kind: one of ``NodeKind``.
        name: name of the computation, as the user wrote it.
        place: the virtual slice it runs on, or whose host does the work; ``None`` for arguments and the result.
        inputs: ids of the values it reads.
        outputs: ids of the values it produces.
        line: where the user wrote it, such as ``"Cell In[3], line 4"`` or ``"train.py:12"``.
        parts: names of the operations merged into it.
        seconds: how long it is declared to take (``pw.work``); ``None`` if it is not declared.
        action: which action of a pipeline it is; ``None`` of other nodes.
    """

    id: int
    kind: NodeKind
    name: str
    place: VirtualSlice | None
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    line: str = ""
    parts: tuple[str, ...] = ()
    seconds: float | None = None
    action: ActionKey | None = None


@dataclass(frozen=True, slots=True)
class Edge:
    """``bytes`` of ``values`` that flow from node ``source`` to node ``target``."""

    source: int
    target: int
    values: tuple[int, ...]
    bytes: int


@dataclass(frozen=True)
class Graph:
    """A program's nodes, in an order that respects their dependencies, and the values between them.

    Args:
        name: name of the program.
        nodes: the nodes; the last one is the result.
        values: the values, by id.
    """

    name: str
    nodes: tuple[Node, ...]
    values: tuple[Value, ...]
    copies: tuple[tuple[int, int], ...] = ()
    """Small results that another place computes as well: position of the result, and id of the value on that place."""
    exchanged: tuple[tuple[int, ...], ...] = ()
    """Values that are added at several places (``pw.all_reduce``): each is sent as soon as all of them are made."""
    categories: Mapping[int, str] = field(default_factory=dict, compare=False, repr=False)
    """By value: what its memory is held for, where the program says so; see ``memory_categories``."""

    @cached_property
    def names(self) -> dict[int, str]:
        """The name of each node, by id."""
        return {node.id: node.name for node in self.nodes}

    def producer(self) -> dict[int, int]:
        """Return the node that produces each value."""
        return {value: node.id for node in self.nodes for value in node.outputs}

    def edges(self) -> Iterator[Edge]:
        """Yield every pair of producer and consumer once, with the values that pass between them."""
        producer = self.producer()
        for node in self.nodes:
            by_source: dict[int, list[int]] = {}
            # A value that a node reads twice travels once.
            for value in dict.fromkeys(node.inputs):
                by_source.setdefault(producer[value], []).append(value)
            for source, values in by_source.items():
                yield Edge(source, node.id, tuple(values), sum(self.values[v].bytes for v in values))

    @property
    def places(self) -> tuple[VirtualSlice, ...]:
        """The virtual slices used, oldest first."""
        found = {node.place for node in self.nodes if node.place is not None}
        return tuple(sorted(found, key=lambda place: place.serial))

    @property
    def sentence(self) -> str:
        """How many nodes there are, and where they run, in one sentence."""
        placed = sum(node.place is not None for node in self.nodes)
        where = f" on {counted(len(self.places), 'virtual slice')}" if self.places else ""
        return f"{self.name} has {counted(placed, 'node')}{where}"

    def __repr__(self) -> str:
        kinds = ", ".join(f"{node.name}@{node.place.label}" for node in self.nodes if node.place is not None)
        return f"<graph {self.name}: {counted(len(self.nodes), 'node')}: {kinds}>"
