"""Keeps an exception of a host callback from XLA until its node has ended.

XLA stops a device whose callback raises. The others then wait for it in the next collective, of this node or of one
that reads its results, and after 40 seconds XLA ends the process, in plain JAX, too. In a node on several devices XLA
therefore gets zeros for what the callback would have returned, and whoever launches the node raises the exception when
all its devices are done.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from pathways_nb.errors import UsageError

NOTE = "raised in a host callback"
"""The note of an exception that was kept."""


@dataclass(eq=False)
class KeptExceptions:
    """The exceptions of the callbacks of one node.

    Args:
        guards: number of callbacks in the node.
        errors: of the launch under way.
        lock: held by that launch.
    """

    guards: int = 0
    errors: list[BaseException] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass(frozen=True, eq=False)
class _Guarded:
    callback: Callable[..., Any]
    outputs: Sequence[Any]
    kept: KeptExceptions

    def __call__(self, *arrays: Any) -> Any:
        try:
            made = self.callback(*arrays)
            self._check(jax.tree.leaves(made))
            return made
        except BaseException as error:
            self.kept.errors.append(error)
            return tuple(np.zeros(one.shape, one.dtype) for one in self.outputs)

    def _check(self, made: Sequence[Any]) -> None:
        """Refuse results of other shapes or types than declared, for which JAX would raise behind this guard."""
        arrays = list(map(np.asarray, made))
        found = [f"{jax.dtypes.canonicalize_dtype(array.dtype)}{list(array.shape)}" for array in arrays]
        wanted = [f"{one.dtype}{list(one.shape)}" for one in self.outputs]
        if found != wanted:
            raise UsageError(
                f"a host callback returned {', '.join(found) or 'nothing'}, but its result_shape_dtypes declare "
                f"{', '.join(wanted) or 'nothing'}. Return arrays of the declared shapes and types."
            )


def guarded(params: Mapping[str, Any], kept: KeptExceptions | None) -> Mapping[str, Any]:
    """Return an equation's parameters; those of a host callback with one whose exceptions ``kept`` gets."""
    if kept is None or not callable(params.get("callback")):
        return params
    kept.guards += 1
    return {**params, "callback": _Guarded(params["callback"], params.get("result_avals", ()), kept)}


@dataclass(frozen=True, eq=False)
class LaunchToTheEnd:
    """A compiled node that is launched and waited for, so that a callback's exception is that of this launch."""

    compiled: Any
    kept: KeptExceptions

    def __call__(self, *inputs: Any) -> list[Any]:
        """Launch it, wait, and raise the first exception of a callback."""
        # One launch at a time: the callbacks do not know of which launch they are.
        with self.kept.lock:
            self.kept.errors.clear()
            # Waits: only at the end of all devices is it known that no callback raised.
            arrays = jax.block_until_ready(list(self.compiled(*inputs)))
            first = next(iter(self.kept.errors), None)
            self.kept.errors.clear()
        if first is not None:
            first.add_note(NOTE)
            raise first
        return arrays

    def __getattr__(self, name: str) -> Any:
        return getattr(self.compiled, name)
