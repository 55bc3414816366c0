"""The object store's book-keeping: logical buffers with reference counts and owners (Pathways, section 4.6).

One entry per logical buffer, never per shard, and the memory that it takes. The arrays themselves are the driver's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pathways_nb.controller.held_memory import DeviceMemory
from pathways_nb.controller.messages import Free, Instruction, Lose, Stored, Submitted
from pathways_nb.plan.footprint import Allocation, overlap
from pathways_nb.plan.plan import Placement


@dataclass
class Buffer:
    """One logical buffer.

    Args:
        owner: the client whose it is.
        name: what a person knows it by.
        bytes: of the whole array; 0 once it holds nothing any more.
        holding: where it lies; ``None`` on the host, while the run that makes it is under way, and where another
            buffer that is the same array accounts for it.
        handle: whether a user holds it.
        runs: how many runs hold it.
        orphan: whether its client has closed, though it may have a handle still.
        shared: whether another buffer is the same array, or will be: then nobody can take its memory over.
    """

    owner: str
    name: str
    bytes: int
    allocation: Allocation | None = None
    handle: bool = True
    runs: int = 0
    orphan: bool = False
    shared: bool = False

    @property
    def held(self) -> bool:
        """Whether anybody holds it."""
        return self.handle or self.runs > 0


class Store:
    """All logical buffers that somebody holds; what they take on devices is accounted for in ``memory``."""

    def __init__(self, memory: DeviceMemory) -> None:
        self.memory = memory
        self.buffers: dict[int, Buffer] = {}
        self.gone: list[Placement] = []
        """Devices that were lost."""
        self.same: dict[int, set[int]] = {}
        """By buffer: all that are the same array, where a program handed back an argument, or a result twice."""

    def put(self, event: Stored) -> None:
        """A client stores a value and holds it."""
        self.buffers[event.buffer] = Buffer(event.client, event.name, event.bytes)
        if event.allocation is not None:
            self._occupy(self.buffers[event.buffer], event.allocation)

    def promise(self, event: Submitted) -> None:
        """A run holds its arguments, and its results, which it is still to make."""
        for buffer in event.arguments:
            self.buffers[buffer].runs += 1
        name = event.plan.graph.name
        for number, (buffer, size) in enumerate(zip(event.results, event.result_bytes, strict=True)):
            title = f"{name}, run {event.run}" + (f", result {number}" if len(event.results) > 1 else "")
            self.buffers[buffer] = Buffer(event.client, title, size, runs=1)
        for buffer in _of_one_array(event):
            self.buffers[buffer].shared = True

    def finish_run(self, event: Submitted) -> list[Instruction]:
        """A run has ended: its results take the memory that was set aside for them, and it holds nothing any more."""
        lost = self._keep(event)
        held = (*event.arguments, *event.results)
        for buffer in held:
            self.buffers[buffer].runs -= 1
        return [*lost, *self._forget(held)]

    def release(self, buffers: Iterable[int]) -> list[Instruction]:
        """No user holds these. What has been taken from its user before is no longer there, or held by runs only."""
        known = [buffer for buffer in buffers if buffer in self.buffers]
        for buffer in known:
            self.buffers[buffer].handle = False
        return self._forget(known)

    def disown(self, client: str) -> list[Instruction]:
        """A client is gone, with all that it alone held."""
        owned = [number for number, entry in self.buffers.items() if entry.owner == client]
        for number in owned:
            self.buffers[number].orphan = True
        return self.release(owned)

    def empty(self, buffers: Iterable[int]) -> None:
        """These hold nothing any more, though they may have handles."""
        for buffer in buffers:
            if (entry := self.buffers.get(buffer)) is not None:
                self._vacate(buffer, entry)
                entry.bytes = 0

    def remove(self, where: Placement) -> list[Instruction]:
        """Devices are lost, with all that lay there."""
        self.gone.append(where)
        lying = {
            number
            for number, entry in self.buffers.items()
            if entry.allocation and overlap(entry.allocation.placement, where)
        }
        lost = lying.union(*(self.same.get(number, ()) for number in lying))
        return self._lose(sorted(lost), f"lay only on {where}, which was lost. Make it again")

    def restore(self, island: int) -> None:
        """An island's lost devices are there again."""
        self.gone = [where for where in self.gone if where.island != island]

    def at(self, where: Placement) -> Iterator[tuple[Buffer, int]]:
        """What lies on a placement, and its bytes per device."""
        for entry in self.buffers.values():
            if entry.allocation is not None and overlap(entry.allocation.placement, where):
                yield entry, entry.allocation.bytes

    def _keep(self, event: Submitted) -> list[Instruction]:
        homes = {
            slot: event.arguments[a] for slot, (at, a) in event.footprint.handed_back.items() if at not in event.moved
        }
        lost: list[Instruction] = []
        for buffer, slot, allocation in zip(event.results, event.plan.results, event.footprint.results, strict=False):
            entry = self.buffers[buffer]
            if not entry.bytes:  # its node failed
                continue
            home = homes.setdefault(slot, buffer)
            if home != buffer and (home in self.same or self.buffers[home].allocation is not None):
                self._join(buffer, home)
                continue
            self._occupy(entry, allocation)
            if any(overlap(allocation.placement, where) for where in self.gone):
                lost += self._lose([buffer], f"was computed on {allocation.placement}, which was lost. Run it again")
        return lost

    def _join(self, buffer: int, home: int) -> None:
        same = self.same.setdefault(home, {home})
        same.add(buffer)
        self.same[buffer] = same

    def _occupy(self, entry: Buffer, allocation: Allocation) -> None:
        entry.allocation = allocation
        self.memory.add(allocation.placement, entry.owner, allocation.bytes)

    def _vacate(self, buffer: int, entry: Buffer) -> None:
        """It lies nowhere any more; another that is the same array, if any, accounts for the memory from now on."""
        same = self.same.pop(buffer, set())
        same.discard(buffer)
        if entry.allocation is not None:
            allocation, entry.allocation = entry.allocation, None
            self.memory.add(allocation.placement, entry.owner, -allocation.bytes)
            if same:
                self._occupy(self.buffers[min(same)], allocation)

    def _lose(self, buffers: Sequence[int], reason: str) -> list[Instruction]:
        self.empty(buffers)
        return _told({buffer: self.buffers[buffer] for buffer in buffers}, reason)

    def _forget(self, buffers: Iterable[int]) -> list[Instruction]:
        """Those that nobody holds any more are freed; users whose client has closed may have them yet, and are told."""
        out: list[Instruction] = []
        freed = [buffer for buffer in dict.fromkeys(buffers) if not self.buffers[buffer].held]
        for buffer in freed:
            entry = self.buffers[buffer]
            self._vacate(buffer, entry)
            del self.buffers[buffer]
            if entry.orphan:
                why = f"belonged to the client {entry.owner!r}, which has closed. Fetch what you need before it does"
                out += _told({buffer: entry}, why)
        return [*out, Free(tuple(freed))] if freed else out


def _of_one_array(event: Submitted) -> Iterator[int]:
    """Buffers of a run that will not be alone with their arrays: arguments it hands back, and results made twice."""
    handed_back, slots = event.footprint.handed_back, event.plan.results
    if not handed_back and len(set(slots)) == len(slots):
        return
    for buffer, slot in zip(event.results, slots, strict=True):
        if slot in handed_back:
            yield event.arguments[handed_back[slot][1]]
        if slot in handed_back or slots.count(slot) > 1:
            yield buffer


def _told(entries: dict[int, Buffer], reason: str) -> list[Instruction]:
    return [Lose(tuple(entries), tuple(f"{e.name} {reason}." for e in entries.values()))] if entries else []
