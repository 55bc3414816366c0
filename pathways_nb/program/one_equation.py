"""One equation of a jaxpr as a jaxpr of its own, which can be run, moved into another program, or lowered alone.

A list of operations, unlike a jaxpr, can be cut and reordered. Each operation then needs to be run by itself: JAX's
public ``jaxpr_as_fun`` runs a closed jaxpr, so an equation is wrapped in one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.extend.core as jex


class OneEquation(NamedTuple):
    """One equation as a closed jaxpr."""

    jaxpr: jex.ClosedJaxpr
    inputs: tuple[int, ...]
    """Which operands of the equation are its inputs: each variable once, literals never."""
    outputs: tuple[int, ...]
    """Which outputs of the equation are its outputs: those that are not dropped."""


def one_equation(eqn: Any) -> OneEquation:
    """Return an equation as a closed jaxpr."""
    first: dict[Any, int] = {}
    for position, atom in enumerate(eqn.invars):
        if not isinstance(atom, jex.Literal):
            first.setdefault(atom, position)
    kept = tuple(position for position, var in enumerate(eqn.outvars) if not isinstance(var, jex.DropVar))
    invars, outvars = list(first), [eqn.outvars[position] for position in kept]
    # JAX expects a name for each input and output of a jaxpr; here they have none.
    names = jex.DebugInfo("pathways", "operation", ("",) * len(invars), ("",) * len(outvars))
    body = jex.Jaxpr([], invars, outvars, [eqn], eqn.effects, debug_info=names)
    return OneEquation(jex.ClosedJaxpr(body, ()), tuple(first.values()), kept)
