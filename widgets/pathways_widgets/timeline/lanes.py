"""The position of an event on the vertical axis.

From the top: a lane for what happens to all, such as a loss of devices, if there is any; one for the controller; for
each island one lane per device, one for host work if there is any, and one for the curve of busy devices; one lane for
transfers. The lanes of an island of several hosts are grouped by host. A device whose streams are told, as by another
tool's trace, has a lane for each, and its transfers are on these. The controller's lane has three rows (its work,
waiting programs, waiting Python), so that these do not cover each other. Two runs that are compared have a controller's
lane each, above their islands. What has no controller, as a trace or a replay, has no lane for one; neither has it one
for transfers, nor have two runs, unless there are any. Transfers are stacked by island. Above ``MOST_DEVICE_LANES``
devices each island is one lane, in which each device has its share of the height: 2048 lanes would be thinner than a
pixel.
"""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

from pathways_nb.trace.rows import CONTROLLER_KINDS, CONTROLLER_ROWS, GAUGE_KINDS, HOST_KIND, Label

MOST_DEVICE_LANES = 32
CONTROLLER_HEIGHT = 2.1
"""Height in device lanes: three rows that can hold a word each."""
BUSY_HEIGHT = HOST_HEIGHT = HAPPENED_HEIGHT = 1.0
MARGIN = 0.08


def streams_of(labels: Iterable[Label], islands: Sequence[int]) -> tuple[tuple[tuple[str, ...], ...], ...]:
    """Return by island and device the names of its streams, as far as events tell them.

    Empty without any, and where they would need more lanes than fit.

    Args:
        labels: of the events.
        islands: number of devices of each island.
    """
    found = [[set[str]() for _ in range(devices)] for devices in islands] if sum(islands) <= MOST_DEVICE_LANES else []
    for label in labels:
        if label.stream and 0 <= label.island < len(found) and label.device < len(found[label.island]):
            found[label.island][label.device].add(label.stream)
    lanes = sum(max(len(streams), 1) for devices in found for streams in devices)
    if lanes > MOST_DEVICE_LANES or not any(streams for devices in found for streams in devices):
        return ()
    # Numbers in names count as numbers: stream 7 is before stream 20.
    by_number = lambda name: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]  # noqa: E731
    return tuple(tuple(tuple(sorted(streams, key=by_number)) for streams in devices) for devices in found)


