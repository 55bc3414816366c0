"""Moves arrays: to other devices, or to another layout on their own devices, or not at all.

JAX takes an array through the host, and waits, when both layout and devices change, and also when it copies to a bare
device of another client. The functions here send each target device the pieces that it lacks (see ``pieces``): cut out
by a launch on the source device, copied like for like, and joined by a launch on the target device, so that nothing
waits for an array.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache, lru_cache
from typing import Any, NamedTuple

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from pathways_nb.program.jax_contexts import Contexts
from pathways_nb.program.specs import axes_of
from pathways_nb.runtime.lowering.pieces import Box, Shards, pieces
from pathways_nb.util.intervals import joined


def translated(sharding: Any, mesh: Mesh | AbstractMesh) -> NamedSharding | None:
    """Return the same layout in the axes of another mesh with as many devices; ``None`` if they cannot express it.

    Each axis of a mesh is a range of strides in the order of its devices. Axes of both meshes that fill the same range
    mean the same: ``P("x")`` on 4 devices is ``P(("a", "b"))`` on 2 × 2, but no axis of 4 devices is ``P("a")`` there.
    """
    if not isinstance(sharding, NamedSharding) or sharding.mesh.size != mesh.size:
        return None
    here, there = _strides(mesh), _strides(sharding.mesh)
    entries: list[tuple[str, ...]] = []
    for entry in sharding.spec:
        wanted = [there[axis] for axis in axes_of(entry)]
        rows = joined(reversed(wanted))[::-1]  # from major to minor, as they were
        axes = [axis for low, high in rows for axis, r in here.items() if low <= r[0] < r[1] <= high]
        # Whole axes must fill the ranges: of an axis of 4 devices, no part is the 2 that another mesh calls "a".
        if math.prod(mesh.shape[axis] for axis in axes) != math.prod(high // low for low, high in wanted):
            return None
        entries.append(tuple(axes))
    return NamedSharding(mesh, _spec(entries))


def _strides(mesh: Mesh | AbstractMesh) -> dict[str, tuple[int, int]]:
    """Return, for each axis, the distance of its neighbours in the order of devices, and that times its size."""
    found, stride = dict[str, tuple[int, int]](), 1
    for axis, size in reversed(mesh.shape.items()):
        found[axis] = stride, stride * size
        stride *= size
    return dict(reversed(found.items()))


def analogous(sharding: Any, mesh: Mesh | AbstractMesh, shape: tuple[int, ...]) -> NamedSharding | None:
    """Return the layout on a mesh with another number of devices that is most like a given one.

    Axes keep their names if the mesh has them all. Otherwise, a dimension that all devices split together is split by
    all devices again.

    Returns:
        The layout; ``None`` if there is none, or if its parts would be uneven.
    """
    if not isinstance(sharding, NamedSharding):
        return None
    entries = [axes_of(entry) for entry in sharding.spec]
    split = [entry for entry in entries if entry]
    # With other names it is only known what all axes together mean: all devices.
    if not set().union(*split) <= set(mesh.axis_names):
        if len(split) != 1 or math.prod(sharding.mesh.shape[axis] for axis in split[0]) != sharding.mesh.size:
            return None
        entries = [mesh.axis_names if entry else () for entry in entries]
    parts = [math.prod(mesh.shape[axis] for axis in entry) for entry in entries]
    return None if any(n % k for n, k in zip(shape, parts, strict=False)) else NamedSharding(mesh, _spec(entries))


def _spec(entries: Sequence[tuple[str, ...]]) -> PartitionSpec:
    return PartitionSpec(*(axes[0] if len(axes) == 1 else axes or None for axes in entries))


def put(value: Any, target: Any) -> Any:
    """Put a value from the host onto devices, with its dtype: that was chosen at the line of its call."""
    with keeping(value.dtype):
        return jax.device_put(value, target)


def keeping(dtype: Any) -> AbstractContextManager[Any]:
    """Return a context manager under which JAX does not narrow values of this dtype in this thread."""
    return jax.enable_x64(True) if getattr(dtype, "itemsize", 0) > _NARROW else _AS_IT_IS


_NARROW = 4
"""The most bytes of an element that JAX never narrows."""
_AS_IT_IS = nullcontext()


def send(array: Any, target: Any) -> Any:
    """Copy an array to other devices, or to another layout on its own, without waiting for it to be ready.

    Returns:
        The array on the devices of ``target``.
    """
    return _way(array.sharding, target, array.ndim)(array, target)


def delivered(value: Any, target: Any) -> Any:
    """Copy a value from other devices, or from the host, without waiting for it to be ready."""
    return send(value, target) if isinstance(value, jax.Array) else put(value, target)


@lru_cache(maxsize=1024)
def _way(sharding: Any, target: Any, rank: int) -> Callable[[Any, Any], Any]:
    """Return the function that sends an array of this rank from one sharding to another."""
    own = sharding.device_set == target.device_set
    if not isinstance(sharding, NamedSharding):  # JAX 0.12 cannot compile against the layout of a callback's result
        return jax.device_put if own else _send_pieces
    devices = sharding.mesh.devices
    if devices.size == target.mesh.size:
        # The given layout on the target's devices, in their order: if that is what is asked for, JAX copies shard by
        # shard and does not wait.
        kinds = (jax.sharding.AxisType.Auto,) * devices.ndim
        moved = Mesh(target.mesh.devices.reshape(devices.shape), sharding.mesh.axis_names, axis_types=kinds)
        if NamedSharding(moved, sharding.spec).is_equivalent_to(target, rank):
            return jax.device_put
    # A launch needs its devices in one order; in another one, pieces are sent between them.
    return reshard if own and list(devices.flat) == list(target.mesh.devices.flat) else _send_pieces


def shards_of(array: Any) -> dict[Any, Any]:
    """Return the shards of an array in this process, by device."""
    with _listing:
        found = {shard.device: shard.data for shard in array.addressable_shards}
    return found


def listed(array: Any) -> Any:
    """Return an array whose shards JAX has listed, so that any thread may fetch it.

    JAX makes the list when it is first asked for, and gives a part of it to another thread that asks meanwhile: of
    20,000 arrays that one thread fetched, another one saw too few shards of 2,800.
    """
    if array.sharding.num_devices > 1:
        shards_of(array)
    return array


_listing = threading.Lock()


def _send_pieces(array: Any, target: Any) -> Any:
    """Send each device of ``target`` the pieces of its shard that it lacks, and join them there."""
    if jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
        sent = _send_pieces(jax.random.key_data(array), target)
        return jax.random.wrap_key_data(sent, impl=jax.random.key_impl(array))
    if is_sub_byte(array.dtype):  # XLA aborts the process where it joins two-bit elements on CPU
        wide = "float32" if array.dtype.name.startswith("float") else "int8"
        return _send_pieces(array.astype(wide), target).astype(array.dtype)
    crossing = _crossing(array.sharding, target, array.shape)
    shards = shards_of(array)
    cuts = [_cutter(boxes)(shards[device]) for device, boxes in crossing.cuts]
    arrived = iter(jax.device_put([cuts[cut][at] for cut, at in crossing.sent], list(crossing.to)))
    parts = [_joiner(counts)(*(next(arrived) for _ in range(math.prod(counts)))) for counts in crossing.joins]
    for at in crossing.kept:
        parts[at] = parts[at].copy()  # else its memory would be that of the array, which a node may take over
    return jax.make_array_from_single_device_arrays(array.shape, target, parts)


def spread(array: Any, target: NamedSharding) -> Any:
    """Copy an array from the first device of ``target``, the only one that holds it, to all, without waiting."""
    if jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
        numbers = spread(jax.random.key_data(array), target)
        return jax.random.wrap_key_data(numbers, impl=jax.random.key_impl(array))
    first, *others = target.mesh.devices.flat
    shard = shards_of(array)[first]
    # The shardings of single devices, because a copy to the bare device of another client waits.
    copies = jax.device_put([shard] * len(others), [SingleDeviceSharding(device) for device in others])
    return jax.make_array_from_single_device_arrays(array.shape, target, [shard, *copies])


def is_sub_byte(dtype: Any) -> bool:
    """Return whether elements are smaller than a byte, such as int4."""
    return dtype.name.startswith(_SUB_BYTE)


_SUB_BYTE = ("int2", "uint2", "int4", "uint4", "float4")


@lru_cache(maxsize=1024)
def prepare(sharding: Any, target: Any, struct: jax.ShapeDtypeStruct, contexts: Contexts) -> None:
    """Compile what sends such an array in pieces, under the contexts of this line, so that no dispatcher has to."""
    is_key = jax.dtypes.issubdtype(struct.dtype, jax.dtypes.prng_key)
    if is_key or is_sub_byte(struct.dtype) or _way(sharding, target, len(struct.shape)) is not _send_pieces:
        return
    crossing, cuts = _crossing(sharding, target, struct.shape), []
    for device, boxes in crossing.cuts:
        shard = struct.update(shape=sharding.shard_shape(struct.shape), sharding=SingleDeviceSharding(device))
        cuts.append((shard,) if boxes is None else _compiled(_cutter(boxes), shard))
    routes = zip(crossing.sent, crossing.to, strict=True)
    arrived = iter([cuts[cut][at].update(sharding=where) for (cut, at), where in routes])
    for counts in crossing.joins:
        parts = [next(arrived) for _ in range(math.prod(counts))]
        if len(parts) > 1:
            _compiled(_joiner(counts), *parts)


def _compiled(function: Any, *structs: jax.ShapeDtypeStruct) -> Any:
    """Compile a jitted function, and return what it returns for such arrays."""
    lowered = function.lower(*structs)
    lowered.compile()
    return lowered.out_info


class _Crossing(NamedTuple):
    """How an array goes from one sharding to another."""

    cuts: tuple[tuple[Any, tuple[Box, ...] | None], ...]
    """For each device that sends: the ranges of its shard; ``None`` for all of it."""
    sent: tuple[tuple[int, int], ...]
    """For each piece: its positions in ``cuts`` and among the ranges there."""
    to: tuple[SingleDeviceSharding, ...]
    """For each piece: where it goes. A copy to a device's sharding is asynchronous, unlike one to the device."""
    joins: tuple[tuple[int, ...], ...]
    """For each target device: the number of its pieces along each dimension."""
    kept: tuple[int, ...]
    """Target devices that hold their whole shard already."""


