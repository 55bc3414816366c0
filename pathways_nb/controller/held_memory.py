"""Bytes that each client holds on each device, and for what, stored by ranges of devices with equal contents.

An island may have thousands of devices, but few placements divide it, so a range costs what a single device would.
Ranges are cut where placements begin and end, and never joined again.

This is the ledger only. ``admission`` decides who may hold memory, ``store`` knows which buffers hold it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from pathways_nb.controller.events_and_instructions import MemoryHeld
from pathways_nb.plan.memory_categories import Parts
from pathways_nb.plan.plan import Placement
from pathways_nb.util.intervals import Intervals

_Key = tuple[int, int, str]
"""Island, first device of a range, client."""


@dataclass(slots=True)
class DeviceBytes:
    """Bytes held on each device of a range: by client and category, and by all together."""

    parts: dict[tuple[str, str], int] = field(default_factory=dict)
    total: int = 0

    def copy(self) -> DeviceBytes:
        """Return a copy, for a range that is cut in two."""
        return DeviceBytes(dict(self.parts), self.total)

    @property
    def clients(self) -> dict[str, int]:
        """Bytes of each client that holds any."""
        found: dict[str, int] = {}
        for (client, _), size in self.parts.items():
            found[client] = found.get(client, 0) + size
        return found

    def parts_of(self, client: str) -> tuple[tuple[str, int], ...]:
        """Return what a client holds by category, in the order of their names."""
        return tuple(sorted((category, size) for (holder, category), size in self.parts.items() if holder == client))


class IslandMemory:
    """Bytes held on the devices of one island, by range of devices and client.

    Args:
        devices: number of devices.
        budget: bytes of memory per device; 0 if unknown or unlimited.
    """

    def __init__(self, devices: int, budget: int):
        self.budget = budget
        self.others, self.others_text = 0, ""
        """Bytes that others than the controller hold on the fullest device, and the largest of them in words."""
        self.ranges = Intervals(DeviceBytes(), DeviceBytes.copy, devices)
        """What is held, by ranges of devices that hold the same."""

    @property
    def share(self) -> int:
        """Bytes per device that are the controller's to give; at least 1, since a budget of 0 is none."""
        # A log that was saved by an earlier version knows of no others.
        return max(1, self.budget - getattr(self, "others", 0))

    @property
    def totals(self) -> list[int]:
        """Bytes on each device of each range; a copy, since other threads ask for it."""
        return [held.total for held in self.ranges.values.copy()]

    def within(self, where: Placement) -> list[DeviceBytes]:
        """Return what is held on each range of devices that a placement touches."""
        return self.ranges.values[self.ranges.touching(where.first, where.first + where.count)]


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
        self._told: dict[_Key, tuple[int, tuple[tuple[str, int], ...]]] = {}
        """By key: number of devices and bytes by category as last reported; keys with 0 bytes are left out."""

    @property
    def limited(self) -> bool:
        """Whether any island has a budget."""
        return any(island.budget for island in self.islands)

    def add(self, where: Placement, client: str, change: Parts) -> None:
        """Add bytes to what a client holds on each device of a placement.

        Args:
            where: the placement.
            client: name of the client.
            change: bytes per device by category; negative if memory is given back.
        """
        total = sum(change.values())
        if not total and not any(change.values()):
            return
        # ``between`` cuts ranges at both ends of the placement, so that what is added holds for whole ranges.
        ranges = self.islands[where.island].ranges
        before = len(ranges.edges)
        within = ranges.between(where.first, where.first + where.count)
        if len(ranges.edges) != before:  # cut finer: what was told of the whole is told again of its parts
            for edge, _, held in ranges:
                self.changed.update(dict.fromkeys((where.island, edge, holder) for holder in held.clients))
        for first, held in zip(ranges.edges[within], ranges.values[within], strict=True):
            held.total, parts = held.total + total, held.parts
            for category, size in change.items():
                key = client, category
                if left := parts.get(key, 0) + size:
                    # No entries of 0 bytes, so that ``clients`` lists only those that hold something.
                    parts[key] = left
                elif size:
                    del parts[key]
            self.changed[where.island, first, client] = None
        # In sum: bytes that move from one category to another let no request in.
        self.freed += total < 0

    def occupy(self, island: int, count: int, what: str) -> None:
        """Note the bytes that others hold on an island's fullest device, and the largest of them in words."""
        one = self.islands[island]
        one.others, one.others_text = count, what
        self.freed += 1  # there may be more room than before: let blocked requests try again

    def most(self, where: Placement) -> int:
        """Return the most bytes held on any device of a placement."""
        return max(held.total for held in self.islands[where.island].within(where))

    def most_of(self, client: str, where: Placement) -> int:
        """Return the most bytes that a client holds on any device of a placement."""
        return max(held.clients.get(client, 0) for held in self.islands[where.island].within(where))

    def changes(self) -> Iterator[MemoryHeld]:
        """Yield what changed since the last call; a value that went up and back down again is not reported."""
        changed, self.changed = self.changed, {}
        for number, first, client in changed:
            ranges = self.islands[number].ranges
            at = ranges.touching(first, first + 1).start
            held, count, key = ranges.values[at], ranges.edges[at + 1] - first, (number, first, client)
            parts = held.parts_of(client)
            # A range that was cut was told at its old width, so its parts are told even if no byte changed.
            if self._told.get(key, (count, ())) != (count, parts):
                self._told[key] = count, parts
                if not parts:
                    del self._told[key]
                yield MemoryHeld(number, first, count, sum(size for _, size in parts), client, parts)
