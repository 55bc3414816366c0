"""Calls of computations, batched into one program (Pathways, section 3: tracing saves a message per call).

Inside a recorded cell, calls made outside any program wait here until a program is called, a value is needed or the
cell ends. Then they are dispatched as one graph, which the controller can schedule as a whole. Outside a cell each call
is dispatched at once, as a program of one node; so it is where several threads make calls for tenants.

Each call is traced at its line, under JAX's contexts there; a batch is of calls under the same ones. It joins their
traces to one program, cached by what it consists of, so the second run of a cell traces nothing.
"""

from __future__ import annotations

import threading
import weakref
from dataclasses import replace
from functools import partial
from typing import Any

import jax

from pathways_nb.errors import CancelledError, UsageError
from pathways_nb.program import context, jax_contexts
from pathways_nb.program.computation import Computation
from pathways_nb.program.jax_contexts import Contexts
from pathways_nb.program.models import builder, with_static_parts
from pathways_nb.program.program_tracer import captured_name
from pathways_nb.program.signature import Aval, Signature
from pathways_nb.session import tenant_scope
from pathways_nb.session.calls.call_batch import BatchedCall, CallBatch, Staged, program_of
from pathways_nb.session.calls.donation import check_futures, consume
from pathways_nb.session.calls.known_calls import KnownCall
from pathways_nb.session.calls.submit import dispatch
from pathways_nb.session.exclusive import Exclusive
from pathways_nb.session.futures import Future
from pathways_nb.session.session import Session
from pathways_nb.util import forks

MOST = 512
"""Number of calls after which a batch is dispatched."""
MOST_COPIED = 64_000_000
"""Bytes copied for batched calls after which a batch is dispatched."""


class CallBatcher:
    """The batched calls of one session; several threads may add calls and wait for their results.

    Args:
        session: the controller.
        alone: whether each call is dispatched at its line, before its caller can change an argument.
    """

    def __init__(self, session: Session, alone: bool = False):
        self.session, self._alone = session, alone
        self.sent: tuple[Signature, KnownCall] | None = None
        """The last batch that was a single call, as a program's call, and what equal calls need."""
        self.batch = self._begin()
        self._home, self._compete = threading.get_ident(), False
        """The thread of the cell, and whether other threads make calls for tenants, which then compete."""
        self._exclusive = Exclusive("the batched calls")

    def _begin(self) -> CallBatch:
        session = self.session
        computed = session.attach_options.simulated is None or session.value_session is not None
        return CallBatch(needs_values=computed and not self._alone)

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
        avals, seen = call.avals(), self.session.donations
        check_futures(call)
        staged = traced_at_line(computation, call, avals, self.session)
        batch = self.batch
        wires = tuple(
            batch.wire(leaf, i in call.donated, name)
            for i, (leaf, name) in enumerate(zip(call.leaves, computation.names_of(call), strict=True))
        )
        # At once, and not when the batch goes out: a later call of the same batch must not read what this one donates.
        with self.session.donating:
            if self.session.donations != seen:  # another thread may have donated the same meanwhile
                check_futures(call)
            batch.consumed += consume(self.session, call.donated, call.leaves)
        batch.seen = seen if batch.seen is None else batch.seen
        index = len(batch.calls)
        futures = [Future(self.session.kind(leaf, computation.name)) for leaf in staged.outputs]
        for position, future in enumerate(futures):
            future.await_flush(self.flush)
            batch.made[id(future)] = (index, position)
        # The batch refers to its futures weakly: a result that nobody holds any more need not be computed.
        batch.calls.append(BatchedCall(computation, staged, call.donated, wires, tuple(map(weakref.ref, futures))))
        result = staged.build(futures)
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

    def _send(self, batch: CallBatch, here: Contexts | None) -> None:
        wanted, contexts = batch.wanted(), batch.contexts
        assert contexts is not None
        try:
            program = program_of(batch, wanted)
            call, futures = program.signature(tuple(batch.outside), {}, contexts), batch.futures(self.session, wanted)
            with tenant_scope.acting(batch.tenant), jax_contexts.entered(contexts, here):
                _, known = dispatch(self.session, program, call, futures, batch.seen)
            if known is not None and len(batch.calls) == 1:
                self.sent = call, replace(known, build=batch.calls[0].staged.build)
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


def traced_at_line(computation: Computation, call: Signature, avals: tuple[Aval, ...], session: Session) -> Staged:
    """Return the trace of a call outside programs, made once for equal calls."""
    key = (call.tree, avals, call.static_key, session.platform, call.contexts)
    if key not in computation.staged:
        call.check_width(avals)
        trace = context.Tracing(computation.name, session.mesh_of, partial(captured_name, computation.fn))

        def staged(*leaves: Any) -> Any:
            return with_static_parts(
                computation.stage(trace, replace(call, leaves=list(leaves), **call.regroup(leaves)))
            )

        with jax_contexts.of_places():
            made = context.under(trace, jax.make_jaxpr(staged, return_shape=True), *(aval.struct for aval in avals))
        closed, shapes = made
        outputs = tuple(Aval(tuple(one.shape), one.dtype, bool(one.weak_type)) for one in closed.out_avals)
        computation.staged[key] = Staged(closed, outputs, builder(jax.tree.structure(shapes)))
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
