"""Moves arrays: to other devices, or to another layout on their own devices, or not at all.

JAX takes an array through the host, and waits, when both layout and devices change. The functions here split such a
move into a copy in the same layout and a launch on the target's devices, so that nothing waits for an array.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from pathways_nb.program.specs import axes_of
from pathways_nb.util.intervals import joined


def translated(sharding: Any, mesh: Mesh | AbstractMesh) -> NamedSharding | None:
    """Return the same layout in the axes of another mesh with as many devices; ``None`` if they cannot express it.

    Each axis of a mesh is a range of strides in the order of its devices. Axes of both meshes that fill the same range
    mean the same: ``P("x")`` on 4 devices is ``P(("a", "b"))`` on 2 × 2, but no axis of 4 devices is ``P("a")`` there.
    """
    if not isinstance(sharding, NamedSharding) or sharding.mesh.size != mesh.size:
        return None
    ours, theirs = _strides(mesh), _strides(sharding.mesh)
    entries: list[tuple[str, ...]] = []
    for entry in sharding.spec:
        wanted = [theirs[axis] for axis in axes_of(entry)]
        rows = joined(reversed(wanted))[::-1]  # from major to minor, as they were
        axes = [axis for low, high in rows for axis, r in ours.items() if low <= r[0] < r[1] <= high]
        if math.prod(mesh.shape[axis] for axis in axes) != math.prod(high // low for low, high in wanted):
            return None
        entries.append(tuple(axes))
    return NamedSharding(mesh, PartitionSpec(*(axes[0] if len(axes) == 1 else axes or None for axes in entries)))


def _strides(mesh: Mesh | AbstractMesh) -> dict[str, tuple[int, int]]:
    """Return, for each axis, the distance of its neighbours in the order of devices, and that times its size."""
    found, stride = dict[str, tuple[int, int]](), 1
    for axis, size in reversed(mesh.shape.items()):
        found[axis] = stride, stride * size
        stride *= size
    return dict(reversed(found.items()))


def like_for_like(sharding: Any, mesh: Mesh) -> Any:
    """Return the same layout on another mesh's devices, on a mesh of its own shape; ``None`` if the counts differ."""
    if isinstance(sharding, NamedSharding) and sharding.mesh.size == mesh.size:
        kinds = (jax.sharding.AxisType.Auto,) * len(sharding.mesh.axis_names)
        moved = Mesh(mesh.devices.reshape(sharding.mesh.devices.shape), sharding.mesh.axis_names, axis_types=kinds)
        return NamedSharding(moved, sharding.spec)
    return None


def send(array: Any, target: Any) -> Any:
    """Copy an array to other devices without waiting for it to be ready.

    JAX would take another layout, or another number of devices, through the host and wait. Therefore the layout is
    changed by a launch on the devices it reaches, and replicas for another number of devices are sent one by one.

    Returns:
        The array on the devices of ``target``.
    """
    first = _first_layout(array.sharding, target, array.ndim)
    if first is not None:
        return reshard(jax.device_put(array, first), target)
    whole = target.is_fully_replicated and getattr(array.sharding, "is_fully_replicated", False)
    same_count = len(array.sharding.device_set) == len(target.device_set)
    if whole and not same_count and not jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
        return _send_copies(array, target)
    return jax.device_put(array, target)


@lru_cache(maxsize=1024)
def _first_layout(sharding: Any, target: Any, rank: int) -> Any:
    """Return the layout on the devices of ``target`` in which an array travels; ``None`` if it is the final one."""
    moved = like_for_like(sharding, target.mesh)
    return None if moved is None or moved.is_equivalent_to(target, rank) else moved


def _send_copies(array: Any, target: Any) -> Any:
    shards = [shard.data for shard in array.addressable_shards]
    devices: Sequence[Any] = list(target.mesh.devices.flat)
    copies = [jax.device_put(shards[i % len(shards)], device) for i, device in enumerate(devices)]
    return jax.make_array_from_single_device_arrays(array.shape, target, copies)


def reshard(array: Any, target: Any) -> Any:
    """Return the array in another layout on its own devices, by a launch rather than through the host."""
    return _resharder(target)(array)


_resharders: dict[Any, Callable[[Any], Any]] = {}


def _resharder(target: Any) -> Callable[[Any], Any]:
    if target not in _resharders:
        _resharders[target] = jax.jit(lambda array: array, out_shardings=target)
    return _resharders[target]


def lies_at(sharding: Any, target: Any, rank: int) -> bool:
    """Return whether an array of ``rank`` dimensions with this sharding need not move to have the other."""
    same = sharding is target or sharding == target
    return same or (sharding is not None and sharding.is_equivalent_to(target, rank))


def bring(array: Any, target: Any) -> tuple[Any, bool]:
    """Bring an argument to its place.

    Returns:
        The array at its place, and whether anything had to move.
    """
    if not isinstance(array, jax.Array):
        return jax.device_put(array, target), True
    if lies_at(array.sharding, target, array.ndim):
        return array, False
    if array.sharding.device_set == target.device_set:
        if not isinstance(array.sharding, NamedSharding):
            return jax.device_put(array, target), True  # a callback's layout, which JAX 0.12 cannot compile against
        return reshard(array, target), True
    return send(array, target), True
