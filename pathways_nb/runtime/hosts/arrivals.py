"""Values on their way to this host: parcels from other hosts, and the arrays they are put together to.

A parcel may come before its run is known here, and a step may be expected before its parcels come; whichever is second
finishes the arrival. If the senders' island is lost, its arrivals end with that error.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from pathways_nb.errors import LostError, PathwaysError
from pathways_nb.runtime.hosts.crossings import Cut, Route
from pathways_nb.runtime.hosts.messages import Parcel
from pathways_nb.runtime.lowering.pieces import Box, Located
from pathways_nb.runtime.lowering.transfers import keeping

Parts = Sequence[tuple[Box, Any]]
"""Ranges of indices with their values, by NumPy or on a device."""
OnArrived = Callable[[list[Parcel], PathwaysError | None], None]
Key = tuple[int, int]
"""A run and a step."""


@dataclass(eq=False)
class _Arrival:
    hosts: frozenset[int] = frozenset()
    island: int = -1
    generation: int = 0
    on_arrived: OnArrived | None = None
    parcels: dict[int, Parcel] = field(default_factory=dict)


class Arrivals:
    """All values that are expected or have come early."""

    def __init__(self) -> None:
        self._coming: dict[Key, _Arrival] = {}
        self._lost: dict[int, tuple[int, str]] = {}
        """By lost island: the last generation that sends nothing more, and the reason."""
        self._lock = threading.Lock()

    def expect(self, key: Key, source: tuple[int, int], hosts: frozenset[int], on_arrived: OnArrived) -> None:
        """Call ``on_arrived`` with the parcels of all hosts, once they are there, or with an error.

        Args:
            key: run and step.
            source: the senders' island, and the life of it that sends.
            hosts: numbers of the senders within their island.
            on_arrived: called in any thread, once.
        """
        with self._lock:
            arrival = self._coming.setdefault(key, _Arrival())
            arrival.hosts, arrival.on_arrived = hosts, on_arrived
            arrival.island, arrival.generation = source
            lost = self._lost_to(arrival)
        self._finish(key, lost)

    def receive(self, parcel: Parcel) -> None:
        """Take in a parcel."""
        key = parcel.run, parcel.step
        with self._lock:
            self._coming.setdefault(key, _Arrival()).parcels[parcel.host] = parcel
        self._finish(key)

    def lose(self, island: int, generation: int, error: str) -> None:
        """End all arrivals from lives of an island up to ``generation``, now and later."""
        with self._lock:
            self._lost[island] = generation, error
            ended = [(key, lost) for key, arrival in self._coming.items() if (lost := self._lost_to(arrival))]
        for key, lost in ended:
            self._finish(key, lost)

    def forget(self, run: int) -> None:
        """Forget parcels of a run that nobody expects any more."""
        with self._lock:
            for key in [key for key in self._coming if key[0] == run]:
                del self._coming[key]

    def _lost_to(self, arrival: _Arrival) -> LostError | None:
        generation, error = self._lost.get(arrival.island, (-1, ""))
        return LostError(error) if arrival.on_arrived is not None and arrival.generation <= generation else None

    def _finish(self, key: Key, error: PathwaysError | None = None) -> None:
        with self._lock:
            arrival = self._coming.get(key)
            if arrival is None or arrival.on_arrived is None:
                return
            whole = arrival.hosts <= arrival.parcels.keys()
            failed = next((p.error for p in arrival.parcels.values() if p.error is not None), None)
            if not whole and failed is None and error is None:
                return
            del self._coming[key]
        parcels = [arrival.parcels[host] for host in sorted(arrival.hosts)] if whole else []
        arrival.on_arrived(parcels, failed or (None if whole else error))


def senders(routes: dict[Route, list[Cut]], to: int) -> frozenset[int]:
    """Return the hosts that send something to host ``to``."""
    return frozenset(source for source, target in routes if target == to)


def parts_of(parcels: Sequence[Parcel], routes: dict[Route, list[Cut]], to: int) -> Parts:
    """Return the ranges that parcels bring to host ``to``, each with its values."""
    return [
        (cut.box, array)
        for parcel in parcels
        for cut, array in zip(routes[parcel.host, to], parcel.arrays, strict=True)
    ]


def assembled(
    parts: Parts, where: Located, sharding: NamedSharding, shape: tuple[int, ...], key_impl: Any = None
) -> jax.Array:
    """Put an array together of the ranges that this process's devices need.

    Args:
        parts: ranges of indices with their values.
        where: layout and devices of the array, by placement.
        sharding: the same on JAX's devices.
        shape: its global shape.
        key_impl: of typed random keys, whose numbers the parts hold.

    Returns:
        The array, of which this process has its own devices' shards.
    """
    wanted, here = where.shards(shape), sharding.addressable_devices
    tail = parts[0][1].shape[len(shape) :] if parts else ()
    if key_impl is not None:
        sharding = NamedSharding(
            sharding.mesh, PartitionSpec(*_padded(sharding.spec, len(shape)), *(None for _ in tail))
        )
    with keeping(parts[0][1].dtype if parts else None):
        arrays = [
            _on_device(wanted.box(at), parts, device)
            for at, device in enumerate(sharding.mesh.devices.flat)
            if device in here
        ]
    array = jax.make_array_from_single_device_arrays((*shape, *tail), sharding, arrays)
    return jax.random.wrap_key_data(array, impl=key_impl) if key_impl is not None else array


def whole(parts: Parts, shape: tuple[int, ...]) -> np.ndarray:
    """Return a whole array, put together of its ranges."""
    return _shard(tuple((0, size) for size in shape), parts)


def zeros(where: Located, sharding: NamedSharding, shape: tuple[int, ...], dtype: str) -> jax.Array:
    """Return an array of zeros in place of a value that will not come; nobody is given what is made of it."""
    key = jax.random.key(0) if dtype.startswith("key<") else None
    tail = () if key is None else jax.random.key_data(key).shape
    name = "uint32" if key is not None else dtype
    boxes = {where.shards(shape).box(at) for at in range(where.where.count)}
    made = [(box, np.zeros((*(high - low for low, high in box), *tail), name)) for box in boxes]
    return assembled(made, where, sharding, shape, None if key is None else str(jax.random.key_impl(key)))


def _on_device(box: Box, parts: Parts, device: Any) -> jax.Array:
    """Return the values of a range on a device; parts that are on devices do not pass through the host."""
    whole = next((values for within, values in parts if within == box), None)
    if whole is not None or not all(isinstance(values, jax.Array) for _, values in parts):
        return jax.device_put(_shard(box, parts) if whole is None else whole, device)
    made = jnp.zeros(*_like(box, parts), device=device)
    for to, values in _overlaps(box, parts):
        made = made.at[to].set(jax.device_put(values, device))
    return made


def _shard(box: Box, parts: Parts) -> np.ndarray:
    """Return the values of a range, put together of the parts that overlap it."""
    for within, values in parts:
        if within == box:
            return np.asarray(values)
    made = np.empty(*_like(box, parts))
    for to, values in _overlaps(box, parts):
        made[to] = values
    return made


def _like(box: Box, parts: Parts) -> tuple[tuple[int, ...], Any]:
    """Return the shape and dtype of a range."""
    first = parts[0][1]
    return (*(high - low for low, high in box), *first.shape[len(box) :]), first.dtype


def _overlaps(box: Box, parts: Parts) -> Iterator[tuple[tuple[slice, ...], Any]]:
    """Yield the indices within a range that parts overlap, with their values."""
    for within, values in parts:
        common = [(max(a, c), min(b, d)) for (a, b), (c, d) in zip(box, within, strict=True)]
        if all(low < high for low, high in common):
            to = tuple(slice(low - start, high - start) for (low, high), (start, _) in zip(common, box, strict=True))
            of = tuple(slice(low - start, high - start) for (low, high), (start, _) in zip(common, within, strict=True))
            yield to, values[of]


def _padded(spec: Any, rank: int) -> tuple[Any, ...]:
    return (*spec, *(None for _ in range(rank - len(spec))))
