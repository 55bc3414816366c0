"""A batch of calls, and the program that they become.

``batching`` decides which calls wait in a batch, and when it is dispatched.
"""

from __future__ import annotations

import inspect
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.extend.core as jex

from pathways_nb.program.computation import Computation
from pathways_nb.program.jax_contexts import Contexts
from pathways_nb.program.program_tracer import ProgramTracer
from pathways_nb.program.signature import Aval, snapshot
from pathways_nb.program.static_arguments import Statics
from pathways_nb.session.futures import Future
from pathways_nb.session.session import Session
from pathways_nb.session.tenant_scope import Tenant

_NAMED = 3
"""How many computations the name of a batch tells."""
_KEPT = 64

Wire = tuple[int, int]
"""Where a leaf comes from: (-1, position among the outside leaves) or (call, position among its outputs)."""


@dataclass(frozen=True, eq=False)
class Staged:
    """A call of a computation, traced at its line; equal calls share it.

    Args:
        jaxpr: one equation.
        outputs: abstract outputs.
        build: puts outputs together to what the computation returns.
    """

    jaxpr: jex.ClosedJaxpr
    outputs: tuple[Aval, ...]
    build: Callable[[Sequence[Any]], Any]


@dataclass(frozen=True)
class BatchedCall:
    """One call of a batch.

    Args:
        computation: what is called.
        staged: its trace.
        donated: positions of the leaves that it takes over.
        wires: where each of its leaves comes from.
        outputs: its futures, while somebody holds them.
    """

    computation: Computation
    staged: Staged
    donated: tuple[int, ...]
    wires: tuple[Wire, ...]
    outputs: tuple[weakref.ref[Future], ...]

    def key(self, wanted: tuple[int, ...]) -> Any:
        """Return what is equal for calls that compute the same of the same; ``wanted`` are the outputs to compute."""
        return self.staged, self.donated, self.wires, wanted


_UNCHANGEABLE = (Future, bool, int, float, complex)
"""Types of leaves that need no copy; a number must not become an array, which would lose its weak type."""


@dataclass
class CallBatch:
    """Calls that will be dispatched together."""

    tenant: Tenant | None = None
    """The tenant for which they are made."""
    contexts: Contexts | None = None
    """JAX's contexts under which they are made."""
    thread: int = field(default_factory=threading.get_ident)
    """The thread that made the first of the calls."""
    needs_values: bool = True
    """Whether the values of their arguments are needed, or only shapes and types."""
    calls: list[BatchedCall] = field(default_factory=list)
    outside: list[Any] = field(default_factory=list)
    """Leaves that come from outside the batch; ``names`` has their names in errors."""
    names: list[str] = field(default_factory=list)
    known: dict[int, int] = field(default_factory=dict)
    """Position of each of them in ``outside``, by identity."""
    copied: int = 0
    """Bytes of arrays that were copied because the caller may change them before the batch is dispatched."""
    made: dict[int, Wire] = field(default_factory=dict)
    """Futures of these calls, by identity."""
    donated: set[int] = field(default_factory=set)
    consumed: list[Future] = field(default_factory=list)
    seen: int | None = None
    """``Session.donations`` before the first call was checked."""

    def wire(self, leaf: Any, donated: bool, name: str) -> Wire:
        """Add a leaf from outside to ``outside``, if it is one.

        Returns:
            Where the leaf comes from.
        """
        if isinstance(leaf, Future):
            made = self.made.get(id(leaf))
            if made is not None and self.calls[made[0]].outputs[made[1]]() is leaf:  # ids of dropped ones are reused
                return made
        value = snapshot(leaf) if self.needs_values and not isinstance(leaf, _UNCHANGEABLE) else leaf
        self.copied += getattr(value, "nbytes", 0) if value is not leaf else 0
        # The same array passed to several calls is one argument: it is stored, and sent, once.
        position = self.known.setdefault(id(value), len(self.outside))
        if position == len(self.outside):
            self.outside.append(value)
            self.names.append(name.removeprefix("argument ").partition("[")[0])
        if donated:
            self.donated.add(position)
        return -1, position

    def wanted(self) -> tuple[tuple[int, ...], ...]:
        """Find, for each call, the outputs that somebody still holds.

        A call whose outputs nobody holds and no other call reads was made for its own sake: its outputs are all kept.

        Returns:
            Positions of the outputs to compute, for each call.
        """
        held = [
            tuple(i for i, ref in enumerate(call.outputs) if (f := ref()) is not None and not f._consumed)
            for call in self.calls
        ]
        read = {source for call in self.calls for source, _ in call.wires}
        return tuple(
            outputs or (() if number in read else tuple(range(len(call.outputs))))
            for number, (call, outputs) in enumerate(zip(self.calls, held, strict=True))
        )

    def futures(self, session: Session, wanted: tuple[tuple[int, ...], ...]) -> list[Future]:
        """Return the futures of the wanted outputs; in place of one that nobody holds a new one, which goes at once."""
        found = []
        for call, positions in zip(self.calls, wanted, strict=True):
            for position in positions:
                future = call.outputs[position]()
                if future is None:
                    future = Future(session.kind(call.staged.outputs[position], call.computation.name))
                found.append(future)
        return found

    def fail(self, error: BaseException) -> None:
        """Record that the batch was never dispatched: its futures say so, and what it had donated is usable again."""
        for future in (f for call in self.calls for ref in call.outputs if (f := ref()) is not None):
            if not future.is_bound:  # an interrupt may come after the dispatch
                future.fail(error)
        for future in self.consumed:
            future.consume("")


