"""Lowering: the device-agnostic graph becomes a plan with physical places (Pathways, section 4.2).

A plan is a list of steps in the program's order, and for each island the part of the list that runs on it. A step
brings an argument, moves a value from another place, or launches a node; it names slots, one for each value at each
place. The order never changes once a plan is lowered, so the controller can name *ranges* of it instead of nodes.

Plans are plain data: the controller decides about them, drivers carry them out. Lowering is cheap, and is repeated when
a virtual slice gets other devices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from pathways_nb.plan.graph import Graph
from pathways_nb.plan.virtual_slice import VirtualSlice

SMALL = 4096
"""Bytes up to which a value is kept at each place that needs it, from one call to the next: a counter, a seed, a few
coefficients."""
StepKind = Literal["bring", "move", "launch"]


@dataclass(frozen=True, slots=True)
class Placement:
    """The devices of a virtual slice: ``count`` devices of ``island`` from ``first`` on."""

    island: int
    first: int
    count: int

    def __str__(self) -> str:
        last = self.first + self.count - 1
        devices = f"dev {self.first}" if self.count == 1 else f"dev {self.first}–{last}"
        return f"island {self.island}, {devices}"


@dataclass(frozen=True, slots=True)
class Slot:
    """One value at one place; ``place`` is a virtual slice's serial."""

    value: int
    place: int


