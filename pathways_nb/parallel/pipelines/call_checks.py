"""What a call of a pipeline refuses, each with both sides and the fix."""

from __future__ import annotations

import contextlib
import inspect
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from pathways_nb.errors import UsageError
from pathways_nb.parallel.parameter_trees import names_of, require_match
from pathways_nb.parallel.pipelines.stage_calls import parameters
from pathways_nb.parallel.pipelines.stage_parts import TokenSlice
from pathways_nb.parallel.step_checks import BatchRows, require_same_shapes, require_same_tree, without_gradient
from pathways_nb.plan import source_lines
from pathways_nb.plan.function_names import function_name
from pathways_nb.plan.virtual_slice import VirtualSlice
from pathways_nb.program.models import how_to_split
from pathways_nb.program.specs import axes_of, show
from pathways_nb.util.words import a_type_of, counted


def key(given: Any, stages: Sequence[Callable[..., Any]]) -> None:
    """Require a key for dropout, if a stage has a parameter for it without a default.

    Raises:
        UsageError: there is none, or it is no key.
    """
    usage = "such as value_and_grad(params, x, targets, jax.random.key(0))"
    if given is not None:
        dtype = jnp.result_type(given)
        # Keys are typed, or raw as ``jax.random.PRNGKey`` makes them: arrays of uint32.
        if not jnp.issubdtype(dtype, jax.dtypes.prng_key) and dtype != jnp.uint32:
            raise UsageError(f"pipeline: key is {dtype}{list(jnp.shape(given))}, not a key. Pass one, {usage}.")
        return
    for number, stage in enumerate(stages):
        wanted = parameters(stage).get("key")
        if wanted is not None and wanted.default is inspect.Parameter.empty:
            raise UsageError(
                f"pipeline: stage {number} ({function_name(stage)}) has a parameter 'key', but no key was given. Pass "
                f"one, {usage}."
            )


def params(given: Any, stages: int, trained: Callable[[int, Any], Sequence[bool]], frozen: Any) -> Any:
    """Return the parameters, which must be a list or tuple with one tree for each stage.

    Args:
        given: the parameters.
        stages: number of stages.
        trained: returns of each parameter of a stage whether it is trained, so that it must be of floating point.
        frozen: ``frozen=``; as a function it must name a parameter.

    Raises:
        UsageError: they are not, or ``frozen`` names none.
    """
    if not isinstance(given, (list, tuple)) or len(given) != stages:
        what = counted(len(given), "tree") if isinstance(given, (list, tuple)) else a_type_of(given)
        what = "one array" if hasattr(given, "dtype") else what
        raise UsageError(f"pipeline: params must be a list with a tree for each of {stages} stages; given is {what}.")
    wanted = [one for stage, tree in enumerate(given) for one in trained(stage, tree)]
    names = [f"{stage}.{name}" for stage, tree in enumerate(given) for name in names_of(tree)]
    require_match("pipeline", "frozen", "params", names, frozen, (not one for one in wanted))
    for path, leaf in without_gradient(given, wanted):
        raise UsageError(
            f"pipeline: params{jax.tree_util.keystr(path)} is {jnp.result_type(leaf)}, which has no gradient. Name it "
            f"in frozen=, close over it in the stage, or make it part of the input."
            f"{how_to_split(given, leaf, trained=True)}"
        )
    return given


def position(paths: Sequence[Any], path: Sequence[Any]) -> int:
    """Return the position of the leaf at a path of stage and keys, such as ``(0, "table")``.

    Raises:
        UsageError: there is no such leaf.
    """
    wanted = "".join(f"[{key!r}]" for key in path)
    names = [jax.tree_util.keystr(one) for one in paths]
    # A tree may have objects with fields, whose paths JAX writes with a dot: the same words stand for both forms.
    dotted = [name for name in names if name in (wanted, f"[{path[0]!r}]" + "".join(f".{key}" for key in path[1:]))]
    if not dotted:
        raise UsageError(
            f"pipeline: tied parameters {wanted} do not exist. There are params{', params'.join(names[:8])}"
            f"{', …' if len(names) > 8 else ''}."
        )
    return names.index(dotted[0])


