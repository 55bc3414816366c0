"""The edge of a computation, which no mesh crosses.

A body is traced under its place's mesh, and JAX writes that mesh into the types of the values made there. Under the
next place's mesh, a type that names another mesh is an error or means something else. Replacing the mesh in the types
afterwards is not enough: JAX has compared them by then. Therefore everything that enters or leaves a computation
passes ``cross``, an identity whose result names no mesh; tangents and cotangents do so in every transformation. Once
the program is a list of items, ``without_edges`` removes these identities again.
"""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

import jax
import jax.extend.core as jex
from jax.interpreters import ad, batching, mlir
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

_edge = jex.Primitive("pathways_edge")
_nowhere = AbstractMesh((), ())


class Inner(NamedTuple):
    """A computation without its edges, and where each of its former outputs is found."""

    jaxpr: jex.ClosedJaxpr
    kept: tuple[int, ...]
    """Positions of the former outputs that it still has."""
    found_at: tuple[int, ...]
    """For each former output, its position in the list of all inputs followed by the outputs that are left."""


_inner: weakref.WeakKeyDictionary[jex.ClosedJaxpr, Inner] = weakref.WeakKeyDictionary()
"""By traced jaxpr: JAX keeps one jaxpr for equal calls, and they must stay equal once the edges are removed."""


def cross(value: Any) -> Any:
    """Return the same value with a type that names no mesh."""
    return _edge.bind(value) if isinstance(value, jax.core.Tracer) else value


def without_edges(closed: jex.ClosedJaxpr) -> Inner:
    """Return the computation without edges, and without residuals that are an input or another output.

    JAX gives a residual no output of its own if it is an input or another output. An edge in between hides that, and
    each such residual would be a copy of an array.
    """
    if closed not in _inner:
        kept, found_at = _outputs(closed.jaxpr)
        _inner[closed] = Inner(jex.ClosedJaxpr(_joined(closed.jaxpr, kept), closed.consts), kept, found_at)
    return _inner[closed]


def _outputs(jaxpr: jex.Jaxpr) -> tuple[tuple[int, ...], tuple[int, ...]]:
    inputs = {var: at for at, var in enumerate(jaxpr.invars)}
    # For what comes out of an edge, what goes into it.
    before = {
        e.outvars[0]: e.invars[0] for e in jaxpr.eqns if e.primitive is _edge and isinstance(e.invars[0], jex.Var)
    }
    outputs = [(at, var) for at, var in enumerate(jaxpr.outvars) if isinstance(var, jex.Var)]
    leaving = {before[var]: at for at, var in outputs if var in before}
    # Residuals that are an input: the edge in between is all that makes them another value.
    entered = {at: inputs[before[var]] for at, var in outputs if var in before and before[var] in inputs}
    # What leaves without an edge is a residual of a gradient. If the same value also leaves through an edge, the
    # residual is found there, as JAX would have found it without the edge.
    duplicate = {at: leaving[var] for at, var in outputs if var in leaving and var not in before and var not in inputs}
    kept = tuple(at for at in range(len(jaxpr.outvars)) if at not in entered and at not in duplicate)
    position = {at: index for index, at in enumerate(kept, len(inputs))} | entered
    return kept, tuple(position[duplicate.get(at, at)] for at in range(len(jaxpr.outvars)))


def _joined(jaxpr: jex.Jaxpr, kept: tuple[int, ...]) -> jex.Jaxpr:
    """Return the jaxpr with the values on both sides of each edge joined, and with these outputs only."""
    source: dict[jex.Var, Any] = {}

    def one(atom: Any) -> Any:
        return source.get(atom, atom) if isinstance(atom, jex.Var) else atom

    eqns = []
    for eqn in jaxpr.eqns:
        if eqn.primitive is _edge:
            source[eqn.outvars[0]] = one(eqn.invars[0])
        else:
            eqns.append(eqn.replace(invars=[one(atom) for atom in eqn.invars]))
    outvars = [one(jaxpr.outvars[at]) for at in kept]
    # JAX wants as many paths as outputs, and some outputs are gone.
    return jaxpr.replace(eqns=eqns, outvars=outvars, debug_info=jaxpr.debug_info._replace(result_paths=None))


def _of_no_mesh(aval: Any) -> Any:
    return aval.update(sharding=NamedSharding(_nowhere, PartitionSpec(*[None] * aval.ndim)))


_edge.def_impl(lambda value: value)
_edge.def_abstract_eval(_of_no_mesh)
# It is linear, so the tangent crosses as the value does. The cotangent crosses the other way by an edge of its own,
# since it comes with the types of the other mesh.
ad.deflinear2(_edge, lambda cotangent, value: [_edge.bind(cotangent)])
batching.defvectorized(_edge)
mlir.register_lowering(_edge, lambda context, value: [value])
