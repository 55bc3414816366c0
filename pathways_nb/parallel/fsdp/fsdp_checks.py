"""What ``pw.fsdp`` and its steps refuse, each with both sides and the fix."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jax.tree_util import tree_leaves_with_path

from pathways_nb.errors import ShardingError, UsageError
from pathways_nb.parallel import step_checks
from pathways_nb.parallel.fsdp.fsdp_plan import FsdpPlan
from pathways_nb.parallel.parameter_trees import name_of, names_of, require_match, truths
from pathways_nb.plan.function_names import function_name
from pathways_nb.plan.virtual_slice import VirtualSlice
from pathways_nb.program import specs
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
        try:
            is_floating = dtype is None or jnp.issubdtype(jnp.dtype(dtype), jnp.floating)
        except TypeError:
            is_floating = False
        if not is_floating:
            raise UsageError(
                f"fsdp: {argument}={dtype!r} is no dtype of floating point. Give jax.numpy.bfloat16 or another."
            )


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
    still = truths("fsdp", "frozen", "params", params, frozen)
    require_match("fsdp", "frozen", "params", names_of(params), frozen, still)
    trained = [not one for one in still]
    keys = [jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in jax.tree.leaves(params)]
    # A key, which has no gradient either, is refused even if it is frozen. The first leaf that does not fit is named.
    wanted = [one or key for one, key in zip(trained, keys, strict=True)]
    for path, leaf in step_checks.without_gradient(params, wanted):
        name = name_of(path)
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            raise UsageError(
                f"fsdp: parameter {name} is {leaf.dtype}, a random key, which no device can have a part of. Close over "
                f"it in the loss, or give it in the batch."
            )
        raise UsageError(
            f"fsdp: parameter {name} is {leaf.dtype}, which has no gradient, so it would never be trained. Say so: "
            f"frozen=lambda name: name == {name!r}; or close over it in the loss."
            f"{how_to_split(params, leaf, trained=True)}"
        )
    return trained


def stacked(params: Any, given: Any) -> list[bool]:
    """Return of each parameter whether it is a stack of layers; by default, whether it has three dimensions or more.

    Raises:
        UsageError: ``given`` is neither a function of a name nor a tree like ``params``.
    """
    leaves = jax.tree.leaves(params)
    # Matrices have two dimensions, so three are most likely a stack of them.
    wanted = [leaf.ndim > 2 for leaf in leaves] if given is None else truths("fsdp", "stacked", "params", params, given)
    return [one and leaf.ndim > 1 for leaf, one in zip(leaves, wanted, strict=True)]


def default_batch(fn: Callable[..., Any]) -> Any:
    """Return the shapes of a batch if the defaults of a loss's arguments give all of them, or if it has none."""
    try:
        _, *rest = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):  # a function without a signature
        return None
    positional = [one for one in rest if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    if len(positional) < len(rest) or any(not hasattr(one.default, "shape") for one in positional):
        return None
    return tuple(jax.ShapeDtypeStruct(one.default.shape, one.default.dtype) for one in positional)


def has_batch(batch: Any, fn: Callable[..., Any]) -> None:
    """Check that the shapes of a batch are known.

    Raises:
        UsageError: they are not.
    """
    if batch is None:
        name = function_name(fn)
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
    """Return whether what was given is a function that makes parameters."""
    # A tree of parameters may be callable, too, such as an Equinox module: it has the structure of the parameters.
    like: Any = jax.tree.structure(given)
    return callable(given) and not hasattr(given, "shape") and (
        jax.tree_util.all_leaves([given]) or like != jax.tree.structure(expected)
    )  # fmt: skip


def same_shapes(expected: Any, given: Any) -> None:
    """Check that parameters have the tree and the shapes with which the step was made.

    Raises:
        UsageError: they do not, naming the parameter.
    """
    wanted: Any = jax.tree.structure(expected)
    if wanted != jax.tree.structure(given):
        problem = step_checks.unlike(expected, given)
        raise UsageError(f"fsdp: params {problem}. Give them as the step was made for: {wanted}.")
    for name, there, made_for in step_checks.other_shapes(expected, given):
        raise UsageError(
            f"fsdp: parameter {name} has the shape {there}, but the step was made for {made_for}. Make the step with "
            f"pw.fsdp(loss_fn, params, ...) for these parameters."
        )


def same_state(expected: Any, given: Any) -> None:
    """Check that an optimizer's state has the tree and the shapes with which the optimizer begins.

    Args:
        expected: the state, as shapes.
        given: the second argument of a step.

    Raises:
        UsageError: it has another.
    """
    step_checks.require_same_tree(expected, given, "fsdp", "step.init(params)")
    step_checks.require_same_shapes(expected, given, "fsdp", "step.init(params)")


def _batch_rows(devices: int, microbatches: int) -> step_checks.BatchRows:
    """Return how a batch is divided over devices and into microbatches, and what errors say."""
    by = f"{counted(devices, 'device')}" + (f" × {microbatches} microbatches" if microbatches > 1 else "")

    def unequal(found: Sequence[tuple[str, int]]) -> str:
        path, rows = next(one for one in found if one[1] != found[0][1])
        return (
            f"fsdp: batch{path} has {rows} rows and batch{found[0][0]} has {found[0][1]}: the first dimension of every "
            f"array is the batch. Put other arrays into params (frozen=), or close over them; give a key as "
            f"jax.random.key(0)."
        )

    return step_checks.BatchRows(
        ShardingError, allows_scalars=True,
        random_key=lambda key: f"fsdp: batch{key} is a random key of bare numbers, whose first dimension would be "
        "split over devices. Give a typed key, jax.random.key(0): each device gets it whole.",
        unequal=unequal,
        indivisible=lambda path, first, fits: f"fsdp: batch{path} has shape {tuple(first.shape)}, whose first "
        f"dimension is not divisible by {by}. Give a batch of {fits}.",
    )  # fmt: skip


def same_rows(batch: Any) -> None:
    """Check that the arrays of a batch have equally many rows.

    Args:
        batch: a tuple of trees of arrays or shapes.

    Raises:
        ShardingError: naming the array.
    """
    _batch_rows(1, 1).equal(batch)


def whole_batch(batch: Any, devices: int, microbatches: int) -> None:
    """Check that the arrays of a batch can be split.

    Args:
        batch: a tuple of trees of arrays or shapes.
        devices: number of devices that split it.
        microbatches: number of microbatches of each device.

    Raises:
        ShardingError: naming the array.
    """
    _batch_rows(devices, microbatches).divided(batch, devices * microbatches)


def partitions(params: Any, shardings: Any, on: VirtualSlice, data: Collection[str]) -> list[PartitionSpec]:
    """Return the partition of each parameter over the axes that do not split the batch.

    Args:
        params: the tree of parameters, as shapes.
        shardings: a tree of ``pw.P`` or a prefix of it; ``None`` for no further partition.
        on: the place.
        data: the axes that split the batch.

    Raises:
        UsageError: it names an axis that splits the batch.
        ShardingError: it is no tree of specs over axes of the place, or does not divide a parameter.
    """
    specs.check_tree(shardings, "shardings", "fsdp", on)
    found = specs.spread(shardings, params, "shardings", "fsdp")
    for (path, leaf), spec in zip(jax.tree_util.tree_leaves_with_path(params), found, strict=True):
        what = f"fsdp: parameter {name_of(path)}"
        for axis in (axis for entry in spec or () for axis in specs.axes_of(entry) if axis in data):
            others = ", ".join(repr(other) for other in on.axes if other not in data) or "none"
            raise UsageError(
                f"{what} has shardings={specs.show(spec)}, which names {axis!r}, the axis that splits the batch. "
                f"Name other axes only ({others}); fsdp chooses the dimension that {axis!r} splits."
            )
        specs.check_leaf(leaf.shape, spec, on, what, "shardings")
    return [specs.trimmed(spec) for spec in found]