def alike(group: Sequence[Any], leaves: Sequence[Any]) -> None:
    """Require that tied parameters have one shape and type.

    Raises:
        UsageError: they do not.
    """
    found = [f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]" for leaf in leaves]
    if len(set(found)) > 1:
        pairs = ", ".join(f"{tuple(path)}: {what}" for path, what in zip(group, found, strict=True))
        raise UsageError(f"pipeline: tied parameters differ in shape or type: {pairs}. Store both in the same form.")


def like(given: Any, found: list[Any]) -> Any:
    """Return trees of stages in a list or tuple like the given one."""
    # Containers are compared, too, when an optimizer walks gradients and parameters together. Not ``isinstance``: a
    # named tuple cannot be made from one list.
    return type(given)(found) if type(given) in (list, tuple) else found


def state(optimizer: Any, given: Any, params: Any) -> Any:
    """Return a state of an optimizer, with trees of stages in a list or tuple like the parameters.

    Raises:
        UsageError: it is not the state of this optimizer, or not for these parameters.
    """
    expected = jax.eval_shape(optimizer.init, params)
    tree: Any = jax.tree.structure(expected)
    if jax.tree.structure(given) != tree:
        with contextlib.suppress(TypeError, ValueError):  # a mask in the optimizer may be a list itself
            # The state may have stages in the other container, as one that was restored: its leaves are in the same
            # order.
            other = jax.eval_shape(optimizer.init, list(params) if isinstance(params, tuple) else tuple(params))
            same: Any = jax.tree.structure(other)
            if same == jax.tree.structure(given):
                given = jax.tree.unflatten(tree, jax.tree.leaves(given))
    by = "pipe.init(optimizer, params) of the same optimizer"
    require_same_tree(expected, given, "pipeline", by)
    require_same_shapes(expected, given, "pipeline", by)
    return given


def batch(x: Any, targets: Any, microbatches: int) -> int:
    """Return the number of rows of a batch, which the number of microbatches must divide.

    Raises:
        UsageError: it does not, or input and targets have different numbers of rows.
    """
    rows = BatchRows(
        UsageError, allows_scalars=False,
        random_key=lambda key: f"pipeline: {key} is a random key, which has no rows to divide into microbatches. Give "
        "it beside the batch, value_and_grad(params, x, targets, key): a stage with a parameter 'key' gets one of its "
        "own.",
        unequal=lambda found: f"pipeline: arrays of x and targets have {sorted({rows for _, rows in found})} rows: the "
        "first dimension of each is the batch.",
        indivisible=lambda path, first, fits: f"pipeline: a batch of {first.shape[0] if first.shape else 0} rows does "
        f"not divide into {microbatches} microbatches. Take a batch of {fits}, or another number of microbatches.",
    )  # fmt: skip
    return rows.divided({"x": x, "targets": targets}, microbatches)


def rows_on_devices(rows: int, microbatches: int, data: PartitionSpec, places: Sequence[VirtualSlice]) -> None:
    """Require that the devices of each place can split the rows of a microbatch as ``data_sharding=`` says.

    Raises:
        UsageError: naming the place, both numbers, and a batch that fits.
    """
    for place in places:
        sizes, axes = dict(zip(place.axes, place.shape, strict=True)), axes_of(data[0] if len(data) else None)
        parts = math.prod(sizes[axis] for axis in axes)
        if rows % parts:
            raise UsageError(
                f"pipeline: data_sharding={show(data)} splits the {counted(rows, 'row')} of each of "
                f"{counted(microbatches, 'microbatch', 'es')} over {counted(parts, 'device')} of {place.label}. Give a "
                f"batch of {-(-rows // parts) * parts * microbatches} rows, or fewer microbatches."
            )


