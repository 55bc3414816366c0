"""Lowering: the device-agnostic graph becomes a plan with physical places (Pathways, section 4.2).

A plan is a list of steps in the program's order, and for each island the part of the list that runs on it. A step
brings an argument, moves a value from another place, or launches a node; it names slots, one for each value at each
place. The order never changes once a plan is lowered, so the controller can name *ranges* of it instead of nodes.

Each island has a host, a place without devices, on which host work runs. What reads or makes host values is a step of
the island's order like any other. A driver runs the steps at a host in their order, at the same time as the others.

Plans are plain data: the controller decides about them, drivers carry them out. Lowering is cheap, and is repeated when
a virtual slice gets other devices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from pathways_nb.plan.exchange_order import Exchanges, interleaved
from pathways_nb.plan.graph import Graph, Node
from pathways_nb.plan.virtual_slice import VirtualSlice

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


class _PlanBuilder:
    """The steps and slots of a plan while nodes are added in program order.

    A transfer is added when the first node needs it, just before that node, and serves all later ones at that place.

    Args:
        graph: the graph to lower.
        placements: devices of each virtual slice, by serial.
        arguments: value ids of the argument leaves.
    """

    def __init__(self, graph: Graph, placements: Mapping[int, Placement], arguments: tuple[int, ...]):
        islands = {placements[n.place.serial].island for n in graph.nodes if n.kind == "host" and n.place is not None}
        hosts = {host_of(island): Placement(island, 0, 0) for island in sorted(islands)}
        self.graph, self.placements = graph, {**placements, **hosts}
        self.position = {value: i for i, value in enumerate(arguments)}
        """Of each argument's value, its position among the arguments."""
        self.brought: set[int] = set()
        """Arguments that a step brings to some place already."""
        self.again: list[tuple[int, int]] = []
        """Small arguments that another place gets, too: their position and that place."""
        self.home = {v: node.place.serial for node in graph.nodes if node.place is not None for v in node.outputs}
        """The place to which each value belongs; one that a host makes is put there only for its readers."""
        self.made_at: dict[int, int] = {}
        """The place, or the host, at which a node makes each value."""
        self.slots: dict[Slot, int] = {}
        self.made_by: dict[int, int] = {}
        """By slot, the step that fills it."""
        self.steps: list[Step] = []
        self.exchanges = Exchanges(graph, self.home.__contains__)

    def slot(self, value: int, place: int, node: int) -> int:
        """Return the slot of a value at a place; add the step that brings or moves the value to it if there is none."""
        key = Slot(value, place)
        if key not in self.slots:
            self._deliver(value, place, node)
        return self.slots[key]

    def run(self, node: Node) -> None:
        """Add the step that runs a node, after those that deliver what it reads."""
        assert node.place is not None
        where, on_host = self.placements[node.place.serial], node.kind == "host"
        place = host_of(where.island) if on_host else node.place.serial
        slots = tuple(self.slot(value, place, node.id) for value in node.inputs)
        self.made_at.update(dict.fromkeys(node.outputs, place))
        # Inputs have slots before the step is added: their transfers stand just in front of it.
        self._append(Step("host" if on_host else "launch", node.id, place, where.island, slots, ()), node.outputs)
        # What is exchanged leaves now, not just before it is read: it travels under the work that follows.
        for value, reader, first in self.exchanges.after(node.outputs):
            self.slot(value, reader, first)

    def _deliver(self, value: int, place: int, node: int) -> None:
        target = self.placements[place]
        if value in self.position:
            argument = self._argument(value, place)
            step = Step("bring", node, place, target.island, (), (), argument=argument, route="host")
        else:
            source = self.made_at[value]
            network = route(self.placements[source], target)
            step = Step("move", node, place, target.island, (self.slots[Slot(value, source)],), (), route=network)
        self._append(step, (value,))

    def _argument(self, value: int, place: int) -> int:
        """Return the position of an argument.

        A small one has a position for each place, so that the driver may keep a copy at that place between calls.
        """
        position = self.position[value]
        if self.placements[place].is_host:  # of which no copy is kept from one call to the next
            return position
        if value in self.brought and self.graph.values[value].bytes <= SMALL:
            # Numbered behind the program's own arguments.
            self.again.append((position, place))
            return len(self.position) + len(self.again) - 1
        self.brought.add(value)
        return position

    def copies(self, results: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Yield copies of small results that other places have anyway: position of the result, slot of the copy."""
        for position, value in self.graph.copies:
            yield position, self.slots[Slot(value, self.home[value])]
        for position, (value, slot) in enumerate(zip(self.graph.nodes[-1].inputs, results, strict=True)):
            # An argument that is returned: where a small one was brought as well, that slot is its copy there.
            if value in self.position and self.graph.values[value].bytes <= SMALL:
                yield from (
                    (position, s)
                    for key, s in self.slots.items()
                    if key.value == value and s != slot and not self.placements[key.place].is_host
                )

    def _append(self, step: Step, outputs: tuple[int, ...]) -> None:
        made = []
        for value in outputs:
            # Slots are numbered in the order in which steps fill them.
            made.append(self.slots.setdefault(Slot(value, step.place), len(self.slots)))
            self.made_by[made[-1]] = len(self.steps)
        # Each producer once, in the order of the inputs: a step may read several slots of one.
        producers = tuple(dict.fromkeys(self.made_by[slot] for slot in step.inputs))
        self.steps.append(replace(step, outputs=tuple(made), producers=producers))


def lower(graph: Graph, placements: Mapping[int, Placement], arguments: tuple[int, ...], default: VirtualSlice) -> Plan:
    """Return a plan in which every node has devices and every edge between places has a transfer.

    Args:
        graph: the device-agnostic graph.
        placements: devices of each virtual slice, by serial.
        arguments: value ids of the argument leaves, in order.
        default: place of arguments that are returned unread.
    """
    builder = _PlanBuilder(graph, placements, arguments)
    island_of = {serial: placement.island for serial, placement in placements.items()}
    # Only an exchange needs islands to take turns; without one, the program's order is kept.
    for node in interleaved(graph, island_of) if graph.exchanged else graph.nodes:
        if node.place is not None:
            builder.run(node)
    result = graph.nodes[-1]
    # (leaves of the result,) places: where each value was made; an argument has no home.
    homes = [builder.home.get(value, _reader(builder, value, default.serial)) for value in result.inputs]
    # (leaves of the result,) slots, and behind them those of the copies.
    results = tuple(builder.slot(v, home, result.id) for v, home in zip(result.inputs, homes, strict=True))
    copies = tuple(builder.copies(results))
    results += tuple(slot for _, slot in copies)
    steps, readers = _lifetimes(builder.steps, results)
    # An island's order is its part of the program's order, so no two islands can wait for each other in a circle.
    orders: dict[int, list[int]] = {}
    for index, step in enumerate(steps):
        orders.setdefault(step.island, []).append(index)
    return Plan(
        graph,
        builder.placements,
        tuple(builder.slots),
        tuple(steps),
        {island: tuple(order) for island, order in sorted(orders.items())},
        results,
        readers,
        len(arguments),
        tuple(builder.again),
        tuple(position for position, _ in copies),
    )


def _reader(builder: _PlanBuilder, value: int, default: int) -> int:
    """Return a place where an argument that is returned unchanged is anyway, or the default place."""
    found = (slot.place for slot in builder.slots if slot.value == value)
    return next((place for place in found if not builder.placements[place].is_host), default)


def _lifetimes(steps: list[Step], results: tuple[int, ...]) -> tuple[list[Step], dict[int, frozenset[int]]]:
    """Return the steps with the last uses of slots marked, and the readers of slots that have several.

    Slots of results are never marked. Each reader marks its own last use, since islands and hosts run at their own
    pace.
    """
    kept = set(results)
    # By slot, who reads it; and the pairs of slot and reader whose last use has been found.
    islands: dict[int, set[int]] = {}
    marked: set[tuple[int, int]] = set()
    found = []
    # Backwards: the first use seen is the last one.
    for step in reversed(steps):
        last = []
        for slot in dict.fromkeys(step.inputs):
            islands.setdefault(slot, set()).add(step.reader)
            if slot not in kept and (slot, step.reader) not in marked:
                marked.add((slot, step.reader))
                last.append(slot)
        # What nobody reads is free as soon as the step that makes it is done.
        unread = [slot for slot in step.outputs if slot not in islands and slot not in kept]
        found.append(replace(step, last=(*last, *unread)))
    shared = {slot: frozenset(where) for slot, where in islands.items() if len(where) > 1 and slot not in kept}
    return found[::-1], shared
