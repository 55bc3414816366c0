"""The object store's ledger: logical buffers with reference counts and owners (Pathways, section 4.6).

One entry for each logical buffer, never for each shard, so the cost does not depend on the number of devices. A buffer
lives while a user holds a handle or a call needs it, and is freed when neither does; it is collected with its client at
the latest.

The arrays themselves belong to the driver, which obeys ``Free`` and ``Lose``. Bytes on devices are entered in
``held_memory``, once for each array: several buffers may be the same array, since a program may return an argument or
return a value twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pathways_nb.controller.events_and_instructions import Free, Instruction, Lose, Stored, Submitted
from pathways_nb.controller.held_memory import DeviceMemory
from pathways_nb.plan.call_numbers import call_number
from pathways_nb.plan.footprint import Allocation, overlap
from pathways_nb.plan.plan import Placement


@dataclass
class Buffer:
    """One logical buffer.

    Args:
        owner: name of the client that it belongs to.
        name: what errors and the status call it.
        bytes: size of the whole array; 0 once it holds no value any more.
        allocation: its devices, and bytes on each; ``None`` on the host, while the call that produces it is under way,
            and where another buffer that is the same array accounts for it.
        handle: whether a user holds it.
        calls: number of calls that hold it.
        orphan: whether its client has closed, though a user may still have a handle.
        shared: whether another buffer is the same array, or will be; then no call can take its memory over.
    """

    owner: str
    name: str
    bytes: int
    allocation: Allocation | None = None
    handle: bool = True
    calls: int = 0
    orphan: bool = False
    shared: bool = False

    @property
    def held(self) -> bool:
        """Whether a user or a call holds it."""
        return self.handle or self.calls > 0


class Store:
    """All logical buffers that are held.

    Args:
        memory: the ledger of bytes on devices.
    """

    def __init__(self, memory: DeviceMemory) -> None:
        self.memory = memory
        self.buffers: dict[int, Buffer] = {}
        self.gone: list[Placement] = []
        """Devices that are lost."""
        self.same: dict[int, set[int]] = {}
        """By buffer: all buffers that are the same array, where there are several."""

    def put(self, event: Stored) -> None:
        """Enter a value that a client stored and holds."""
        self.buffers[event.buffer] = Buffer(event.client, event.name, event.bytes)
        if event.allocation is not None:
            self._occupy(self.buffers[event.buffer], event.allocation)

    def promise(self, event: Submitted) -> None:
        """Enter the results of a new call, and count the call as a holder of its arguments and results."""
        for buffer in event.arguments:
            self.buffers[buffer].calls += 1
        name = event.plan.graph.name
        for number, (buffer, size) in enumerate(zip(event.results, event.result_bytes, strict=True)):
            title = f"{name}, run {call_number(event.run)}" + (f", result {number}" if len(event.results) > 1 else "")
            self.buffers[buffer] = Buffer(event.client, title, size, calls=1)
        # Known from the plan already: a call that is submitted meanwhile must not take the memory over.
        for buffer in _of_one_array(event):
            self.buffers[buffer].shared = True

    def finish_run(self, event: Submitted) -> list[Instruction]:
        """Return what the end of a call frees, after its results were entered with their memory.

        The reservation of the call is given back in the same event, so the bytes of its results are never free in
        between.
        """
        # Results first: they may be the same array as an argument, whose entry they need and which may be freed below.
        lost = self._keep(event)
        held = (*event.arguments, *event.results)
        for buffer in held:
            self.buffers[buffer].calls -= 1
        return [*lost, *self._forget(held)]

    def release(self, buffers: Iterable[int]) -> list[Instruction]:
        """Return what is freed because users dropped these handles; buffers that are gone already are ignored."""
        known = [buffer for buffer in buffers if buffer in self.buffers]
        for buffer in known:
            self.buffers[buffer].handle = False
        return self._forget(known)

    def disown(self, client: str) -> list[Instruction]:
        """Return what is freed because a client closed: all that it owned and no call needs."""
        owned = [number for number, entry in self.buffers.items() if entry.owner == client]
        for number in owned:
            self.buffers[number].orphan = True
        return self.release(owned)

    def empty(self, buffers: Iterable[int]) -> None:
        """Mark these buffers as holding no value any more, and give back their memory; handles may remain."""
        for buffer in buffers:
            if (entry := self.buffers.get(buffer)) is not None:
                self._vacate(buffer, entry)
                entry.bytes = 0

    def remove(self, where: Placement) -> list[Instruction]:
        """Return what was lost with these devices."""
        self.gone.append(where)
        lying = {
            number
            for number, entry in self.buffers.items()
            if entry.allocation and overlap(entry.allocation.placement, where)
        }
        # The same array under another number is lost as well.
        lost = lying.union(*(self.same.get(number, ()) for number in lying))
        # Sorted, since sets have no order of their own and equal events must give equal instructions.
        return self._lose(sorted(lost), f"lay only on {where}, which was lost. Make it again")

    def restore(self, island: int) -> None:
        """Forget that devices of this island were lost."""
        self.gone = [where for where in self.gone if where.island != island]

    def at(self, where: Placement) -> Iterator[tuple[Buffer, int]]:
        """Yield each buffer with memory on a placement, and its bytes per device."""
        for entry in self.buffers.values():
            if entry.allocation is not None and overlap(entry.allocation.placement, where):
                yield entry, entry.allocation.bytes

    def _keep(self, event: Submitted) -> list[Instruction]:
        """Return the results of a call that are lost because their devices are; enter the memory of the others."""
        # By slot of the plan: the argument that it hands back. An input that was moved is a copy at this place, so the
        # argument is another array.
        homes = {
            slot: event.arguments[a] for slot, (at, a) in event.footprint.handed_back.items() if at not in event.moved
        }
        lost: list[Instruction] = []
        for buffer, slot, allocation in zip(event.results, event.plan.results, event.footprint.results, strict=False):
            entry = self.buffers[buffer]
            if not entry.bytes:  # its node failed
                continue
            home = homes.setdefault(slot, buffer)
            # The same array as the buffer ``home``, which accounts for it.
            if home != buffer and (home in self.same or self.buffers[home].allocation is not None):
                same = self.same.setdefault(home, {home})
                same.add(buffer)
                self.same[buffer] = same
                continue
            self._occupy(entry, allocation)
            # Lost while the call was under way. It was entered all the same, so that losing it gives back as much.
            if any(overlap(allocation.placement, where) for where in self.gone):
                lost += self._lose([buffer], f"was computed on {allocation.placement}, which was lost. Run it again")
        return lost

    def _occupy(self, entry: Buffer, allocation: Allocation) -> None:
        entry.allocation = allocation
        self.memory.add(allocation.placement, entry.owner, {allocation.category: allocation.bytes})

    def _vacate(self, buffer: int, entry: Buffer) -> None:
        """Give back a buffer's memory, unless another buffer is the same array, which then accounts for it."""
        same = self.same.pop(buffer, set())
        same.discard(buffer)
        if entry.allocation is not None:
            allocation, entry.allocation = entry.allocation, None
            self.memory.add(allocation.placement, entry.owner, {allocation.category: -allocation.bytes})
            if same:
                # The smallest number, so that equal histories give equal ledgers.
                self._occupy(self.buffers[min(same)], allocation)

    def _lose(self, buffers: Sequence[int], reason: str) -> list[Instruction]:
        self.empty(buffers)
        return _lose_instructions({buffer: self.buffers[buffer] for buffer in buffers}, reason)

    def _forget(self, buffers: Iterable[int]) -> list[Instruction]:
        """Return what frees the buffers among these that nothing holds.

        A handle may remain if the client closed; its user is given the reason by ``Lose``.
        """
        out: list[Instruction] = []
        freed = [buffer for buffer in dict.fromkeys(buffers) if not self.buffers[buffer].held]
        for buffer in freed:
            entry = self.buffers[buffer]
            self._vacate(buffer, entry)
            del self.buffers[buffer]
            if entry.orphan:
                why = f"belonged to the client {entry.owner!r}, which has closed. Fetch what you need before it does"
                out += _lose_instructions({buffer: entry}, why)
        return [*out, Free(tuple(freed))] if freed else out


def _of_one_array(event: Submitted) -> Iterator[int]:
    """Yield buffers of a call that will share an array: arguments that it returns, and results returned twice."""
    handed_back, slots = event.footprint.handed_back, event.plan.results
    if not handed_back and len(set(slots)) == len(slots):
        return
    for buffer, slot in zip(event.results, slots, strict=True):
        if slot in handed_back:
            yield event.arguments[handed_back[slot][1]]
        if slot in handed_back or slots.count(slot) > 1:
            yield buffer


def _lose_instructions(entries: dict[int, Buffer], reason: str) -> list[Instruction]:
    """Return a ``Lose`` with a reason for each of these buffers; nothing if there are none."""
    return [Lose(tuple(entries), tuple(f"{e.name} {reason}." for e in entries.values()))] if entries else []
