"""The memory that a program needs on each device, known before it runs (Pathways, sections 3 and 4.6).

Compiled functions have known shapes and a plan has a fixed order on each island, so the memory in use follows from the
order: results, intermediates until their last reader, and the temporaries of the current step. The controller can
therefore reserve a program's whole memory before the program begins, and error messages can name the node at the peak.

Inputs count from the beginning to the end of a call, since the caller holds them meanwhile. All sizes are in bytes per
device. Sizes of arrays and temporaries come from the compiler or the cost model (``Sizes``); who may have the memory is
decided in ``controller.admission``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from operator import itemgetter

from pathways_nb.errors import size
from pathways_nb.plan.graph import Graph
from pathways_nb.plan.memory_categories import ARGUMENTS, RESULTS, TEMPORARIES, VALUES, Parts
from pathways_nb.plan.memory_parts import added, by_category, less, purpose
from pathways_nb.plan.plan import Placement, Plan


@dataclass(frozen=True, slots=True)
class Allocation:
    """``bytes`` on each device of a placement, held for a purpose that ``memory_categories`` lists."""

    placement: Placement
    bytes: int
    category: str = VALUES


@dataclass(frozen=True, slots=True)
class Sizes:
    """Memory that the compiler reports, in bytes per device.

    Args:
        slots: size of each slot of the plan.
        temporary: by step, bytes needed beyond inputs and outputs while it runs.
        reused: by step, bytes of its outputs in memory taken over from the program's arguments, and in memory taken
            over from the program's own intermediates.
    """

    slots: tuple[int, ...]
    temporary: Mapping[int, int]
    reused: Mapping[int, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class MemoryProfile:
    """Memory that a call needs on ``count`` devices from ``first`` on, as its gangs complete; inputs are not included.

    Args:
        first: first device within the island.
        count: number of devices.
        peaks: ``peaks[k]`` is the most bytes needed at once from the moment when ``k`` gangs of the island are done.
        node: node during which the highest peak is reached.
        temporary: bytes of temporaries of that node.
        parts: each of ``peaks`` by category; the same object where the peak is the same.
    """

    first: int
    count: int
    peaks: tuple[int, ...]
    node: int
    temporary: int
    parts: tuple[Parts, ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class Peak:
    """The most memory that one call of a program needs at once, in bytes on each device of ``where``.

    Args:
        program: name of the program.
        where: the devices.
        node: name of the node at the peak.
        line: line on which the user wrote that node.
        inputs: bytes of arguments.
        temporaries: bytes of temporaries of the node.
        others: bytes of intermediates and results that are alive at the peak.
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
        """Bytes in all, on each device."""
        return self.inputs + self.temporaries + self.others

    @property
    def parts(self) -> str:
        """The node at the peak and the parts of the peak, in words."""
        at = f"{self.node}{f' ({self.line})' if self.line else ''}"
        return (
            f"in {at}: inputs {size(self.inputs)}, temporaries {size(self.temporaries)}, "
            f"intermediates and results {size(self.others)}"
        )

    def __repr__(self) -> str:
        return f"{self.program} needs {size(self.bytes)} on each device of {self.where}, {self.parts}"


@dataclass(frozen=True, eq=False)
class Footprint:
    """Memory that one call of a plan needs.

    Args:
        inputs: of each step that brings an argument, in the plan's order.
        results: of each result.
        profiles: by island, one for each range of devices that no placement divides.
        taken: positions of the arguments whose memory a node takes over.
        handed_back: by slot, results that are arguments: position in ``inputs``, and position among the arguments.
    """

    inputs: tuple[Allocation, ...]
    results: tuple[Allocation, ...]
    profiles: Mapping[int, tuple[MemoryProfile, ...]]
    taken: tuple[int, ...] = ()
    handed_back: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    @cached_property
    def result_counts(self) -> list[tuple[Allocation, int]]:
        """The different allocations of its results, with the number of results that have each."""
        return counted(self.results)

    def peaks(self, graph: Graph) -> Iterator[Peak]:
        """Yield the peak of each island's devices, including all inputs."""
        for island, profiles in self.profiles.items():
            for profile in profiles:
                where = Placement(island, profile.first, profile.count)
                inputs, node = self.input_bytes(island, profile.first), graph.nodes[profile.node]
                others = profile.peaks[0] - profile.temporary
                yield Peak(graph.name, where, node.name, node.line, inputs, profile.temporary, others)

    def input_bytes(self, island: int, device: int) -> int:
        """Return the bytes of all inputs on a device."""
        return sum(h.bytes for h in self.inputs if covers(h.placement, island, device))


