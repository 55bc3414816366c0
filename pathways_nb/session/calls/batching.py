"""Calls of computations, batched into one program (Pathways, section 3: tracing saves a message per call).

Inside a recorded cell, calls made outside any program wait here until a program is called, a value is needed or the
cell ends. Then they are dispatched as one graph, which the controller can schedule as a whole. Outside a cell each call
is dispatched at once, as a program of one node; so it is where several threads make calls for tenants.

Each call is traced at its line, under JAX's contexts there; a batch is of calls under the same ones. It joins their
traces to one program, cached by what it consists of, so the second run of a cell traces nothing.
"""

from __future__ import annotations

import inspect
import threading
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
import jax.extend.core as jex

from pathways_nb.errors import CancelledError, UsageError
from pathways_nb.program import context, jax_contexts
from pathways_nb.program.computation import Computation
from pathways_nb.program.jax_contexts import Contexts
from pathways_nb.program.program_tracer import ProgramTracer, captured_name
from pathways_nb.program.signature import Aval, Signature, snapshot
from pathways_nb.program.static_arguments import Statics
from pathways_nb.session import tenant_scope
from pathways_nb.session.calls.donation import check_futures, consume
from pathways_nb.session.calls.submit import dispatch
from pathways_nb.session.exclusive import Exclusive
from pathways_nb.session.futures import Future
from pathways_nb.session.session import Pending, Session
from pathways_nb.session.tenant_scope import Tenant
from pathways_nb.util import forks

MOST = 512
"""Number of calls after which a batch is dispatched."""
MOST_COPIED = 64_000_000
"""Bytes copied for batched calls after which a batch is dispatched."""
NAME = "loose calls"
"""The name of a program made of several calls, in pictures."""
_KEPT = 64

Wire = tuple[int, int]
"""Where a leaf comes from: (-1, position among the outside leaves) or (call, position among its outputs)."""


@dataclass(frozen=True, eq=False)
class Staged:
    """A call of a computation, traced at its line; equal calls share it.

    Args:
        jaxpr: one equation.
        outputs: abstract outputs.
        tree: of the outputs.
    """

    jaxpr: jex.ClosedJaxpr
    outputs: tuple[Aval, ...]
    tree: Any


@dataclass(frozen=True)
class _Call:
    computation: Computation
    staged: Staged
    donated: tuple[int, ...]
    wires: tuple[Wire, ...]
    outputs: tuple[weakref.ref[Future], ...]

    def key(self, wanted: tuple[int, ...]) -> Any:
        return self.staged, self.donated, self.wires, wanted


_UNCHANGEABLE = (Future, bool, int, float, complex)
"""Types of leaves that need no copy; a number must not become an array, which would lose its weak type."""


@dataclass
class _Batch:
    """Calls that will be dispatched together."""

    tenant: Tenant | None = None
    """The tenant for which they are made."""
    contexts: Contexts | None = None
    """JAX's contexts under which they are made."""
    thread: int = field(default_factory=threading.get_ident)
    """The thread that made the first of the calls."""
    needs_values: bool = True
    """Whether the values of their arguments are needed, or only shapes and types."""
    calls: list[_Call] = field(default_factory=list)
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
                    future = Future(session, call.staged.outputs[position], call.computation.name)
                found.append(future)
        return found

    def fail(self, error: BaseException) -> None:
        """Record that the batch was never dispatched: its futures say so, and what it had donated is usable again."""
        for future in (f for call in self.calls for ref in call.outputs if (f := ref()) is not None):
            if not future.is_bound:  # an interrupt may come after the dispatch
                future.fail(error)
        for future in self.consumed:
            future.consume("")


