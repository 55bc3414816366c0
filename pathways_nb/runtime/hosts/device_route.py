"""The way of values from devices to devices of other hosts, by the transfer servers of ``jax.experimental.transfer``.

A host offers pieces of an array under a number, and tells it to the host that needs them, which pulls them onto its
devices. No host has a copy in between. An offer lasts until it is pulled, so one whose taker died is pulled by the host
that made it.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import SingleDeviceSharding

from pathways_nb.runtime.hosts.crossings import Cut
from pathways_nb.runtime.hosts.messages import Offer

try:  # it is experimental: where it is missing, values travel through Ray's object store
    from jax.experimental import transfer
except ImportError:
    transfer = None  # type: ignore[assignment]


class DeviceRoute:
    """This host's end.

    Args:
        devices: all devices of its island.
        host: address of this machine.
    """

    def __init__(self, devices: Sequence[Any], host: str):
        self._devices = devices
        self._own = [one for one in devices if one.process_index == one.client.process_index()]
        # A server without addresses to send from ends its process.
        address = f"{host}:0"
        self._server: Any = transfer.start_transfer_server(self._own[0].client, address, [address] * len(self._own))
        self._numbers = itertools.count(1)
        self._connections: dict[str, Any] = {}
        self._connecting = threading.Lock()

    def offer(self, pieces: Sequence[jax.Array], found: Sequence[Cut], first: int) -> Offer:
        """Offer pieces until they are pulled.

        Args:
            pieces: computed, each on one device; they must stay unchanged until then.
            found: the cut of each.
            first: the first device of the target within its island.

        Returns:
            What the taker needs to know.
        """
        number = next(self._numbers)
        self._server.await_pull(number, list(pieces))
        described = tuple((piece.shape, piece.dtype) for piece in pieces)
        return Offer(self._server.address(), number, described, tuple(cut.targets[0] for cut in found), first)

    def pull(self, offer: Offer) -> tuple[jax.Array, ...]:
        """Return the pieces, on this host's devices, when they are there.

        Raises:
            RuntimeError: the host that offers them died, as JAX says it.
        """
        try:
            found = self._begin(offer, [self._devices[offer.first + at] for at in offer.positions])
            return tuple(jax.block_until_ready(found))
        except Exception:
            self._connections.pop(offer.address, None)
            raise

    def withdraw(self, offer: Offer) -> None:
        """Forget an offer of this host that its taker may not have pulled; if it has, nothing comes of this."""
        self._begin(offer, [self._own[0]] * len(offer.pieces))

    def _begin(self, offer: Offer, devices: Sequence[Any]) -> Sequence[jax.Array]:
        """Return the pieces, which are on their way."""
        with self._connecting:
            connection = self._connections.get(offer.address)
            if connection is None:
                connection = self._connections[offer.address] = self._server.connect(offer.address)
        wanted = [
            jax.ShapeDtypeStruct(shape, dtype, sharding=SingleDeviceSharding(device))
            for (shape, dtype), device in zip(offer.pieces, devices, strict=True)
        ]
        found: Sequence[jax.Array] = connection.pull(offer.number, wanted)
        return found


def route_of(devices: Sequence[Any], host: str) -> DeviceRoute | None:
    """Return this host's end; ``None`` if this JAX cannot send from device to device.

    Args:
        devices: all devices of its island.
        host: address of this machine.
    """
    return None if transfer is None else DeviceRoute(devices, host)
