"""Bytes that each client holds on each device, stored by ranges of devices with equal contents.

An island may have thousands of devices, but few placements divide it, so a range costs what a single device would.
Ranges are cut where placements begin and end, and never joined again.

This is the ledger only. ``admission`` decides who may hold memory, ``store`` knows which buffers hold it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import zip_longest

from pathways_nb.controller.messages import MemoryHeld
from pathways_nb.plan.plan import Placement

_Key = tuple[int, int, str]
"""Island, first device of a range, client."""


class IslandMemory:
    """Bytes held on the devices of one island, by range of devices and client.

    Args:
        devices: number of devices.
        budget: bytes of memory per device; 0 if unknown or unlimited.
    """

    def __init__(self, devices: int, budget: int):
        self.budget = budget
        self.edges = [0, devices]
        self.held: list[dict[str, int]] = [{}]
        """For each range of devices, bytes per device by client."""
        self.totals = [0]
        self._cuts: dict[tuple[int, int], range] = {}
        """Results of ``cut`` since a range was cut last; positions move when one is."""

    def within(self, where: Placement) -> range:
        """Return the ranges that a placement touches, as positions in ``held``."""
        low = bisect_right(self.edges, where.first) - 1
        return range(low, bisect_left(self.edges, where.first + where.count, low))

    def cut(self, where: Placement) -> range:
        """Return the ranges that make up a placement, as positions in ``held``; cut those that cross its edges."""
        found = self._cuts.get((where.first, where.count))
        if found is None:
            found = range(self._cut(where.first), self._cut(where.first + where.count))
            self._cuts[where.first, where.count] = found
        return found

    def _cut(self, edge: int) -> int:
        """Return the position of the range that begins at device ``edge``; cut one if there is none."""
        at = bisect_left(self.edges, edge)
        if at == len(self.edges) or self.edges[at] != edge:
            self.edges.insert(at, edge)
            self.held.insert(at, dict(self.held[at - 1]))
            self.totals.insert(at, self.totals[at - 1])
            self._cuts.clear()
        return at


class DeviceMemory:
    """Bytes held on the devices of every island.

    Args:
        devices: number of devices of each island.
        budgets: bytes of memory per device, for each island; 0 means no limit.
    """

    def __init__(self, devices: Sequence[int], budgets: Sequence[int] = ()):
        self.islands = [IslandMemory(*each) for each in zip_longest(devices, budgets, fillvalue=0)]
        self.freed = 0
        """Grows whenever memory is given back; admission compares it to know whether a new try can succeed."""
        self.changed: dict[_Key, None] = {}
        """Keys whose bytes may have changed since ``changes`` was called; a dictionary, to keep their order."""
        self._told: dict[_Key, tuple[int, int]] = {}
        """By key: number of devices and bytes as last reported; keys with 0 bytes are left out."""

    @property
    def limited(self) -> bool:
        """Whether any island has a budget."""
        return any(island.budget for island in self.islands)

    def add(self, where: Placement, client: str, size: int) -> None:
        """Add bytes to what a client holds on each device of a placement.

        Args:
            where: the placement.
            client: name of the client.
            size: bytes per device; negative if memory is given back.
        """
        if not size:
            return
        island = self.islands[where.island]
        runs = len(island.edges)
        within = island.cut(where)
        if len(island.edges) != runs:  # a range was cut: report each of its parts again
            for edge, held in zip(island.edges, island.held, strict=False):
                self.changed.update(dict.fromkeys((where.island, edge, holder) for holder in held))
        for at in within:
            held = island.held[at]
            left = held.get(client, 0) + size
            island.totals[at] += size
            if left:
                held[client] = left
            else:
                held.pop(client, None)
            self.changed[where.island, island.edges[at], client] = None
        self.freed += size < 0

    def most(self, where: Placement) -> int:
        """Return the most bytes held on any device of a placement."""
        island = self.islands[where.island]
        return max(island.totals[at] for at in island.within(where))

    def most_of(self, client: str, where: Placement) -> int:
        """Return the most bytes that a client holds on any device of a placement."""
        island = self.islands[where.island]
        return max(island.held[at].get(client, 0) for at in island.within(where))

    def changes(self) -> Iterator[MemoryHeld]:
        """Yield what changed since the last call; a value that went up and back down again is not reported."""
        changed, self.changed = self.changed, {}
        for number, first, client in changed:
            island = self.islands[number]
            at = bisect_left(island.edges, first)
            level = island.edges[at + 1] - first, island.held[at].get(client, 0)
            key = number, first, client
            if self._told.get(key, (level[0], 0)) != level:
                self._told[key] = level
                if not level[1]:
                    del self._told[key]
                yield MemoryHeld(number, first, *level, client)
