"""The object store's ledger: logical buffers with reference counts and owners (Pathways, section 4.6).

One entry for each logical buffer, never for each shard, so the cost does not depend on the number of devices. A buffer
lives while a user holds a handle or a call needs it, and is freed when neither does; it is collected with its client at
the latest.

What is equal for all results of a call stands once, in a ``BufferGroup``: a training step has hundreds of results,
which come together and mostly go together. What is particular to a buffer stands in sets and counts, which Python
changes for hundreds of buffers in one operation.

The arrays themselves belong to the driver, which obeys ``Free`` and ``Lose``. Bytes on devices are entered in
``held_memory``, once for each array: several buffers may be the same array, since a program may return an argument or
return a value twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pathways_nb.controller.events_and_instructions import Free, Instruction, Lose, Stored, Submitted
from pathways_nb.controller.held_memory import DeviceMemory
from pathways_nb.plan.call_numbers import call_number
from pathways_nb.plan.footprint import Allocation, counted, overlap
from pathways_nb.plan.plan import Placement


class Buffer(NamedTuple):
    """One logical buffer, as it is at one moment.

    Args:
        owner: name of the client that it belongs to.
        name: what errors and the status call it.
        bytes: size of the whole array; 0 once it holds no value any more.
        allocation: its devices, and bytes on each; ``None`` on the host, while the call that produces it is under way,
            and where another buffer that is the same array accounts for it.
        handle: whether a user holds it.
        calls: number of calls that hold it.
        shared: whether another buffer is the same array, or will be; then no call can take its memory over.
    """

    owner: str
    name: str
    bytes: int
    allocation: Allocation | None
    handle: bool
    calls: int
    shared: bool

    @property
    def held(self) -> bool:
        """Whether a user or a call holds it."""
        return self.handle or self.calls > 0


@dataclass(eq=False)
class BufferGroup:
    """The results of a call, or one value that a client stored.

    Args:
        owner: name of the client that they belong to.
        name: what errors and the status call them.
        numbers: of the buffers.
        sizes: bytes of each whole array.
        allocations: by buffer, its devices and bytes on each, while it occupies memory.
        islands: those on which any of them has occupied memory.
        under_way: whether the call that produces them is under way, which holds them until it ends.
        orphan: whether their client has closed, though a user may still have a handle.
    """

    owner: str
    name: str
    numbers: tuple[int, ...]
    sizes: tuple[int, ...]
    under_way: bool = False
    allocations: dict[int, Allocation] = field(default_factory=dict)
    islands: set[int] = field(default_factory=set)
    orphan: bool = False

    def name_of(self, buffer: int) -> str:
        """Return what errors and the status call one of them."""
        return f"{self.name}, result {self.numbers.index(buffer)}" if len(self.numbers) > 1 else self.name


class Store:
    """All logical buffers that are held.

    Args:
        memory: the ledger of bytes on devices.
    """

    def __init__(self, memory: DeviceMemory) -> None:
        self.memory = memory
        self.groups: dict[int, BufferGroup] = {}
        """By buffer: the group that it belongs to."""
        self.handles: set[int] = set()
        """Buffers that a user holds."""
        self.calls: Counter[int] = Counter()
        """By buffer: the number of calls that have it as an argument."""
        self.shared: set[int] = set()
        """Buffers of which another one is the same array, or will be."""
        self.void: set[int] = set()
        """Buffers that hold no value any more."""
        self.lost_devices: list[Placement] = []
        """Devices that are lost."""
        self.same: dict[int, set[int]] = {}
        """By buffer: all buffers that are the same array, where there are several."""

    @property
    def buffers(self) -> Mapping[int, Buffer]:
        """Every buffer, by number; made when it is asked for."""
        return _Buffers(self)

    def put(self, event: Stored) -> None:
        """Enter a value that a client stored and holds."""
        group = BufferGroup(event.client, event.name, (event.buffer,), (event.bytes,))
        self.groups[event.buffer] = group
        self.handles.add(event.buffer)
        if event.allocation is not None:
            self._occupy(event.buffer, event.allocation)

    def promise(self, event: Submitted) -> None:
        """Enter the results of a new call, and count the call as a holder of its arguments and results."""
        self.calls.update(event.arguments)
        name = f"{event.plan.graph.name}, run {call_number(event.run)}"
        made = BufferGroup(event.client, name, tuple(event.results), tuple(event.result_bytes), under_way=True)
        self.groups.update(dict.fromkeys(event.results, made))
        self.handles.update(event.results)
        # Known from the plan already: a call that is submitted meanwhile must not take the memory over.
        self.shared.update(_of_one_array(event))

    def finish_run(self, event: Submitted) -> list[Instruction]:
        """Return what the end of a call frees, after its results were entered with their memory.

        The reservation of the call is given back in the same event, so the bytes of its results are never free in
        between.
        """
        # Results first: they may be the same array as an argument, whose entry they need and which may be freed below.
        lost = self._keep(event)
        calls, read = self.calls, list[int]()
        for buffer in event.arguments:
            if (left := calls[buffer] - 1) > 0:
                calls[buffer] = left
            elif calls.pop(buffer, 0):  # ``del`` of a counter is no C; an event may name a buffer twice
                read.append(buffer)
        if event.results:
            self.groups[event.results[0]].under_way = False
        made = () if self.handles.issuperset(event.results) else event.results
        return [*lost, *self._forget((*read, *made))]

    def release(self, buffers: Iterable[int]) -> list[Instruction]:
        """Return what is freed because users dropped these handles; buffers that are gone already are ignored."""
        known = [buffer for buffer in buffers if buffer in self.groups]
        self.handles.difference_update(known)
        return self._forget(known)

    def disown(self, client: str) -> list[Instruction]:
        """Return what is freed because a client closed: all that it owned and no call needs."""
        owned = [number for number, group in self.groups.items() if group.owner == client]
        for number in owned:
            self.groups[number].orphan = True
        return self.release(owned)

    def empty(self, buffers: Iterable[int]) -> None:
        """Mark these buffers as holding no value any more, and give back their memory; handles may remain."""
        known = [buffer for buffer in buffers if buffer in self.groups]
        self._vacate(known)
        self.void.update(known)

    def remove(self, where: Placement) -> list[Instruction]:
        """Return what was lost with these devices."""
        self.lost_devices.append(where)
        lying = {number for number, allocation in self._allocations() if overlap(allocation.placement, where)}
        # The same array under another number is lost as well.
        lost = lying.union(*(self.same.get(number, ()) for number in lying))
        # Sorted, since sets have no order of their own and equal events must give equal instructions.
        return self._lose(sorted(lost), f"lay only on {where}, which was lost. Make it again")

    def restore(self, island: int) -> None:
        """Forget that devices of this island were lost."""
        self.lost_devices = [where for where in self.lost_devices if where.island != island]

    def at(self, where: Placement) -> Iterator[tuple[Buffer, int]]:
        """Yield each buffer with memory on a placement, and its bytes per device."""
        for number, allocation in self._allocations():
            if overlap(allocation.placement, where):
                yield self.buffers[number], allocation.bytes

    def islands_of(self, buffers: Iterable[int]) -> set[int]:
        """Return the islands that hold any of these buffers, or others of the same calls."""
        found = set(map(self.groups.get, buffers))
        return {island for group in found if group is not None for island in group.islands}

    def _allocations(self) -> Iterator[tuple[int, Allocation]]:
        """Yield each buffer that occupies memory, with what it occupies."""
        for number, group in self.groups.items():
            if (allocation := group.allocations.get(number)) is not None:
                yield number, allocation

    def _keep(self, event: Submitted) -> list[Instruction]:
        """Return the results of a call that are lost because their devices are; enter the memory of the others."""
        footprint = event.footprint
        if not event.results or not footprint.results:
            return []
        if (
            not (footprint.handed_back or self.lost_devices or not self.void.isdisjoint(event.results))
            and event.plan.distinct
        ):
            group = self.groups[event.results[0]]
            group.allocations.update(zip(event.results, footprint.results, strict=False))
            self._enter(group, footprint.result_counts, 1)
            return []
        # By slot of the plan: the argument that it hands back. An input that was moved is a copy at this place, so the
        # argument is another array.
        homes = {slot: event.arguments[a] for slot, (at, a) in footprint.handed_back.items() if at not in event.moved}
        lost: list[Instruction] = []
        for buffer, slot, allocation in zip(event.results, event.plan.results, footprint.results, strict=False):
            if buffer in self.void:  # its node failed
                continue
            home = homes.setdefault(slot, buffer)
            # The same array as the buffer ``home``, which accounts for it.
            if home != buffer and (home in self.same or home in self.groups[home].allocations):
                same = self.same.setdefault(home, {home})
                same.add(buffer)
                self.same[buffer] = same
                continue
            self._occupy(buffer, allocation)
            # Lost while the call was under way. It was entered all the same, so that losing it gives back as much.
            if any(overlap(allocation.placement, where) for where in self.lost_devices):
                lost += self._lose([buffer], f"was computed on {allocation.placement}, which was lost. Run it again")
        return lost

    def _occupy(self, buffer: int, allocation: Allocation) -> None:
        group = self.groups[buffer]
        group.allocations[buffer] = allocation
        self._enter(group, ((allocation, 1),), 1)

    def _enter(self, group: BufferGroup, counts: Iterable[tuple[Allocation, int]], sign: int) -> None:
        """Add what buffers of a group occupy, so many of each allocation, to the ledger of memory, or take it away."""
        for one, count in counts:
            self.memory.add(one.placement, group.owner, {one.category: sign * count * one.bytes})
            group.islands.add(one.placement.island)

    def _vacate(self, buffers: Sequence[int]) -> None:
        """Give back the memory of buffers, unless another buffer is the same array, which then accounts for it."""
        given_back: dict[BufferGroup, list[Allocation]] = {}
        for buffer in buffers:
            group = self.groups[buffer]
            if (allocation := group.allocations.pop(buffer, None)) is not None:
                given_back.setdefault(group, []).append(allocation)
            if self.same and (same := self.same.pop(buffer, None)) is not None:
                same.discard(buffer)
                if allocation is not None and same:
                    # The smallest number, so that equal histories give equal ledgers.
                    self._occupy(min(same), allocation)
        for group, allocations in given_back.items():
            self._enter(group, counted(allocations), -1)

    def _lose(self, buffers: Sequence[int], reason: str) -> list[Instruction]:
        self.empty(buffers)
        return _lose_instructions({buffer: self.groups[buffer] for buffer in buffers}, reason)

    def _forget(self, buffers: Iterable[int]) -> list[Instruction]:
        """Return what frees the buffers among these that nothing holds.

        A handle may remain if the client closed; its user is given the reason by ``Lose``.
        """
        handles, calls, groups = self.handles, self.calls, self.groups
        freed = [
            buffer
            for buffer in dict.fromkeys(buffers)
            if buffer not in handles and buffer not in calls and not groups[buffer].under_way
        ]
        if not freed:
            return []
        self._vacate(freed)
        self.void.difference_update(freed)
        self.shared.difference_update(freed)
        out: list[Instruction] = []
        for buffer, group in zip(freed, map(groups.pop, freed), strict=True):
            if group.orphan:
                why = f"belonged to the client {group.owner!r}, which has closed. Fetch what you need before it does"
                out += _lose_instructions({buffer: group}, why)
        return [*out, Free(tuple(freed))]


class _Buffers(Mapping[int, Buffer]):
    """A view of a store, buffer by buffer."""

    def __init__(self, store: Store):
        self._store = store

    def __getitem__(self, number: int) -> Buffer:
        store, group = self._store, self._store.groups[number]
        size = 0 if number in store.void else group.sizes[group.numbers.index(number)]
        return Buffer(
            group.owner, group.name_of(number), size, group.allocations.get(number), number in store.handles,
            store.calls[number] + group.under_way, number in store.shared,
        )  # fmt: skip

    def __iter__(self) -> Iterator[int]:
        return iter(list(self._store.groups))  # a copy: the core may go on meanwhile

    def __len__(self) -> int:
        return len(self._store.groups)

    def __contains__(self, number: object) -> bool:
        return number in self._store.groups

    def __repr__(self) -> str:
        return repr(dict(self))


def _of_one_array(event: Submitted) -> Iterator[int]:
    """Yield buffers of a call that will share an array: arguments that it returns, and results returned twice."""
    handed_back, slots = event.footprint.handed_back, event.plan.results
    if not handed_back and event.plan.distinct:
        return
    for buffer, slot in zip(event.results, slots, strict=True):
        if slot in handed_back:
            yield event.arguments[handed_back[slot][1]]
        if slot in handed_back or slots.count(slot) > 1:
            yield buffer


def _lose_instructions(groups: Mapping[int, BufferGroup], reason: str) -> list[Instruction]:
    """Return a ``Lose`` with a reason for each of these buffers; nothing if there are none."""
    reasons = tuple(f"{group.name_of(buffer)} {reason}." for buffer, group in groups.items())
    return [Lose(tuple(groups), reasons)] if groups else []
