"""Gives ``Context.append`` its store: each append takes and returns a buffer, at any depth of calls and scans.

A stage is traced with ``append`` as an operation of its own. It is then run again, operation by operation, with the
buffers as further inputs and outputs of each function that appends: of ``jax.checkpoint`` and ``jax.jit``, and of a
scan, where every iteration has a buffer of its own, stacked in front of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.extend.core as jex
import jax.numpy as jnp

from pathways_nb.errors import UsageError
from pathways_nb.jaxpr.flat import called, scan_sizes
from pathways_nb.parallel.flat_function import FlatFunction, Runnable
from pathways_nb.parallel.pipelines.token_context import APPEND

_CALLS = ("jit", "closed_call", "remat2")
"""Calls that are run again with a store."""


class StoreBuffer(NamedTuple):
    """One array of the store.

    Args:
        shape: of the whole sequences, after the dimensions of scans.
        dtype: type of its elements.
        depth: number of scans around its append, each of which is a dimension in front of the batch.
    """

    shape: tuple[int, ...]
    dtype: Any
    depth: int


def with_store(
    function: Callable[..., Any], arguments: tuple[Any, ...], store: Sequence[Any] | None
) -> tuple[Any, list[Any], list[int]]:
    """Return what a function returns, the store with what it appended, and the depth of each of its buffers.

    Args:
        function: calls ``Context.append``.
        arguments: trees of arrays.
        store: the buffers; ``None`` for new ones, of zeros.

    Raises:
        UsageError: it appends where no store can be had, such as in a branch of ``jax.lax.cond``.
    """
    # Traced first with appends as operations: only then is it known how many buffers there are, and around which of
    # them scans run.
    closed, result = jax.make_jaxpr(function, return_shape=True)(*arguments)
    flat = FlatFunction.of(closed)
    buffers = _buffers(flat)
    if store is None:
        store = [jnp.zeros(one.shape, one.dtype) for one in buffers]
    made, store = _run(flat, jax.tree.leaves(arguments), store)
    return jax.tree.unflatten(jax.tree.structure(result), made), store, [one.depth for one in buffers]


def _run(flat: FlatFunction, arrays: Sequence[Any], store: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Return the results of a traced function, and the store it leaves."""
    values: dict[int, Any] = {**flat.constants, **dict(zip(flat.inputs, arrays, strict=True))}
    left, made = iter(store), list[Any]()
    for op in flat.ops:
        # Buffers lie in the order of appends, so each operation takes as many as its body has.
        own = [next(left) for _ in _buffers_of(op)]
        if own:
            results, own = _run_appending(op, [values[v] for v in op.operands], own)
            values.update(zip(op.results, results, strict=True))
            made += own
        else:
            values.update(zip(op.outputs, op.run(*(values[v] for v in op.inputs)), strict=True))
    return [values[v] for v in flat.outputs], made


def _run_appending(op: Runnable, operands: list[Any], store: list[Any]) -> tuple[Sequence[Any], list[Any]]:
    """Return the results of one operation that appends, and the buffers it leaves."""
    if op.name == APPEND.name:
        # array (batch, l, …), buffer (batch, L, …)
        array, offset = operands[0], operands[1] if len(operands) > 1 else op.params["offset"]
        buffer = jax.lax.dynamic_update_slice(store[0], array, (0, offset, *[0] * (array.ndim - 2)))
        # Later tokens are cut off, unless one executable serves all offsets: then the width is L.
        return [buffer[:, : op.params["width"]]], [buffer]
    inner = _inner(op)
    assert inner is not None, "an operation with buffers has a body"
    if op.name == "scan":
        return _scan(op, inner, operands, store)
    if op.name == "remat2":
        # The body with a store is another function than the one that the user checkpointed: it gets the same policy.
        again = jax.checkpoint(_run, prevent_cse=op.params["prevent_cse"], policy=op.params["policy"],
                               static_argnums=(0,))  # fmt: skip
        return again(inner, operands, store)
    return _run(inner, operands, store)


def _scan(op: Runnable, body: FlatFunction, operands: list[Any], store: list[Any]) -> tuple[list[Any], list[Any]]:
    consts, carried = scan_sizes(op.eqn)
    fixed, first, over = operands[:consts], operands[consts : consts + carried], operands[consts + carried :]

    # Each iteration, such as a layer, has keys and values of its own: buffers (iterations, batch, L, …) are scanned
    # over like inputs, and come out stacked like outputs.
    def iterate(carry: list[Any], sliced: tuple[list[Any], list[Any]]) -> tuple[list[Any], Any]:
        made, own = _run(body, [*fixed, *carry, *sliced[0]], sliced[1])
        return made[:carried], (made[carried:], own)

    params = {name: op.params[name] for name in ("length", "reverse", "unroll")}
    last, (stacks, store) = jax.lax.scan(iterate, first, (over, store), **params)
    return [*last, *stacks], store


def _buffers(flat: FlatFunction) -> list[StoreBuffer]:
    """Return the buffers of a traced function, in the order of its appends."""
    return [buffer for op in flat.ops for buffer in _buffers_of(op)]


def _buffers_of(op: Runnable) -> list[StoreBuffer]:
    if op.name == APPEND.name:
        aval = op.eqn.invars[0].aval
        return [StoreBuffer((aval.shape[0], op.params["length"], *aval.shape[2:]), aval.dtype, 0)]
    inner = _inner(op)
    if inner is None or op.name != "scan":
        return [] if inner is None else _buffers(inner)
    # (iterations, …, batch, L, …)
    return [StoreBuffer((op.params["length"], *shape), dtype, depth + 1) for shape, dtype, depth in _buffers(inner)]


def _inner(op: Runnable) -> FlatFunction | None:
    """Return the body of an operation that appends within it; ``None`` if it does not."""
    if op.eqn is None or not _appends(op.eqn):
        return None
    _refuse_lost(op.name)
    jaxpr = op.params["jaxpr"] if op.name == "scan" else called(op.eqn)
    return FlatFunction.of(jaxpr if hasattr(jaxpr, "jaxpr") else jex.ClosedJaxpr(jaxpr, ()))


def refuse_lost_appends(jaxpr: Any) -> None:
    """Refuse a traced stage that appends where no store can be had, such as in a branch of ``jax.lax.cond``.

    Raises:
        UsageError: naming the operation that contains the append.
    """
    for eqn in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        if _appends(eqn):
            _refuse_lost(eqn.primitive.name)
            for inner in _jaxprs(eqn):
                refuse_lost_appends(inner)


def _refuse_lost(name: str) -> None:
    if name not in (*_CALLS, "scan"):
        raise UsageError(
            f"context.append is called inside {name!r}, through which keys and values of earlier tokens cannot be "
            "passed on. Call it outside; jax.checkpoint, jax.jit and jax.lax.scan may contain it."
        )


def _appends(eqn: Any) -> bool:
    """Return whether an equation's functions append, at any depth."""
    return any(one.primitive is APPEND or _appends(one) for jaxpr in _jaxprs(eqn) for one in jaxpr.eqns)


def _jaxprs(eqn: Any) -> Iterator[Any]:
    for value in eqn.params.values():
        for one in value if isinstance(value, (tuple, list)) else (value,):
            jaxpr = getattr(one, "jaxpr", one)
            if hasattr(jaxpr, "eqns"):
                yield jaxpr
