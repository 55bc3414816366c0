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

from pathways_nb.adopt.call_arguments import CallArguments, is_array
from pathways_nb.errors import ShardingError, UsageError
from pathways_nb.program.specs import axes_of, unknown_axes
from pathways_nb.util.collecting import uncollected
from pathways_nb.util.words import a_type_of, first_ones

_OF_PMAP = ("jax._src.pmap", "jax._src.api")
"""Modules that define the function which ``jax.pmap`` returns; what ``jax.jit`` returns is no Python function."""
_NOTHING = Mesh(np.empty((), object), ())
"""The mesh of a context without one."""
_NAMED = 8
"""Arguments that an error names."""


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
        is_restructured: whether arguments have lost or gained parts; then none counts as changed.
    """

    tree: Any
    leaves: tuple[Any, ...]
    arguments: Any
    changed: tuple[int, ...]
    is_restructured: bool


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
    structs = argument_structs(names, [arguments.leaves[at] for at in arguments.arrays], mesh)
    found: list[Results] = []

    def flat(*arrays: Any) -> list[Any]:
        given = arguments.rebuilt(arrays)
        before = jax.tree.leaves(given)
        structure: Any = jax.tree.structure(given)
        leaves, tree = jax.tree.flatten(step(*given[0], **given[1]))
        after, arguments_tree = jax.tree.flatten(given)
        is_restructured = bool(structure != arguments_tree)
        pairs = () if is_restructured else [(at, before[at], after[at]) for at in arguments.arrays]
        changed = tuple(at for at, old, new in pairs if old is not new and is_array(new))
        kept = tuple(None if is_array(one) else one for one in leaves)
        found[:] = [Results(tree, kept, arguments_tree, changed, is_restructured)]
        return [*filter(is_array, leaves), *(after[at] for at in changed)]

    name = getattr(step, "__name__", type(step).__name__)
    try:
        with uncollected():  # nearly all that is traced stays: collections took an eighth of the time
            traced = _traced(flat, structs, mesh)
    except ValueError as error:
        if "`compiler_options` can only be passed to top-level" not in str(error):
            raise
        raise UsageError(
            f"adopt({name}): it is jitted with compiler_options, which are those of one compiler. Give them to adopt: "
            f"pw.adopt({name}, *args, options={{…}}), with the step jitted without."
        ) from error
    return TracedCall(name, traced, structs, names, mesh, found[0])


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
    typed = arguments if explicit else [one.update(sharding=None) for one in arguments]
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
    name = getattr(inside, "__name__", repr(step))
    if getattr(inside, "__globals__", {}).get("__name__") in _OF_PMAP:
        # It has .lower, too, but its arguments have a dimension for the devices of this machine.
        raise UsageError(
            f"adopt({name}): it is a jax.pmap, which is for the devices of this machine. Give a function of the mesh: "
            f"pw.adopt(lambda mesh: jax.jit(jax.shard_map({name}, mesh=mesh, in_specs=(P(), P('batch')), "
            f"out_specs=P(), check_vma=False)), *args, mesh={{'batch': 64}}), with the axis_name of the pmap for "
            f"'batch', and arguments without the dimension of the devices."
        )
    if hasattr(inside, "lower"):
        return step
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


def check_axes(names: Sequence[str], specs: Sequence[PartitionSpec], mesh: AbstractMesh) -> None:
    """Check that the mesh has the axes over which arguments are divided.

    Raises:
        ShardingError: naming the arguments and the axis.
    """
    unknown = [unknown_axes(spec, mesh.axis_names) for spec in specs]
    if axis := next((axis for axes in unknown for axis in axes), ""):
        over = [name for name, axes in zip(names, unknown, strict=True) if axis in axes]
        raise ShardingError(
            f"adopt: {first_ones(over, _NAMED)} {'is' if len(over) == 1 else 'are'} divided over the axis {axis!r}, "
            f"and the mesh has {_words(mesh)}. mesh= takes the names of your own axes: give {axis!r} a size there."
        )


def argument_structs(
    names: Sequence[str], leaves: Sequence[Any], mesh: AbstractMesh
) -> tuple[jax.ShapeDtypeStruct, ...]:
    """Return shape and type of each argument, with its layout on the mesh.

    Raises:
        ShardingError: layouts name an axis that the mesh lacks, or devices do not divide an argument.
    """
    specs = [_spec_of(leaf) for leaf in leaves]
    check_axes(names, specs, mesh)
    for name, leaf, spec in zip(names, leaves, specs, strict=True):
        check_division(name, leaf.shape, spec, mesh)
    return tuple(
        jax.ShapeDtypeStruct(
            leaf.shape,
            leaf.dtype,
            sharding=NamedSharding(mesh, spec),
            weak_type=bool(getattr(leaf, "weak_type", False)),
        )
        for leaf, spec in zip(leaves, specs, strict=True)
    )


def _spec_of(leaf: Any) -> PartitionSpec:
    """Return how an argument is divided over the axes of its mesh."""
    layout = getattr(leaf, "sharding", None)
    # That of a random key counts a dimension more, the words of the key.
    return PartitionSpec(*layout.spec[: len(leaf.shape)]) if isinstance(layout, NamedSharding) else PartitionSpec()


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
    found: dict[tuple[Any, ...], tuple[AbstractMesh, list[str]]] = {}
    if not (context := jax.sharding.get_abstract_mesh()).empty:
        found[context.axis_names, context.axis_types] = context, ["the context"]
    for at in arguments.arrays:
        layout = getattr(arguments.leaves[at], "sharding", None)
        if isinstance(layout, NamedSharding) and layout.mesh.axis_names:
            mesh = layout.mesh.abstract_mesh
            _, names = found.setdefault((mesh.axis_names, mesh.axis_types), (mesh, []))
            names.append(arguments.names[at])
    if len(found) > 1:
        said = "; ".join(f"{first_ones(names, _NAMED)} on {_words(mesh)}" for mesh, names in found.values())
        raise ShardingError(f"adopt: the arguments are on meshes with different axes: {said}. Put all on one mesh.")
    for mesh, _ in found.values():
        return mesh
    if sizes is None:
        raise ShardingError(
            "adopt: no argument is on a mesh, and there is none in the context (jax.set_mesh). Give mesh={'data': 8} "
            "and arguments with layouts; for one device mesh={'data': 1} alone, with the magic --mesh data=1."
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
