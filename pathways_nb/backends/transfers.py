"""Arrays on their way: to other devices, to another layout on their own, and whether they need to move at all.

Nothing here goes through the host where it can be helped, and nothing waits for an array to be computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import Mesh


def like_for_like(sharding: Any, mesh: Mesh) -> Any:
    """The same layout on another mesh's devices, if it has as many; else ``None``."""
    if isinstance(sharding, jax.sharding.NamedSharding) and sharding.mesh.size == mesh.size:
        if isinstance(mesh, jax.sharding.AbstractMesh):
            return sharding
        kinds = (jax.sharding.AxisType.Auto,) * len(sharding.mesh.axis_names)
        moved = Mesh(mesh.devices.reshape(sharding.mesh.devices.shape), sharding.mesh.axis_names, axis_types=kinds)
        return jax.sharding.NamedSharding(moved, sharding.spec)
    return None


def send(array: Any, target: Any) -> Any:
    """Copy an array to other devices without waiting for it to be ready.

    ``target`` is the like-for-like layout, or whole copies on another number of devices: JAX would take the second
    through the host and wait, so it is sent device by device.
    """
    whole = target.is_fully_replicated and getattr(array.sharding, "is_fully_replicated", False)
    same_count = len(array.sharding.device_set) == len(target.device_set)
    if whole and not same_count and not jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
        return _send_copies(array, target)
    return jax.device_put(array, target)


def _send_copies(array: Any, target: Any) -> Any:
    shards = [shard.data for shard in array.addressable_shards]
    devices: Sequence[Any] = list(target.mesh.devices.flat)
    copies = [jax.device_put(shards[i % len(shards)], device) for i, device in enumerate(devices)]
    return jax.make_array_from_single_device_arrays(array.shape, target, copies)


def reshard(array: Any, target: Any) -> Any:
    """Change an array's layout on its own devices, by a launch rather than through the host."""
    return _resharder(target)(array)


_resharders: dict[Any, Callable[[Any], Any]] = {}


def _resharder(target: Any) -> Callable[[Any], Any]:
    if target not in _resharders:
        _resharders[target] = jax.jit(lambda array: array, out_shardings=target)
    return _resharders[target]


def lies_at(sharding: Any, target: Any, rank: int) -> bool:
    """Whether an array of ``rank`` dimensions with this sharding need not be moved to have the other."""
    same = sharding is target or sharding == target
    return same or (sharding is not None and sharding.is_equivalent_to(target, rank))


def bring(array: Any, target: Any) -> tuple[Any, bool]:
    """An argument at its place, and whether anything had to move."""
    if not isinstance(array, jax.Array):
        return jax.device_put(array, target), True
    if lies_at(array.sharding, target, array.ndim):
        return array, False
    if array.sharding.device_set == target.device_set:
        if not isinstance(array.sharding, jax.sharding.NamedSharding):
            return jax.device_put(array, target), True  # a callback's layout, which JAX 0.12 cannot compile against
        return reshard(array, target), True
    moved = like_for_like(array.sharding, target.mesh)
    if moved is None:
        return send(array, target), True
    array = send(array, moved)
    return (array if moved.is_equivalent_to(target, array.ndim) else reshard(array, target)), True
