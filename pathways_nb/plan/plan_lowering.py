"""Lowering: the device-agnostic graph becomes a plan with physical places (Pathways, section 4.2).

Nodes are added in program order, each after the steps that deliver what it reads; last uses are marked at the end.
Lowering is cheap, and is repeated when a virtual slice gets other devices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from pathways_nb.plan.exchange_order import Exchanges, interleaved
from pathways_nb.plan.graph import Graph, Node
from pathways_nb.plan.plan import SMALL, Placement, Plan, Slot, Step, host_of, route
from pathways_nb.plan.virtual_slice import VirtualSlice


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
    home = builder.home
    homes = [home[v] if v in home else _reader(builder, v, default.serial) for v in result.inputs]
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
