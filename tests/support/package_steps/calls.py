"""What all steps of packages need: shapes with layouts, and a step with the arguments of a call."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

from tests.conftest import ROOT
from tests.support import placed_shapes

P = PartitionSpec
HOME = ROOT / "build" / "package_steps"
"""Where the packages are that only the recording needs."""
LIBRARIES = HOME / "site-packages"
FLAX = HOME / "flax-0.12.8"
"""Flax's source distribution, which has its examples and documents."""
_SMALL = 2**14
_WAYS = 64


@dataclass(frozen=True)
class Call:
    """A step and the arguments of a call.

    Args:
        step: as published.
        args: its arguments; arrays are shapes with layouts.
        kwargs: further ones.
        around: contexts that the step is called in, as where it is published.
    """

    step: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    around: tuple[Callable[[], AbstractContextManager[Any]], ...] = ()


def mesh_of(*axes: str, kind: AxisType = AxisType.Auto) -> AbstractMesh:
    """A mesh of one device."""
    return AbstractMesh((1,) * len(axes), axes, axis_types=(kind,) * len(axes))


DATA = mesh_of("data")


def shape(*dims: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(dims, dtype)


def rows(*dims: int, dtype: Any = jnp.float32, mesh: AbstractMesh = DATA) -> Any:
    """A batch, its rows over the mesh's first axis."""
    return placed_shapes.on(mesh, shape(*dims, dtype=dtype), P(mesh.axis_names[0]))


def whole(tree: Any, mesh: AbstractMesh = DATA) -> Any:
    """A tree whose arrays are whole on every device."""
    return placed_shapes.on(mesh, tree, P())


def fully_sharded(tree: Any, mesh: AbstractMesh = DATA) -> Any:
    """A tree laid out as FSDP: the longest dimension that 64 divides over the first axis, small arrays whole."""

    def spec(leaf: Any) -> PartitionSpec:
        fit = [at for at, length in enumerate(leaf.shape) if length % _WAYS == 0]
        if not fit or math.prod(leaf.shape) < _SMALL:
            return P()
        longest = max(fit, key=lambda at: leaf.shape[at])
        return P(*(mesh.axis_names[0] if at == longest else None for at in range(longest + 1)))

    return placed_shapes.on(mesh, tree, spec)


def key() -> Any:
    """A key of the old kind, as a shape."""
    return whole(jax.eval_shape(lambda: jax.random.PRNGKey(0)))


def flax_example(name: str) -> Path:
    return FLAX / "examples" / name
