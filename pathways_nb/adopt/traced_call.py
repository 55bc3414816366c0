"""A call of a step, traced once on an abstract mesh, with every array of its arguments as an argument.

Everything else in the arguments is as it is, so models of any framework are trees like others.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.extend.core as jex
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from pathways_nb.errors import ShardingError, UsageError
from pathways_nb.program.signature import Deferred
from pathways_nb.program.specs import axes_of
from pathways_nb.util.words import a_type_of

_NOTHING = Mesh(np.empty((), object), ())
"""The mesh of a context without one."""


def no_mesh() -> AbstractContextManager[Any]:
    """Return a context without the mesh that the user has set around it, which another mesh would not fit."""
    return jax.set_mesh(_NOTHING)


class Results(NamedTuple):
    """What a call returns, and what it changes in its arguments; arrays of both follow each other in the jaxpr.

    Args:
        tree: of what it returns.
        leaves: of that; None where an array is.
        arguments: of the call, as a tree.
        changed: positions of leaves of the arguments that were changed in place, as a model of Flax NNX is.
    """

    tree: Any
    leaves: tuple[Any, ...]
    arguments: Any
    changed: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class TracedCall:
    """A call that was traced.

    Args:
        name: of the step.
        jaxpr: of the whole call; one input for each array of its arguments.
        arguments: shape and type of each input, with its layout on the mesh.
        names: of each input, such as ``"args[0].params['w']"``.
        mesh: the mesh.
        results: what it returns.
    """

    name: str
    jaxpr: jex.ClosedJaxpr
    arguments: tuple[jax.ShapeDtypeStruct, ...]
    names: tuple[str, ...]
    mesh: AbstractMesh
    results: Results


class CallArguments(NamedTuple):
    """The arguments of a call, flattened.

    Args:
        tree: of positional arguments and those by name.
        leaves: of it; futures stand as their shapes.
        names: of each leaf.
        arrays: positions of leaves that are arrays or shapes.
    """

    tree: Any
    leaves: tuple[Any, ...]
    names: tuple[str, ...]
    arrays: tuple[int, ...]

    @classmethod
    def of(cls, args: Sequence[Any], kwargs: Mapping[str, Any]) -> CallArguments:
        """Return the arguments of a call.

        Args:
            args: positional ones: arrays, futures, shapes with layouts, trees of them.
            kwargs: further ones by name.
        """
        paths, tree = jax.tree_util.tree_flatten_with_path((tuple(args), dict(kwargs)), is_leaf=_is_future)
        leaves = tuple(_struct(leaf) if isinstance(leaf, Deferred) else leaf for _, leaf in paths)
        arrays = tuple(at for at, leaf in enumerate(leaves) if is_array(leaf))
        return cls(tree, leaves, tuple(_name(path) for path, _ in paths), arrays)

    def rebuilt(self, arrays: Sequence[Any]) -> Any:
        """Return the arguments as a tree, with other arrays."""
        filled = list(self.leaves)
        for at, array in zip(self.arrays, arrays, strict=True):
            filled[at] = array
        return jax.tree.unflatten(self.tree, filled)


def trace_call(step: Any, arguments: CallArguments, mesh: AbstractMesh) -> TracedCall:
    """Return a call, traced.

    Args:
        step: jitted, by whatever framework; or a function of a mesh that returns such a step.
        arguments: of the call.
        mesh: to trace it on.

    Raises:
        ShardingError: an argument is divided over an axis that the mesh lacks.
        UsageError: the step is not jitted, or has code per shard for another mesh.
    """
    step = _jitted(step, mesh)
    names = tuple(arguments.names[at] for at in arguments.arrays)
    structs = tuple(
        argument_struct(name, arguments.leaves[at], mesh) for name, at in zip(names, arguments.arrays, strict=True)
    )
    found: list[Results] = []

    def flat(*arrays: Any) -> list[Any]:
        given = arguments.rebuilt(arrays)
        before = jax.tree.leaves(given)
        leaves, tree = jax.tree.flatten(step(*given[0], **given[1]))
        after, arguments_tree = jax.tree.flatten(given)
        # One that has lost or gained leaves counts as unchanged: which of them is which is not known.
        pairs = enumerate(zip(before, after, strict=False)) if len(before) == len(after) else ()
        changed = tuple(at for at, (old, new) in pairs if old is not new and is_array(new))
        found[:] = [Results(tree, tuple(None if is_array(one) else one for one in leaves), arguments_tree, changed)]
        return [*filter(is_array, leaves), *(after[at] for at in changed)]

    traced = _traced(flat, structs, mesh)
    return TracedCall(getattr(step, "__name__", type(step).__name__), traced, structs, names, mesh, found[0])


def _traced(
    flat: Callable[..., list[Any]], arguments: Sequence[jax.ShapeDtypeStruct], mesh: AbstractMesh
) -> jex.ClosedJaxpr:
    """Return the jaxpr of a call, on a mesh of the wanted size if the step asks for the mesh around it.

    Raises:
        UsageError: it has code per shard for other sizes.
    """
    around = jax.sharding.get_abstract_mesh()
    explicit = AxisType.Explicit in mesh.axis_types
    # Axes that are left to the compiler are no part of types: then the layouts come when it is compiled.
    typed = arguments if explicit else [jax.ShapeDtypeStruct(one.shape, one.dtype) for one in arguments]
    if around == mesh or (around.empty and not explicit):
        try:
            return jax.make_jaxpr(flat)(*typed)
        except RuntimeError as error:
            if "mesh" not in str(error):  # a layout without a mesh asks for one in the context
                raise
    # A context's mesh cannot change its size, but one without any can begin anew.
    with no_mesh(), jax.sharding.use_abstract_mesh(mesh):
        try:
            return jax.make_jaxpr(flat)(*typed)
        except ValueError as error:
            if "should match the mesh passed to shard_map" not in str(error):
                raise
            raise UsageError(
                f"adopt: a shard_map closes over the mesh that it was written for, so it is not resized to "
                f"{dict(mesh.shape_tuple)}. Give a function of the mesh that returns the jitted step: "
                f"pw.adopt(lambda mesh: make_step(mesh), *args, mesh=…)."
            ) from error


def _jitted(step: Any, mesh: AbstractMesh) -> Any:
    """Return a step that is jitted; a function of the mesh is called with it.

    Raises:
        UsageError: it is not jitted, nor returns what is.
    """
    inside = step
    while isinstance(inside, functools.partial):
        inside = inside.func
    if hasattr(inside, "lower"):
        return step
    name = getattr(step, "__name__", repr(step))
    if not callable(step):
        raise UsageError(f"adopt({name}): it is no function. Give the jitted step: pw.adopt(step, *args).")
    fix = f"Give pw.adopt(jax.jit({name}), *args), or a function that takes a mesh and returns a jitted step."
    try:
        inspect.signature(step).bind(mesh)
    except (TypeError, ValueError):
        raise UsageError(f"adopt({name}): it is not jitted. {fix}") from None
    made = step(mesh)
    if not hasattr(made, "lower"):
        said = f"called with the mesh, it returns {a_type_of(made)} and no jitted step"
        raise UsageError(f"adopt({name}): it is not jitted; {said}. {fix}")
    return made


def _is_future(leaf: object) -> bool:
    return isinstance(leaf, Deferred)


def is_array(leaf: object) -> bool:
    """Return whether a leaf is an array or its shape; numbers and functions are what they are."""
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype") and not isinstance(leaf, np.generic)


def _struct(future: Deferred) -> jax.ShapeDtypeStruct:
    """Return the shape of a future, with the layout that it has."""
    layout = future.located()[0]
    return jax.ShapeDtypeStruct(future.aval.shape, future.aval.dtype, sharding=layout)


def _name(path: Sequence[Any]) -> str:
    """Return the name of an argument: ``args[0]['w']``, ``kwargs['key']``."""
    first, *rest = path
    return ("args", "kwargs")[first.idx] + jax.tree_util.keystr(tuple(rest))


def argument_struct(name: str, leaf: Any, mesh: AbstractMesh) -> jax.ShapeDtypeStruct:
    """Return shape and type of an argument, with its layout on the mesh.

    Raises:
        ShardingError: its layout names an axis that the mesh lacks.
    """
    layout = getattr(leaf, "sharding", None)
    spec = layout.spec if isinstance(layout, NamedSharding) else PartitionSpec()
    unknown = [axis for entry in spec for axis in axes_of(entry) if axis not in mesh.axis_names]
    if unknown:
        raise ShardingError(
            f"adopt: {name} is divided over the axis {unknown[0]!r}, and the mesh has {_words(mesh)}. mesh= takes the "
            f"names of your own axes: give {unknown[0]!r} a size there."
        )
    check_division(name, leaf.shape, spec, mesh)
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, spec))


def check_division(name: str, shape: Sequence[int], spec: PartitionSpec, mesh: AbstractMesh) -> None:
    """Check that axes divide the dimensions of an argument.

    Raises:
        ShardingError: naming the argument, the dimension and the axes.
    """
    sizes = dict(mesh.shape_tuple)
    for at, (length, entry) in enumerate(zip(shape, spec, strict=False)):
        axes = axes_of(entry)
        if length % (ways := math.prod(sizes.get(axis, 1) for axis in axes)):
            raise ShardingError(
                f"adopt: {name} has {length} along dimension {at}, which is divided over {' × '.join(axes)}, and "
                f"{ways} devices do not divide that. Change its shape, its layout, or mesh=."
            )


def mesh_of(arguments: CallArguments, sizes: Mapping[str, int] | None) -> AbstractMesh:
    """Return the mesh that a step was written for: that of the context, else of its arguments.

    Raises:
        ShardingError: the arguments are on meshes with different axes, or on none, and no mesh is given.
    """
    found: dict[tuple[Any, ...], tuple[str, AbstractMesh]] = {}
    if not (context := jax.sharding.get_abstract_mesh()).empty:
        found[context.axis_names, context.axis_types] = "the context", context
    for at in arguments.arrays:
        name, layout = arguments.names[at], getattr(arguments.leaves[at], "sharding", None)
        if isinstance(layout, NamedSharding) and layout.mesh.axis_names:
            mesh = layout.mesh.abstract_mesh
            found.setdefault((mesh.axis_names, mesh.axis_types), (name, mesh))
    if len(found) > 1:
        said = "; ".join(f"{name} on {_words(mesh)}" for name, mesh in found.values())
        raise ShardingError(f"adopt: the arguments are on meshes with different axes: {said}. Put all on one mesh.")
    for _, mesh in found.values():
        return mesh
    if sizes is None:
        raise ShardingError(
            "adopt: no argument is on a mesh, and there is none in the context (jax.set_mesh). Give mesh={'data': 8} "
            "and arguments with layouts."
        )
    return AbstractMesh(tuple(sizes.values()), tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes))


def resized(mesh: AbstractMesh, sizes: Mapping[str, int] | None) -> AbstractMesh:
    """Return a mesh with other sizes, or itself; axes that the step does not know are left to the compiler.

    Raises:
        ShardingError: a size is no whole number of at least 1.
    """
    if sizes is not None:
        check_sizes(sizes)
    kinds = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    wanted = dict(mesh.shape_tuple) if sizes is None else dict(sizes)
    # In the order of the mesh that the step was written for: it decides what is neighbours.
    wanted = {axis: wanted[axis] for axis in (*mesh.axis_names, *wanted) if axis in wanted}
    if wanted == dict(mesh.shape_tuple):
        return mesh
    types = tuple(kinds.get(axis, AxisType.Auto) for axis in wanted)
    return AbstractMesh(tuple(wanted.values()), tuple(wanted), axis_types=types)


def check_sizes(sizes: Any) -> None:
    """Check the sizes of a mesh.

    Raises:
        ShardingError: they are no mapping, or a size is no whole number of at least 1.
    """
    if not isinstance(sizes, Mapping):
        raise ShardingError(f"adopt(mesh={sizes!r}): write the devices along each axis, such as mesh={{'data': 16}}.")
    for axis, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ShardingError(f"adopt(mesh={dict(sizes)!r}): {axis!r} needs a whole number of devices, at least 1.")


def _words(mesh: AbstractMesh) -> str:
    kinds = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    explicit = {axis: " (explicit)" * (kind is AxisType.Explicit) for axis, kind in kinds.items()}
    return " × ".join(f"{axis} {size}{explicit[axis]}" for axis, size in mesh.shape_tuple)
