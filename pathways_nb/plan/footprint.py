"""How much memory a program needs on each device, known before it runs (Pathways, sections 3 and 4.6).

Sizes are in bytes per device. A program's steps run in the order of each island's plan, so what lives at the same time
is known from the order: results, intermediates until their last reader, temporaries of the step under way. Its inputs
count from beginning to end, since whoever calls it holds them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from pathways_nb.errors import size
from pathways_nb.plan.graph import Graph
from pathways_nb.plan.plan import Placement, Plan


@dataclass(frozen=True, slots=True)
class Allocation:
    """``bytes`` on each device of a placement."""

    placement: Placement
    bytes: int


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the compiler says, in bytes per device.

    Args:
        slots: of each slot of the plan.
        temporary: by step, needed beyond inputs and outputs while it runs.
        reused: by step, bytes of outputs that lie in memory taken over from the program's arguments, and in memory
            taken over from its own intermediates.
    """

    slots: tuple[int, ...]
    temporary: Mapping[int, int]
    reused: Mapping[int, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class MemoryProfile:
    """What a run needs on ``count`` devices from ``first`` on, without its inputs, from each of its gangs on.

    Args:
        first, count: the devices within the island.
        peaks: ``peaks[k]`` is the most bytes needed at once when ``k`` gangs of the island are done.
        node: the node during which the highest peak is reached.
        temporary: of that node, in bytes.
    """

    first: int
    count: int
    peaks: tuple[int, ...]
    node: int
    temporary: int


@dataclass(frozen=True)
class Peak:
    """The most that one run of a program needs at once, in bytes on each device of ``where``.

    Args:
        program, node, line: what is at its peak, during which node, and where the user wrote that.
        inputs: arguments, which count from beginning to end. temporaries: of the node.
        others: intermediates and results that live meanwhile.
    """

    program: str
    where: Placement
    node: str
    line: str
    inputs: int
    temporaries: int
    others: int

    @property
    def bytes(self) -> int:
        """All together, on each device."""
        return self.inputs + self.temporaries + self.others

    @property
    def parts(self) -> str:
        """When it is reached, and of what it is made."""
        at = f"{self.node}{f' ({self.line})' if self.line else ''}"
        return (
            f"in {at}: inputs {size(self.inputs)}, temporaries {size(self.temporaries)}, "
            f"intermediates and results {size(self.others)}"
        )

    def __repr__(self) -> str:
        return f"{self.program} needs {size(self.bytes)} on each device of {self.where}, {self.parts}"


@dataclass(frozen=True, eq=False)
class Footprint:
    """What one run of a plan needs.

    Args:
        inputs: of each step that brings an argument, in the plan's order.
        results: of each result.
        courses: by island.
        taken: positions of the arguments whose memory a node takes over.
        handed_back: by slot, results that are arguments: the position in ``inputs``, and the argument's.
    """

    inputs: tuple[Allocation, ...]
    results: tuple[Allocation, ...]
    profiles: Mapping[int, tuple[MemoryProfile, ...]]
    taken: tuple[int, ...] = ()
    handed_back: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    def peaks(self, graph: Graph) -> Iterator[Peak]:
        """The peak of each island's devices, with all inputs."""
        for island, profiles in self.profiles.items():
            for profile in profiles:
                where = Placement(island, profile.first, profile.count)
                inputs, node = self.input_bytes(island, profile.first), graph.nodes[profile.node]
                others = profile.peaks[0] - profile.temporary
                yield Peak(graph.name, where, node.name, node.line, inputs, profile.temporary, others)

    def input_bytes(self, island: int, device: int) -> int:
        """Bytes of all inputs on a device."""
        return sum(h.bytes for h in self.inputs if covers(h.placement, island, device))


NOTHING = Footprint((), (), {})
"""Of a plan whose sizes nobody knows."""


def covers(placement: Placement, island: int, device: int) -> bool:
    """Whether a device is one of a placement's."""
    return placement.island == island and placement.first <= device < placement.first + placement.count


def overlap(one: Placement, other: Placement) -> bool:
    """Whether two placements share a device."""
    return one.island == other.island and (
        one.first < other.first + other.count and other.first < one.first + one.count
    )


def footprint_of(plan: Plan, sizes: Sizes, taken: Iterable[int] = ()) -> Footprint:
    """What a run of ``plan`` needs on each device; ``taken``: see ``Footprint``."""

    def allocation(slot: int) -> Allocation:
        return Allocation(plan.placements[plan.slots[slot].place], sizes.slots[slot])

    bringing = [step for step in plan.steps if step.kind == "bring"]
    brought = tuple(allocation(step.outputs[0]) for step in bringing)
    handed_back = {s.outputs[0]: (at, s.argument) for at, s in enumerate(bringing) if s.outputs[0] in plan.results}
    results = tuple(allocation(slot) for slot in plan.results)
    profiles = {island: tuple(_profiles(plan, sizes, island)) for island in plan.orders}
    return Footprint(brought, results, profiles, tuple(taken), handed_back)


def _profiles(plan: Plan, sizes: Sizes, island: int) -> Iterator[MemoryProfile]:
    """What is needed over time on each run of devices of an island that no placement divides."""
    placements = {p for p in plan.placements.values() if p.island == island}
    edges = sorted({edge for p in placements for edge in (p.first, p.first + p.count)})
    ends = _ends(plan, island)
    for first, after in pairwise(edges):
        steps = [step for step in plan.orders[island] if covers(plan.placements[plan.steps[step].place], island, first)]
        if steps:
            yield _profile(plan, sizes, island, ends, (first, after - first), set(steps))


def _profile(
    plan: Plan, sizes: Sizes, island: int, ends: Mapping[int, int], devices: tuple[int, int], steps_here: set[int]
) -> MemoryProfile:
    order = plan.orders[island]
    sized = _sizes(plan, sizes, order, steps_here)
    expiring: list[int] = [0] * (len(order) + 1)
    for slot, taken in sized.items():
        expiring[ends[slot]] += taken
    live, peaks, highest = 0, [], (-1, -1)
    for position, index in enumerate(order):
        step, during = plan.steps[index], live
        if index in steps_here:
            made = sum(sized.get(slot, 0) for slot in step.outputs)
            during += made + sizes.temporary.get(index, 0) - sizes.reused.get(index, (0, 0))[1]
            live += made
        highest = max(highest, (during, -index))
        peaks.append(during)
        live -= expiring[position]
    most = live
    for position in reversed(range(len(order))):
        most = peaks[position] = max(most, peaks[position])
    starts = [gang.start for gang in plan.gangs[island]]
    found = tuple(peaks[start] for start in starts)
    at = -highest[1]
    return MemoryProfile(
        *devices, (*found, live), plan.steps[at].node, sizes.temporary.get(at, 0) if at in steps_here else 0
    )


def _sizes(plan: Plan, sizes: Sizes, order: Sequence[int], steps_here: set[int]) -> dict[int, int]:
    """Bytes that each slot adds on these devices: those of inputs are counted apart, taken over ones lie in them."""
    found: dict[int, int] = {}
    for index in order:
        step = plan.steps[index]
        if index not in steps_here or step.kind == "bring":
            continue
        left = sizes.reused.get(index, (0, 0))[0]
        for slot in step.outputs:
            inside = min(left, sizes.slots[slot])
            found[slot], left = sizes.slots[slot] - inside, left - inside
    return found


def _ends(plan: Plan, island: int) -> dict[int, int]:
    """For each slot made on an island, the position in its order after which its memory is free.

    A slot that other islands read is free once a later step here depends on those reads, else when the run ends.
    """
    order = plan.orders[island]
    position = {index: at for at, index in enumerate(order)}
    known = _known(plan, island)
    readers: dict[int, list[int]] = {}
    for index, step in enumerate(plan.steps):
        for slot in step.inputs:
            readers.setdefault(slot, []).append(index)
    kept, never = set(plan.results), len(order)
    found: dict[int, int] = {}
    for index in order:
        for slot in plan.steps[index].outputs:
            last = position[index]
            for reader in readers.get(slot, ()):
                last = max(last, position[reader] if reader in position else _first_after(known, plan, reader))
            found[slot] = never if slot in kept else last
    return found


def _first_after(known: Sequence[Mapping[int, int]], plan: Plan, reader: int) -> int:
    """The first position in an island's order by which a step of another island is done."""
    island = plan.steps[reader].island
    wanted = plan.position(reader)[1] + 1
    low, high = 0, len(known)
    while low < high:
        middle = (low + high) // 2
        if known[middle].get(island, 0) >= wanted:
            high = middle
        else:
            low = middle + 1
    return low


def _known(plan: Plan, island: int) -> list[dict[int, int]]:
    """For each step of an island's order: how far the other islands' orders must be done when it is."""
    clocks: list[dict[int, int]] = []
    last: dict[int, dict[int, int]] = {}
    for index, step in enumerate(plan.steps):
        clock = dict(last.get(step.island, {}))
        for producer in step.producers:
            if plan.steps[producer].island != step.island:
                for other, count in clocks[producer].items():
                    clock[other] = max(clock.get(other, 0), count)
        clock[step.island] = plan.position(index)[1] + 1
        last[step.island] = clock
        clocks.append(clock)
    return [clocks[index] for index in plan.orders[island]]
