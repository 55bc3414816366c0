"""Functions that JAX runs once on this host's processor, while the step that they belong to is compiled.

They run in a thread of their own: a person who calls a step waits for both at once, not for one after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from pathways_nb.cost.hlo.quick_compiling import cpu_devices, quick_options
from pathways_nb.program import jax_contexts
from pathways_nb.program.jax_contexts import Contexts
from pathways_nb.util.waiting import Promise, Workers

T = TypeVar("T")
_workers = Workers("pathways-compare", 1)


class Lowered:
    """A function that is traced and lowered where this is made, and compiled where it is first called.

    Args:
        fn: the function.
        *args: its arguments, or their shapes.
    """

    def __init__(self, fn: Callable[..., Any], *args: Any):
        with jax.default_device(_processor()):
            self._lowered = jax.jit(fn).lower(*args)

    @cached_property
    def _compiled(self) -> Any:
        # It runs once, so little effort of the compiler pays.
        return self._lowered.compile(compiler_options=dict(quick_options()))

    def __call__(self, *args: Any) -> Any:
        """Return what the function returns, on the host."""
        with jax.default_device(_processor()):
            return jax.tree.map(np.asarray, self._compiled(*args))


def begin(work: Callable[[], T]) -> Promise[T]:
    """Have another thread call a function, under JAX's contexts of this line."""

    def run(contexts: Contexts) -> T:
        jax_contexts.adopt(contexts)
        return work()

    # JAX's contexts (x64, matmul precision, …) belong to a thread; without them it would compute other numbers.
    return _workers.submit(run, jax_contexts.current())


def here(tree: Any) -> Any:
    """Return a tree whose arrays on other devices are on this host's processor."""
    return jax.tree.map(lambda leaf: jax.device_put(leaf, _processor()) if isinstance(leaf, jax.Array) else leaf, tree)


def value_and_gradients(fn: Callable[..., Any], parts: int = 1) -> Callable[..., tuple[Any, list[Any]]]:
    """Return a loss with its gradients by the floating-point arrays of its first argument.

    Args:
        fn: the loss.
        parts: what it is divided by, as that of each part is in a step: rules of the user's need not be linear.
    """

    def run(params: Any, *rest: Any) -> tuple[Any, list[Any]]:
        leaves, tree = jax.tree.flatten(params)
        at = [number for number, leaf in enumerate(leaves) if is_inexact(leaf)]

        def varied(chosen: list[Any]) -> Any:
            new = dict(zip(at, chosen, strict=True))
            return fn(jax.tree.unflatten(tree, [new.get(i, leaf) for i, leaf in enumerate(leaves)]), *rest) / parts

        return jax.value_and_grad(varied)([leaves[number] for number in at])

    return run


def is_inexact(leaf: Any) -> bool:
    """Return whether an array has a gradient."""
    return jnp.issubdtype(leaf.dtype, jnp.inexact)


def _processor() -> jax.Device:
    return cpu_devices(1)[0]
