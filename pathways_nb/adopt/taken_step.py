"""Take a jitted step over as it stands: its jaxpr, the layouts of its arguments, what it donates.

The outermost ``jit`` of the trace of a call is the step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.extend.core as jex
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from pathways_nb.adopt.call_arguments import CallArguments
from pathways_nb.adopt.retarget import Retargeted, retargeted
from pathways_nb.adopt.traced_call import check_axes, check_division, mesh_of, resized, trace_call
from pathways_nb.adopt.watched_calls import JIT
from pathways_nb.errors import ShardingError, UsageError
from pathways_nb.plan import source_lines
from pathways_nb.program.items import equations
from pathways_nb.program.specs import axes_of
from pathways_nb.util.words import counted

_FEW = 8
"""Equations beside the step's own that a framework may add around it, such as those that make a key."""


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
    arguments = CallArguments.of(args, kwargs)
    call = trace_call(step, arguments, resized(mesh_of(arguments, sizes), sizes))
    eqn = outermost(call.jaxpr, call.name)
    known = {var: at for at, var in enumerate(call.jaxpr.jaxpr.invars)}
    whole = NamedSharding(call.mesh, PartitionSpec())
    operands, names = [], []
    for number, operand in enumerate(eqn.invars):
        at = None if isinstance(operand, jex.Literal) else known.get(operand)
        layout = whole if at is None else call.arguments[at].sharding
        names.append(f"value {number}" if at is None else call.names[at])
        aval = operand.aval
        operands.append(jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=layout, weak_type=aval.weak_type))
    return taken_equation(eqn.params, operands, names, call.mesh)


def taken_equation(
    params: Mapping[str, Any], operands: Sequence[jax.ShapeDtypeStruct], names: Sequence[str], mesh: AbstractMesh
) -> TakenStep:
    """Return the step of an equation.

    Args:
        params: of the ``jit``.
        operands: shape, type and layout of each.
        names: of those.
        mesh: the mesh.

    Raises:
        ShardingError: no operand is divided, or devices do not divide one.
        UsageError: the step cannot be taken over.
    """
    inner: Retargeted = retargeted(params["jaxpr"], mesh)
    structs = []
    for name, operand, said in zip(names, operands, params["in_shardings"], strict=True):
        if isinstance(said, NamedSharding):
            check_axes([name], [said.spec], mesh)
        layout = NamedSharding(mesh, said.spec) if isinstance(said, NamedSharding) else operand.sharding
        check_division(name, operand.shape, layout.spec, mesh)
        structs.append(jax.ShapeDtypeStruct(operand.shape, operand.dtype, sharding=layout, weak_type=operand.weak_type))
    if not any(axes_of(entry) for one in structs for entry in one.sharding.spec) and mesh.size > 1:
        raise ShardingError(
            f"adopt({params['name']}): no argument is divided over the {mesh.size} devices of the mesh, so each "
            f"would compute the whole step. Give the arguments layouts: jax.ShapeDtypeStruct(shape, dtype, "
            f"sharding=NamedSharding(mesh, P(…))), arrays that are on the mesh, or jax.jit(in_shardings=…)."
        )
    results = tuple(
        NamedSharding(mesh, one.spec) if isinstance(one, NamedSharding) else None for one in params["out_shardings"]
    )
    donated = tuple(at for at, is_given in enumerate(params["donated_invars"]) if is_given)
    return TakenStep(
        params["name"], inner.jaxpr, tuple(structs), results, donated, tuple(names), mesh, tuple(inner.notes)
    )


def outermost(traced: jex.ClosedJaxpr, name: str) -> Any:
    """Return the equation of the step: the only ``jit`` that does work.

    Raises:
        UsageError: there are several, or work stands beside it.
    """
    counts = [
        (1 + sum(1 for sub in eqn.params.values() if hasattr(sub, "jaxpr") for _ in equations(sub)), eqn)
        for eqn in traced.jaxpr.eqns
    ]
    calls = [one for one in counts if one[1].primitive.name in JIT]
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
