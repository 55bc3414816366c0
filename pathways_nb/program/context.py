"""The surroundings of a trace, and the way to the function that carries out calls made outside any.

Tracing happens on the caller's thread, so the trace under way is a context variable. ``session.calls.program``
registers the function on import; computations know nothing else of it, which keeps this package below ``runtime``.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, NamedTuple, TypeVar

import jax

from pathways_nb.errors import UsageError
from pathways_nb.plan.virtual_slice import VirtualSlice
from pathways_nb.program.signature import Deferred, Signature

MeshOf = Callable[[VirtualSlice], jax.sharding.AbstractMesh]
CallOutside = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]
"""Carries out a call of a computation or a program, with its positional and keyword arguments, outside any trace."""
T = TypeVar("T")


class TracedBody(NamedTuple):
    """A computation whose body is being traced: its name and its virtual slice."""

    name: str
    place: VirtualSlice


@dataclass
class Tracing:
    """One trace under way: how to get the mesh of a place, the places met so far, and the bodies being traced."""

    program: str
    mesh_of: MeshOf
    captured: Callable[[object], str]
    """Returns the name of the variable that holds a captured object, for errors."""
    places: dict[int, VirtualSlice] = field(default_factory=dict)
    inside: list[TracedBody] = field(default_factory=list)
    host_work: list[str] = field(default_factory=list)
    """Names of the host functions that were called so far."""
    padded: dict[int, tuple[Any, Any]] = field(default_factory=dict)
    """By identity of a traced value, the value and the padded array that begins with it."""

    @property
    def who(self) -> str:
        """What is traced, for errors: the innermost computation, else the program."""
        return f"the {'computation' if self.inside else 'program'} {self.who_name!r}"

    @property
    def who_name(self) -> str:
        """The name of what ``who`` says."""
        return self.inside[-1].name if self.inside else self.program

    def cropped(self, array: Any, shape: Sequence[int]) -> Any:
        """Return a padded array without its padding, which is at the end of its dimensions; see ``padded_array``."""
        value = jax.lax.slice(array, [0] * len(shape), shape)
        # By identity, with the value itself, so that no other object can get its id.
        self.padded[id(value)] = value, array
        return value

    def padded_array(self, value: Any) -> Any:
        """Return the padded array that a traced value was cropped from, else the value itself."""
        return self.padded.get(id(value), (value, value))[1]

    def refuse_futures(self, call: Signature) -> None:
        """Refuse futures captured from outside: a program takes them as arguments.

        Raises:
            UsageError: naming the future's variable.
        """
        for index, leaf in enumerate(call.leaves):
            if isinstance(leaf, Deferred):
                raise UsageError(
                    f"{call.name(index)}: the program {self.program!r} uses the future {self.captured(leaf)} from "
                    f"outside. Pass it as an argument of {self.program!r} instead."
                )


_tracing: ContextVar[Tracing | None] = ContextVar("pathways_tracing", default=None)
_call_outside: list[CallOutside] = []
"""The registered function; none until ``session.calls.program`` is imported, as ``import pathways_nb`` does."""


def tracing() -> Tracing | None:
    """Return the trace under way on this thread, or ``None``."""
    return _tracing.get()


def under(trace: Tracing, work: Callable[..., T], *args: Any) -> T:
    """Do ``work`` with ``trace`` as the one under way; wherever an interrupt comes, it ends with the work.

    Returns:
        What ``work`` returns.
    """
    close_left_open()
    return copy_context().run(_under, trace, work, args)  # in C: no interrupt comes between its end and the work's


def _under(trace: Tracing, work: Callable[..., T], args: tuple[Any, ...]) -> T:
    _tracing.set(trace)
    return work(*args)


def close_left_open() -> None:
    """Close a trace of JAX's that an interrupt has left open: one that is under way while no function of JAX is.

    JAX closes a trace in Python code that an interrupt may prevent. Then what follows would be traced instead of done.
    """
    if _is_clean():
        return
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        # A function of JAX is under way on this thread, so the trace is its own and goes on.
        if frame.f_code.co_filename.startswith(_JAX):
            return
        frame = frame.f_back
    _reset()


_JAX = os.path.dirname(str(jax.__file__)) + os.sep
_core = getattr(getattr(jax, "_src", None), "core", None)
"""Not public: where it lacks these functions, nothing is closed."""
_is_clean: Callable[[], bool] = getattr(_core, "trace_state_clean", lambda: True)
_reset: Callable[[], object] = getattr(_core, "reset_trace_state", lambda: None)


@contextlib.contextmanager
def inside(body: TracedBody) -> Iterator[None]:
    """Return a context in which calls of computations are part of a body that is being traced."""
    trace = tracing()
    if trace is not None:
        trace.inside.append(body)
    try:
        yield
    finally:
        if trace is not None:
            trace.inside.pop()


def carry_out_calls_by(function: CallOutside) -> None:
    """Register the function that carries out calls made outside any trace."""
    _call_outside[:] = [function]


def call_outside(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Carry out a call made outside any trace.

    Args:
        target: the computation or the program.
        args: positional arguments.
        kwargs: keyword arguments.

    Returns:
        Its outputs as futures.
    """
    __tracebackhide__ = True
    return _call_outside[0](target, args, kwargs)
