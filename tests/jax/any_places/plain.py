"""What the texts use of ``pathways_nb``, in plain JAX on whole arrays: no places, no devices.

Per-shard code is mapped over blocks with ``jax.vmap``, whose named axes know the same collectives.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

P = PartitionSpec


@cache
def virtual_slice(shape: int | tuple[int, ...], axes: tuple[str, ...] = ("x",), island: int = 0) -> dict[str, int]:
    """The sizes of the axes."""
    return dict(zip(axes, shape if isinstance(shape, tuple) else (shape,), strict=True))


def jit(fn: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """The function itself."""
    return fn


def program(fn: Callable[..., Any], fuse: bool = False, donate_argnums: Any = ()) -> Callable[..., Any]:
    """The function, compiled as one."""
    compiled: dict[str, Any] = {}

    def run(*arguments: Any) -> Any:
        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(arguments)):
            return fn(*arguments)  # part of another
        shapes = str(jax.tree.map(lambda leaf: (jnp.shape(leaf), jnp.result_type(leaf)), arguments))
        if shapes not in compiled:
            compiled[shapes] = jax.jit(fn).lower(*arguments).compile()
        return compiled[shapes](*arguments)

    return run


def get(tree: Any) -> Any:
    """The values themselves."""
    return tree


def put(tree: Any, on: dict[str, int], shardings: Any = None) -> Any:
    """The values themselves, which nobody changes."""
    return tree


def record() -> contextlib.AbstractContextManager[None]:
    """Nothing."""
    return contextlib.nullcontext()


def constrain(x: Any, spec: PartitionSpec) -> Any:
    """The value itself."""
    return x


def shard_map(
    fn: Callable[[Any], Any], on: dict[str, int], in_specs: PartitionSpec, out_specs: PartitionSpec
) -> Callable[[Any], Any]:
    """A function of one matrix, block by block; all blocks differ along the axes of ``in_specs`` only."""
    axes = _axes(in_specs)

    def whole(x: Any) -> Any:
        blocks, mapped = _blocks(x, in_specs, on), fn
        for axis in reversed(on):
            mapped = jax.vmap(mapped, 0 if axis in axes else None, axis_name=axis, axis_size=on[axis])
        made = mapped(blocks)
        for at, axis in reversed(list(enumerate(on))):
            made = made if axis in axes else jax.lax.index_in_dim(made, 0, at, keepdims=False)
        return _joined(made, out_specs, on)

    return whole


def _axes(spec: PartitionSpec) -> list[str]:
    return [axis for entry in spec for axis in ((entry,) if isinstance(entry, str) else entry or ())]


def _split(spec: PartitionSpec, rank: int) -> list[tuple[str, ...]]:
    entries = [(entry,) if isinstance(entry, str) else tuple(entry or ()) for entry in spec]
    return entries + [()] * (rank - len(entries))


def _blocks(x: Any, spec: PartitionSpec, sizes: dict[str, int]) -> Any:
    """One dimension for each axis of the spec, in the mesh's order, and then those of a block."""
    shape, order = [], []
    for axes, n in zip(_split(spec, x.ndim), x.shape, strict=True):
        order += [*axes, ""]
        for axis in axes:
            shape.append(sizes[axis])
            n //= sizes[axis]
        shape.append(n)
    front = [order.index(axis) for axis in sizes if axis in order]
    return x.reshape(shape).transpose(*front, *(at for at, axis in enumerate(order) if not axis))


def _joined(blocks: Any, spec: PartitionSpec, sizes: dict[str, int]) -> Any:
    """The whole array of such blocks."""
    split = _split(spec, blocks.ndim - len(_axes(spec)))
    front = [axis for axis in sizes if axis in _axes(spec)]
    order, shape, at = [], [], len(front)
    for axes in split:
        order += [*(front.index(axis) for axis in axes), at]
        whole = blocks.shape[at]
        for axis in axes:
            whole *= sizes[axis]
        shape.append(whole)
        at += 1
    return jnp.transpose(blocks, order).reshape(shape)
