"""Partition specs: read as prefixes of argument trees, and checked against places and shapes before JAX sees them.

JAX's own error on an uneven sharding names neither the argument nor the place (jax#27808); these errors do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from pathways_nb.errors import ShardingError
from pathways_nb.plan.virtual_slice import VirtualSlice
from pathways_nb.util.words import a_type_of, counted

Spec = PartitionSpec | None


def is_spec(leaf: object) -> bool:
    """Return whether ``leaf`` ends a tree of specs."""
    return leaf is None or isinstance(leaf, PartitionSpec)


def axes_of(entry: object) -> tuple[str, ...]:
    """Return the mesh axes that one entry of a spec names."""
    if entry is None or entry is PartitionSpec.UNCONSTRAINED:
        return ()
    return entry if isinstance(entry, tuple) else (str(entry),)


def unknown_axes(spec: Spec, axes: Sequence[str]) -> list[str]:
    """Return the axes that a spec names and that are not among others, such as those of a mesh."""
    return [axis for entry in spec or () for axis in axes_of(entry) if axis not in axes]


def trimmed(layout: Iterable[Any] | None) -> PartitionSpec:
    """Return a spec in the form in which JAX writes specs of results, so that equal layouts compare equal.

    Args:
        layout: a spec, or the axes of each dimension.

    Returns:
        The spec without trailing ``None``, and with a tuple of one axis replaced by that axis.
    """
    entries = [entry[0] if isinstance(entry, tuple) and len(entry) == 1 else entry or None for entry in layout or ()]
    while entries and entries[-1] is None:
        entries.pop()
    return PartitionSpec(*entries)


def check_tree(tree: Any, option: str, name: str, place: VirtualSlice) -> None:
    """Refuse anything in ``tree`` that is not a spec over axes of ``place``, or that names an axis twice.

    Raises:
        ShardingError: naming the entry, what it is, and the axes there are.
    """
    for path, spec in jax.tree_util.tree_leaves_with_path(tree, is_leaf=is_spec):
        where = f"{name}: {option}{jax.tree_util.keystr(path)}"
        if not is_spec(spec):
            raise ShardingError(
                f"{where} = {spec!r} is {a_type_of(spec)}; write a pw.P(...) over the axes of {place.label}."
            )
        for axis in unknown_axes(spec, place.axes):
            raise ShardingError(
                f"{where} = {show(spec)} names the axis {axis!r}, but the place {place.label} "
                f"has only {', '.join(map(repr, place.axes))}."
            )
        _check_distinct(spec, where, place)


def _check_distinct(spec: Spec, where: str, place: VirtualSlice) -> None:
    """Refuse a spec that names an axis twice."""
    first: dict[str, int] = {}
    for dimension, entry in enumerate(spec or ()):
        for axis in axes_of(entry):
            if axis in first:
                both = f"dimensions {first[axis]} and {dimension}"
                twice = f"dimension {dimension} twice" if first[axis] == dimension else both
                raise ShardingError(
                    f"{where} = {show(spec)} names the axis {axis!r} of {place.label} for {twice}: an axis divides one "
                    f"dimension, once. Leave it out at one of them, or take a place with an axis for each: "
                    f'pw.virtual_slice((2, 2), axes=("x", "y")).'
                )
            first[axis] = dimension


def spread(prefix: Any, tree: Any, option: str, name: str) -> list[Spec]:
    """Return one spec for each leaf of ``tree``, from a prefix of it (as ``jax.jit`` reads ``in_shardings``).

    Raises:
        ShardingError: ``prefix`` is no prefix of ``tree``.
    """
    try:
        full = jax.tree.broadcast(prefix, tree, is_leaf=is_spec)
    except ValueError as error:
        raise ShardingError(
            f"{name}: {option} has the form {jax.tree.structure(prefix, is_leaf=is_spec)}, which is no prefix of "
            f"{jax.tree.structure(tree)}: give one pw.P for all, or one for each."
        ) from error
    # ``None`` in ``tree`` is an empty tree and has no sharding, but broadcasting takes it for a leaf.
    leaves = jax.tree.leaves(tree, is_leaf=lambda leaf: leaf is None)
    return [s for s, leaf in zip(jax.tree.leaves(full, is_leaf=is_spec), leaves, strict=True) if leaf is not None]


def problems(shape: tuple[int, ...], spec: Spec, place: VirtualSlice) -> Iterator[str]:
    """Yield the reasons why ``spec`` does not fit an array of ``shape`` on ``place``; none if it fits."""
    sizes = dict(zip(place.axes, place.shape, strict=True))
    entries = tuple(spec or ())
    if len(entries) > len(shape):
        yield f"it has {counted(len(entries), 'entry')} for an array of {counted(len(shape), 'dimension')}"
        return
    for dimension, entry in enumerate(entries):
        axes = axes_of(entry)
        parts = 1
        for axis in axes:
            parts *= sizes[axis]
        # JAX has no arrays whose parts are uneven.
        if parts > 1 and shape[dimension] % parts:
            names = " × ".join(f"{axis!r}" for axis in axes)
            # The nearest smaller number of devices that divides it, to offer in the error.
            fitting = [n for n in range(parts, 0, -1) if shape[dimension] % n == 0]
            yield (
                f"dimension {dimension} of size {shape[dimension]} is not divisible by the {parts} devices of "
                f"axis {names} of {place.label}. Pad it to {-(-shape[dimension] // parts) * parts}, "
                f"or use {counted(fitting[0], 'device')} there"
            )


def check_leaf(shape: tuple[int, ...], spec: Spec, place: VirtualSlice, what: str, option: str) -> None:
    """Refuse a ``spec`` that does not fit ``shape``.

    Raises:
        ShardingError: naming the argument, its shape and the spec.
    """
    for problem in problems(shape, spec, place):
        raise ShardingError(f"{what} has shape {shape} and {option}={show(spec)}: {problem}.")


def show(spec: Spec) -> str:
    """Return a spec as the user writes it."""
    return "None" if spec is None else f"P({', '.join(map(repr, spec))})"


def partition_spec_of(sharding: Any) -> PartitionSpec | None:
    """Return the spec of a sharding in a traced call; ``None`` where JAX left the choice open.

    ``vmap`` leaves the new dimension ``UNCONSTRAINED``, which no executable's argument can be: it becomes replicated.
    """
    if not isinstance(sharding, NamedSharding):
        return None
    return PartitionSpec(*(None if entry is PartitionSpec.UNCONSTRAINED else entry for entry in sharding.spec))