@lru_cache(maxsize=1024)
def _crossing(sharding: Any, target: Any, shape: tuple[int, ...]) -> _Crossing:
    source, wanted = Shards.of(sharding, shape), Shards.of(target, shape)
    found = pieces(source, wanted)
    # For each device that sends, its ranges with their positions: a range that several devices want is cut out once.
    boxes: dict[int, dict[Box, int]] = {}
    for at, _, box in found:
        boxes.setdefault(at, {}).setdefault(box, len(boxes[at]))
    order = {at: position for position, at in enumerate(boxes)}
    # For each target device, the distinct (dimension, start) of its pieces. They form a grid, so the starts along a
    # dimension count its rows.
    corners: list[set[tuple[int, int]]] = [set() for _ in wanted.devices]
    for _, to, box in found:
        corners[to].update((dimension, low) for dimension, (low, _) in enumerate(box))
    return _Crossing(
        tuple((source.devices[at], _within(source.box(at), tuple(cut))) for at, cut in boxes.items()),
        tuple((order[at], boxes[at][box]) for at, _, box in found),
        tuple(SingleDeviceSharding(wanted.devices[to]) for _, to, _ in found),
        tuple(tuple(sum(d == dimension for d, _ in seen) for dimension in range(len(shape))) for seen in corners),
        tuple(to for at, to, box in found if source.devices[at] == wanted.devices[to] and box == wanted.box(to)),
    )


