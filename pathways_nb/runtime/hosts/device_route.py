"""The way of values from devices to devices of other hosts, by the transfer servers of ``jax.experimental.transfer``.

A host offers pieces of an array under a number, and tells it to the host that needs them, which pulls them onto its
devices. No host has a copy in between. An offer lasts until it is pulled, so one whose taker died is pulled by the host
that made it.
"""

from __future__ import annotations

import itertools
import secrets
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from pathways_nb.runtime.hosts.crossings import Cut
from pathways_nb.runtime.hosts.messages import Offer

_KEPT = 8
"""Servers that are kept after they were replaced."""

try:  # it is experimental: where it is missing, values travel through Ray's object store
    from jax.experimental import transfer
except ImportError:
    transfer = None  # type: ignore[assignment]


class DeviceRoute:
    """This host's end.

    A server whose peer died may give what it had for that peer to the next one (seen with JAX 0.10). So every offer has
    a tag, which is pulled behind its pieces and compared, and after each failure a new server takes over.

    Args:
        devices: all devices of its island.
        host: address of this machine.
    """

    def __init__(self, devices: Sequence[Any], host: str):
        self._devices, self._address = devices, f"{host}:0"
        self._own = [one for one in devices if one.process_index == one.client.process_index()]
        self._numbers = itertools.count(1)
        self._changing = threading.Lock()
        self._before: deque[Any] = deque(maxlen=_KEPT)
        """Servers that were replaced, of which others may still pull."""
        self._server, self._connections = self._started(), dict[str, Any]()

    def renew(self) -> None:
        """Let a new server take over, because a peer died."""
        with self._changing:
            self._before.append((self._server, self._connections))
            self._server, self._connections = self._started(), {}

    def _started(self) -> Any:
        # A server without addresses to send from ends its process.
        addresses = [self._address] * len(self._own)
        return transfer.start_transfer_server(self._own[0].client, self._address, addresses)

    def offer(self, pieces: Sequence[jax.Array], found: Sequence[Cut], first: int) -> Offer:
        """Offer pieces until they are pulled.

        Args:
            pieces: each on one device; they must stay unchanged until then.
            found: the cut of each.
            first: the first device of the target within its island.

        Returns:
            What the taker needs to know.
        """
        number, mark = next(self._numbers), secrets.randbits(31)
        tag = jax.device_put(np.array([number % 2**31, mark], np.int32), self._own[0])
        with self._changing:
            server = self._server
        server.await_pull(number, jax.block_until_ready([*pieces, tag]))
        described = tuple((piece.shape, piece.dtype) for piece in pieces)
        return Offer(server.address(), number, mark, described, tuple(cut.targets[0] for cut in found), first)

    def pull(self, offer: Offer) -> tuple[jax.Array, ...]:
        """Return the pieces, on this host's devices, when they are there.

        Raises:
            RuntimeError: the host that offers them died, as JAX says it, or others came in their place.
        """
        try:
            found = self._begin(offer, [self._devices[offer.first + at] for at in offer.positions])
            *pieces, tag = jax.block_until_ready(found)
            if np.asarray(tag).tolist() != [offer.number % 2**31, offer.mark]:
                raise RuntimeError("pieces of another value came, because a host of the same cluster died")
            return tuple(pieces)
        except Exception:
            self.renew()
            raise

    def withdraw(self, offer: Offer) -> None:
        """Forget an offer of this host that its taker may not have pulled; if it has, nothing comes of this."""
        self.renew()
        self._begin(offer, [self._own[0]] * len(offer.pieces))

    def _begin(self, offer: Offer, devices: Sequence[Any]) -> Sequence[jax.Array]:
        """Return the pieces and their tag, which are on their way."""
        with self._changing:
            connection = self._connections.get(offer.address)
            if connection is None:
                connection = self._connections[offer.address] = self._server.connect(offer.address)
        described = (*offer.pieces, ((2,), np.dtype(np.int32)))
        wanted = [
            jax.ShapeDtypeStruct(shape, dtype, sharding=SingleDeviceSharding(device))
            for (shape, dtype), device in zip(described, (*devices, devices[0]), strict=True)
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
