"""``pw.show_sharding``: from what a person writes to a layout, or to a reshard between two.

Devices are those of the attached controller where it has chosen them for the place, else only numbers. Nothing is
placed, dispatched or waited for, but for a batched call whose future is asked.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from pathways_nb.errors import ShardingError, UsageError, is_index
from pathways_nb.plan import source_lines
from pathways_nb.plan.plan import Placement
from pathways_nb.plan.virtual_slice import VirtualSlice
from pathways_nb.program.signature import Deferred
from pathways_nb.program.specs import check_tree, is_spec, problems, show
from pathways_nb.session import default_controller
from pathways_nb.shardings.layout import Layout, Seat
from pathways_nb.shardings.reshard import Reshard
from pathways_nb.util.json_text import shortened
from pathways_nb.util.words import a_type_of, counted

_EXAMPLE = 'pw.show_sharding((8, 4), pw.P("x"), pw.virtual_slice(4))'


def show_sharding(
    array: Any,
    spec: Any = None,
    place: Any = None,
    *,
    to: Any = None,
    to_place: Any = None,
    dtype: Any = None,
) -> Layout | Reshard:
    """Return which device holds which block of an array, or what a reshard moves; the last line of a cell draws it.

    It needs no arrays and no devices: places may be simulated, or larger than anything attached. A dimension that its
    devices do not divide is drawn with its padding.

    Args:
        array: a shape, such as ``(8, 4)``; or a future, an array or a ``jax.ShapeDtypeStruct``.
        spec: a ``pw.P``, ``None`` for replicated, or a ``NamedSharding``, which names its devices itself. Left out with
            ``place``, the sharding of a future or an array is its own.
        place: a virtual slice, or a ``jax.sharding.Mesh``.
        to: the sharding after a reshard, as for ``spec``; left out, the same spec as before if ``to_place`` is given.
        to_place: where the array goes; left out, it stays on its devices.
        dtype: type of the elements; by default that of the array, ``float32`` for a shape.

    Returns:
        A ``Layout``, or with ``to`` or ``to_place`` a ``Reshard``. Both have ``show()`` and ``savefig(path)``.

    Raises:
        ShardingError: a spec does not fit the place or the rank.
        UsageError: something is no shape, no place or no type.
    """
    shape, kind = _shape_of(array), _dtype_of(array, dtype)
    before = _own(array, shape) if spec is None and place is None else _seat(spec, place, "spec", "place")
    _check_rank(shape, before, "spec")
    padded = isinstance(array, Deferred) and array.aval.padded is not None and spec is None
    if to is None and to_place is None:
        return Layout.of(shape, kind, before, padded)
    after = _target(before, to, to_place)
    _check_rank(shape, after, "to")
    return Reshard(Layout.of(shape, kind, before, padded), Layout.of(shape, kind, after))


def _shape_of(array: Any) -> tuple[int, ...]:
    """Return the shape that an argument is or has.

    Raises:
        UsageError: it is neither.
    """
    found = getattr(array, "shape", array)
    sizes = tuple(found) if isinstance(found, Sequence) and not isinstance(found, str) else (found,)
    if not all(is_index(one) and one >= 0 for one in sizes):
        raise UsageError(
            f"show_sharding({shortened(array)}): the first argument is a shape, such as (8, 4), or an array or a "
            f"future; this is {a_type_of(array)}."
        )
    return tuple(map(int, sizes))


def _dtype_of(array: Any, dtype: Any) -> Any:
    """Return the type of the elements.

    Raises:
        UsageError: no such type.
    """
    found = getattr(array, "dtype", "float32") if dtype is None else dtype
    if hasattr(found, "itemsize"):
        return found
    try:
        return np.dtype(jax.numpy.dtype(found))
    except TypeError:
        raise UsageError(
            f'show_sharding(dtype={shortened(dtype)}): no such type; write one such as "bfloat16".'
        ) from None


def _own(array: Any, shape: tuple[int, ...]) -> Seat:
    """Return the sharding and the devices of a future or of an array.

    Raises:
        UsageError: it has none.
    """
    where, place = None, None
    if isinstance(array, Deferred):
        sharding, where, place = array.located()
    else:
        sharding = getattr(array, "sharding", None)
    if sharding is None:
        raise UsageError(f"show_sharding({shortened(array)}) lies on no devices: say which, as in {_EXAMPLE}.")
    if isinstance(sharding, NamedSharding):
        return _seated(sharding, place or _slice_of(sharding.mesh, "place"), where)
    devices = tuple(sharding.devices_indices_map(shape))
    where = _placement(devices) if where is None else where
    return Seat(sharding, counted(len(devices), "device"), *_device_names(devices, where), where)


def _seat(spec: Any, place: Any, option: str, place_option: str) -> Seat:
    """Return the sharding and the devices that a person wrote.

    Raises:
        ShardingError: the spec does not fit the place.
        UsageError: the place is none, or is missing.
    """
    if isinstance(spec, NamedSharding):
        if place is not None:
            raise UsageError(
                f"show_sharding({option}=NamedSharding(…), {place_option}=…): a NamedSharding names its devices "
                f"itself. Leave {place_option} out, or write {option}=pw.{show(spec.spec)}."
            )
        spec, place = spec.spec, spec.mesh
    if place is None:
        written = show(spec) if is_spec(spec) else shortened(spec)
        raise UsageError(f"show_sharding({option}={written}): say over which devices, as in {_EXAMPLE}.")
    slice_ = _slice_of(place, place_option)
    _check_spec(spec, option, slice_)
    if not isinstance(place, VirtualSlice):
        return _seated(NamedSharding(place, spec or PartitionSpec()), slice_, None)
    slice_.take_variable_name(source_lines.users_variables())
    session = default_controller.peek()
    # Only looked up: to draw a place must not place it.
    where = None if session is None else session.resources.placements.get(place.serial)
    mesh = AbstractMesh(place.shape, place.axes, axis_types=(AxisType.Auto,) * len(place.axes))
    return _seated(NamedSharding(mesh, spec or PartitionSpec()), slice_, where)


def _target(before: Seat, to: Any, to_place: Any) -> Seat:
    """Return the sharding and the devices after a reshard; what is left out stays as it is.

    Raises:
        ShardingError: the spec does not fit the place.
        UsageError: the place is none, or must be given.
    """
    if to is None:
        if before.slice_ is None:
            raise UsageError(
                f"show_sharding(to_place=…): the array has no spec to keep ({before.sharding}). Write to=."
            )
        to = before.sharding.spec
    if to_place is not None or isinstance(to, NamedSharding):
        return _seat(to, to_place, "to", "to_place")
    if before.slice_ is None:
        raise UsageError(
            f"show_sharding(to={shortened(to)}): the array has no axes ({before.sharding}). Write to_place=."
        )
    _check_spec(to, "to", before.slice_)
    return replace(before, sharding=NamedSharding(before.sharding.mesh, to))


def _slice_of(place: Any, option: str) -> VirtualSlice:
    """Return a place as a virtual slice.

    Raises:
        UsageError: it is no place.
    """
    if isinstance(place, VirtualSlice):
        return place
    if not isinstance(place, Mesh | AbstractMesh):
        raise UsageError(
            f"show_sharding({option}={shortened(place)}): this is {a_type_of(place)}, no place. Write a virtual slice, "
            f"such as pw.virtual_slice(4), or a jax.sharding.Mesh."
        )
    # A mesh has all that is needed of a place: sizes and names of axes.
    return VirtualSlice(place.axis_sizes, tuple(map(str, place.axis_names)), name="mesh")


def _check_spec(spec: Any, option: str, place: VirtualSlice) -> None:
    """Refuse what is no spec over the axes of a place, and what JAX refuses.

    Raises:
        ShardingError: naming the entry.
    """
    check_tree(spec, option, "show_sharding", place)
    # JAX accepts it, and would choose at the time of a call.
    if PartitionSpec.UNCONSTRAINED in tuple(spec or ()):
        raise ShardingError(
            f"show_sharding: {option} = {show(spec)} leaves a dimension to the compiler, so there is nothing to draw. "
            f"Write for it an axis of {place.label} ({place.axes_text}), or None."
        )


def _check_rank(shape: tuple[int, ...], seat: Seat, option: str) -> None:
    """Refuse a spec with more entries than the array has dimensions; what is not divisible is drawn.

    Raises:
        ShardingError: naming both.
    """
    if seat.slice_ is None:
        return
    spec: PartitionSpec = seat.sharding.spec
    if len(spec) > len(shape):
        problem = next(problems(shape, spec, seat.slice_))
        raise ShardingError(
            f"show_sharding: shape {shape} and {option}={show(spec)}: {problem}. Leave out "
            f"{counted(len(spec) - len(shape), 'entry')}, or give the shape as many dimensions."
        )


def _seated(sharding: NamedSharding, place: VirtualSlice, where: Placement | None) -> Seat:
    """Return a sharding with the devices of its mesh.

    Args:
        sharding: over the axes of ``place``.
        place: what the mesh stands for.
        where: its devices, if they are chosen.
    """
    words, mesh = f"{place.label}: {place.axes_text}", sharding.mesh
    if isinstance(mesh, Mesh):
        devices = tuple(mesh.devices.flat)
        where = where or _placement(devices)
    else:
        # Not placed yet: devices have no names but their positions in the place.
        devices = tuple((place.serial, number) for number in range(mesh.size))
    return Seat(sharding, words, *_device_names(devices, where), where, place)


def _device_names(devices: Sequence[Any], where: Placement | None) -> tuple[Sequence[Hashable], Sequence[int]]:
    """Return what tells devices apart, and their numbers.

    Devices of a placement are known by island and number, so that the same ones compare equal whoever names them.

    Args:
        devices: JAX's devices, or pairs whose second value is a number.
        where: their placement, if it is known.
    """
    if where is None:
        return devices, [device[1] if isinstance(device, tuple) else device.id for device in devices]
    numbers = range(where.first, where.first + where.count)
    return [(where.island, number) for number in numbers], numbers


def _placement(devices: Sequence[Any]) -> Placement | None:
    """Return the placement of JAX's devices on the attached islands; ``None`` if they are not such a range."""
    session = default_controller.peek()
    driver = None if session is None else session.driver_or_none
    for island in driver.attachment.islands if driver is not None else ():
        # A placement is a range of an island's devices; any other selection has none.
        if devices[0] in island.devices:
            first = island.devices.index(devices[0])
            if tuple(island.devices[first : first + len(devices)]) == tuple(devices):
                return Placement(island.index, first, len(devices))
    return None
