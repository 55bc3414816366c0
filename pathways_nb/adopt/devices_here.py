"""The devices of this process that a step's arguments are on: as a mesh of JAX, and as a place of the controller."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding

from pathways_nb.adopt.traced_call import resized
from pathways_nb.attach.attach import attach
from pathways_nb.errors import PlaceError, ShardingError, UsageError
from pathways_nb.plan.virtual_slice import VirtualSlice
from pathways_nb.program.signature import Deferred
from pathways_nb.runtime import device_facts
from pathways_nb.session import default_controller
from pathways_nb.session.session import Session
from pathways_nb.util.progress import tell_reader
from pathways_nb.util.words import first_ones

ALONE = "device"
"""The axis of a single device, where arguments are on no mesh."""


def mesh_here(leaves: Iterable[Any], sizes: Mapping[str, int] | None = None) -> Mesh:
    """Return the mesh of devices that arguments are on: that of the context, else of the first that has one.

    Args:
        leaves: of the arguments: arrays, futures, shapes with layouts, layouts, and anything else.
        sizes: devices along each axis; None for those of the mesh.

    Raises:
        PlaceError: there are fewer devices here than the sizes need.
        ShardingError: the arguments are on several devices without a mesh, or on a mesh without devices.
    """
    context = context_mesh()
    layouts = [*filter(None, (context, *map(_layout, leaves)))]
    meshes = [one.mesh if isinstance(one, NamedSharding) else one for one in layouts]
    named = next((one for one in meshes if isinstance(one, Mesh) and one.axis_names), None)
    if sizes is not None:
        return _of_sizes(sizes, named)
    if named is not None:
        return named
    if any(isinstance(one, NamedSharding) for one in layouts):
        raise ShardingError(
            "adopt: the arguments are shapes on a mesh without devices. Name the chip that the step is for, "
            'pw.adopt(step, *args, chip="gpu_h100_sxm"), or give arrays that are on devices here.'
        )
    devices = {device for one in layouts if not isinstance(one, Mesh) for device in one.device_set}
    if len(devices) > 1:
        raise ShardingError(
            f"adopt: the arguments are on {len(devices)} devices and on no mesh with named axes. Put them on one: "
            f"jax.device_put(tree, NamedSharding(mesh, P(…)))."
        )
    chosen = np.array([*devices] or jax.devices()[:1])
    return Mesh(chosen, (ALONE,), axis_types=(AxisType.Auto,))


def context_mesh() -> Mesh | None:
    """Return the mesh of the context, which is empty without one; None where JAX does not tell, under axis names."""
    try:
        return jax.sharding.get_mesh()
    except ValueError:  # in jax.vmap(axis_name=…)
        return None


def _layout(leaf: Any) -> Any:
    """Return the layout of an argument, or itself if it is one; None if it has none."""
    if isinstance(leaf, NamedSharding):
        return leaf
    return leaf.located()[0] if isinstance(leaf, Deferred) else getattr(leaf, "sharding", None)


def _of_sizes(sizes: Mapping[str, int], like: Mesh | None) -> Mesh:
    """Return a mesh of the first devices here.

    Args:
        sizes: devices along each axis.
        like: the mesh that the step was written for, whose axes keep their types.

    Raises:
        PlaceError: there are fewer devices.
        ShardingError: a size is no whole number of at least 1.
    """
    found = resized(like.abstract_mesh if like is not None else AbstractMesh((), ()), sizes)
    devices = list(like.devices.flat) if like is not None else []
    every = device_facts.listed(device_facts.kind_of(devices[0]))[1] if devices else jax.devices()
    devices += [one for one in every if one not in devices]
    if (wanted := found.size) > len(devices):
        raise PlaceError(
            f"adopt(mesh={dict(sizes)}): it needs {wanted} devices, and {len(devices)} are here. Name the chip that "
            f'the step is for, chip="gpu_h100_sxm", or give a smaller mesh.'
        )
    return Mesh(np.array(devices[:wanted]).reshape(found.axis_sizes), found.axis_names, axis_types=found.axis_types)


def place_of(mesh: Mesh, leaves: Iterable[Any]) -> VirtualSlice:
    """Return a place of the controller on exactly the devices of a mesh, with its axes.

    Where nothing is attached, these devices are.

    Args:
        mesh: the devices.
        leaves: of the arguments; a future among them is at a place that fits.

    Raises:
        UsageError: the attached controller has other devices.
    """
    shape, axes = tuple(mesh.shape.values()), tuple(mesh.axis_names)
    for leaf in leaves:
        place = leaf.located()[2] if isinstance(leaf, Deferred) else None
        if place is not None and (place.shape, place.axes) == (shape, axes):
            return place
    number = _island_of(attached_to(mesh), mesh)
    assert number is not None, "attached_to has found it"
    return VirtualSlice(shape, axes, number, name="here")


def _island_of(session: Session, mesh: Mesh) -> int | None:
    """Return the island that has just the devices of a mesh; None without one."""
    if session.attach_options.kind in ("sim", "ray"):  # whose devices are not this process's
        return None
    wanted = set(mesh.devices.flat)
    islands = session.driver.attachment.islands
    return next((at for at, island in enumerate(islands) if set(island.devices) == wanted), None)


def attached_to(mesh: Mesh) -> Session:
    """Return the controller of the devices of a mesh, which are attached where nothing is.

    Raises:
        UsageError: the attached controller has other devices.
    """
    devices = list(mesh.devices.flat)
    kind = device_facts.kind_of(devices[0])
    _, every = device_facts.listed(kind)
    positions = [every.index(device) for device in devices] if set(devices) <= set(every) else None
    session = default_controller.peek()
    if session is None and positions is not None:
        session = attach(kind, islands=[positions])
        tell_reader(f"attached {kind}: {session.size_text}, those that the arguments are on")
    if session is not None and _island_of(session, mesh) is not None:
        return session
    fix = f'pw.attach("{kind}", islands=[{positions}])' if positions else "pw.put them on its places"
    raise UsageError(
        f"the arguments are on {_words(devices)}, and no island of {session!r} has just these. Attach them, {fix}, or "
        f"name the chip that the step is for, chip=."
    )


def attach_listed() -> None:
    """Attach all devices that JAX lists as one island, where nothing is attached: those that plain JAX computes on."""
    if default_controller.peek() is None:
        attached_to(Mesh(np.array(jax.devices()), (ALONE,)))


def _words(devices: list[Any]) -> str:
    """Return devices in words."""
    return f"{len(devices)} × {devices[0].device_kind} (JAX's {first_ones([str(one.id) for one in devices], 8)})"
