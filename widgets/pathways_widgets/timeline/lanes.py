"""The position of an event on the vertical axis.

From the top: one lane for the controller; for each island one lane per device and one for the curve of busy devices;
one lane for transfers. The controller's lane has three rows (its work, waiting programs, waiting Python), so that these
do not cover each other. Transfers are stacked by island. Above ``MOST_DEVICE_LANES`` devices each island is one lane,
in which each device has its share of the height: 2048 lanes would be thinner than a pixel.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from pathways_nb.trace.record import CONTROLLER_KINDS

MOST_DEVICE_LANES = 32
CONTROLLER_ROWS = {"stall": 1, "wait": 2, "fetch": 2}
"""Row of a kind of event in the controller's lane; kinds that are not listed are in row 0."""
CONTROLLER_HEIGHT = 2.1
"""Height in device lanes: three rows that can hold a word each."""
BUSY_HEIGHT = 1.0
MARGIN = 0.08


@dataclass(frozen=True)
class Lanes:
    """The lanes of runs on given islands.

    Args:
        islands: number of devices of each island.
        names: names of the islands; empty for ``"island 0"`` and so on.
        lane: height of a lane.
    """

    islands: tuple[int, ...]
    names: tuple[str, ...] = ()
    lane: float = 24.0
    """Height in pixels of a device's lane, where there is room."""

    @property
    def grouped(self) -> bool:
        """Whether each island is one lane."""
        return sum(self.islands) > MOST_DEVICE_LANES

    @property
    def bounds(self) -> tuple[float, ...]:
        """Upper edges of the controller's lane, each island and the transfers, then the lower edge of the whole."""
        heights = [self._grouped_height] * len(self.islands) if self.grouped else self.islands
        return tuple(accumulate([0.0, CONTROLLER_HEIGHT, *(height + BUSY_HEIGHT for height in heights), 1.0]))

    def devices(self, island: int) -> tuple[float, float]:
        """Return the upper and lower edge of an island's devices."""
        return self.bounds[island + 1], self.bounds[island + 2] - BUSY_HEIGHT

    def busy(self, island: int) -> tuple[float, float]:
        """Return the upper and lower edge of an island's curve of busy devices."""
        bottom = self.bounds[island + 2]
        return bottom - BUSY_HEIGHT + MARGIN, bottom - MARGIN

    @property
    def pixels(self) -> int:
        """Height in pixels of a lane of one device; lower where there are many lanes."""
        return round(self.lane if self.bounds[-1] <= 16 else 0.63 * self.lane)

    @property
    def _grouped_height(self) -> float:
        return min(max(24 / len(self.islands), 1.0), 4.0)

    @property
    def labels(self) -> dict[float, str]:
        """Centre of each lane -> its label."""
        bounds = self.bounds
        found = {CONTROLLER_HEIGHT / 2: "controller", bounds[-2] + 0.5: "transfers"}
        for island, devices in enumerate(self.islands):
            top, bottom = self.devices(island)
            found[self.bounds[island + 2] - BUSY_HEIGHT / 2] = "busy"
            if self.grouped:
                found[(top + bottom) / 2] = f"{self.name(island)} · {devices} dev"
            else:
                found |= {top + device + 0.5: f"{self.name(island)} · dev {device}" for device in range(devices)}
        return found

    def name(self, island: int) -> str:
        """Return the name of an island."""
        return self.names[island] if self.names else f"island {island}"

    def band(self, kind: str, island: int, device: int, devices: int) -> tuple[float, float]:
        """Return the upper and lower edge of an event's box.

        Args:
            kind: kind of the event.
            island: index of its island; -1 for none.
            device: its first device.
            devices: number of devices; 0 means all of the island.
        """
        placed = 0 <= island < len(self.islands)
        if kind == "transfer":
            return self._share(self.bounds[-2], 1.0, island if placed else 0, max(len(self.islands), 1))
        if kind in CONTROLLER_KINDS or not placed:
            return self._share(0.0, CONTROLLER_HEIGHT, CONTROLLER_ROWS.get(kind, 0), 3)
        (top, bottom), size = self.devices(island), max(self.islands[island], 1)
        unit = (bottom - top) / size
        last = min(device + devices, size) if devices else size
        margin = MARGIN * min(1.0, unit)
        return top + device * unit + margin, top + last * unit - margin

    @staticmethod
    def _share(top: float, lane: float, position: int, parts: int) -> tuple[float, float]:
        height = (lane - 2 * MARGIN) / parts
        return top + MARGIN + position * height, top + MARGIN + (position + 1) * height
