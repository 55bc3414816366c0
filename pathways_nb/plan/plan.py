"""Plans: what a program does on physical places, as steps (Pathways, section 4.2).

A plan is a list of steps in the program's order, and for each island the part of the list that runs on it. A step
brings an argument, moves a value from another place, or launches a node; it names slots, one for each value at each
place. The order never changes once a plan is lowered, so the controller can name *ranges* of it instead of nodes.

Each island has a host, a place without devices, on which host work runs. What reads or makes host values is a step of
the island's order like any other. A driver runs the steps at a host in their order, at the same time as the others.

Plans are plain data: the controller decides about them, drivers carry them out. ``plan_lowering`` makes them of graphs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from pathways_nb.plan.graph import Graph, Node

SMALL = 4096
"""Bytes up to which a value is kept at each place that needs it, from one call to the next: a counter, a seed, a few
coefficients."""
StepKind = Literal["bring", "move", "launch", "host"]


@dataclass(frozen=True, slots=True)
class Placement:
    """The devices of a virtual slice: ``count`` devices of ``island`` from ``first`` on; none for an island's host."""

    island: int
    first: int
    count: int

    @property
    def is_host(self) -> bool:
        """Whether it is an island's host."""
        return not self.count

    def __str__(self) -> str:
        if self.is_host:
            return f"island {self.island}, host"
        last = self.first + self.count - 1
        devices = f"dev {self.first}" if self.count == 1 else f"dev {self.first}–{last}"
        return f"island {self.island}, {devices}"


@dataclass(frozen=True, slots=True)
class Slot:
    """One value at one place; ``place`` is a virtual slice's serial, or ``host_of`` an island."""

    value: int
    place: int


@dataclass(frozen=True, slots=True)
class Step:
    """One entry of an island's order.

    Args:
        kind: ``"bring"`` an argument to its place, ``"move"`` a value between places, ``"launch"`` a node on devices,
            run a node on a ``"host"``.
        node: the node it belongs to; for bring and move, the node that needs the value first.
        place: serial of the virtual slice it runs on or delivers to; ``host_of`` its island for the island's host.
        island: index of the island.
        inputs: slots it reads; a bring has none.
        outputs: slots it produces.
        last: slots that are not needed on the island after it: inputs read for the last time, outputs never read.
        argument: for bring: position of the argument (see ``Plan.leaves``); -1 otherwise.
        route: for bring and move: ``"host"``, ``"local"`` (same devices or island memory), ``"ICI"``, ``"DCN"``.
    """

    kind: StepKind
    node: int
    place: int
    island: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    last: tuple[int, ...] = ()
    argument: int = -1
    route: str = ""
    producers: tuple[int, ...] = ()
    """Indices of the steps that produce the inputs."""

    @property
    def on_host(self) -> bool:
        """Whether it runs on its island's host or delivers to it."""
        return self.place == host_of(self.island)

    @property
    def reader(self) -> int:
        """Who carries it out: its island, or as a negative number the island's host, at a pace of its own."""
        # ~0 is -1: unlike -0, the host of island 0 has a number of its own.
        return ~self.island if self.on_host else self.island


@dataclass(frozen=True, slots=True)
class Gang:
    """A node with what is brought and moved for it: the unit that is enqueued.

    Args:
        node: id of the node.
        devices: number of devices it runs on.
        island: index of the island.
        start: first step in that island's order.
        stop: step after the last.
        after: pairs of another island and a position: how far that island's order must be enqueued before this gang,
            because of its producers.
    """

    node: int
    devices: int
    island: int
    start: int
    stop: int
    after: tuple[tuple[int, int], ...]


