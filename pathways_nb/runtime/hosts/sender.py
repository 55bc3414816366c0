"""Sends values to hosts of other islands: one thread waits for each value and cuts out what each host needs."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from pathways_nb.errors import PathwaysError
from pathways_nb.runtime.hosts.crossings import Cut, cuts, key_impl, numbers, part, without_keys
from pathways_nb.runtime.hosts.device_route import DeviceRoute
from pathways_nb.runtime.hosts.messages import Offer, Parcel
from pathways_nb.runtime.local.watcher import Clock, wait_for
from pathways_nb.runtime.lowering.pieces import Located
from pathways_nb.runtime.lowering.transfers import shards_of

Deliver = Callable[[int, int, Parcel, Callable[[bool], None]], None]
"""Gives a parcel to a host of an island; of one that is an offer, tells whether it was taken or that host died."""


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
        here: this host's island, and its number there.
        devices: all devices of its island.
        per_host: number of devices of a host, by island.
        deliver: gives a parcel to another host.
        clock: returns seconds of the controller's clock.
        route: the way from device to device; ``None`` sends by NumPy.
    """

    def __init__(
        self,
        here: tuple[int, int],
        devices: Sequence[Any],
        per_host: Callable[[int], int],
        deliver: Deliver,
        clock: Clock,
        route: DeviceRoute | None = None,
    ):
        super().__init__(name="pathways-sender", daemon=True)
        self.here, self.devices, self.per_host, self.deliver, self.clock = here, devices, per_host, deliver, clock
        self.route = route
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
        readers = _Readers(outgoing.on_sent)
        try:
            self._send(outgoing, readers)
        except Exception as cause:  # whatever it is, those who wait must hear of it
            self._send(replace(outgoing, array=None, error=outgoing.explain(cause)), readers)
        finally:
            readers.let_go()
        return True

    def _send(self, outgoing: Outgoing, readers: _Readers) -> None:
        failure = wait_for(outgoing.array) if isinstance(outgoing.array, jax.Array) else None
        error = outgoing.error or (outgoing.explain(failure) if failure is not None else None)
        began, source, target = self.clock(), outgoing.source, outgoing.target
        sends, takes = self.per_host(source.where.island), self.per_host(target.where.island)
        shards = _shards(outgoing.array) if error is None else {}
        for (host, to), found in cuts(source, target, outgoing.shape, sends, takes).items():
            if host != self.here[1]:
                continue
            island, parcel = target.where.island, Parcel(outgoing.run, outgoing.step, host, (), began, error)
            parcel = replace(parcel, key_impl=key_impl(outgoing.array))
            if error is not None:
                self.deliver(island, to, parcel, _unheard)
            elif not self._goes_by_device(outgoing, shards, (island, to)):
                by_numpy = {device: numbers(shard) for device, shard in shards.items()}
                arrays = tuple(np.asarray(piece) for piece in self._pieces(outgoing, by_numpy, found))
                self.deliver(island, to, replace(parcel, arrays=arrays), _unheard)
            else:
                assert self.route is not None
                on_devices = {device: without_keys(shard) for device, shard in shards.items()}
                offer = self.route.offer(self._pieces(outgoing, on_devices, found), found, target.where.first)
                self.deliver(island, to, replace(parcel, offer=offer), self._on_taken(offer, readers))

    def _goes_by_device(self, outgoing: Outgoing, shards: Mapping[Any, Any], to: tuple[int, int]) -> bool:
        """Return whether a value goes from device to device; a transfer server never ends to send nothing."""
        on_devices = None not in shards and not outgoing.target.where.is_host
        return self.route is not None and on_devices and to != self.here and all(outgoing.shape)

    def _pieces(self, outgoing: Outgoing, shards: Mapping[Any, Any], found: Sequence[Cut]) -> list[Any]:
        """Return the pieces of some cuts, each where its shard is."""
        source = outgoing.source
        boxes = source.shards(outgoing.shape)
        devices = [None if None in shards else self.devices[source.where.first + cut.source] for cut in found]
        return [
            part(shards[device], boxes.box(cut.source), cut.box) for cut, device in zip(found, devices, strict=True)
        ]

    def _on_taken(self, offer: Offer, readers: _Readers) -> Callable[[bool], None]:
        readers.hold()

        def ended(taken: bool) -> None:
            try:
                if not taken and self.route is not None:
                    self.route.withdraw(offer)
            finally:
                readers.let_go()

        return ended


class _Readers:
    """Calls a function when the last of several readers has let go; it begins with one."""

    def __init__(self, then: Callable[[], None]):
        self._count, self._then, self._lock = 1, then, threading.Lock()

    def hold(self) -> None:
        with self._lock:
            self._count += 1

    def let_go(self) -> None:
        with self._lock:
            self._count -= 1
            last = not self._count
        if last:
            self._then()


def _unheard(taken: bool) -> None:
    """Take note of nothing: what is sent by NumPy is a copy."""


def _shards(array: Any) -> dict[Any, Any]:
    """Return an array's shards in this process by device; a value of the host's own is its only one."""
    return {None: array} if isinstance(array, np.ndarray) else dict(shards_of(array))
