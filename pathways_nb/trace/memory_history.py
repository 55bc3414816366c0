"""How many bytes each device held, when, for which client and for what.

An event of kind ``"memory"`` says how many bytes a client held for one category on each of some devices for some time.
This module adds such levels up, by client or by category, to step functions that can be drawn. Devices with the same
history share one ``MemoryHistory``, so an island of thousands of equal devices is one row. Bytes are per device.

The controller's ledger (``controller.held_memory``) is where the levels come from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np

from pathways_nb.plan.memory_categories import in_order
from pathways_nb.trace.record import Events
from pathways_nb.trace.rows import Label, Row
from pathways_nb.util.intervals import joined, pieces

Division = Literal["client", "category"]
"""By what the memory of a device is divided."""


class HighWaterMark(NamedTuple):
    """The time at which devices held most.

    Args:
        island: index of the island.
    """

    island: int
    device: int
    """The first of the devices."""
    bytes: int
    """Bytes on each of the devices."""
    start: float
    """Start of the level, in seconds."""
    end: float
    """End of the level, in seconds."""
    by_name: dict[str, int]
    """Bytes on each of the devices by client, or by category, without those of 0 bytes."""


@dataclass(frozen=True, eq=False)
class MemoryHistory:
    """What some devices of one island held over time.

    Args:
        island: index of the island.
        devices: pairs of a first device and the device after the last; all of them have the same history.
        names: by what the bytes are divided: clients in the order in which they came into the record, ``""`` for no
            client; or categories in the order of ``memory_categories``, ``""`` where an older file does not say.
        times: when something changed, in seconds, rising, (times,).
        levels: bytes, (times, names); a row is valid until the next time, and the last row is zero.
    """

    island: int
    devices: tuple[tuple[int, int], ...]
    names: tuple[str, ...]
    times: np.ndarray
    levels: np.ndarray

    @cached_property
    def total(self) -> np.ndarray:
        """Bytes of all names together, for each of ``times``."""
        return self.levels.sum(1)

    @cached_property
    def by_total(self) -> np.ndarray:
        """Positions in ``times``, from the one with the fewest to the one with the most bytes."""
        return np.argsort(self.total, kind="stable")

    @cached_property
    def peak(self) -> HighWaterMark:
        """The first time at which most was held."""
        at = int(self.total.argmax())
        held = {name: level for name, level in zip(self.names, self.levels[at].tolist(), strict=True) if level}
        start, end = self.times[at : at + 2].tolist()
        return HighWaterMark(self.island, self.devices[0][0], int(self.total[at]), start, end, held)


def held_rows(times: np.ndarray, held: Mapping[Any, np.ndarray], end: float, client: str) -> Iterator[Row]:
    """Yield what one device holds as events, one for each time in which the memory of a category stays the same.

    Args:
        times: when a level begins, in seconds, rising.
        held: bytes at each of ``times``, by category.
        end: of the last level.
        client: that holds them.
    """
    ends = [*times.tolist(), end]
    for category, levels in held.items():
        # A level begins where it differs from the one before.
        begins = [0, *(np.flatnonzero(np.diff(levels)) + 1).tolist(), len(levels)]
        for since, until in pairwise(begins):
            if bytes := int(levels[since]):
                label = Label("memory", "held", client=client, island=0, devices=1, bytes=bytes, category=category)
                yield Row(label, ends[since], ends[until], 0, "simulated")


def memory_of(events: Events, by: Division = "client") -> list[MemoryHistory]:
    """Return what the devices of every island held, by island and first device; equal histories are one.

    Args:
        events: of a run.
        by: whether bytes are divided by client or by category.
    """
    levels = events.of_kind("memory")
    levels = levels.select((levels["end"] > levels["start"]) & (levels["bytes"] > 0))
    islands = np.unique(levels["island"]).tolist()
    return [held for island in islands for held in _on_island(levels.select(levels.is_("island", island)), island, by)]


def peak_of(events: Events) -> HighWaterMark | None:
    """Return the highest peak of all devices; ``None`` if nothing was ever held."""
    return max((held.peak for held in memory_of(events)), key=lambda peak: peak.bytes, default=None)


def _on_island(levels: Events, island: int, by: Division) -> list[MemoryHistory]:
    of_labels = levels.by_label(by).tolist()
    names = list(dict.fromkeys(of_labels)) if by == "client" else in_order({*of_labels})
    # (events,): the number of each event's name.
    codes = np.array([names.index(name) for name in of_labels], np.int64)[levels.label]
    columns = levels["start"], levels["end"], codes, levels["bytes"]
    histories: dict[tuple[bytes, ...], tuple[np.ndarray, np.ndarray, np.ndarray]] = {}
    devices: dict[tuple[bytes, ...], list[tuple[int, int]]] = {}
    for low, high, rows in pieces(levels["device"], levels["device"] + levels["devices"]):
        history = _history(*(column[rows] for column in columns))
        key = tuple(part.tobytes() for part in history)
        histories.setdefault(key, history)
        devices.setdefault(key, []).append((low, high))
    return [
        MemoryHistory(island, tuple(joined(devices[key])), tuple(names[code] for code in used.tolist()), times, held)
        for key, (used, times, held) in histories.items()
        if len(used)
    ]


def _history(
    start: np.ndarray, end: np.ndarray, name: np.ndarray, size: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the names, the times at which something changed, and the levels from then on.

    Equal histories give equal arrays, so their bytes serve as a key.
    """
    used, column = np.unique(name, return_inverse=True)
    times, row = np.unique(np.concatenate([start, end]), return_inverse=True)
    # (times, names): first what changes at each time, then what is held from it on.
    levels = np.zeros((len(times), len(used)), np.int64)
    np.add.at(levels, (row, np.tile(column, 2)), np.concatenate([size, -size]))
    # A level that ends as an equal one begins changes nothing.
    changed = levels.any(1)
    return used, times[changed], levels[changed].cumsum(0)