def tokens(x: Any, token_slices: Sequence[int] | None, targets: Any = None, whole: Any = None) -> int:
    """Return the length of the sequences, to which the token slices, if there are any, must add up.

    Args:
        x: input.
        token_slices: tokens of each slice.
        targets: what is sliced as well, if there are slices.
        whole: for each array of ``x``, whether it is not sliced.

    Raises:
        UsageError: they do not, or arrays have no such dimension.
    """
    kept = jax.tree.leaves(whole) if whole is not None else [False] * len(jax.tree.leaves(x))
    shapes = [leaf.shape for leaf, unsliced in zip(jax.tree.leaves(x), kept, strict=True) if not unsliced]
    if not shapes or any(len(shape) < 2 or shape[1] != shapes[0][1] for shape in shapes):
        raise UsageError(
            f"pipeline: the second dimension of the input is its tokens; its shapes are {shapes}. Name what has no "
            f'tokens, such as the memory of cross-attention: unsliced=lambda name: "memory" in name.'
        )
    # Only slices cut the targets; without them targets may have any shape.
    for path, leaf in jax.tree_util.tree_leaves_with_path(targets) if token_slices else ():
        if leaf.shape[1:2] != shapes[0][1:2]:
            raise UsageError(
                f"pipeline: token_slices slice the second dimension of targets, too: targets"
                f"{jax.tree_util.keystr(path)} has shape {leaf.shape}, but the input has {shapes[0][1]} tokens. Give a "
                "target for each token."
            )
    length = int(shapes[0][1])
    if token_slices is None:
        return length
    total = sum(token_slices)
    if total != length:
        raise UsageError(
            f"pipeline: token_slices={list(token_slices)} sum to {total} tokens, but the input has {length}. All "
            f"together need {length}."
        )
    return length


def mask_of_other_tokens(error: Exception, stage: int, function: Callable[..., Any], at: TokenSlice) -> None:
    """Refuse a mask that fits no token slice, such as one of the whole sequence, if that is what an error is about.

    Args:
        error: JAX's, of shapes that do not fit; its text has them.
        stage: number of the stage.
        function: of the stage.
        at: the slice.

    Raises:
        UsageError: naming the array's shape, its line and what fits.
    """
    if at.tokens == at.length or not isinstance(error, (TypeError, ValueError)):
        return
    # JAX's error has the shapes in its text only, as ``(8, 12)`` or ``(8,)``.
    shapes = [tuple(map(int, re.findall(r"\d+", found))) for found in re.findall(r"\((\d+,[\d, ]*)\)", str(error))]
    width = at.offset + at.tokens
    fits = at.tokens, width
    for shape in shapes:
        ends = shape[-2:]
        # Recognised are masks and tables of the whole sequence, and masks that are square like the slice alone.
        if ends == fits or not (at.length in ends[:1] or ends in ((at.tokens, at.length), (at.tokens, at.tokens))):
            continue
        made_for = f"the whole sequence of {at.length}" if at.length in ends else "the slice alone"
        line = source_lines.traceback_line(error.__traceback__)
        raise UsageError(
            f"pipeline: stage {stage} ({function_name(function)}) meets an array of shape {shape} ({line}) in a slice "
            f"of {at.tokens} tokens that ends at token {width} of {at.length}: it is made for {made_for}. For "
            f"attention take context.mask, here of shape {fits}; from a table by position take "
            f"jnp.asarray(table)[context.positions]. JAX says: {str(error).splitlines()[0]}"
        ).with_traceback(error.__traceback__) from None


def explain(error: Exception, stage: int, stages: Sequence[Callable[..., Any]], x: Any) -> None:
    """Add to an error of a stage's function what it was given, and by which stage; an own error says it already."""
    if isinstance(error, UsageError):
        return
    names = list(map(function_name, stages))
    given = ", ".join(f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]" for leaf in jax.tree.leaves(x))
    source = f"stage {stage - 1} ({names[stage - 1]}) made" if stage else "the input is"
    # A note and no error of its own: the type and the traceback of the user's error stay.
    error.add_note(
        f"In stage {stage} ({names[stage]}) of the pipeline: {source} {given}. Let each stage take what the stage "
        "before it returns."
    )
