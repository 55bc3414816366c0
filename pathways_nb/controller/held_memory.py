"""How many bytes each client holds on each device: kept for runs of devices that hold the same, never one by one."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import zip_longest

from pathways_nb.controller.messages import MemoryHeld
from pathways_nb.plan.plan import Placement

_Key = tuple[int, int, str]
"""Island, first device of a run of them, client."""


class IslandMemory:
    """Bytes per device on one island of ``devices``; ``budget`` of them are there, 0 if nobody knows."""

    def __init__(self, devices: int, budget: int):
        self.budget = budget
        self.edges = [0, devices]
        self.held: list[dict[str, int]] = [{}]
        """For each run of devices, by client."""
        self.totals = [0]
        self._cuts: dict[tuple[int, int], range] = {}
        """What ``cut`` has found since the runs were cut last."""

    def within(self, where: Placement) -> range:
        """The runs of devices that a placement touches."""
        low = bisect_right(self.edges, where.first) - 1
        return range(low, bisect_left(self.edges, where.first + where.count, low))

    def cut(self, where: Placement) -> range:
        """The runs of devices that make up a placement, made to end where it does."""
        found = self._cuts.get((where.first, where.count))
        if found is None:
            found = range(self._cut(where.first), self._cut(where.first + where.count))
            self._cuts[where.first, where.count] = found
        return found

    def _cut(self, edge: int) -> int:
        at = bisect_left(self.edges, edge)
        if at == len(self.edges) or self.edges[at] != edge:
            self.edges.insert(at, edge)
            self.held.insert(at, dict(self.held[at - 1]))
            self.totals.insert(at, self.totals[at - 1])
            self._cuts.clear()
        return at


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
        island = self.islands[where.island]
        runs = len(island.edges)
        within = island.cut(where)
        if len(island.edges) != runs:  # cut finer: what was told of the whole is told again of its parts
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
        """The most bytes held on any device of a placement."""
        island = self.islands[where.island]
        return max(island.totals[at] for at in island.within(where))

    def most_of(self, client: str, where: Placement) -> int:
        """The most bytes that a client holds on any device of a placement."""
        island = self.islands[where.island]
        return max(island.held[at].get(client, 0) for at in island.within(where))

    def changes(self) -> Iterator[MemoryHeld]:
        """What has changed since the last call."""
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