@dataclass(frozen=True, slots=True)
class Step:
    """One entry of an island's order.

    Args:
        kind: ``"bring"`` an argument to its place, ``"move"`` a value between places, ``"launch"`` a node.
        node: the node it belongs to; for bring and move, the node that needs the value first.
        place: serial of the virtual slice it runs on or delivers to.
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
        placements: devices of each virtual slice, by serial.
        slots: the table of slots.
        steps: in program order, which respects every dependency.
        orders: for each island, the indices of its steps, in that order.
        results: slot of each result leaf, then of the copies of small ones at other places.
        readers: for slots read on several islands, which islands.
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
    def leaves(self) -> tuple[int, ...]:
        """For each argument, its position among the leaves of a call."""
        return (*range(self.arguments), *(leaf for leaf, _ in self.again))

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
        return tuple(sorted((g for gangs in self.gangs.values() for g in gangs), key=self._last))

    def _last(self, gang: Gang) -> int:
        return self.orders[gang.island][gang.stop - 1]

    def _gangs(self, island: int) -> Iterator[Gang]:
        """Yield the gangs of an island: each is a launch with the transfers that are made for it."""
        order, start = self.orders[island], 0
        for stop, index in enumerate(order, 1):
            if self.steps[index].kind == "launch" or stop == len(order):
                yield self._gang(island, start, stop)
                start = stop

    def _gang(self, island: int, start: int, stop: int) -> Gang:
        steps = [self.steps[index] for index in self.orders[island][start:stop]]
        after: dict[int, int] = {}
        for producer in (p for step in steps for p in step.producers):
            where, position = self.position(producer)
            if where != island:
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
        place_of = {node.id: node.place for node in self.graph.nodes}
        found = {}
        for edge in self.graph.edges():
            source, target = place_of[edge.source], place_of[edge.target]
            if source is None or target is None:
                found[edge.source, edge.target] = "host" if source is not target else "local"
            else:
                found[edge.source, edge.target] = route(self.placements[source.serial], self.placements[target.serial])
        return found

    def where(self) -> dict[int, str]:
        """Return the devices of each place in words, by serial."""
        return {serial: str(placement) for serial, placement in self.placements.items()}


def route(source: Placement, target: Placement) -> str:
    """Return the network between two placements: ``"local"``, the island's ``"ICI"`` or the data centre's ``"DCN"``."""
    if source == target:
        return "local"
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
        self.graph, self.placements = graph, placements
        self.position = {value: i for i, value in enumerate(arguments)}
        self.brought: set[int] = set()
        self.again: list[tuple[int, int]] = []
        self.home = {v: node.place.serial for node in graph.nodes if node.place is not None for v in node.outputs}
        self.slots: dict[Slot, int] = {}
        self.made_by: dict[int, int] = {}
        self.steps: list[Step] = []

    def slot(self, value: int, place: int, node: int) -> int:
        """Return the slot of a value at a place; add the step that brings or moves the value to it if there is none."""
        key = Slot(value, place)
        if key not in self.slots:
            self._deliver(value, place, node)
        return self.slots[key]

    def launch(self, node: int, place: int, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> None:
        slots = tuple(self.slot(value, place, node) for value in inputs)
        self._append(Step("launch", node, place, self.placements[place].island, slots, ()), outputs)

    def _deliver(self, value: int, place: int, node: int) -> None:
        target = self.placements[place]
        if value in self.position:
            argument = self._argument(value, place)
            step = Step("bring", node, place, target.island, (), (), argument=argument, route="host")
        else:
            home = self.home[value]
            network = route(self.placements[home], target)
            step = Step("move", node, place, target.island, (self.slots[Slot(value, home)],), (), route=network)
        self._append(step, (value,))

    def _argument(self, value: int, place: int) -> int:
        """Return the position of an argument.

        A small one has a position for each place, so that the driver may keep a copy at that place between calls.
        """
        position = self.position[value]
        if value in self.brought and self.graph.values[value].bytes <= SMALL:
            self.again.append((position, place))
            return len(self.position) + len(self.again) - 1
        self.brought.add(value)
        return position

    def kept(self, results: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Yield copies of small results that other places have anyway: position of the result, slot of the copy."""
        for position, value in self.graph.copies:
            yield position, self.slots[Slot(value, self.home[value])]
        for position, (value, slot) in enumerate(zip(self.graph.nodes[-1].inputs, results, strict=True)):
            if value in self.position and self.graph.values[value].bytes <= SMALL:
                yield from ((position, s) for key, s in self.slots.items() if key.value == value and s != slot)

    def _append(self, step: Step, outputs: tuple[int, ...]) -> None:
        made = []
        for value in outputs:
            made.append(self.slots.setdefault(Slot(value, step.place), len(self.slots)))
            self.made_by[made[-1]] = len(self.steps)
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
    for node in graph.nodes:
        if node.place is not None:
            builder.launch(node.id, node.place.serial, node.inputs, node.outputs)
    result = graph.nodes[-1]
    homes = [builder.home.get(value, _reader(builder, value, default.serial)) for value in result.inputs]
    results = tuple(builder.slot(v, home, result.id) for v, home in zip(result.inputs, homes, strict=True))
    copies = tuple(builder.kept(results))
    results += tuple(slot for _, slot in copies)
    steps, readers = _lifetimes(builder.steps, results)
    orders: dict[int, list[int]] = {}
    for index, step in enumerate(steps):
        orders.setdefault(step.island, []).append(index)
    return Plan(
        graph,
        dict(placements),
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
    return next((slot.place for slot in builder.slots if slot.value == value), default)


def _lifetimes(steps: list[Step], results: tuple[int, ...]) -> tuple[list[Step], dict[int, frozenset[int]]]:
    """Return the steps with the last uses of slots marked, and the islands of slots that several islands read.

    Slots of results are never marked. Each island marks its own last use, since islands run at their own pace.
    """
    kept = set(results)
    islands: dict[int, set[int]] = {}
    marked: set[tuple[int, int]] = set()
    found = []
    # Backwards: the first use seen is the last one.
    for step in reversed(steps):
        last = []
        for slot in dict.fromkeys(step.inputs):
            islands.setdefault(slot, set()).add(step.island)
            if slot not in kept and (slot, step.island) not in marked:
                marked.add((slot, step.island))
                last.append(slot)
        unread = [slot for slot in step.outputs if slot not in islands and slot not in kept]
        found.append(replace(step, last=(*last, *unread)))
    shared = {slot: frozenset(where) for slot, where in islands.items() if len(where) > 1 and slot not in kept}
    return found[::-1], shared