class CallBatcher:
    """The batched calls of one session; several threads may add calls and wait for their results."""

    def __init__(self, session: Session):
        self.session = session
        self.batch = self._begin()
        self._home, self._compete = threading.get_ident(), False
        """The thread of the cell, and whether other threads make calls for tenants, which then compete."""
        self._exclusive = Exclusive("the batched calls")

    def _begin(self) -> _Batch:
        session = self.session
        return _Batch(needs_values=session.attach_options.simulated is None or session.value_session is not None)

    def add(self, computation: Computation, call: Signature) -> Any:
        """Add a call, which is dispatched later.

        Returns:
            Its outputs as futures.
        """
        return self._exclusive.run(self.session, self._add, computation, call)

    def _add(self, computation: Computation, call: Signature) -> Any:
        tenant = tenant_scope.current()
        # A batch becomes one program: it has one client, and is traced and lowered under one set of contexts.
        if self.batch.calls and (self.batch.tenant, self.batch.contexts) != (tenant, call.contexts):
            self.flush(call.contexts)
        if not self.batch.calls:
            self.batch.thread = threading.get_ident()
        self.batch.tenant, self.batch.contexts = tenant, call.contexts
        self._compete |= tenant is not None and threading.get_ident() != self._home
        avals = call.avals()
        check_futures(call)
        staged = traced_at_line(computation, call, avals, self.session)
        batch = self.batch
        wires = tuple(
            batch.wire(leaf, i in call.donated, name)
            for i, (leaf, name) in enumerate(zip(call.leaves, call.names, strict=True))
        )
        # At once, and not when the batch goes out: a later call of the same batch must not read what this one donates.
        batch.consumed += consume(call)
        index = len(batch.calls)
        futures = [Future(self.session, leaf, computation.name) for leaf in staged.outputs]
        for position, future in enumerate(futures):
            future.await_flush(self.flush)
            batch.made[id(future)] = (index, position)
        # The batch refers to its futures weakly: a result that nobody holds any more need not be computed.
        batch.calls.append(_Call(computation, staged, call.donated, wires, tuple(map(weakref.ref, futures))))
        result = jax.tree.unflatten(staged.tree, futures)
        # While tenants compete, a call that waited here would have no claim on its tenant's share.
        if len(batch.calls) >= MOST or batch.copied >= MOST_COPIED or self._compete:
            self.flush(call.contexts)
        return result

    def flush(self, here: Contexts | None = None) -> None:
        """Dispatch the batch as one program; a forked child leaves that to its parent.

        Args:
            here: JAX's contexts of this thread, if they are known.
        """
        if forks.is_child():
            return
        with tenant_scope.calling(self.session):
            self._exclusive.run(self.session, self._flush, here)

    def _flush(self, here: Contexts | None) -> None:
        # First, so that a call that is made while this batch is dispatched begins the next one.
        batch, self.batch = self.batch, self._begin()
        if batch.calls:
            self._send(batch, here)

    def _send(self, batch: _Batch, here: Contexts | None) -> None:
        wanted, contexts = batch.wanted(), batch.contexts
        assert contexts is not None
        try:
            program = _program(batch, wanted)
            call, futures = program.signature(tuple(batch.outside), {}, contexts), batch.futures(self.session, wanted)
            with tenant_scope.acting(batch.tenant), jax_contexts.entered(contexts, here):
                dispatch(self.session, program, call, futures)
        except BaseException as error:
            batch.fail(error)
            raise

    def cancel(self, reason: BaseException) -> None:
        """Cancel the batched calls."""
        self._exclusive.run(self.session, self._cancel, reason)

    def _cancel(self, reason: BaseException) -> None:
        batch, self.batch = self.batch, self._begin()
        batch.fail(reason)

    def interrupt(self, thread: int) -> int:
        """Cancel the batched calls of a thread that was interrupted, and return how many those were."""
        return self._exclusive.run(self.session, self._interrupt, thread)

    def _interrupt(self, thread: int) -> int:
        count = len(self.batch.calls) if self.batch.thread == thread else 0
        if count:
            self._cancel(KeyboardInterrupt())
        return count

    def give_up(self, client: str) -> None:
        """Cancel the batched calls of a client that closes: dispatched later, they would open it again."""
        self._exclusive.run(self.session, self._give_up, client)

    def _give_up(self, client: str) -> None:
        if self.batch.tenant is not None and self.batch.tenant.name == client:
            self._cancel(CancelledError(f"client {client} closed before this call was dispatched."))


def pending(session: Session) -> Pending:
    """Return the batch that calls go to now."""
    return session.recordings[-1][1] if session.recordings else CallBatcher(session)


def _program(batch: _Batch, wanted: tuple[tuple[int, ...], ...]) -> ProgramTracer:
    calls, names, donated = batch.calls, batch.names, frozenset(batch.donated)
    key = (tuple(c.key(w) for c, w in zip(calls, wanted, strict=True)), donated, tuple(names))
    # Not in a global, nor with one that lives longer than the others: computations and places must be let go.
    programs = max((call.computation for call in calls), key=lambda computation: computation.serial).batch_programs
    if key not in programs:
        name = calls[0].computation.name if len(calls) == 1 else NAME
        statics = Statics.of(None, (), (), donated, ())
        programs[key] = ProgramTracer(_replay(calls, wanted, names), statics, name)
        if len(programs) > _KEPT:
            programs.popitem(last=False)
    programs.move_to_end(key)
    return programs[key]


def _replay(calls: list[_Call], wanted: Any, names: list[str]) -> Callable[..., list[Any]]:
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
    """Return the names made unique: the second ``x`` becomes ``x_2``."""
    found: dict[str, None] = {}
    for name in names:
        unique, number = name, 1
        while unique in found:
            unique, number = f"{name}_{number}", number + 1
        found[unique] = None
    return list(found)


def _identifier(name: str) -> str:
    cleaned = "".join(c if c.isalnum() else "_" for c in name)
    return cleaned if cleaned.isidentifier() else f"arg_{cleaned}"


def traced_at_line(computation: Computation, call: Signature, avals: tuple[Aval, ...], session: Session) -> Staged:
    """Return the trace of a call outside programs, made once for equal calls."""
    key = (call.tree, avals, call.static_key, session.platform, call.contexts)
    if key not in computation.staged:
        call.check_width(avals)
        trace = context.Tracing(computation.name, session.mesh_of, partial(captured_name, computation.fn))

        def staged(*leaves: Any) -> Any:
            return computation.stage(trace, replace(call, leaves=list(leaves), **call.regroup(leaves)))

        with jax_contexts.of_places():
            made = context.under(trace, jax.make_jaxpr(staged, return_shape=True), *(aval.struct for aval in avals))
        closed, shapes = made
        outputs = tuple(Aval(tuple(one.shape), one.dtype, bool(one.weak_type)) for one in closed.out_avals)
        computation.staged[key] = Staged(closed, outputs, jax.tree.structure(shapes))
    return computation.staged[key]


def refuse_tracers(call: Signature) -> None:
    """Refuse a call under ``jax.grad`` or another transformation, which belongs inside a program.

    Raises:
        UsageError: naming the transformation and the nesting to use instead.
    """
    tracer = next((leaf for leaf in call.leaves if isinstance(leaf, jax.core.Tracer)), None)
    if tracer is None:
        return
    kind = type(tracer).__name__
    if kind == "BatchTracer":
        under, instead = "jax.vmap", "pw.program(jax.vmap(f))"
    elif kind == "DynamicJaxprTracer":
        under, instead = "jax.jit or another trace", "pw.program(f)"
    else:
        under, instead = "jax.grad", "pw.program(jax.grad(f))"
    raise UsageError(
        f"{call.owner} is called under {under} outside a program, where it has no place in a graph. "
        f"Turn the nesting round: {instead}, with f the function that was transformed."
    )
