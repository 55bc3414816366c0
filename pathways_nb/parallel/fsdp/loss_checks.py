"""What a loss must be: the code of one device, which returns a scalar."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
from jax.sharding import AbstractMesh

from pathways_nb.errors import UsageError
from pathways_nb.plan import source_lines
from pathways_nb.util.words import a_type_of, counted


def auxiliary_tree(fn: Callable[..., Any], params: Any, batch: Any, has_aux: bool) -> Any:
    """Check that a loss is a scalar and the code of one device, and return the tree of its auxiliary outputs.

    Returns:
        The structure of the tree; of ``None`` without auxiliary outputs.

    Raises:
        UsageError: it is not.
    """
    name = getattr(fn, "__name__", type(fn).__name__)
    found = _of_one_device(fn, name, params, batch)
    if has_aux and not (isinstance(found, tuple) and len(found) == 2):
        raise UsageError(f"fsdp: with has_aux=True, {name} must return (loss, aux); it returns {_form(found)}.")
    value, aux = found if has_aux else (found, None)
    if not hasattr(value, "shape") or value.shape != () or not jnp.issubdtype(value.dtype, jnp.floating):
        hint = " For auxiliary outputs give has_aux=True." if isinstance(value, tuple) else " Return its mean."
        raise UsageError(f"fsdp: {name} must return a scalar loss; it returns {_form(value)}.{hint}")
    return jax.tree.structure(aux)


def _of_one_device(fn: Callable[..., Any], name: str, params: Any, batch: Any) -> Any:
    """Return the shapes that a loss returns, and refuse one that names devices.

    Raises:
        UsageError: naming the line that does.
    """
    try:
        with jax.sharding.use_abstract_mesh(AbstractMesh((), ())):
            closed, shapes = jax.make_jaxpr(fn, return_shape=True)(params, *batch)
    except (RuntimeError, ValueError, NameError) as error:
        if not re.search(r"\bmesh\b|unbound axis name|shard_map", str(error)):
            raise
        raise _names_devices(
            name, source_lines.traceback_line(error.__traceback__), re.split(r"\.\s", str(error))[0]
        ) from None
    for eqn in _equations(closed.jaxpr):
        if eqn.primitive.name in _OF_DEVICES:
            line = source_lines.innermost(eqn.source_info.traceback.frames if eqn.source_info.traceback else ())
            raise _names_devices(name, line, f"it calls {_OF_DEVICES[eqn.primitive.name]}")
    return shapes


_OF_DEVICES = {"sharding_constraint": "with_sharding_constraint", "shard_map": "shard_map", "reshard": "reshard",
               "mesh_cast": "reshard"}  # fmt: skip


def _names_devices(name: str, line: str, what: str) -> UsageError:
    return UsageError(
        f"fsdp: {name} must be the code of one device, but {line or 'a line of it'} names devices: {what}. Leave "
        f"meshes, shardings and collectives out of it: fsdp splits the batch and the parameters, and shardings= splits "
        f"parameters over other axes."
    )


def _equations(jaxpr: Any) -> Iterator[Any]:
    """Yield the equations of a jaxpr and of those inside it."""
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in jex.jaxprs_in_params(eqn.params):
            yield from _equations(getattr(inner, "jaxpr", inner))


def _form(found: Any) -> str:
    if found is None:
        return "None"
    if isinstance(found, jax.ShapeDtypeStruct):
        return f"{found.dtype}{list(found.shape)}"
    leaves = jax.tree.leaves(found)
    return f"{a_type_of(found)} of {counted(len(leaves), 'array')}"
