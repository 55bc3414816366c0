"""Take a jitted step over as it stands: its jaxpr, the layouts of its arguments, what it donates.

The call is traced once, on an abstract mesh of the wanted size, with every array of its arguments as an argument and
everything else as it is, so models of any framework are trees like others. The outermost ``jit`` of that trace is the
step.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import jax
import jax.extend.core as jex
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from pathways_nb.adopt.retarget import Retargeted, retargeted
from pathways_nb.errors import ShardingError, UsageError
from pathways_nb.plan import source_lines
from pathways_nb.program.items import equations
from pathways_nb.program.signature import Deferred
from pathways_nb.program.specs import axes_of
from pathways_nb.util.words import a_type_of, counted

_NOTHING = Mesh(np.empty((), object), ())
"""The mesh of a context without one."""
_JIT = ("jit", "pjit")
_FEW = 8
"""Equations beside the step's own that a framework may add around it, such as those that make a key."""


def no_mesh() -> AbstractContextManager[Any]:
    """Return a context without the mesh that the user has set around it, which another mesh would not fit."""
    return jax.set_mesh(_NOTHING)


@dataclass(frozen=True, eq=False)
class TakenStep:
    """A step that was taken over.

    Args:
        name: of the function.
        jaxpr: what it computes, on the abstract mesh; one input for each argument.
        structs: shape and type of each argument, with its layout on the mesh.
        results: layout of each result; None where the compiler chooses.
        donated: positions of arguments whose memory results may take.
        names: of each argument, such as ``"args[0].params['w']"``.
        mesh: the mesh.
        notes: what was left out.
    """

    name: str
    jaxpr: jex.ClosedJaxpr
    structs: tuple[jax.ShapeDtypeStruct, ...]
    results: tuple[NamedSharding | None, ...]
    donated: tuple[int, ...]
    names: tuple[str, ...]
    mesh: AbstractMesh
    notes: tuple[str, ...]

    def function(self, *arrays: Any) -> list[Any]:
        """Return the results from the arguments, one by one."""
        made = jex.jaxpr_as_fun(self.jaxpr)(*arrays)
        return [
            array if layout is None else jax.lax.with_sharding_constraint(array, layout)
            for array, layout in zip(made, self.results, strict=True)
        ]


def take(step: Any, args: Sequence[Any], kwargs: Mapping[str, Any], sizes: Mapping[str, int] | None) -> TakenStep:
    """Return a step, taken over for a mesh.

    Args:
        step: jitted, by whatever framework; or a function of a mesh that returns such a step.
        args: its arguments: arrays, shapes with layouts, or trees of them.
        kwargs: further ones by name.
        sizes: devices along each axis; None for those of the mesh that the step was written for.

    Raises:
        ShardingError: no argument is divided, or the arguments are on meshes with different axes.
        UsageError: the step is not jitted, or cannot be taken over.
    """
    paths, tree = jax.tree_util.tree_flatten_with_path((tuple(args), dict(kwargs)), is_leaf=_is_value)
    leaves = [_struct(leaf) if isinstance(leaf, Deferred) else leaf for _, leaf in paths]
    names = [_name(path) for path, _ in paths]
    dynamic = [at for at, leaf in enumerate(leaves) if _is_array(leaf)]
    written = _mesh_of([(names[at], leaves[at]) for at in dynamic], sizes)
    mesh = _resized(written, sizes)
    step = _jitted(step, mesh)
    arguments = [_argument(names[at], leaves[at], mesh) for at in dynamic]

    def flat(*arrays: Any) -> list[Any]:
        filled = list(leaves)
        for at, array in zip(dynamic, arrays, strict=True):
            filled[at] = array
        given, named = jax.tree_util.tree_unflatten(tree, filled)
        return [leaf for leaf in jax.tree.leaves(step(*given, **named)) if _is_array(leaf)]

    traced = _traced(flat, arguments, mesh)
    eqn = _outermost(traced, getattr(step, "__name__", type(step).__name__))
    return _taken(eqn, traced, arguments, [names[at] for at in dynamic], mesh)


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


def _taken(
    eqn: Any,
    traced: jex.ClosedJaxpr,
    arguments: Sequence[jax.ShapeDtypeStruct],
    names: Sequence[str],
    mesh: AbstractMesh,
) -> TakenStep:
    """Return the step of an equation.

    Args:
        eqn: the ``jit``.
        traced: around it.
        arguments: of the whole call.
        names: of those.
        mesh: the mesh.
    """
    inner: Retargeted = retargeted(eqn.params["jaxpr"], mesh)
    known = {var: at for at, var in enumerate(traced.jaxpr.invars)}
    structs, own = [], []
    for number, (operand, said) in enumerate(zip(eqn.invars, eqn.params["in_shardings"], strict=True)):
        at = None if isinstance(operand, jex.Literal) else known.get(operand)
        layout = arguments[at].sharding if at is not None else NamedSharding(mesh, PartitionSpec())
        if isinstance(said, NamedSharding):
            layout = NamedSharding(mesh, said.spec)
        aval = operand.aval
        own.append(f"value {number}" if at is None else names[at])
        _check_division(own[-1], aval.shape, layout.spec, mesh)
        structs.append(jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=layout, weak_type=aval.weak_type))
    if not any(axes_of(entry) for one in structs for entry in one.sharding.spec) and mesh.size > 1:
        raise ShardingError(
            f"adopt({eqn.params['name']}): no argument is divided over the {mesh.size} devices of the mesh, so each "
            f"would compute the whole step. Give the arguments layouts: jax.ShapeDtypeStruct(shape, dtype, "
            f"sharding=NamedSharding(mesh, P(…))), arrays that are on the mesh, or jax.jit(in_shardings=…)."
        )
    results = tuple(
        NamedSharding(mesh, one.spec) if isinstance(one, NamedSharding) else None for one in eqn.params["out_shardings"]
    )
    donated = tuple(at for at, is_given in enumerate(eqn.params["donated_invars"]) if is_given)
    return TakenStep(
        eqn.params["name"], inner.jaxpr, tuple(structs), results, donated, tuple(own), mesh, tuple(inner.notes)
    )


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


