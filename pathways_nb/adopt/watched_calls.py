"""Sees the outermost calls of jitted functions in a block, those of functions that are compiled already as well.

JAX has no public way to see them, so its trace of the thread is replaced while the block runs, by one that hands the
user's own functions to a handler and evaluates everything as usual. Where this version of JAX has no such trace, the
error names what to write instead.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import jax

from pathways_nb.errors import UsageError
from pathways_nb.plan.source_lines import is_users
from pathways_nb.program.items import equations

JIT = ("jit", "pjit")
"""Names of the primitive of a jitted function's call."""
Handler = Callable[[Mapping[str, Any], Sequence[Any]], Sequence[Any] | None]
"""Takes the parameters of a ``jit`` and its operands; returns the results, or None to have it evaluated as usual."""


@contextlib.contextmanager
def watched(handle: Handler) -> Iterator[None]:
    """Hand the calls of the user's jitted functions in the block, in this thread, to a handler.

    Raises:
        UsageError: this version of JAX cannot be watched, or the block is in a function that JAX traces.
    """
    try:
        from jax._src import core

        if not isinstance(core.trace_ctx.trace, core.EvalTrace):
            raise UsageError(
                "calls are adopted where they run, and this block is in a function that JAX traces (jit, grad, vmap). "
                "Put record(adopt=…) around the call of that function."
            )
        trace = _call_trace()(handle)
        current = core.set_current_trace(trace)
    except (ImportError, AttributeError, TypeError) as error:
        raise UsageError(
            f"calls cannot be seen with JAX {jax.__version__} ({error}). Name the step: pw.adopt(step, *args, chip=…)."
        ) from error
    with current:
        yield


@cache
def _call_trace() -> Callable[[Handler], Any]:
    """Return the class of traces that watch; it is made when it is first needed, as its base is private to JAX."""
    from jax._src import core

    class CallTrace(core.EvalTrace):
        def __init__(self, handle: Handler):
            super().__init__()
            self._handle = handle

        @property
        def _weakref(self) -> Any:
            """What JAX knows the level by: its own where calls look up what is compiled, so that none is passed over.

            For all others it is the usual level: models of Flax NNX may only be changed on that on which they are made.
            """
            asking = sys._getframe(1).f_code.co_name
            return self._own if asking == "set_trace" else core.eval_trace._weakref

        @_weakref.setter
        def _weakref(self, own: Any) -> None:
            self._own = own

        def process_primitive(self, primitive: Any, args: Any, params: Any, /) -> Any:
            with core.set_current_trace(core.eval_trace):
                if primitive.name in JIT and is_users_function(params["jaxpr"].jaxpr):
                    found = self._handle(params, args)
                    if found is not None:
                        return found
                return super().process_primitive(primitive, args, params)

    return CallTrace


def is_users_function(jaxpr: Any) -> bool:
    """Return whether the function of a jaxpr is the user's, or calls the user's, as a framework's wrapper does."""
    filename = getattr(jaxpr.debug_info, "func_filename", None) or ""
    if not filename or is_users(filename):
        return bool(filename)
    for eqn in equations(jaxpr):
        said = eqn.source_info.traceback
        files = [getattr(frame, "file_name", "") for frame in (said.frames if said else ())]  # innermost first
        if filename in files:
            last = len(files) - 1 - files[::-1].index(filename)
            if any(is_users(one) for one in files[:last] if one):
                return True
    return False
