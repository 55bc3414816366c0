"""The resource manager: virtual slices to devices of islands (Pathways, section 4.1).

A slice is a request, not a reservation: slices may share devices, and load is spread by putting each on the devices
that carry the fewest slices so far.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pathways_nb.errors import PlaceError
from pathways_nb.program.places import VirtualSlice
from pathways_nb.program.plan import Placement


class Resources:
    """Which devices each virtual slice lies on. ``islands`` holds the number of devices of each island."""

    def __init__(self, islands: Sequence[int]):
        self.islands = tuple(islands)
        self.placements: dict[int, Placement] = {}
        self._load = [[0] * count for count in self.islands]

    def place(self, slices: Iterable[VirtualSlice]) -> dict[int, Placement]:
        """Place slices that have no devices yet, oldest first; return the placement of each by serial.

        Raises:
            PlaceError: no island has that many devices, or the island asked for does not exist.
        """
        wanted = sorted(slices, key=lambda slice_: slice_.serial)
        for slice_ in wanted:
            if slice_.serial not in self.placements:
                self.placements[slice_.serial] = self._choose(slice_)
        return {slice_.serial: self.placements[slice_.serial] for slice_ in wanted}

    def forget(self, serial: int) -> None:
        """A slice is gone: its devices carry one slice less."""
        placement = self.placements.pop(serial, None)
        if placement is not None:
            self._add(placement, -1)

    def _choose(self, slice_: VirtualSlice) -> Placement:
        candidates = self._candidates(slice_)
        size = slice_.size

        def crowding(at: tuple[int, int]) -> tuple[int, int, int, int]:
            island, first = at
            load = self._load[island][first : first + size]
            return max(load), sum(load), sum(self._load[island]), island

        windows = [(island, first) for island in candidates for first in range(self.islands[island] - size + 1)]
        island, first = min(windows, key=crowding)
        placement = Placement(island, first, size)
        self._add(placement, 1)
        return placement

    def _candidates(self, slice_: VirtualSlice) -> list[int]:
        shape = " × ".join(map(str, slice_.shape))
        what = f"{slice_.label} asks for {slice_.size} devices ({shape})" if len(slice_.shape) > 1 else (
            f"{slice_.label} asks for {slice_.size} device{'s' * (slice_.size > 1)}"
        )  # fmt: skip
        have = f"{len(self.islands)} island{'s' * (len(self.islands) > 1)} of {_sizes(self.islands)} devices"
        if slice_.island is not None and not 0 <= slice_.island < len(self.islands):
            raise PlaceError(f"{what} of island {slice_.island}, but there are {have}, numbered from 0.")
        islands = range(len(self.islands)) if slice_.island is None else [slice_.island]
        fitting = [island for island in islands if self.islands[island] >= slice_.size]
        if not fitting:
            total, largest = sum(self.islands), max(self.islands[island] for island in islands)
            half = -(-slice_.size // 2)
            fix = (
                f"A slice lies within one island: use two, pw.virtual_slice({half}) and "
                f"pw.virtual_slice({slice_.size - half})"
                if half <= largest and slice_.size <= total
                else f"Ask for at most {largest}"
            )
            raise PlaceError(
                f"{what}, but there are {have}. {fix}, or attach more: "
                f'pw.attach("cpu", islands={len(self.islands)}, devices_per_island={slice_.size}).'
            )
        return fitting

    def _add(self, placement: Placement, sign: int) -> None:
        for device in range(placement.first, placement.first + placement.count):
            self._load[placement.island][device] += sign


def _sizes(islands: Sequence[int]) -> str:
    return str(islands[0]) if len(set(islands)) == 1 else " + ".join(map(str, islands))
