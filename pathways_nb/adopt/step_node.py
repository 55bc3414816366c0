"""A step as a node of the controller: a call of it on the devices that its arguments are on."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.extend.core as jex
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from pathways_nb.adopt.call_arguments import CallArguments, is_future
from pathways_nb.adopt.devices_here import mesh_here, place_of
from pathways_nb.adopt.nnx_models import check_models, give_back
from pathways_nb.adopt.retarget import on_mesh
from pathways_nb.adopt.taken_step import outermost
from pathways_nb.adopt.traced_call import TracedCall, trace_call
from pathways_nb.errors import UsageError
from pathways_nb.plan.virtual_slice import VirtualSlice
from pathways_nb.program import jax_contexts
from pathways_nb.program.compiled_blocks import named
from pathways_nb.program.computation import Computation, jit
from pathways_nb.program.specs import axes_of
from pathways_nb.session import default_controller
from pathways_nb.session.futures import Future


class StepNode:
    """A step that is called on devices of the controller; each kind of arguments is traced once.

    Args:
        step: jitted, by whatever framework; or a function of a mesh that returns such a step.
    """

    def __init__(self, step: Any):
        self._step = step
        self._made: dict[Any, tuple[TracedCall, Computation]] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Dispatch the step where its arguments lie; a model of Flax NNX that it changes in place is changed.

        Returns:
            What the step returns, with a future for each array.

        Raises:
            ShardingError: the arguments are on several devices and on no mesh.
            UsageError: the controller has other devices, or the step cannot be a node.
        """
        if self._step is None:
            raise UsageError(
                "this step has no function of its own: it is one that a block called, or one with a changed "
                "constraint. Call the function itself."
            )
        leaves = jax.tree.leaves((args, kwargs), is_leaf=is_future)
        arguments = CallArguments.of(args, kwargs)
        arrays = [leaves[at] for at in arguments.arrays]
        mesh = mesh_here(arrays)
        key = _key_of(arguments, mesh)
        call, node = self._made.get(key) or self._traced(arguments, mesh, arrays)
        if key is not None:
            self._made[key] = call, node
        made = iter(node(*arrays))
        results = call.results
        out = [next(made) if leaf is None else leaf for leaf in results.leaves]
        if results.changed:
            changed = dict(zip(results.changed, made, strict=True))
            give_back((args, kwargs), arguments.tree_of(_arrays_in(leaves, changed), results.arguments))
        return jax.tree.unflatten(results.tree, out)

    def _traced(self, arguments: CallArguments, mesh: Mesh, arrays: Sequence[Any]) -> tuple[TracedCall, Computation]:
        """Return a call, and the node that carries it out.

        Args:
            arguments: of the call.
            mesh: that they are on.
            arrays: among them.
        """
        place = place_of(mesh, arrays)
        typed = mesh_at(place, mesh)
        call = trace_call(self._step, arguments, typed)
        eqn = outermost(call.jaxpr, call.name)
        if call.results.is_restructured:
            raise UsageError(
                f"{call.name} gives its arguments other parts than they had, such as a new variable of a model, which "
                f"do not reach them from a node. Make them before the step, or call the step itself."
            )
        if call.results.changed:
            check_models(jax.tree.unflatten(arguments.tree, arguments.leaves))
        inputs = {var: at for at, var in enumerate(call.jaxpr.jaxpr.invars)}
        layouts, donated = [one.sharding.spec for one in call.arguments], set()
        params = eqn.params
        for operand, said, is_given in zip(eqn.invars, params["in_shardings"], params["donated_invars"], strict=True):
            at = None if isinstance(operand, jex.Literal) else inputs.get(operand)
            if at is not None and isinstance(said, NamedSharding):
                layouts[at] = said.spec
            if at is not None and is_given:
                donated.add(at)
        return call, node_of(call.jaxpr, params["name"], call.names, layouts, sorted(donated), place, typed)


