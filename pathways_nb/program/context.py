"""What the code being traced needs to know about its surroundings, and the door to whoever runs calls.

Tracing happens on the caller's thread, so the surroundings are a context variable. The client registers itself as
the ``Runner``; computations and programs know nothing else of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar

import jax

from pathways_nb.errors import UsageError
from pathways_nb.plan.virtual_slice import VirtualSlice
from pathways_nb.program.signature import Deferred, Signature

MeshOf = Callable[[VirtualSlice], jax.sharding.AbstractMesh]
ComputationT = TypeVar("ComputationT", contravariant=True)
ProgramT = TypeVar("ProgramT", contravariant=True)


class Body(NamedTuple):
    """The body of a computation: its name and its place."""

    name: str
    place: VirtualSlice


@dataclass
class Tracing:
    """One trace under way: how places look, which have been met, and whose body is being traced right now."""

    program: str
    mesh_of: MeshOf
    captured: Callable[[object], str]
    """Names the variable that holds a captured object, for errors."""
    places: dict[int, VirtualSlice] = field(default_factory=dict)
    inside: list[Body] = field(default_factory=list)

    def refuse_futures(self, call: Signature) -> None:
        """Futures reach a program as its arguments, not through variables from outside."""
        for leaf in call.leaves:
            if isinstance(leaf, Deferred):
                raise UsageError(
                    f"{call.owner}: the program {self.program!r} uses the future {self.captured(leaf)} from outside. "
                    f"Pass it as an argument of {self.program!r} instead."
                )


class Runner(Protocol[ComputationT, ProgramT]):
    """Who carries out calls of computations and programs made outside any trace: the client."""

    def call(self, computation: ComputationT, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Carry out a loose call of a computation."""

    def call_program(self, program: ProgramT, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Carry out a call of a program."""

    def run_program(self, program: ProgramT, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Carry out a call of a program, wait, return its run."""

    def peaks_of(self, program: ProgramT, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """How much memory one run of a program needs, for each place."""

    def graph_of(self, program: ProgramT, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The graph for these arguments."""


_tracing: ContextVar[Tracing | None] = ContextVar("pathways_tracing", default=None)
_runner: list[Runner[Any, Any]] = []


def tracing() -> Tracing | None:
    """The trace under way on this thread, if any."""
    return _tracing.get()


@contextlib.contextmanager
def under(trace: Tracing) -> Iterator[Tracing]:
    """Make ``trace`` the one under way."""
    token = _tracing.set(trace)
    try:
        yield trace
    finally:
        _tracing.reset(token)


def set_runner(runner: Runner[Any, Any]) -> None:
    """Register who carries out calls."""
    _runner[:] = [runner]


def runner() -> Runner[Any, Any]:
    """Who carries out calls."""
    return _runner[0]