def counted(allocations: Sequence[Allocation]) -> list[tuple[Allocation, int]]:
    """Return different allocations, with the number of times that each occurs."""
    if len(allocations) == 1:
        return [(allocations[0], 1)]
    # By identity: equal ones of a plan are one object (see ``footprint_of``), and hashing each would take long.
    distinct = dict(zip(map(id, allocations), allocations, strict=True))
    return [(distinct[one], count) for one, count in Counter(map(id, allocations)).items()]


NOTHING = Footprint((), (), {})
"""Footprint of a plan whose sizes are unknown: it needs no memory, so admission never delays it."""


def covers(placement: Placement, island: int, device: int) -> bool:
    """Return whether a device belongs to a placement."""
    return placement.island == island and placement.first <= device < placement.first + placement.count


def overlap(one: Placement, other: Placement) -> bool:
    """Return whether two placements share a device."""
    return one.island == other.island and (
        one.first < other.first + other.count and other.first < one.first + one.count
    )


def shared_devices(one: Placement, other: Placement) -> int:
    """Return the number of devices that two placements share."""
    common = min(one.first + one.count, other.first + other.count) - max(one.first, other.first)
    return max(common, 0) if one.island == other.island else 0


def footprint_of(plan: Plan, sizes: Sizes, taken: Iterable[int] = ()) -> Footprint:
    """Return the memory that a call of ``plan`` needs on each device.

    Args:
        plan: the lowered program.
        sizes: what the compiler reports for its slots and steps.
        taken: positions of the arguments whose memory a node takes over.
    """
    known: dict[Allocation, Allocation] = {}

    def allocation(slot: int, otherwise: str) -> Allocation:
        where = plan.placements[plan.slots[slot].place]
        made = Allocation(where, sizes.slots[slot], purpose(plan, slot, otherwise))
        return known.setdefault(made, made)

    # Arguments lie at the places that read them, each brought by a step of its own.
    bringing = [step for step in plan.steps if step.kind == "bring"]
    brought = tuple(allocation(step.outputs[0], ARGUMENTS) for step in bringing)
    # A result that is an argument is memory that the caller holds already; it must not be counted twice.
    handed_back = {s.outputs[0]: (at, s.argument) for at, s in enumerate(bringing) if s.outputs[0] in plan.results}
    results = tuple(allocation(slot, RESULTS) for slot in plan.results)
    profiles = {island: tuple(_profiles(plan, sizes, island)) for island in plan.orders}
    return Footprint(brought, results, profiles, tuple(taken), handed_back)


def _profiles(plan: Plan, sizes: Sizes, island: int) -> Iterator[MemoryProfile]:
    """Yield the memory profile of each range of devices of an island that no placement divides.

    Devices of such a range hold the same slots, so one profile serves all of them.
    """
    placements = {p for p in plan.placements.values() if p.island == island}
    # Between two neighbouring edges, all devices belong to the same placements.
    edges = sorted({edge for p in placements for edge in (p.first, p.first + p.count)})
    ends = _ends(plan, island)
    for first, after in pairwise(edges):
        steps = [step for step in plan.orders[island] if covers(plan.placements[plan.steps[step].place], island, first)]
        if steps:
            yield _profile(plan, sizes, island, ends, (first, after - first), set(steps))