def mesh_at(place: VirtualSlice, mesh: Mesh) -> AbstractMesh:
    """Return the mesh of a place, on which its nodes are traced, with the types that the axes of a step's mesh have."""
    return default_controller.get().mesh_of(place).update(axis_types=mesh.axis_types)


def node_of(
    jaxpr: jex.ClosedJaxpr,
    name: str,
    arguments: Sequence[str],
    layouts: Sequence[PartitionSpec],
    donated: Sequence[int],
    place: VirtualSlice,
    mesh: AbstractMesh,
    results: Sequence[Any] = (),
) -> Computation:
    """Return a jaxpr as a node of the controller.

    Args:
        jaxpr: of the step.
        name: of the node.
        arguments: names of its inputs.
        layouts: of its inputs.
        donated: positions of inputs whose memory results may take.
        place: where it runs.
        mesh: of the place, with the types of the axes that the jaxpr was traced with.
        results: layout of each as the user declared it, ``out_shardings``; none where the jaxpr itself has them.
    """
    function = _with_types(jex.jaxpr_as_fun(on_mesh(jaxpr, mesh)), mesh, layouts)
    function = _with_parameters(named(function, name), arguments)
    declared = [one.spec if isinstance(one, NamedSharding) else None for one in results] or None
    return jit(
        function, on=place, in_shardings=tuple(layouts), out_shardings=declared, donate_argnums=tuple(donated)
    )  # fmt: skip


def _with_parameters(function: Callable[..., Any], names: Sequence[str]) -> Callable[..., Any]:
    """Return a function whose parameters have the names of arguments, which pictures and errors show."""
    seen = dict.fromkeys(re.sub(r"\W+", "_", name).strip("_") for name in names)
    known = [*seen] if len(seen) == len(names) and all(map(str.isidentifier, seen)) else []
    known = known or [f"argument_{at}" for at in range(len(names))]
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(name, kind) for name in known]
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return function


def _key_of(arguments: CallArguments, mesh: Mesh) -> Any:
    """Return what the trace of a call depends on; None where a leaf cannot be compared: it is traced at each call."""
    arrays = set(arguments.arrays)
    known = []
    for at, leaf in enumerate(arguments.leaves):
        layout = getattr(leaf, "sharding", None)
        spec = layout.spec if isinstance(layout, NamedSharding) else None
        # Of numbers the text as well: -0.0 and 0.0 are equal.
        said = repr(leaf) if isinstance(leaf, (float, complex, np.inexact)) else ""
        is_weak = bool(getattr(leaf, "weak_type", False))
        known.append((leaf.shape, leaf.dtype, is_weak, spec) if at in arrays else (type(leaf), leaf, said))
    try:
        hash(found := (arguments.tree, arguments.sharing, tuple(known), mesh, jax_contexts.current()))
    except TypeError:
        return None
    return found


def _with_types(
    function: Callable[..., Any], mesh: AbstractMesh, layouts: Sequence[PartitionSpec]
) -> Callable[..., Any]:
    """Return a function for axes that are left to the compiler, as those of a place are.

    Args:
        function: traced on the mesh.
        mesh: whose explicit axes are so inside.
        layouts: of each argument.
    """
    explicit = tuple(
        axis for axis, kind in zip(mesh.axis_names, mesh.axis_types, strict=True) if kind is AxisType.Explicit
    )
    if not explicit:
        return function
    inside = tuple(PartitionSpec(*(_only(entry, explicit) for entry in spec)) for spec in layouts)
    return jax.sharding.explicit_axes(function, axes=explicit, in_sharding=inside)


def _only(entry: Any, axes: Sequence[str]) -> tuple[str, ...] | None:
    """Return those axes over which a dimension is divided that are among some; None without any."""
    return tuple(axis for axis in axes_of(entry) if axis in axes) or None


def _arrays_in(leaves: Sequence[Any], changed: Mapping[int, Future]) -> list[Any]:
    """Return the leaves of arguments with those that were changed in place as arrays, which any code can read."""
    return [changed[at].array() if at in changed else leaf for at, leaf in enumerate(leaves)]