@dataclass(frozen=True)
class Lanes:
    """The lanes of runs on given islands.

    Args:
        islands: number of devices of each island.
        names: names of the islands; empty for ``"island 0"`` and so on. Of several runs each has the run's name and its
            number within it, as ``"mine 0"``.
        lane: height of a lane.
    """

    islands: tuple[int, ...]
    names: tuple[str, ...] = ()
    lane: float = 24.0
    """Height in pixels of a device's lane, where there is room."""
    hosts: tuple[int, ...] = ()
    """The islands that have a lane for host work."""
    per_host: tuple[int, ...] = ()
    """By island, the devices of each of its hosts; 0, or no entry, where it has one host."""

    streams: tuple[tuple[tuple[str, ...], ...], ...] = ()
    """By island and device, its streams, each with a lane of its own; none where a device is one lane."""

    happened: bool = False
    """Whether there is a lane, above all others, for what happens to all: devices that are lost, failures."""
    uncontrolled: tuple[int, ...] = ()
    """The first islands of runs that have no lane for a controller."""
    transfers: bool = True
    """Whether there is a lane for transfers."""

    @property
    def grown(self) -> bool:
        """Whether there are other lanes than for any run on these islands."""
        more = bool(self.hosts) or any(self.per_host) or self.happened or bool(self.streams)
        return more or bool(self.uncontrolled) or not self.transfers

    @property
    def grouped(self) -> bool:
        """Whether each island is one lane."""
        return sum(self.islands) > MOST_DEVICE_LANES

    @cached_property
    def controllers(self) -> tuple[int, ...]:
        """The first island of each run: above it is the lane of the run's controller."""
        return tuple(island for island, name in enumerate(self.names) if island and name.endswith(" 0"))

    @cached_property
    def bounds(self) -> tuple[float, ...]:
        """Upper edges of the controller's lane, each island and the transfers, then the lower edge of the whole.

        The lane of the controller of a further run is above its first island.
        """
        # One unit for each device, or for a whole island its share of the picture.
        return self._bounds([self._own_height(island) + self.below(island) for island in range(len(self.islands))])

    def _bounds(self, islands: Sequence[float]) -> tuple[float, ...]:
        """Return all edges, given the height of each island with what is below its devices."""
        whole = [0.0, *[HAPPENED_HEIGHT] * self.happened, self._controller_height(0)]
        for island, height in enumerate(islands):
            whole += [self._controller_height(island), height] if island in self.controllers else [height]
        return tuple(accumulate([*whole, float(self.transfers)]))

    def _controller_height(self, first: int) -> float:
        return 0.0 if first in self.uncontrolled else CONTROLLER_HEIGHT

    def without_empty(self, labels: Sequence[Label]) -> Lanes:
        """Return the lanes of a run that is over: none for a controller that it has not, or for what no run moved.

        Args:
            labels: of its events.
        """
        runs, moved = set[int](), False
        for label in labels:
            if label.kind == "transfer":
                moved |= self._stream(label.island, label.device, label.stream) is None
            elif label.kind not in GAUGE_KINDS and (label.kind in CONTROLLER_KINDS or not self._has(label.island)):
                runs.add(self._run(label.island))
        absent = tuple(first for run, first in enumerate((0, *self.controllers)) if run not in runs and labels)
        return replace(self, uncontrolled=absent, transfers=moved or not (absent or self.controllers))

    def _run(self, island: int) -> int:
        """Return the position of the run of an island; of ``-1 - n``, of that of island ``n``."""
        return bisect(self.controllers, -1 - island if island < 0 else island)

    def _has(self, island: int) -> bool:
        return 0 <= island < len(self.islands)

    def whole(self, island: int) -> tuple[float, float]:
        """Return the upper and lower edge of all lanes of an island."""
        edge = island + 1 + self.happened + bisect(self.controllers, island)
        bounds = self.bounds
        return bounds[edge], bounds[edge + 1]

    def controller(self, island: int) -> float:
        """Return the upper edge of the lane of an island's controller; of ``-1 - n``, of that of island ``n``."""
        if not (run := self._run(island)):
            return self.happened * HAPPENED_HEIGHT
        first = self.controllers[run - 1]
        return self.whole(first)[0] - self._controller_height(first)

    def devices(self, island: int) -> tuple[float, float]:
        """Return the upper and lower edge of an island's devices."""
        top, bottom = self.whole(island)
        return top, bottom - self.below(island)

    def below(self, island: int) -> float:
        """Return the height of an island's lanes below those of its devices."""
        return BUSY_HEIGHT + (HOST_HEIGHT if island in self.hosts else 0.0)

    def host(self, island: int) -> tuple[float, float]:
        """Return the upper and lower edge of an island's lane for host work."""
        bottom = self.whole(island)[1] - BUSY_HEIGHT
        return bottom - HOST_HEIGHT + MARGIN, bottom - MARGIN

    def busy(self, island: int) -> tuple[float, float]:
        """Return the upper and lower edge of an island's curve of busy devices."""
        bottom = self.whole(island)[1]
        return bottom - BUSY_HEIGHT + MARGIN, bottom - MARGIN

    @property
    def pixels(self) -> int:
        """Height in pixels of a lane of one device; lower where there are many lanes."""
        # Many lanes are lower, so that more of them are on a screen at once.
        return round(self.lane if self.bounds[-1] <= 16 else 0.63 * self.lane)

    @property
    def _grouped_height(self) -> float:
        # All islands together take about 24 lanes, an island at least one and at most four.
        return min(max(24 / len(self.islands), 1.0), 4.0)

    def _own_height(self, island: int) -> float:
        """Return the height of an island's devices: one for each lane, or for a whole island its share."""
        return self._grouped_height if self.grouped else self._lanes_before(island, self.islands[island])

    def _lanes_before(self, island: int, device: int) -> int:
        """Return the number of lanes of an island's devices before one; before the last device's end, of all."""
        if not self.streams:
            return device
        return sum(max(len(streams), 1) for streams in self.streams[island][:device])

    @property
    def labels(self) -> dict[float, str]:
        """Centre of each lane -> its label."""
        found = {HAPPENED_HEIGHT / 2: "events"} if self.happened else {}
        found |= {self.bounds[-2] + 0.5: "transfers"} if self.transfers else {}
        for first in (0, *self.controllers):
            if first in self.uncontrolled:
                continue
            run = f"{self.names[first][:-2]} · " if self.controllers else ""
            # Streams are told by traces of programs that had no controller: there the host made the calls.
            who = "host" if self.streams and any(self.streams[first]) else "controller"
            found[self.controller(first) + CONTROLLER_HEIGHT / 2] = f"{run}{who}"
        for island, devices in enumerate(self.islands):
            top, bottom = self.devices(island)
            # The curve of busy devices is the lowest lane of its island.
            found[self.whole(island)[1] - BUSY_HEIGHT / 2] = "busy"
            if island in self.hosts:
                found[sum(self.host(island)) / 2] = f"{self.name(island)} · host"
            if self.grouped:
                found[(top + bottom) / 2] = f"{self.name(island)} · {devices} dev"
            else:
                for device in range(devices):
                    middle = top + self._lanes_before(island, device) + 0.5
                    streams = self.streams[island][device] if self.streams else ()
                    found[middle] = self._device_name(island, device, *streams[:1])
                    found |= {middle + at: name for at, name in enumerate(streams) if at}
        return found

    @property
    def edges_of_hosts(self) -> list[float]:
        """Where the lanes of one host end and those of the next begin, on islands of several hosts."""
        if self.grouped:
            return []
        sizes = zip(self.islands, self.per_host, strict=False)
        return [
            self.devices(island)[0] + edge
            for island, (devices, size) in enumerate(sizes)
            for edge in (range(size, devices, size) if size else ())
        ]

    def _device_name(self, island: int, device: int, *stream: str) -> str:
        size = self.per_host[island] if island < len(self.per_host) else 0
        host = (f"host {device // size}",) if size else ()
        # Of one device its stream says enough: a name takes room from the picture.
        dev = () if stream and self.islands[island] == 1 else (f"dev {device}",)
        return " · ".join([self.name(island), *host, *dev, *stream])

    def name(self, island: int) -> str:
        """Return the name of an island."""
        return self.names[island] if self.names else f"island {island}"

    def band(self, kind: str, island: int, device: int, devices: int, stream: str = "") -> tuple[float, float]:
        """Return the upper and lower edge of an event's box.

        Args:
            kind: kind of the event.
            island: index of its island; -1 for none, and ``-1 - n`` for none of the run whose islands begin with ``n``.
            device: its first device.
            devices: number of devices; 0 means all of the island.
            stream: of the device; empty for all of it.
        """
        # What is on no island of this picture is drawn in the lane of the controller.
        placed = self._has(island)
        on_stream = self._stream(island, device, stream) is not None
        if kind == "transfer" and not on_stream:
            return self._share(self.bounds[-2], 1.0, island if placed else 0, max(len(self.islands), 1))
        if kind in CONTROLLER_KINDS or not placed:
            return self._share(self.controller(island), CONTROLLER_HEIGHT, CONTROLLER_ROWS.get(kind, 0), 3)
        if kind == HOST_KIND:
            return self.host(island)
        (top, bottom), size = self.devices(island), max(self.islands[island], 1)
        if on_stream:
            edge = top + self._lanes_before(island, device) + (self._stream(island, device, stream) or 0)
            return edge + MARGIN, edge + 1 - MARGIN
        # No box reaches into the lanes below those of the island.
        last = min(device + devices, size) if devices else size
        if self.streams and not self.grouped:
            return top + self._lanes_before(island, device) + MARGIN, top + self._lanes_before(island, last) - MARGIN
        unit = (bottom - top) / size
        # Grouped lanes are thin: a margin of a whole lane would be larger than the box.
        margin = MARGIN * min(1.0, unit)
        return top + device * unit + margin, top + last * unit - margin

    def _stream(self, island: int, device: int, stream: str) -> int | None:
        """Return the position of a stream among those of its device; None if it has no lane of its own."""
        if not stream or not self.streams or self.grouped or not self._has(island):
            return None
        if device >= len(self.streams[island]):
            return None
        known = self.streams[island][device]
        return known.index(stream) if stream in known else None

    @staticmethod
    def _share(top: float, lane: float, position: int, parts: int) -> tuple[float, float]:
        height = (lane - 2 * MARGIN) / parts
        return top + MARGIN + position * height, top + MARGIN + (position + 1) * height