def _within(shard: Box, boxes: tuple[Box, ...]) -> tuple[Box, ...] | None:
    """Return ranges counted from the start of a shard; ``None`` if the only one is the shard."""
    # The whole shard is sent as it is: no launch, and no second copy in memory.
    if boxes == (shard,):
        return None
    starts = [low for low, _ in shard]
    return tuple(
        tuple((low - start, high - start) for (low, high), start in zip(box, starts, strict=True)) for box in boxes
    )


@lru_cache(maxsize=1024)
def _cutter(boxes: tuple[Box, ...] | None) -> Callable[[Any], Sequence[Any]]:
    """Return a launch that cuts ranges out of a shard; without ranges, a function that returns the shard."""
    if boxes is None:
        return lambda shard: (shard,)

    def cut(shard: Any) -> tuple[Any, ...]:
        return tuple(jax.lax.slice(shard, *zip(*box, strict=True)) for box in boxes)

    return jax.jit(cut)


@lru_cache(maxsize=1024)
def _joiner(counts: tuple[int, ...]) -> Callable[..., Any]:
    """Return a launch that joins the pieces of a shard, given in row-major order with so many along each dimension."""

    def join(*parts: Any) -> Any:
        # From the last dimension on: pieces in row-major order lie side by side along it.
        for dimension, count in reversed(list(enumerate(counts))):
            rows = [parts[at : at + count] for at in range(0, len(parts), count)]
            parts = tuple(jax.lax.concatenate(row, dimension) for row in rows)
        return parts[0]

    return jax.jit(join) if math.prod(counts) > 1 else lambda part: part


def reshard(array: Any, target: Any) -> Any:
    """Return the array in another layout on its own devices, by a launch rather than through the host."""
    return _resharder(target)(array)


@cache
def _resharder(target: Any) -> Callable[[Any], Any]:
    # One jitted function for each target: JAX caches what it compiles by the function's identity.
    return jax.jit(lambda array: array, out_shardings=target)


def lies_at(sharding: Any, target: Any, rank: int) -> bool:
    """Return whether an array of ``rank`` dimensions with this sharding need not move to have the other."""
    same = sharding is target or sharding == target
    return same or (sharding is not None and sharding.is_equivalent_to(target, rank))


def share_devices(one: Any, other: Any) -> bool:
    """Return whether two values may have memory in common, because a device holds a part of each."""
    both = isinstance(one, jax.Array) and isinstance(other, jax.Array)
    return both and not one.sharding.device_set.isdisjoint(other.sharding.device_set)


def bring(array: Any, target: Any) -> tuple[Any, bool]:
    """Bring an argument to its place.

    Returns:
        The array at its place, and whether anything had to move.
    """
    if not isinstance(array, jax.Array):
        return put(array, target), True
    if lies_at(array.sharding, target, array.ndim):
        return array, False
    return send(array, target), True