@dataclass(frozen=True, eq=False)
class Plan:
    """A graph with physical places.

    Args:
        graph: what was lowered.
        placements: devices of each virtual slice, by serial, and the hosts that it uses.
        slots: the table of slots.
        steps: in program order, which respects every dependency.
        orders: for each island, the indices of its steps, in that order.
        results: slot of each result leaf, then of the copies of small ones at other places.
        readers: for slots with several readers (see ``Step.reader``), which.
        arguments: number of argument leaves.
        again: small arguments that are brought to a further place, as arguments of their own: leaf, and place.
        copies: for each result beyond the leaves, the position of the result that it is a copy of.
    """

    graph: Graph
    placements: Mapping[int, Placement]
    slots: tuple[Slot, ...]
    steps: tuple[Step, ...]
    orders: Mapping[int, tuple[int, ...]]
    results: tuple[int, ...]
    readers: Mapping[int, frozenset[int]]
    arguments: int = 0
    again: tuple[tuple[int, int], ...] = ()
    copies: tuple[int, ...] = ()

    @cached_property
    def bare(self) -> Plan:
        """The plan as the controller's log keeps it: without the slices that it names, which a log must not keep."""
        nodes = tuple(replace(node, place=None) for node in self.graph.nodes)
        return replace(self, graph=Graph(self.graph.name, nodes, ()))

    @cached_property
    def distinct(self) -> bool:
        """Whether no two results are one value."""
        return len(set(self.results)) == len(self.results)

    @cached_property
    def leaves(self) -> tuple[int, ...]:
        """For each argument, its position among the leaves of a call."""
        return (*range(self.arguments), *(leaf for leaf, _ in self.again))

    @cached_property
    def reads(self) -> dict[int, list[int]]:
        """The steps that read each slot, in the plan's order."""
        found: dict[int, list[int]] = {}
        for index, step in enumerate(self.steps):
            for slot in step.inputs:
                found.setdefault(slot, []).append(index)
        return found

    @cached_property
    def has_host_work(self) -> bool:
        """Whether any of its nodes runs on a host."""
        return any(placement.is_host for placement in self.placements.values())

    @property
    def islands(self) -> tuple[int, ...]:
        """The islands that the plan runs on."""
        return tuple(self.orders)

    @cached_property
    def gangs(self) -> dict[int, tuple[Gang, ...]]:
        """For each island, its order cut after each launch."""
        return {island: tuple(self._gangs(island)) for island in self.orders}

    @cached_property
    def stops(self) -> dict[int, tuple[int, ...]]:
        """For each island, where each of its gangs stops; for bisection by position."""
        return {island: tuple(gang.stop for gang in gangs) for island, gangs in self.gangs.items()}

    @cached_property
    def sequence(self) -> tuple[Gang, ...]:
        """All gangs in program order: the order of sequential dispatch."""
        # By its last step, the launch: transfers of a gang may stand in front of launches of gangs before it.
        return tuple(
            sorted((g for gangs in self.gangs.values() for g in gangs), key=lambda g: self.orders[g.island][g.stop - 1])
        )

    def _gangs(self, island: int) -> Iterator[Gang]:
        """Yield the gangs of an island: each is a launch with the transfers that are made for it."""
        order, start = self.orders[island], 0
        for stop, index in enumerate(order, 1):
            # The last gang may have no launch: steps that only deliver results stand behind all launches.
            if self.steps[index].kind in ("launch", "host") or stop == len(order):
                yield self._gang(island, start, stop)
                start = stop

    def _gang(self, island: int, start: int, stop: int) -> Gang:
        steps = [self.steps[index] for index in self.orders[island][start:stop]]
        after: dict[int, int] = {}
        for producer in (p for step in steps for p in step.producers):
            where, position = self.position(producer)
            if where != island:
                # The furthest producer is enough: another island's order is enqueued from its beginning.
                after[where] = max(after.get(where, 0), position + 1)
        placement = self.placements.get(steps[-1].place)
        return Gang(steps[-1].node, placement.count if placement else 1, island, start, stop, tuple(after.items()))

    def position(self, step: int) -> tuple[int, int]:
        """Return the island of a step, and its position in that island's order."""
        return self._positions[step]

    @cached_property
    def _positions(self) -> dict[int, tuple[int, int]]:
        """The island of each step, and its position in that island's order."""
        return {index: (i, position) for i, order in self.orders.items() for position, index in enumerate(order)}

    def routes(self) -> dict[tuple[int, int], str]:
        """Return how values travel along each edge of the graph, for figures."""
        place_of = {node.id: self.location(node) for node in self.graph.nodes}
        found = {}
        for edge in self.graph.edges():
            source, target = place_of[edge.source], place_of[edge.target]
            if source is None or target is None:
                # Arguments and the result are with the client; from one to the other, nothing moves.
                found[edge.source, edge.target] = "host" if source is not target else "local"
            else:
                found[edge.source, edge.target] = route(source, target)
        return found

    def location(self, node: Node) -> Placement | None:
        """Return the devices or the host that a node runs on; ``None`` for arguments and the result."""
        if node.place is None:
            return None
        where = self.placements[node.place.serial]
        return self.placements[host_of(where.island)] if node.kind == "host" else where

    def where(self) -> dict[int, str]:
        """Return the devices of each place in words, by serial."""
        return {serial: str(placement) for serial, placement in self.placements.items() if not placement.is_host}


def host_of(island: int) -> int:
    """Return what stands for an island's host where else a virtual slice's serial does."""
    return -2 - island  # -1 is the default place of a program without computations


def route(source: Placement, target: Placement) -> str:
    """Return how values travel between two placements.

    Returns:
        ``"local"``, ``"host"`` between an island's devices and its host, its ``"ICI"``, or the data centre's ``"DCN"``.
    """
    if source == target:
        return "local"
    if source.island == target.island and (source.is_host or target.is_host):
        return "host"
    return "ICI" if source.island == target.island else "DCN"