def _profile(
    plan: Plan, sizes: Sizes, island: int, ends: Mapping[int, int], devices: tuple[int, int], steps_here: set[int]
) -> MemoryProfile:
    """Return the memory profile of one range of devices.

    Args:
        plan: the lowered program.
        sizes: what the compiler reports for its slots and steps.
        island: index of the island.
        ends: by slot, the position after which its memory is free; see ``_ends``.
        devices: first device and number of devices.
        steps_here: indices of the steps that run on these devices.
    """
    order = plan.orders[island]
    sized = _sizes(plan, sizes, order, steps_here)
    made, expiring = by_category(plan, sized, order, ends)
    live: Parts = {}
    # (steps of the island,) the bytes in use during each, and by category.
    needs: list[tuple[int, Parts]] = []
    highest = -1, -1
    for position, index in enumerate(order):
        during = live
        if index in steps_here:
            # Outputs over arguments are left out of ``sized`` already; here count those over intermediates.
            taken, temporary = sizes.reused.get(index, (0, 0))[1], sizes.temporary.get(index, 0)
            during = added(added(live, made[position]), {TEMPORARIES: temporary})
            # These need no memory of their own while the step runs, though both are alive.
            during = less(during, [*made[position], TEMPORARIES], taken)
            live = added(live, made[position])
        needs.append((sum(during.values()), during))
        # Of equal peaks, the first step of the plan is named.
        highest = max(highest, (needs[-1][0], -index))
        live = added(live, expiring[position], -1)
    # From here on: the most that is still to come, not what is needed now. A reservation may then shrink as gangs
    # complete, and never has to grow.
    most = sum(live.values()), live
    for position in reversed(range(len(order))):
        most = needs[position] = max(most, needs[position], key=itemgetter(0))
    # (gangs + 1,): from the start of each gang, and after the last one, when only results are left.
    found = [*(needs[gang.start] for gang in plan.gangs[island]), (sum(live.values()), live)]
    peaks, parts = zip(*found, strict=True)
    at = -highest[1]
    # The peak may lie at a step of other devices, while these only hold what they have.
    temporary = sizes.temporary.get(at, 0) if at in steps_here else 0
    return MemoryProfile(*devices, peaks, plan.steps[at].node, temporary, parts)


def _sizes(plan: Plan, sizes: Sizes, order: Sequence[int], steps_here: set[int]) -> dict[int, int]:
    """Return the bytes that each slot adds on these devices.

    Slots of inputs are left out, since inputs are counted apart. Of an output that takes over the memory of an
    argument, only what exceeds that argument counts.
    """
    found: dict[int, int] = {}
    for index in order:
        step = plan.steps[index]
        if index not in steps_here or step.kind == "bring":
            continue
        # All outputs together take over so many bytes: each uses what those before it have left.
        left = sizes.reused.get(index, (0, 0))[0]
        for slot in step.outputs:
            inside = min(left, sizes.slots[slot])
            found[slot], left = sizes.slots[slot] - inside, left - inside
    return found


def _ends(plan: Plan, island: int) -> dict[int, int]:
    """Return for each slot made on an island the position in its order after which its memory is free.

    A slot that other islands read is free once a later step of this island depends on those reads, else when the call
    ends: islands run at their own pace, and nothing else says when the reader is done.
    """
    order = plan.orders[island]
    position = {index: at for at, index in enumerate(order)}
    known = _known(plan, island)
    kept, never = set(plan.results), len(order)
    found: dict[int, int] = {}
    for index in order:
        for slot in plan.steps[index].outputs:
            last = position[index]
            # A read by another island ends, as seen from here, with the first step that depends on it.
            for reader in plan.reads.get(slot, ()):
                last = max(last, position[reader] if reader in position else _first_after(known, plan, reader))
            found[slot] = never if slot in kept else last
    return found


def _first_after(known: Sequence[Mapping[int, int]], plan: Plan, reader: int) -> int:
    """Return the first position in an island's order by which a step of another island must be done."""
    island = plan.steps[reader].island
    # Progress of other islands only rises along the order, so it can be bisected.
    return bisect_left(known, plan.position(reader)[1] + 1, key=lambda clock: clock.get(island, 0))


def _known(plan: Plan, island: int) -> list[dict[int, int]]:
    """Return for each step of an island's order how far the other islands must be when it is done (vector clocks)."""
    clocks: list[dict[int, int]] = []
    last: dict[int, dict[int, int]] = {}
    for index, step in enumerate(plan.steps):
        # An island's steps are done in order, so a step knows all that the one before it knew.
        clock = dict(last.get(step.island, {}))
        for producer in step.producers:
            if plan.steps[producer].island != step.island:
                # And what producers elsewhere knew: their islands' progress, and of others through them.
                for other, count in clocks[producer].items():
                    clock[other] = max(clock.get(other, 0), count)
        clock[step.island] = plan.position(index)[1] + 1
        last[step.island] = clock
        clocks.append(clock)
    return [clocks[index] for index in plan.orders[island]]
