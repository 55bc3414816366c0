"""A program as text that another process can compile: lowered here, for a platform that need not be here.

The mesh is a description without devices (``jax.sharding.AbstractMesh``), so nothing is attached or compiled. The text
keeps the user's files, lines and scopes.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax import export
from jax.sharding import NamedSharding

from pathways_nb.errors import UsageError

_CALLS = re.compile(r"custom_call @([\w.$]+)")


@dataclass(frozen=True)
class LoweredText:
    """A lowered program.

    Args:
        program: bytes of ``jax.export.Exported.serialize()``.
        platform: that it was lowered for.
        mesh: name, size and type of each axis of the mesh, in its order.
        donated: positions of arguments whose memory results may take.
    """

    program: bytes
    platform: str
    mesh: tuple[tuple[str, int, str], ...]
    donated: tuple[int, ...]


def lower(function: Callable[..., Any], arguments: Sequence[Any], donated: Sequence[int], platform: str) -> LoweredText:
    """Return a function of arrays, lowered for a platform.

    Args:
        function: takes arrays one by one, and returns arrays.
        arguments: ``jax.ShapeDtypeStruct`` of each, with a ``NamedSharding`` on a mesh of ``AbstractMesh`` or of
            devices; all have the same mesh.
        donated: positions of arguments whose memory results may take.
        platform: ``"cuda"`` or ``"tpu"``.

    Raises:
        UsageError: no argument names a mesh, or JAX cannot lower the function without devices.
    """
    meshes = {one.sharding.mesh for one in arguments if isinstance(getattr(one, "sharding", None), NamedSharding)}
    if len(meshes) != 1:
        raise UsageError(f"the arguments name {len(meshes)} meshes; give each a NamedSharding on the same mesh.")
    (mesh,) = meshes
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Some donated buffers were not usable")
        jitted = jax.jit(function, donate_argnums=tuple(donated), keep_unused=True)
        exported = _exported(jitted, arguments, platform)
    return LoweredText(bytes(exported.serialize()), platform, _axes(mesh), tuple(donated))


def _axes(mesh: Any) -> tuple[tuple[str, int, str], ...]:
    """Return name, size and type (``"Auto"``, ``"Explicit"``, ``"Manual"``) of each axis of a mesh."""
    sizes, kinds = mesh.shape.items(), mesh.axis_types
    return tuple((name, size, kind.name) for (name, size), kind in zip(sizes, kinds, strict=True))


def _exported(jitted: Any, arguments: Sequence[Any], platform: str) -> export.Exported:
    """Return an exported function, whatever kernels it calls.

    JAX promises to keep some of its custom calls for years, and refuses others unless they are named. What is exported
    here is compiled by the same version at once, so every one is allowed.
    """
    try:
        return export.export(jitted, platforms=[platform])(*arguments)
    except ValueError as error:
        called = sorted(set(_CALLS.findall(str(error))))
        if not called:
            raise
        allowed = [export.DisabledSafetyCheck.custom_call(name) for name in called]
        return export.export(jitted, platforms=[platform], disabled_checks=allowed)(*arguments)
