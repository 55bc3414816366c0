"""How many bytes each client holds on each device: kept for runs of devices that hold the same, never one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from pathways_nb.controller.messages import MemoryHeld
from pathways_nb.plan.plan import Placement
from pathways_nb.util.intervals import Intervals

_Key = tuple[int, int, str]
"""Island, first device of a run of them, client."""


@dataclass(slots=True)
class DeviceBytes:
    """Bytes on each device of a run: by client, and of all clients together."""

    clients: dict[str, int] = field(default_factory=dict)
    total: int = 0

    def copy(self) -> DeviceBytes:
        """The same for a run that is cut off."""
        return DeviceBytes(dict(self.clients), self.total)


class IslandMemory:
    """Bytes per device on one island of ``devices``; ``budget`` of them are there, 0 if nobody knows."""

    def __init__(self, devices: int, budget: int):
        self.budget = budget
        self.runs = Intervals(DeviceBytes(), DeviceBytes.copy, devices)
        """Runs of devices that hold the same."""

    @property
    def totals(self) -> list[int]:
        """Bytes on each device of each run; a copy, which other threads may ask for."""
        return [held.total for held in self.runs.values.copy()]

    def within(self, where: Placement) -> list[DeviceBytes]:
        """What is held by the runs of devices that a placement touches."""
        return self.runs.values[self.runs.touching(where.first, where.first + where.count)]


class DeviceMemory:
    """What is held on every island.

    Args:
        devices: how many each island has.
        budgets: bytes per device of each; 0 where there is no limit.
    """

    def __init__(self, devices: Sequence[int], budgets: Sequence[int] = ()):
        self.islands = [IslandMemory(*each) for each in zip_longest(devices, budgets, fillvalue=0)]
        self.freed = 0
        """Goes up whenever something was given back."""
        self.changed: dict[_Key, None] = {}
        """Levels to be told."""
        self._told: dict[_Key, tuple[int, int]] = {}

    @property
    def limited(self) -> bool:
        """Whether any island has a budget."""
        return any(island.budget for island in self.islands)

    def add(self, where: Placement, client: str, size: int) -> None:
        """A client holds ``size`` bytes more on each device of a placement; fewer if negative."""
        if not size:
            return
        runs = self.islands[where.island].runs
        before = len(runs.edges)
        within = runs.between(where.first, where.first + where.count)
        if len(runs.edges) != before:  # cut finer: what was told of the whole is told again of its parts
            for edge, _, held in runs:
                self.changed.update(dict.fromkeys((where.island, edge, holder) for holder in held.clients))
        for first, held in zip(runs.edges[within], runs.values[within], strict=True):
            left = held.clients.get(client, 0) + size
            held.total += size
            if left:
                held.clients[client] = left
            else:
                held.clients.pop(client, None)
            self.changed[where.island, first, client] = None
        self.freed += size < 0

    def most(self, where: Placement) -> int:
        """The most bytes held on any device of a placement."""
        return max(held.total for held in self.islands[where.island].within(where))

    def most_of(self, client: str, where: Placement) -> int:
        """The most bytes that a client holds on any device of a placement."""
        return max(held.clients.get(client, 0) for held in self.islands[where.island].within(where))

    def changes(self) -> Iterator[MemoryHeld]:
        """What has changed since the last call."""
        changed, self.changed = self.changed, {}
        for number, first, client in changed:
            runs = self.islands[number].runs
            at = runs.touching(first, first + 1).start
            level = runs.edges[at + 1] - first, runs.values[at].clients.get(client, 0)
            key = number, first, client
            if self._told.get(key, (level[0], 0)) != level:
                self._told[key] = level
                if not level[1]:
                    del self._told[key]
                yield MemoryHeld(number, first, *level, client)