def program_of(batch: CallBatch, wanted: tuple[tuple[int, ...], ...]) -> ProgramTracer:
    """Return the program of a batch, the same one for batches of equal calls.

    Args:
        batch: the calls.
        wanted: of each call, the positions of the outputs to compute; see ``CallBatch.wanted``.
    """
    calls, names, donated = batch.calls, batch.names, frozenset(batch.donated)
    key = (tuple(c.key(w) for c, w in zip(calls, wanted, strict=True)), donated, tuple(names))
    # Not in a global, nor with one that lives longer than the others: computations and places must be let go.
    programs = max((call.computation for call in calls), key=lambda computation: computation.serial).batch_programs
    if key not in programs:
        name = _name_of(calls)
        statics = Statics.of(None, (), (), donated, ())
        programs[key] = ProgramTracer(_replay(calls, wanted, names), statics, name)
        if len(programs) > _KEPT:
            programs.popitem(last=False)
    programs.move_to_end(key)
    return programs[key]


def _name_of(calls: Sequence[BatchedCall]) -> str:
    """Return the name of a program of calls: those of its computations, such as ``"double ×2, total"``."""
    counts = Counter(call.computation.name for call in calls)
    named = [f"{name} ×{count}" if count > 1 else name for name, count in counts.items()]
    more = len(named) - _NAMED
    return ", ".join([*named[:_NAMED], *([f"{more} more"] if more > 0 else [])])


def _replay(calls: list[BatchedCall], wanted: Any, names: list[str]) -> Callable[..., list[Any]]:
    steps = [(jex.jaxpr_as_fun(call.staged.jaxpr), call.wires) for call in calls]

    def cell(*leaves: Any) -> list[Any]:
        made: list[list[Any]] = []
        for run, wires in steps:
            made.append(run(*(leaves[at] if source < 0 else made[source][at] for source, at in wires)))
        return [made[i][j] for i, group in enumerate(wanted) for j in group]

    kind = inspect.Parameter.POSITIONAL_ONLY
    # Errors and the graph name a batch's arguments as the calls' own parameters.
    parameters = [inspect.Parameter(name, kind) for name in _different(map(_identifier, names))]
    cell.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return cell


def _different(names: Iterable[str]) -> list[str]:
    """Return the names made unique: the second ``x`` becomes ``x_1``."""
    found, numbers = dict[str, None](), Counter[str]()
    for name in names:
        unique = name
        while unique in found:
            numbers[name] += 1  # kept, since a list of parameters has one name for hundreds
            unique = f"{name}_{numbers[name]}"
        found[unique] = None
    return list(found)


def _identifier(name: str) -> str:
    cleaned = "".join(c if c.isalnum() else "_" for c in name)
    return cleaned if cleaned.isidentifier() else f"arg_{cleaned}"