def _outermost(traced: jex.ClosedJaxpr, name: str) -> Any:
    """Return the equation of the step: the only ``jit`` that does work.

    Raises:
        UsageError: there are several, or work stands beside it.
    """
    counts = [
        (1 + sum(1 for sub in eqn.params.values() if hasattr(sub, "jaxpr") for _ in equations(sub)), eqn)
        for eqn in traced.jaxpr.eqns
    ]
    calls = [one for one in counts if one[1].primitive.name in _JIT]
    most, chosen = max(calls, key=lambda one: one[0], default=(0, None))
    if chosen is not None and sum(count for count, _ in counts) - most <= _FEW:
        return chosen
    others = [eqn for _, eqn in counts if eqn is not chosen]
    where = source_lines.equation_line(others[0]) if others else ""
    said = f", the first at {where}" if where else ""
    raise UsageError(
        f"adopt({name}): beside one jitted function it runs {counted(len(others), 'operation')} of its own{said}. Jit "
        f"the whole step, jax.jit({name}), or adopt the function that it calls."
    )


def _is_value(leaf: object) -> bool:
    return isinstance(leaf, Deferred)


def _is_array(leaf: object) -> bool:
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


def _argument(name: str, leaf: Any, mesh: AbstractMesh) -> jax.ShapeDtypeStruct:
    """Return shape and type of an argument, with its layout on the mesh.

    Raises:
        ShardingError: its layout names an axis that the mesh lacks.
    """
    layout = getattr(leaf, "sharding", None)
    spec = layout.spec if isinstance(layout, NamedSharding) else PartitionSpec()
    unknown = [axis for entry in spec for axis in axes_of(entry) if axis not in mesh.axis_names]
    if unknown:
        raise ShardingError(
            f"adopt: {name} is divided over the axis {unknown[0]!r}, and the mesh has {_words(mesh)}. Name that axis "
            f"in mesh= as well."
        )
    _check_division(name, leaf.shape, spec, mesh)
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, spec))


def _check_division(name: str, shape: Sequence[int], spec: PartitionSpec, mesh: AbstractMesh) -> None:
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


def _mesh_of(leaves: Sequence[tuple[str, Any]], sizes: Mapping[str, int] | None) -> AbstractMesh:
    """Return the mesh that a step was written for: that of the context, else of its arguments.

    Raises:
        ShardingError: the arguments are on meshes with different axes, or on none, and no mesh is given.
    """
    found: dict[tuple[Any, ...], tuple[str, AbstractMesh]] = {}
    if not (context := jax.sharding.get_abstract_mesh()).empty:
        found[context.axis_names, context.axis_types] = "the context", context
    for name, leaf in leaves:
        layout = getattr(leaf, "sharding", None)
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


def _resized(mesh: AbstractMesh, sizes: Mapping[str, int] | None) -> AbstractMesh:
    """Return a mesh with other sizes, or itself; axes that the step does not know are left to the compiler.

    Raises:
        ShardingError: a size is no whole number of at least 1.
    """
    if sizes is not None and not isinstance(sizes, Mapping):
        raise ShardingError(f"adopt(mesh={sizes!r}): write the devices along each axis, such as mesh={{'data': 16}}.")
    kinds = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    wanted = dict(mesh.shape_tuple) if sizes is None else dict(sizes)
    # In the order of the mesh that the step was written for: it decides what is neighbours.
    wanted = {axis: wanted[axis] for axis in (*mesh.axis_names, *wanted) if axis in wanted}
    if wanted == dict(mesh.shape_tuple):
        return mesh
    for axis, size in wanted.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ShardingError(f"adopt(mesh={wanted!r}): {axis!r} needs a whole number of devices, at least 1.")
    types = tuple(kinds.get(axis, AxisType.Auto) for axis in wanted)
    return AbstractMesh(tuple(wanted.values()), tuple(wanted), axis_types=types)


def _words(mesh: AbstractMesh) -> str:
    kinds = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    explicit = {axis: " (explicit)" * (kind is AxisType.Explicit) for axis, kind in kinds.items()}
    return " × ".join(f"{axis} {size}{explicit[axis]}" for axis, size in mesh.shape_tuple)
