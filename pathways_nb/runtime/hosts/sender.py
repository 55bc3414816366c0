"""Sends values to hosts of other islands: one thread waits for each value and cuts out what each host needs."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from pathways_nb.errors import PathwaysError
from pathways_nb.runtime.hosts.crossings import cuts, key_impl, numbers, part
from pathways_nb.runtime.hosts.messages import Parcel
from pathways_nb.runtime.local.watcher import Clock, wait_for
from pathways_nb.runtime.lowering.pieces import Located
from pathways_nb.runtime.lowering.transfers import shards_of

Deliver = Callable[[int, int, Parcel], None]
"""Gives a parcel to a host of an island."""


@dataclass(eq=False)
class Outgoing:
    """A value to be sent, or the reason why there is none.

    Args:
        run: the run that receives it.
        step: its step that brings or moves the value.
        source: where the value lies.
        target: where it goes.
        shape: of the whole value.
        array: the value.
        error: why there is none.
        on_sent: called when the array is no longer needed.
        explain: turns what a failed computation raised into an error for the user.
    """

    run: int
    step: int
    source: Located
    target: Located
    shape: tuple[int, ...]
    array: Any = None
    error: PathwaysError | None = None
    on_sent: Callable[[], None] = lambda: None
    explain: Callable[[BaseException], PathwaysError] = lambda error: PathwaysError(str(error))


class Sender(threading.Thread):
    """Sends what is put into its queue, in that order.

    Args:
        number: of this host within its island.
        devices: all devices of its island.
        per_host: number of devices of a host, by island.
        deliver: gives a parcel to another host.
        clock: returns seconds of the controller's clock.
    """

    def __init__(
        self, number: int, devices: Sequence[Any], per_host: Callable[[int], int], deliver: Deliver, clock: Clock
    ):
        super().__init__(name="pathways-sender", daemon=True)
        self.number, self.devices, self.per_host, self.deliver, self.clock = number, devices, per_host, deliver, clock
        self.inbox: queue.SimpleQueue[Outgoing | None] = queue.SimpleQueue()

    def run(self) -> None:
        """Send until stopped."""
        while self._next():
            pass

    def _next(self) -> bool:
        """Send one value; a function of its own so that no array stays referenced while the thread waits."""
        outgoing = self.inbox.get()
        if outgoing is None:
            return False
        try:
            self._send(outgoing)
        finally:
            outgoing.on_sent()
        return True

    def _device(self, outgoing: Outgoing, position: int) -> Any:
        on_host = isinstance(outgoing.array, np.ndarray)
        return None if on_host else self.devices[outgoing.source.where.first + position]

    def _send(self, outgoing: Outgoing) -> None:
        failure = wait_for(outgoing.array) if isinstance(outgoing.array, jax.Array) else None
        error = outgoing.error or (outgoing.explain(failure) if failure is not None else None)
        began, source, target = self.clock(), outgoing.source, outgoing.target
        sends, takes = self.per_host(source.where.island), self.per_host(target.where.island)
        shards = {}
        if error is None:
            shards = _shards(outgoing.array)
        for (host, to), found in cuts(source, target, outgoing.shape, sends, takes).items():
            if host != self.number:
                continue
            boxes = source.shards(outgoing.shape)
            arrays = () if error is not None else tuple(
                part(shards[self._device(outgoing, cut.source)], boxes.box(cut.source), cut.box)
                for cut in found
            )  # fmt: skip
            parcel = Parcel(outgoing.run, outgoing.step, host, arrays, began, error, key_impl(outgoing.array))
            self.deliver(target.where.island, to, parcel)


def _shards(array: Any) -> dict[Any, np.ndarray]:
    """Return an array's shards in this process by device; a value of the host's own is its only one."""
    if isinstance(array, np.ndarray):
        return {None: array}
    return {device: numbers(shard) for device, shard in shards_of(array).items()}
