"""``pw.mean``: a mean whose number of elements depends on the batch, such as one over tokens that are not masked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp

from pathways_nb.errors import UsageError
from pathways_nb.jaxpr.flat import alive, called
from pathways_nb.parallel.batch_walk.equation_pair import EquationPair
from pathways_nb.parallel.batch_walk.marks import Kind, Mark, level
from pathways_nb.parallel.flat_function import FlatFunction
from pathways_nb.plan.virtual_slice import VirtualSlice
from pathways_nb.program.host_function import host
from pathways_nb.program.items import equations
from pathways_nb.program.one_equation import one_equation

_NAME = "pathways_mean"


def mean(total: Any, count: Any) -> jax.Array:
    """Divide a total by a count, as a mean that stays one when the batch is split.

    In plain JAX it is a division, which ``jax.grad`` and the like see. In the loss of ``pw.pipeline`` and ``pw.fsdp``,
    totals and counts of all microbatches, replicas and token slices are added up, and divided once: the loss and its
    gradients are those of the whole batch, even if some parts count nothing. ``count`` may be a sum over the batch,
    but must not depend on parameters. Both are used as float32.

    Args:
        total: a sum over the batch, a scalar such as ``jnp.sum(loss * mask)``.
        count: how many it sums, a scalar such as ``jnp.sum(mask)``.

    Returns:
        ``total / count``, a float32 scalar.

    Raises:
        UsageError: one of them is no scalar.
    """
    for name, value in (("total", total), ("count", count)):
        if jnp.shape(value):
            raise UsageError(f"pw.mean: {name} has the shape {list(jnp.shape(value))}; sum it: {name}.sum().")
    return _mean(jnp.asarray(total, jnp.float32), jnp.asarray(count, jnp.float32))


def _divided(total: jax.Array, count: jax.Array) -> jax.Array:
    return total / count


# A jitted function stays one equation in a jaxpr, and its name tells it from other divisions. JAX differentiates and
# batches it as any other, so the mean needs no primitive of its own.
_divided.__name__ = _NAME
_mean = jax.jit(_divided)


def is_mean(eqn: Any) -> bool:
    """Return whether an equation is a call of ``mean``."""
    return eqn.primitive.name == "jit" and eqn.params.get("name") == _NAME


def count_means(jaxpr: Any) -> int:
    """Return how often a jaxpr calls ``mean``, at any depth."""
    return sum(map(is_mean, equations(jaxpr)))


def mean_mark(op: EquationPair) -> Mark:
    """Return the mark of a call of ``mean``: a mean, if both arguments are sums over the batch."""
    for name, mark in zip(("total", "count"), op.marks, strict=True):
        if mark.is_lost:
            return mark
        if mark.kind == Kind.ROWS or level(mark) != 1:  # a mean, or a constant, is no total
            return op.mixed(f"pw.mean with a {name} that is no sum over {op.axis.name}")
    # Counts are added up before the backward pass and divide as constants: no gradient goes through them.
    if op.marks[1].trained:
        return op.mixed("pw.mean with a count that depends on parameters")
    return Mark(Kind.SUM, -1, trained=op.trained)


def counts_of(where: str, fn: Callable[..., Any], fixed: int, *args: Any) -> list[jax.Array]:
    """Compute the counts of a loss's means, without the rest of the loss.

    Args:
        where: ``"fsdp"`` or ``"pipeline"``, for errors.
        fn: the loss.
        fixed: number of its first arguments that are shapes, because counts must not depend on them.
        *args: its arguments.

    Returns:
        The counts in their order.

    Raises:
        UsageError: a count depends on the first arguments.
    """
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.result_type(leaf)), args)
    closed = jax.make_jaxpr(fn)(*shapes)

    def counts(*arrays: Any) -> list[jax.Array]:
        found: list[jax.Array] = []

        def divide(total: Any, count: Any) -> Any:
            found.append(count)
            return _mean(total, count)

        _run(closed, arrays, divide)
        return found

    # Only what the counts need is run: the loss, which may be a whole model, is left out as dead code.
    flat = FlatFunction.of(jax.make_jaxpr(counts)(*jax.tree.leaves(shapes)))
    unknown = len(jax.tree.leaves(args[:fixed]))
    used = {value for op in alive(flat.ops, flat.outputs) for value in op.inputs} | set(flat.outputs)
    if not used.isdisjoint(flat.inputs[:unknown]):
        raise UsageError(
            f"{where}: a count of pw.mean depends on {'parameters' if where == 'fsdp' else 'the output of the model'}; "
            f"it must be a function of the batch alone, such as the sum of a mask."
        )
    return flat.function(flat.ops, flat.inputs[unknown:], flat.outputs)(*jax.tree.leaves(args[fixed:]))


def with_counts(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return a loss that gets, as a list after its arguments, the numbers by which its means divide."""

    def run(*args: Any) -> Any:
        *given, counts = args
        closed, shapes = jax.make_jaxpr(fn, return_shape=True)(*given)
        left = iter(counts)
        # In the order of the trace, as ``counts_of`` found them.
        made = _run(closed, jax.tree.leaves(given), lambda total, _: total / next(left))
        return jax.tree.unflatten(jax.tree.structure(shapes), made)

    return run


def refuse_zero(value: Any, counts: Sequence[Any], on: VirtualSlice) -> Any:
    """Return a loss through the host, which refuses it if a mean of the whole batch counts nothing.

    It is what a user fetches and no node waits for, so the step itself is not held up.

    Args:
        value: the loss, in the trace of a program.
        counts: of its means, over the whole batch.
        on: the place of the loss.
    """

    def counted(value: Any, counts: Sequence[Any]) -> Any:
        if not all(counts):
            number = next(at for at, count in enumerate(counts) if not count)
            raise UsageError(
                f"pw.mean: the count of mean {number} of the loss is 0 in the whole batch, so there is nothing to "
                f"average. Leave out a batch whose mask leaves nothing."
            )
        return value

    out = jax.ShapeDtypeStruct((), value.dtype)
    return host(counted, on=on, out=out, seconds=0.0)(value, list(counts))


def _run(jaxpr: Any, arrays: Sequence[Any], divide: Callable[[Any, Any], Any]) -> list[Any]:
    """Run a jaxpr with its means made by ``divide``, inside calls, too.

    Returns:
        Its outputs.

    Raises:
        UsageError: a mean is inside a loop or a branch.
    """
    inner, consts = getattr(jaxpr, "jaxpr", jaxpr), getattr(jaxpr, "consts", ())
    env: dict[Any, Any] = {
        **dict(zip(inner.constvars, consts, strict=True)),
        **dict(zip(inner.invars, arrays, strict=True)),
    }

    def read(atom: Any) -> Any:
        return atom.val if hasattr(atom, "val") else env[atom]

    for eqn in inner.eqns:
        given = [read(atom) for atom in eqn.invars]
        if is_mean(eqn):
            made: list[Any] = [divide(*given)]
        elif not any(map(count_means, jex.jaxprs_in_params(eqn.params))):
            alone = one_equation(eqn)
            values = jex.jaxpr_as_fun(alone.jaxpr)(*(given[at] for at in alone.inputs))
            made = [None] * len(eqn.outvars)
            for at, value in zip(alone.outputs, values, strict=True):
                made[at] = value
        elif (body := called(eqn)) is None:
            # Each turn of a loop would need a count of its own, and a branch may have none.
            raise UsageError(f"pw.mean is called inside {eqn.primitive.name!r}; call it once, outside of loops.")
        else:
            made = _run(body, given, divide)
        env.update(zip(eqn.outvars, made, strict=True))
    return [read(atom) for atom in inner.outvars]
