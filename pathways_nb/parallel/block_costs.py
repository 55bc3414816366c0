"""What each block of a model costs in a training step: estimated by the cost model, or measured.

Both take forward and backward pass of one block on one device, on the shapes that the blocks before it give. Blocks
that are the same function on the same shapes are estimated or measured once. Measurements follow the calibration: all
are compiled first, then take turns in random order, each after another run of the same block, and the median counts.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from os import PathLike
from statistics import median
from time import perf_counter as clock
from typing import Any, NamedTuple

import jax
import numpy as np

from pathways_nb.cost.calibration.calibrated import Calibration
from pathways_nb.cost.hardware.chips import Chip
from pathways_nb.cost.jaxpr.node_work import work_of
from pathways_nb.cost.model import CostModel
from pathways_nb.errors import UsageError
from pathways_nb.parallel.pipelines.stage_calls import as_call, parameters
from pathways_nb.parallel.pipelines.token_context import Context
from pathways_nb.program.signature import Deferred, aval_of
from pathways_nb.session import default_controller
from pathways_nb.util.progress import Progress
from pathways_nb.util.words import a_type_of, counted, first_ones

Block = Callable[..., Any]
Hardware = str | PathLike[str] | Chip | CostModel | Calibration
_LEAST, _MOST, _SECONDS = 3, 25, 5.0
"""Fewest and most rounds, and seconds after which no further round begins."""


class BlockCall(NamedTuple):
    """One block with the arguments that it gets in the model.

    Args:
        block: the function.
        params: its parameters; arrays or structs.
        x: its input, as structs.
        y: its output, as structs.
    """

    block: Block
    params: Any
    x: Any
    y: Any

    @property
    def key(self) -> Hashable:
        """Equal for blocks that cost the same: one function on the same shapes."""
        leaves, tree = jax.tree.flatten((_structs(self.params), self.x))
        return self.block, tree, tuple((leaf.shape, leaf.dtype) for leaf in leaves)


def block_calls(blocks: Sequence[Block], params: Sequence[Any], x: Any) -> list[BlockCall]:
    """Return each block with the shapes that it gets when the blocks run one after another.

    Args:
        blocks: the functions.
        params: a tree for each.
        x: input of the first, arrays or structs.

    Raises:
        UsageError: a block does not take what the block before it returns.
    """
    calls, given = [], _structs(x)
    for number, (written, tree) in enumerate(zip(blocks, params, strict=True)):
        structs, block = _structs(tree), _alone(written)
        try:
            returned = jax.eval_shape(block, structs, given)
        except Exception as error:  # of the user's function
            before = f"{describe_block(blocks, number - 1)} returns" if number else "x is"
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise UsageError(
                f"stages(…): {describe_block(blocks, number)} with parameters {_shapes(structs)} does not take what "
                f"{before}: {_shapes(given)}. {type(error).__name__}: {reason} — Check the order of the blocks and of "
                f"params."
            ) from error
        calls.append(BlockCall(block, tree, given, returned))
        given = returned
    return calls


# One function for one block: a call is known by its block, and equal blocks are measured once.
@lru_cache(maxsize=256)
def _alone(block: Block) -> Block:
    """Return a block as a function of parameters and input, with a key and the context of whole sequences."""
    wanted, call = parameters(block), as_call(block)
    if "key" not in wanted and "context" not in wanted:
        return block

    def alone(params: Any, x: Any) -> Any:
        # The second dimension is the tokens, as in a pipeline with token slices.
        lengths = [leaf.shape[1] for leaf in jax.tree.leaves(x) if leaf.ndim > 1]
        length = lengths[0] if lengths else 0
        return call(params, x, jax.random.key(0), Context(0, length, length, length))

    return alone


def estimated(calls: Sequence[BlockCall], chip: Hardware) -> tuple[list[float], str]:
    """Return the estimated seconds of each block, and how they were found.

    Args:
        calls: the blocks.
        chip: whose roofline decides.
    """
    model = chip.model if isinstance(chip, Calibration) else chip
    model = model if isinstance(model, CostModel) else CostModel.of(model)
    island = model.topology(1)

    found: dict[Hashable, float] = {}
    for one in calls:
        if one.key not in found:
            work = work_of(jax.make_jaxpr(_passes(one))(*_arguments(one)))
            found[one.key] = model.node(work, island, {}).compute  # a launch counts once a stage, not once a block
    basis = f"forward and backward pass, estimated for one device of {model.name}"
    return [found[one.key] for one in calls], basis


def measured(calls: Sequence[BlockCall]) -> tuple[list[float], str]:
    """Return the measured seconds of each block on one device, and how they were found.

    The device is the first accelerator that is attached, else the one that JAX computes on by itself: the threads of
    virtual CPU devices step back behind others.
    """
    distinct = {one.key: one for one in calls}
    starts, device = {}, default_controller.accelerator() or jax.devices()[0]
    with Progress() as progress:
        for number, (key, one) in enumerate(distinct.items(), 1):
            progress.tell(f"blocks: compiling {number} of {len(distinct)}")
            starts[key] = _ready(one, device)
        found: dict[Hashable, list[float]] = {key: [] for key in starts}
        keys, order = list(starts), np.random.default_rng(0)
        for number in range(_MOST):
            if number >= _LEAST and progress.passed > _SECONDS:
                break
            for index in order.permutation(len(keys)):  # a block must not always follow the same one
                progress.tell(f"blocks: round {number + 1} of {_MOST} at most")
                found[keys[index]].append(seconds_of(starts[keys[index]]))
    rounds = counted(len(next(iter(found.values()))), "round")
    basis = f"forward and backward pass, measured on {device.device_kind}: the median of {rounds}"
    return [median(found[one.key]) for one in calls], basis


def seconds_of(start: Callable[[], Any]) -> float:
    """Return the seconds of a compiled function, right after another call of it, as in a training loop."""
    # The first call fills caches with its own arguments and wakes the device.
    jax.block_until_ready(start())
    began = clock()
    jax.block_until_ready(start())
    return clock() - began


def _passes(call: BlockCall) -> Callable[..., Any]:
    """Return a function of parameters, input and the output's gradient that runs both passes.

    What no gradient flows through (token numbers, an empty input) is an argument, and is not differentiated.
    """
    # By leaves of parameters and input together, because the first block's input may be token numbers.
    leaves, tree = jax.tree.flatten((_structs(call.params), call.x))
    flows = [_flows(leaf) for leaf in leaves]

    def passes(values: Sequence[Any], gradient: Sequence[Any]) -> Any:
        def forward(*moving: Any) -> list[Any]:
            rest = iter(moving)
            chosen = [next(rest) if moves else value for moves, value in zip(flows, values, strict=True)]
            outputs = jax.tree.leaves(call.block(*jax.tree.unflatten(tree, chosen)))
            return [leaf for leaf in outputs if _flows(leaf)]

        returned, pull = jax.vjp(forward, *itertools.compress(values, flows))
        return returned, pull(list(gradient))

    return passes


def _arguments(call: BlockCall) -> tuple[list[Any], list[Any]]:
    """Return the structs that the function of ``_passes`` takes."""
    return jax.tree.leaves((_structs(call.params), call.x)), [leaf for leaf in jax.tree.leaves(call.y) if _flows(leaf)]


def _ready(call: BlockCall, device: Any) -> Callable[[], Any]:
    """Return both passes of a block, compiled, with their arguments on a device."""
    values, gradient = _arguments(call)
    given = [*jax.tree.leaves(call.params), *jax.tree.leaves(call.x)]
    random = np.random.default_rng(0)
    filled = [_array(leaf, struct, random) for leaf, struct in zip(given, values, strict=True)]
    arrays, gradients = jax.device_put((filled, [_array(struct, struct, random) for struct in gradient]), device)
    compiled = jax.jit(_passes(call)).lower(arrays, gradients).compile()

    def start() -> Any:
        return compiled(arrays, gradients)

    return start


def _array(leaf: Any, struct: jax.ShapeDtypeStruct, random: np.random.Generator) -> Any:
    """Return a leaf's own values; for a struct random floats, and zeros of other types."""
    if isinstance(leaf, Deferred):
        leaf = leaf.result()
    if isinstance(leaf, jax.ShapeDtypeStruct):
        if jax.dtypes.issubdtype(struct.dtype, jax.dtypes.prng_key):
            return jax.random.split(jax.random.key(0), struct.shape)
        values = random.normal(size=struct.shape) if _flows(struct) else np.zeros(struct.shape)
        return np.asarray(values, struct.dtype)
    return leaf if isinstance(leaf, jax.Array) else np.asarray(leaf, struct.dtype)


def _flows(leaf: Any) -> bool:
    """Return whether a gradient flows through a leaf."""
    return jax.dtypes.issubdtype(leaf.dtype, np.inexact)


def _structs(tree: Any) -> Any:
    """Return the tree with shapes and dtypes in place of arrays."""

    def struct(leaf: Any) -> jax.ShapeDtypeStruct:
        aval = aval_of(leaf)
        if aval is None:
            raise UsageError(f"stages(…): params and x have arrays as leaves, and {leaf!r} is {a_type_of(leaf)}.")
        return jax.ShapeDtypeStruct(aval.shape, aval.dtype)

    return jax.tree.map(struct, tree)


def describe_block(blocks: Sequence[Block], number: int) -> str:
    """Return a block in words, such as ``block 3 ('attention')``."""
    return f"block {number} ({getattr(blocks[number], '__name__', type(blocks[number]).__name__)!r})"


def _shapes(tree: Any) -> str:
    """Return the shapes of a tree in words."""
    texts = [f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]" for leaf in jax.tree.leaves(tree)]
    return first_ones(texts, 4) or "nothing"
