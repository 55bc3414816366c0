"""The resource manager: it maps virtual slices to devices of islands (Pathways, section 4.1).

A slice is a request, not a reservation: slices may share devices, and each is placed on the devices that carry the
fewest slices so far. Slices name no device, so lost devices can be replaced: a slice that touched one is placed again
when it is needed next, and its programs are lowered again.

Devices are counted by ranges, never one by one, so that an island of thousands costs no more than a small one.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from pathways_nb.controller.device_grid import DeviceGrid
from pathways_nb.errors import PlaceError
from pathways_nb.plan.footprint import covers, overlap
from pathways_nb.plan.plan import Placement
from pathways_nb.plan.virtual_slice import VirtualSlice, by_serial, is_alive
from pathways_nb.util.intervals import Intervals
from pathways_nb.util.words import counted, plural


class Counts:
    """One whole number for each device of an island, stored by ranges of devices with equal numbers.

    Args:
        devices: number of devices; each starts at 0.
    """

    def __init__(self, devices: int):
        self._each = Intervals(0, end=devices)
        self.total = 0
        """Sum over all devices."""

    def add(self, first: int, count: int, by: int) -> None:
        """Add ``by`` to each of ``count`` devices from ``first`` on."""
        where, values = self._each.between(first, first + count), self._each.values
        values[where] = [value + by for value in values[where]]
        self._each.merge(first, first + count)
        self.total += by * count

    def most_and_sum(self, first: int, count: int) -> tuple[int, int]:
        """Return the largest number of ``count`` devices from ``first`` on, and their sum."""
        most = total = 0
        after = first + count
        where, edges = self._each.touching(first, after), self._each.edges
        for at in range(where.start, where.stop):
            value = self._each.values[at]
            most = max(most, value)
            total += value * (min(edges[at + 1], after) - max(edges[at], first))
        return most, total

    @property
    def edges(self) -> Sequence[int]:
        """The first device of each range, and the number of all."""
        return self._each.edges

    def ranges(self) -> Iterator[tuple[int, int, int]]:
        """Yield each range as its first device, its number of devices, and the number that each of them has."""
        for first, after, value in self._each:
            yield first, after - first, value


class Resources:
    """The placement of every virtual slice.

    Args:
        islands: number of devices of each island.
        lock: guards against other threads; must be reentrant. ``None``: a single thread uses this object.
        grids: by island, the grid of whose boxes a slice must be one; ``None``, or none given, where any run of devices
            will do.
    """

    def __init__(
        self,
        islands: Sequence[int],
        lock: AbstractContextManager[Any] | None = None,
        grids: Sequence[DeviceGrid | None] = (),
    ):
        self.islands = tuple(islands)
        self._grids = dict(enumerate(grids))
        self._lock = lock or nullcontext()
        self._placements: dict[int, Placement] = {}
        self._forgotten = deque[int]()
        """Slices that are gone, but still counted on their devices."""
        self._moved: set[int] = set()
        """Slices that were moved by a loss, and may return when devices come back."""
        self._load = [Counts(count) for count in self.islands]
        """By island: number of slices on each device."""
        self._lost = [Counts(count) for count in self.islands]
        """By island: 1 for each device that is lost."""

    @contextmanager
    def _up_to_date(self) -> Iterator[None]:
        """Yield with the lock held and slices that are gone removed."""
        with self._lock:
            while self._forgotten:
                serial = self._forgotten.popleft()
                self._drop(serial)
                self._moved.discard(serial)
            yield

    def _drop(self, serial: int) -> None:
        placement = self._placements.pop(serial, None)
        if placement is not None:
            self._load[placement.island].add(placement.first, placement.count, -1)

    @property
    def placements(self) -> dict[int, Placement]:
        """Current placement of each slice, by serial; a copy."""
        with self._up_to_date():
            return dict(self._placements)

    @property
    def lost(self) -> list[Placement]:
        """Lost devices, as disjoint ranges."""
        with self._lock:
            return [
                Placement(island, first, count)
                for island, counts in enumerate(self._lost)
                for first, count, lost in counts.ranges()
                if lost
            ]

    def place(self, slices: Iterable[VirtualSlice]) -> dict[int, Placement]:
        """Place slices that have no devices yet, oldest first, and return the placement of each by serial.

        Args:
            slices: the slices; those that are placed already keep their devices.

        Returns:
            The placement of each slice, by serial.

        Raises:
            PlaceError: no island has that many devices, or the island asked for does not exist.
        """
        # By age, so that the placement does not depend on the order in which a program names its slices.
        wanted = sorted(slices, key=lambda slice_: slice_.serial)
        with self._up_to_date():
            for slice_ in wanted:
                if slice_.serial not in self._placements:
                    self._placements[slice_.serial] = self._choose(slice_)
            return {slice_.serial: self._placements[slice_.serial] for slice_ in wanted}

    def forget(self, serial: int) -> None:
        """Note that a slice is gone.

        Finalizers call it, which may run anywhere, even in a thread that holds the lock: it takes none, and the next
        caller of another method does the work.
        """
        self._forgotten.append(serial)

    def remove(self, where: Placement) -> None:
        """Mark devices as lost; slices that touch them are placed elsewhere when they are needed next."""
        counts, after = self._lost[where.island], where.first + where.count
        with self._up_to_date():
            for first, count, lost in tuple(counts.ranges()):
                begin, end = max(first, where.first), min(first + count, after)
                # Devices may be reported as lost twice, and count once.
                if begin < end and not lost:
                    counts.add(begin, end - begin, 1)
            for serial in [serial for serial, placement in self._placements.items() if overlap(placement, where)]:
                self._drop(serial)
                self._moved.add(serial)

    def restore(self, island: int) -> None:
        """Mark all devices of an island as present."""
        with self._up_to_date():
            self._lost[island] = Counts(self.islands[island])
            self._spread_again()

    def add(self, devices: int) -> None:
        """Add an island with this many devices."""
        with self._up_to_date():
            self.islands = (*self.islands, devices)
            self._load.append(Counts(devices))
            self._lost.append(Counts(devices))
            self._spread_again()

    def _spread_again(self) -> None:
        """Drop the placements of slices that a loss had moved, since devices came back.

        They are placed again when they are needed next, now over all devices.
        """
        for serial in self._moved:
            self._drop(serial)
        # While others are still lost, a slice may move once more when those come back.
        if not any(counts.total for counts in self._lost):
            self._moved.clear()

    def _choose(self, slice_: VirtualSlice) -> Placement:
        """Return the least loaded placement for a slice, and count the slice on its devices.

        Compared are the slices on the fullest device, on all devices together, on the whole island, and last the
        island's index, so that ties have one answer.
        """
        islands = self._asked(slice_)
        windows = [(island, first) for island in islands for first in self._windows(island, slice_.size)]
        if not windows:
            raise PlaceError(self._does_not_fit(slice_, islands))

        def load_of(at: tuple[int, int]) -> tuple[int, int, int, int]:
            island, first = at
            return *self._load[island].most_and_sum(first, slice_.size), self._load[island].total, island

        island, first = min(windows, key=load_of)
        self._load[island].add(first, slice_.size, 1)
        return Placement(island, first, slice_.size)

    def _windows(self, island: int, size: int) -> list[int]:
        """Return the first devices at which a slice could begin, in order.

        Only windows that begin or end at the edge of a range count. Between such edges the load of a moving window
        changes by the same amount from step to step, so one of its ends is as good as any position.
        """
        counts, last, grid = self._lost[island], self.islands[island] - size, self._grids.get(island)
        if grid is not None:
            return [first for first in grid.firsts(size) if not counts.most_and_sum(first, size)[0]]
        # Both: the first or last devices that a loss left must be tried, too.
        edges = {*self._load[island].edges, *counts.edges}
        firsts = sorted({first for edge in edges for first in (edge, edge - size) if 0 <= first <= last})
        return [first for first in firsts if not counts.total or not counts.most_and_sum(first, size)[0]]

    def _asked(self, slice_: VirtualSlice) -> Sequence[int]:
        """Return the islands on which a slice may be placed."""
        if slice_.island is None:
            return range(len(self.islands))
        if not 0 <= slice_.island < len(self.islands):
            raise PlaceError(f"{_words(slice_)} of island {slice_.island}, but there {self._have()}, numbered from 0.")
        return [slice_.island]

    def _have(self) -> str:
        several, equal = len(self.islands) > 1, len(set(self.islands)) == 1
        sizes = str(self.islands[0]) if equal else " + ".join(map(str, self.islands))
        most = plural(max(self.islands, default=0), "device")
        have = f"{'are' if several else 'is'} {counted(len(self.islands), 'island')} of {sizes} {most}"
        if lost := self.lost:
            are = "is" if sum(where.count for where in lost) == 1 else "are"
            have += f", of which {', '.join(map(_devices, lost))} {are} lost"
        return have

    def _does_not_fit(self, slice_: VirtualSlice, islands: Sequence[int]) -> str:
        drawn = [self._drawn(island, slice_) for island in islands if slice_.size <= self.islands[island]]
        if any(drawn):
            return f"{_words(slice_)}. {' '.join(filter(None, drawn))}"
        left = {i: [count for _, count, times in counts.ranges() if not times] for i, counts in enumerate(self._lost)}
        total, largest = sum(map(sum, left.values())), max(max(left[island], default=0) for island in islands)
        if slice_.island is not None and any(slice_.size <= count for counts in left.values() for count in counts):
            fixes = f"Leave out island={slice_.island} to place it on another, "
            fixes += f"ask for at most {largest}, or " if largest else "or "
            there = f"{_words(slice_)} of island {slice_.island}, but there {self._have()}"
            return f"{there}. {fixes}{self._where_more(slice_, islands)}."
        half = -(-slice_.size // 2)
        if half <= largest and slice_.size <= total:
            fixes = f"a slice lies within one island: use two, pw.virtual_slice({half}) and "
            fixes += f"pw.virtual_slice({slice_.size - half}), or "
        else:
            fixes = f"ask for at most {largest}, or " if largest else ""
        fixes += self._where_more(slice_, islands)
        return f"{_words(slice_)}, but there {self._have()}. {fixes[0].upper()}{fixes[1:]}."

    def _drawn(self, island: int, slice_: VirtualSlice) -> str:
        """Return why no box of an island's grid will do, with the grid and who holds what; empty if it has none."""
        grid = self._grids.get(island)
        if grid is None:
            return ""
        serials = [serial for serial, where in self._placements.items() if where.island == island and is_alive(serial)]
        letters = {serial: chr(ord("A") + at % 26) for at, serial in enumerate(sorted(serials))}

        def mark(position: int) -> str:
            if self._lost[island].most_and_sum(position, 1)[0]:
                return "x"
            held = [letter for serial, letter in letters.items() if covers(self._placements[serial], island, position)]
            return "".join(held) or "-"

        sizes = list(grid.boxes)
        legend = [f"{letter} {by_serial(serial).label}" for serial, letter in letters.items() if is_alive(serial)]
        legend += ["- free", *(["x lost"] if self._lost[island].total else [])]
        legend += ["· no device"] if math.prod(grid.sides) > len(grid.cells) else []
        what = f"Island {island} is {grid.words}, of which"
        if slice_.size in grid.boxes:
            why = f"{what} every box of {slice_.size} has lost a device"
            fix = f"Give back what was lost: controller.add(island={island})"
        else:
            less, more = [s for s in sizes if s < slice_.size], [s for s in sizes if s > slice_.size]
            near = [max(less, default=0), min(more, default=0)]
            why = f"{what} a program may have an aligned box: {', '.join(map(str, sizes))} devices"
            fix = f"Ask for {' or '.join(str(size) for size in near if size)}"
        shown = grid.picture(mark)
        return f"{why}. {fix}." + (f"\n{shown}\n  ({', '.join(legend)})" if shown else "")

    def _where_more(self, slice_: VirtualSlice, islands: Sequence[int]) -> str:
        """Return a hint: bring back lost devices if those would suffice, else attach more."""
        enough = [island for island in islands if slice_.size <= self.islands[island]]
        if enough:
            return f"give back what was lost: controller.add(island={enough[0]})"
        return f"attach more: pw.attach(…, islands={len(self.islands)}, devices_per_island={slice_.size})"


def _words(slice_: VirtualSlice) -> str:
    text = f"{slice_.label} asks for {counted(slice_.size, 'device')}"
    return f"{text} ({' × '.join(map(str, slice_.shape))})" if len(slice_.shape) > 1 else text


def _devices(where: Placement) -> str:
    last = where.first + where.count - 1
    return f"device{f's {where.first}–{last}' if where.count > 1 else f' {last}'} of island {where.island}"
