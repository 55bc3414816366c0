"""What ``pw.fsdp`` and its steps refuse, each with both sides and the fix."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.tree_util import tree_leaves_with_path

from pathways_nb.errors import ShardingError, UsageError
from pathways_nb.parallel import step_checks
from pathways_nb.parallel.fsdp.plan import FsdpPlan
from pathways_nb.parallel.optimizer_state import require_same_shapes, require_same_tree, unlike
from pathways_nb.parallel.parameter_trees import name_of, names_of, require_match, truths
from pathways_nb.parallel.random_keys import random_key_in
from pathways_nb.program.models import how_to_split
from pathways_nb.util.words import a_type_of, counted


def arguments(loss: Any, optimizer: Any, accumulate: int) -> None:
    """Check what ``pw.fsdp`` is given.

    Raises:
        UsageError: the loss is no function, the optimizer is none of Optax, or a count is not positive.
    """
    if not callable(loss):
        raise UsageError(f"fsdp: loss_fn={loss!r} is {a_type_of(loss)}; pass a function loss_fn(params, *batch).")
    if optimizer is not None:
        step_checks.optimizer(optimizer, "fsdp")
    if not isinstance(accumulate, int) or accumulate < 1:
        raise UsageError(f"fsdp: accumulate={accumulate!r} must be a positive number of microbatches, such as 4.")


def plan(given: Any) -> None:
    """Check that something is a plan.

    Raises:
        UsageError: it is none.
    """
    if not isinstance(given, FsdpPlan):
        raise UsageError(
            f"fsdp: plan={given!r} is {a_type_of(given)}; pass a pw.FsdpPlan, such as step.search() or "
            f"pw.FsdpPlan.load(path)."
        )


def options(given: Any, param_dtype: Any, reduce_dtype: Any) -> None:
    """Check a plan and dtypes.

    Raises:
        UsageError: the plan is none, or a dtype is not a floating-point dtype.
    """
    if given is not None:
        plan(given)
    for argument, dtype in {"param_dtype": param_dtype, "reduce_dtype": reduce_dtype}.items():
        if dtype is not None and not _is_floating(dtype):
            raise UsageError(
                f"fsdp: {argument}={dtype!r} is no dtype of floating point. Give jax.numpy.bfloat16 or another."
            )


def _is_floating(dtype: Any) -> bool:
    try:
        return bool(jnp.issubdtype(jnp.dtype(dtype), jnp.floating))
    except TypeError:
        return False


def arrays(params: Any) -> None:
    """Check that parameters are arrays or shapes.

    Raises:
        UsageError: naming the first that is not.
    """
    for path, leaf in tree_leaves_with_path(params):
        try:
            jnp.result_type(leaf)
        except TypeError:
            raise UsageError(
                f"fsdp: parameter {name_of(path)} is {a_type_of(leaf)}; parameters are arrays or shapes."
                f"{how_to_split(params, leaf, trained=True) or ' Take what is no array out of the tree.'}"
            ) from None


def has_optimizer(optimizer: Any) -> None:
    """Check that a step can update parameters.

    Raises:
        UsageError: it has no optimizer.
    """
    if optimizer is None:
        raise UsageError(
            "this step has no optimizer, so it can only value_and_grad. Give pw.fsdp optimizer=optax.adam(1e-3)."
        )


def trainable(params: Any, frozen: Any) -> list[bool]:
    """Return of each parameter whether it is trained.

    Raises:
        UsageError: ``frozen`` is neither a function of a name nor a tree like ``params``, it names no parameter, or one
            that is not frozen has no gradient; a parameter is a random key.
    """
    named = tree_leaves_with_path(params)
    still = truths("fsdp", "frozen", "params", params, frozen)
    require_match("fsdp", "frozen", "params", names_of(params), frozen, still)
    for (path, leaf), one in zip(named, still, strict=True):
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            raise UsageError(
                f"fsdp: parameter {name_of(path)} is {leaf.dtype}, a random key, which no device can have a part of. "
                f"Close over it in the loss, or give it in the batch."
            )
        if not one and not jnp.issubdtype(leaf.dtype, jnp.inexact):
            name = name_of(path)
            raise UsageError(
                f"fsdp: parameter {name} is {leaf.dtype}, which has no gradient, so it would never be trained. Say so: "
                f"frozen=lambda name: name == {name!r}; or close over it in the loss."
                f"{how_to_split(params, leaf, trained=True)}"
            )
    return [not one for one in still]


def stacked(params: Any, given: Any) -> list[bool]:
    """Return of each parameter whether it is a stack of layers; by default, whether it has three dimensions or more.

    Raises:
        UsageError: ``given`` is neither a function of a name nor a tree like ``params``.
    """
    leaves = jax.tree.leaves(params)
    wanted = [leaf.ndim > 2 for leaf in leaves] if given is None else truths("fsdp", "stacked", "params", params, given)
    return [one and leaf.ndim > 1 for leaf, one in zip(leaves, wanted, strict=True)]


def default_batch(fn: Callable[..., Any]) -> Any:
    """Return the shapes of a batch if the defaults of a loss's arguments give all of them, or if it has none."""
    try:
        _, *rest = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):  # a function without a signature
        return None
    named = [one for one in rest if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    if len(named) < len(rest) or any(not hasattr(one.default, "shape") for one in named):
        return None
    return tuple(jax.ShapeDtypeStruct(one.default.shape, one.default.dtype) for one in named)


def has_batch(batch: Any, fn: Callable[..., Any]) -> None:
    """Check that the shapes of a batch are known.

    Raises:
        UsageError: they are not.
    """
    if batch is None:
        name = getattr(fn, "__name__", type(fn).__name__)
        raise UsageError(
            f"fsdp: to plan {name}, the shapes of a whole batch are needed. Call the step once, or give them: "
            f"pw.fsdp(..., batch=(jax.ShapeDtypeStruct((128, 8192), jnp.int32), ...)), or batch=(...) here."
        )


def has_model(model: Any) -> None:
    """Check that it is known for which chip to plan.

    Raises:
        UsageError: it is not.
    """
    if model is None:
        raise UsageError(
            'fsdp: for which chip? The attached devices are real. Give chip="gpu_h100_sxm", or attach simulated ones: '
            'pw.attach("sim", chip="gpu_h100_sxm").'
        )


def makes_parameters(given: Any, expected: Any) -> bool:
    """Return whether what was given is a function that makes parameters; a tree of parameters may be callable, too."""
    like: Any = jax.tree.structure(given)
    return callable(given) and not hasattr(given, "shape") and (
        jax.tree_util.all_leaves([given]) or like != jax.tree.structure(expected)
    )  # fmt: skip


def same_shapes(expected: Any, given: Any) -> None:
    """Check that parameters have the tree and the shapes with which the step was made.

    Raises:
        UsageError: they do not, naming the parameter.
    """
    ours: Any = jax.tree.structure(expected)
    theirs: Any = jax.tree.structure(given)
    if ours != theirs:
        raise UsageError(f"fsdp: params {unlike(expected, given)}. Give them as the step was made for: {ours}.")
    pairs = zip(tree_leaves_with_path(expected), jax.tree.leaves(given), strict=True)
    for (path, one), leaf in pairs:
        if jnp.shape(leaf) != one.shape:
            raise UsageError(
                f"fsdp: parameter {name_of(path)} has the shape {list(jnp.shape(leaf))}, but the step was made for "
                f"{list(one.shape)}. Make the step with pw.fsdp(loss_fn, params, ...) for these parameters."
            )


def same_state(expected: Any, given: Any) -> None:
    """Check that an optimizer's state has the tree and the shapes with which the optimizer begins.

    Args:
        expected: the state, as shapes.
        given: the second argument of a step.

    Raises:
        UsageError: it has another.
    """
    require_same_tree(expected, given, "fsdp", "step.init(params)")
    require_same_shapes(expected, given, "fsdp", "step.init(params)")


def same_rows(batch: Any) -> None:
    """Check that the arrays of a batch have equally many rows.

    Args:
        batch: a tuple of trees of arrays or shapes.

    Raises:
        ShardingError: naming the array.
    """
    leaves = _arrays_of(batch)
    for (path, leaf), (other, first) in zip(leaves, leaves[:1] * len(leaves), strict=True):
        if leaf.shape[0] != first.shape[0]:
            if key := random_key_in(batch):
                raise ShardingError(
                    f"fsdp: batch{key} is a random key of bare numbers, whose first dimension would be split over "
                    f"devices. Give a typed key, jax.random.key(0): each device gets it whole."
                )
            raise ShardingError(
                f"fsdp: batch{jax.tree_util.keystr(path)} has {leaf.shape[0]} rows and batch"
                f"{jax.tree_util.keystr(other)} has {first.shape[0]}: the first dimension of every array is the "
                f"batch. Put other arrays into params (frozen=), or close over them; give a key as jax.random.key(0)."
            )


def _arrays_of(batch: Any) -> list[tuple[Any, Any]]:
    return [pair for pair in tree_leaves_with_path(batch) if pair[1].shape]


def whole_batch(batch: Any, parts: int, accumulate: int) -> None:
    """Check that the arrays of a batch can be split.

    Args:
        batch: a tuple of trees of arrays or shapes.
        parts: number of devices that split it.
        accumulate: number of microbatches of each device.

    Raises:
        ShardingError: naming the array.
    """
    same_rows(batch)
    leaves = _arrays_of(batch)
    for path, leaf in leaves:
        if leaf.shape[0] % (parts * accumulate):
            by = f"{counted(parts, 'device')}" + (f" × {accumulate} microbatches" if accumulate > 1 else "")
            enough = -(-leaf.shape[0] // (parts * accumulate)) * parts * accumulate
            raise ShardingError(
                f"fsdp: batch{jax.tree_util.keystr(path)} has shape {tuple(leaf.shape)}, whose first dimension is not "
                f"divisible by {by}. Give a batch of {enough}."
            )
