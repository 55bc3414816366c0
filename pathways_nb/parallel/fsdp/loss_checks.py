"""What a loss must be: the code of one device, which returns a scalar that is a mean over its batch."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import AbstractMesh

from pathways_nb.errors import UsageError
from pathways_nb.parallel import step_checks
from pathways_nb.parallel.batch_walk.equation_pair import WalkedAxis
from pathways_nb.parallel.batch_walk.examine import (
    PARAMETER,
    Examined,
    Walked,
    draws,
    judged,
    marks_of,
    resized,
    sizes_of,
    trace_key,
    walked,
)
from pathways_nb.parallel.batch_walk.mean import count_means
from pathways_nb.parallel.batch_walk.parts import of_parts
from pathways_nb.parallel.batch_walk.verdicts import Verdict, on_host
from pathways_nb.plan import source_lines
from pathways_nb.plan.function_names import function_name
from pathways_nb.program.items import equations


def examined(
    fn: Callable[..., Any], params: Any, batch: Any, parts: int, has_aux: bool, aux: Any, check: bool
) -> Examined:
    """Check that a loss is a scalar, the code of one device, and a mean over its batch.

    Args:
        fn: the loss.
        params: shapes of the parameters.
        batch: shapes of one part of the batch.
        parts: number of parts of the whole batch.
        has_aux: whether it returns auxiliary outputs.
        aux: how they are joined, as the user says.
        check: whether it must be a mean over the batch.

    Returns:
        What is known of it.

    Raises:
        UsageError: it is not, or it is unknown how an auxiliary output is joined.
    """
    name = function_name(fn)
    closed, shapes = _of_one_device(fn, name, params, batch)
    outputs = step_checks.value_and_aux(shapes, f"{name}(params, *batch)", has_aux, "fsdp")
    rows = {leaf.shape[0] for leaf in jax.tree.leaves(batch) if leaf.shape}
    means, random = count_means(closed), draws([closed])
    if parts == 1 or not rows:
        return Examined.of_one_part(outputs[1], means, random)
    # At two sizes, of a part and of the whole: what grows with the batch is known by its shapes alone.
    axis = WalkedAxis("rows", sizes_of(rows.pop(), parts))
    sizes = [(params, *resized(batch, 0, size)) for size in axis.sizes]
    marks = jax.tree.map(lambda _: PARAMETER, params), *marks_of(batch, 0)
    known = {trace_key(fn, (params, *batch)): (closed, shapes)}  # of a part that was traced above
    found = walked(fn, axis, sizes, marks, keep=known)
    verdicts, joins = judged("fsdp", name, [axis], [found], outputs, aux, check)
    traces = None
    if verdicts[0].unknown is not None and isinstance(found, Walked):
        traces = closed, known[trace_key(fn, sizes[1])][0]
    return Examined((axis,), verdicts, joins, jax.tree.structure(outputs[1]), means, random, traces)


def compared(loss: Callable[..., Any], found: Examined, params: Any, batch: Any, parts: int) -> Callable[[], Verdict]:
    """Begin to compare the loss of the parts of a batch with that of all of them together, in plain JAX on the host.

    Args:
        loss: the loss.
        found: what is known of it by its structure.
        params: the parameters, as the loss uses them.
        batch: the whole batch.
        parts: number of its parts.

    Returns:
        What waits for the numbers and returns their verdict, or raises a ``UsageError`` if they differ.
    """

    def value(params: Any, *batch: Any) -> Any:
        made = loss(params, *batch)
        return made[0] if isinstance(made, tuple) else made

    name = function_name(loss)
    unknown = found.verdicts[0].unknown
    return of_parts("fsdp", name, unknown, value, params, on_host(batch), parts, found.means, found.traces)


def _of_one_device(fn: Callable[..., Any], name: str, params: Any, batch: Any) -> tuple[Any, Any]:
    """Return the jaxpr of a loss and the shapes that it returns, and refuse one that names devices.

    Raises:
        UsageError: naming the line that does.
    """
    try:
        # An empty mesh: the loss is to fail here if it names an axis, whatever mesh its caller has set.
        with jax.sharding.use_abstract_mesh(AbstractMesh((), ())):
            closed, shapes = jax.make_jaxpr(fn, return_shape=True)(params, *batch)
    except (RuntimeError, ValueError, NameError) as error:
        # JAX has no type of its own for these errors; others are the loss's own and are raised as they are.
        if not re.search(r"\bmesh\b|unbound axis name|shard_map", str(error)):
            raise
        raise _names_devices(
            name, source_lines.traceback_line(error.__traceback__), re.split(r"\.\s", str(error))[0]
        ) from None
    # What names a mesh of its own, as a NamedSharding does, is traced without an error.
    for eqn in equations(closed):
        if eqn.primitive.name in _OF_DEVICES:
            line = source_lines.equation_line(eqn)
            raise _names_devices(name, line, f"it calls {_OF_DEVICES[eqn.primitive.name]}")
    return closed, shapes


_OF_DEVICES = {"sharding_constraint": "with_sharding_constraint", "shard_map": "shard_map", "reshard": "reshard",
               "mesh_cast": "reshard"}  # fmt: skip


def _names_devices(name: str, line: str, what: str) -> UsageError:
    return UsageError(
        f"fsdp: {name} must be the code of one device, but {line or 'a line of it'} names devices: {what}. Leave "
        f"meshes, shardings and collectives out of it: fsdp splits the batch and the parameters, and shardings= splits "
        f"parameters over other axes."
    )
