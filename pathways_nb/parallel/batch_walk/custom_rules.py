"""Reads how gradients depend on rows that a user defines by ``jax.custom_jvp``, whose rule is no part of the jaxpr."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.extend.core as jex
import jax.numpy as jnp
from jax.sharding import AbstractMesh

from pathways_nb.parallel.batch_walk.marks import Mark
from pathways_nb.program.one_equation import one_equation

RULES = {"custom_jvp_call": "jax.custom_jvp", "custom_vjp_call": "jax.custom_vjp"}
"""By primitive of a call with a rule of its own for gradients, the name of its function."""


class Tangents(NamedTuple):
    """The tangents of a call's results, as a function of its operands followed by their tangents.

    Args:
        jaxpr: that function.
        given: positions of the call's operands, and then of those of floating point, whose tangents follow them.
        made: positions of the call's results that have a tangent.
    """

    jaxpr: Any
    given: Sequence[int]
    made: Sequence[int]


def tangents_of(eqn: Any) -> Tangents:
    """Trace the tangents of a call by its own rule."""
    # jax.jvp of the bound equation calls the user's rule, which is a Python function in its parameters.
    alone = one_equation(eqn)
    run = jex.jaxpr_as_fun(alone.jaxpr)
    shapes = [jax.ShapeDtypeStruct(eqn.invars[at].aval.shape, eqn.invars[at].aval.dtype) for at in alone.inputs]
    # Whole numbers and keys have no tangents; jax.jvp would ask for some of type float0.
    moving = [at for at, shape in enumerate(shapes) if jnp.issubdtype(shape.dtype, jnp.inexact)]
    made = [at for at in alone.outputs if jnp.issubdtype(eqn.outvars[at].aval.dtype, jnp.inexact)]

    def tangents(operands: Sequence[Any], given: Sequence[Any]) -> Any:
        def varied(chosen: Sequence[Any]) -> list[Any]:
            new = dict(zip(moving, chosen, strict=True))
            results = dict(
                zip(alone.outputs, run(*(new.get(at, leaf) for at, leaf in enumerate(operands))), strict=True)
            )
            return [results[at] for at in made]

        return jax.jvp(varied, ([operands[at] for at in moving],), (list(given),))[1]

    # As the loss was traced: an equation keeps the mesh under which it was traced.
    with jax.sharding.use_abstract_mesh(AbstractMesh((), ())):
        jaxpr = jax.make_jaxpr(tangents)(shapes, [shapes[at] for at in moving])
    return Tangents(jaxpr, [*alone.inputs, *(alone.inputs[at] for at in moving)], made)


def is_tangent_of(tangent: Mark, value: Mark) -> bool:
    """Return whether a tangent depends on rows as the value does, so that gradients flow to each row from itself."""
    # A rule that scales tangents by a sum over all rows, for example, does not.
    place = (tangent.kind, tangent.power, tangent.at, tangent.inner, tangent.context, tangent.loop)
    own = (value.kind, value.power, value.at, value.inner, value.context, value.loop)
    return tangent.is_zero or (place == own and (value.shared or not tangent.shared))
