"""The memory of accelerators that others than the controller hold: a user's own arrays, the compiler, other processes.

The core's ledger knows what the controller has given away. What a device has in use beyond that is not its own, and is
told to the core (``Occupied``), so that programs wait for it as for any other memory. It is measured before programs
that need a notable part of a device, and several times a second while something waits for memory: nothing tells when a
user drops an array.
"""

from __future__ import annotations

import gc
import math
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pathways_nb.controller.events_and_instructions import Occupied
from pathways_nb.controller.state_machine import StateMachine
from pathways_nb.errors import size
from pathways_nb.runtime import device_facts
from pathways_nb.runtime.event_loop import EventLoop
from pathways_nb.runtime.lowering.attachment import Island
from pathways_nb.util.fallbacks import fall_back

_EVERY = 0.25
"""Seconds between two measurements while something waits."""
_NOTABLE, _LITTLE = 64, 256
"""A program is measured for if it needs more than the first part of a device; less than the second is not counted."""
_NAMED = 2


class ForeignMemory(threading.Thread):
    """Tells a core what others hold on its islands.

    Args:
        islands: with their devices.
        machine: the core.
        event_loop: hands events to it.
        ours: returns the ``id`` of each array that is the controller's.
    """

    def __init__(
        self, islands: Sequence[Island], machine: StateMachine, event_loop: EventLoop, ours: Callable[[], set[int]]
    ):
        super().__init__(name="pathways-memory", daemon=True)
        self._islands, self._machine, self._event_loop, self._ours = islands, machine, event_loop, ours
        self._stopped = threading.Event()

    def run(self) -> None:
        """Measure while something waits, until stopped."""
        collected = False
        while not self._stopped.wait(_EVERY):
            waits = bool(self._machine.admission.blocked)
            if waits and not collected and any(memory.others for memory in self._machine.memory.islands):
                gc.collect()  # arrays in cycles of objects keep their memory until then
            collected = waits
            if waits:
                self._event_loop.safely(self._measure)

    def stop(self) -> None:
        """End."""
        self._stopped.set()

    def begin(self) -> None:
        """Begin, with what there is now."""
        self.start()
        self._event_loop.safely(self._measure)

    def look(self, needed: Iterable[tuple[int, int]]) -> None:
        """Measure before something that needs memory, if it needs a notable part.

        Args:
            needed: islands, and bytes on each device.
        """
        memory = self._machine.memory.islands
        if any(0 < memory[island].budget < _NOTABLE * count for island, count in needed):
            self._event_loop.safely(self._measure)

    def _measure(self) -> None:
        """Tell the core what has changed; it must be the core's turn."""
        for island in self._islands:
            memory = self._machine.memory.islands[island.index]
            try:
                others = self._others(island) if memory.budget else 0
                words = self._words(island, others) if others else ""
            except Exception as error:  # of whatever class a backend raises, if its devices are lost
                fall_back("The memory in use on the attached devices cannot be read", error, "What was known stays.")
                continue
            if abs(others - memory.others) * _LITTLE > memory.budget or (memory.others and not others):
                self._event_loop.obey(Occupied(island.index, others, words))

    def _others(self, island: Island) -> int:
        """Return the bytes that others hold on the device of an island on which they hold most."""
        memory = self._machine.memory.islands[island.index]
        ours = [held.total for low, high, held in memory.ranges for _ in range(low, high)]
        found = max(used - held for used, held in zip(in_use(island.devices), ours, strict=True))
        # What is reserved for programs under way may not be allocated yet, so others may hold more than it seems.
        least = memory.others if self._machine.admission.under_way.get(island.index) else 0
        others = max(found, least)
        return others if others * _LITTLE > memory.budget else 0

    def _words(self, island: Island, others: int) -> str:
        ours = self._ours()
        arrays = [array for array in live_arrays(island.devices) if id(array) not in ours]
        named = sorted(arrays, key=_bytes_on_each, reverse=True)[:_NAMED]
        listed = [f"{array.dtype}[{','.join(map(str, array.shape))}] {size(_bytes_on_each(array))}" for array in named]
        largest = f" (the largest: {', '.join(listed)})" if listed else ""
        return f"{size(others)} that others hold, such as arrays of your own{largest}"


def in_use(devices: Sequence[Any]) -> list[int]:
    """Return the bytes in use on each device: what it reports, else the arrays of this process."""
    try:
        told = [device_facts.stats_of(device) for device in devices]
    except Exception:  # of whatever class a backend without it raises
        told = [None]
    if all(one is not None and "bytes_in_use" in one for one in told):
        return [one["bytes_in_use"] for one in told if one is not None]
    found: dict[Any, int] = dict.fromkeys(devices, 0)
    for array in live_arrays(devices):
        each = _bytes_on_each(array)
        for device in array.sharding.device_set & found.keys():
            found[device] += each
    return [found[device] for device in devices]


def live_arrays(devices: Sequence[Any]) -> list[Any]:
    """Return the arrays of this process that a client of devices holds, of whoever they are."""
    found: list[Any] = getattr(devices[0].client, "live_arrays", list)()
    return [array for array in found if not array.is_deleted()]


def _bytes_on_each(array: Any) -> int:
    return math.prod(array.sharding.shard_shape(array.shape)) * array.dtype.itemsize
