"""Public programs, and what a call of a program or a computation does outside any trace.

``program`` traces and knows no session. ``Program`` adds what needs one, and ``_call`` is registered with
``program.context``, so that a computation finds its way here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax

from pathways_nb.errors import UsageError
from pathways_nb.plan import source_lines
from pathways_nb.plan.footprint import Peak
from pathways_nb.plan.graph import Graph
from pathways_nb.plan.memory_categories import check
from pathways_nb.plan.virtual_slice import VirtualSlice
from pathways_nb.program import context, timed_work
from pathways_nb.program.computation import Computation
from pathways_nb.program.program_tracer import ProgramTracer
from pathways_nb.program.signature import Signature
from pathways_nb.program.static_arguments import Statics
from pathways_nb.results.run import Run
from pathways_nb.runtime.lowering.compiled_plan import CompiledPlan
from pathways_nb.session import default_controller
from pathways_nb.session.calls import submit
from pathways_nb.session.calls.batching import CallBatcher, refuse_tracers
from pathways_nb.session.calls.client import record, wait
from pathways_nb.session.calls.known_calls import KnownCall, find, remember, written
from pathways_nb.session.session import Session
from pathways_nb.session.tenant_scope import calling
from pathways_nb.util.option_names import checked_options
from pathways_nb.util.words import a_type_of


class Program(ProgramTracer):
    """A traced function over computations; a call dispatches the whole graph and returns futures at once."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Dispatch the whole graph; inside another program, become part of it.

        Returns:
            The outputs: futures, or traced values inside another program.
        """
        __tracebackhide__ = True
        if context.tracing() is not None:
            # Its computations become nodes of the program that is being traced, which is compiled and dispatched as a
            # whole.
            made = self.fn(*args, **kwargs)
            if self.decide is not None:  # without values
                self.decide(*args, **kwargs)()
            return made
        return _call(self, args, kwargs)

    @source_lines.users_view
    def run(self, *args: Any, **kwargs: Any) -> Run:
        """Call the program in a recording of its own and wait for it.

        Returns:
            The ``pw.Run`` with its outputs and record.
        """
        with record(name=self.name) as run:
            run.outputs = _call(self, args, kwargs)
        # The end of the block has waited; this raises why an output failed.
        wait(run.outputs)
        return run

    @source_lines.users_view
    def graph(self, *args: Any, **kwargs: Any) -> Graph:
        """Return the sharded dataflow graph for these arguments, without running it."""
        session, call = default_controller.get(), self.signature(args, kwargs)
        with calling(session, self.name):
            return submit.traced(session, self, call).graph

    @source_lines.users_view
    def peaks(self, *args: Any, **kwargs: Any) -> tuple[Peak, ...]:
        """Return the most memory that a call needs, for each placement, without running it (Pathways, section 4.6)."""
        return self._compiled_plan(args, kwargs).peaks

    @source_lines.users_view
    def compiled(self, *args: Any, **kwargs: Any) -> dict[str, jax.stages.Compiled]:
        """Return what each node was compiled to for these arguments, by the node's name, without running it.

        Raises:
            UsageError: devices are simulated, so nothing is compiled for them.
        """
        plan = self._compiled_plan(args, kwargs)
        # Transfers and host work call nothing that was compiled.
        found = {action.label.name: action.call for action in plan.actions if action.call is not None}
        if not found:
            raise UsageError(
                f"{self.name}.compiled(): nothing is compiled for simulated devices. Attach real ones: "
                f'pw.attach("cpu", islands=2, devices_per_island=4).'
            )
        return found

    def _compiled_plan(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CompiledPlan:
        session, call = default_controller.get(), self.signature(args, kwargs)
        with calling(session, self.name):
            return submit.compiled_plan(session, submit.traced(session, self, call), call, refuse=False)


@source_lines.users_view
def _call(target: Computation | ProgramTracer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Carry out a call made outside any trace, on the current controller.

    A program is dispatched after the batched calls that were made before it. A computation is batched: inside a
    recorded cell until a value is needed, else it is dispatched at once.

    Returns:
        The outputs as futures.
    """
    session, is_program = default_controller.get(), isinstance(target, ProgramTracer)
    seen = session.donations
    at_once = is_program or not session.recordings
    made = written(session, args, kwargs) if at_once and not target.statics.has_static else None
    if made is not None and made.key is not None and (known := find(session, target, made.key)) is not None:
        with calling(session, target.name):
            session.flush()
            return _repeat(session, known, made.leaves, seen, lambda: target.signature(args, kwargs))
    call = target.signature(args, kwargs)
    refuse_tracers(call)
    with calling(session, target.name):
        if isinstance(target, ProgramTracer):
            # A client's calls are submitted in the order in which they were made.
            session.flush()
            result, found = submit.dispatch(session, target, call)
            if made is not None and found is not None:
                remember(session, target, made, call, found)
            return result
        if not at_once:
            return session.recordings[-1][1].add(target, call)
        batcher = CallBatcher(session, alone=True)
        result = batcher.add(target, call)
        batcher.flush(call.contexts)
        if made is not None and batcher.sent is not None:
            remember(session, target, made, *batcher.sent)
        return result


def _repeat(session: Session, known: KnownCall, given: list[Any], seen: int, signature: Callable[[], Signature]) -> Any:
    """Submit a call of which all is known but its arguments.

    Args:
        session: the controller.
        known: what equal calls share.
        given: its leaves, as it was written.
        seen: as in ``submit.submit``.
        signature: binds the arguments to parameters, to name one in an error.

    Returns:
        Its outputs as futures.
    """
    session.driver.event_loop.refuse_policies()
    leaves = given if known.order is None else [given[at] for at in known.order]

    def name(at: int) -> str:
        call = signature()
        return call.name(next(i for i, leaf in enumerate(call.leaves) if leaf is leaves[at]))

    made, _ = submit.submit(session, known, leaves, name, seen)
    return known.build(made)


def _first_device(place: VirtualSlice) -> Any:
    """Return the first device of a place now; ``None`` if it is not of this process."""
    _, mesh = default_controller.get().located(place)
    return mesh.devices.flat[0] if isinstance(mesh, jax.sharding.Mesh) else None


context.carry_out_calls_by(_call)
timed_work.spin_on(_first_device)


@checked_options()
def program(
    fn: Callable[..., Any] | None = None,
    *,
    static_argnums: int | Iterable[int] = (),
    static_argnames: str | Iterable[str] = (),
    donate_argnums: int | Iterable[int] = (),
    donate_argnames: str | Iterable[str] = (),
    name: str = "",
    fuse: bool = False,
    categories: Mapping[str, str] | None = None,
) -> Any:
    """Make a function over computations a program (Pathways, section 3). Also a decorator, with or without options.

    Args:
        fn: the function; it may be the result of ``jax.grad`` and the like.
        static_argnums: as in ``jax.jit``.
        static_argnames: as in ``jax.jit``.
        donate_argnums: as in ``jax.jit``.
        donate_argnames: as in ``jax.jit``.
        name: its name in pictures and errors; by default the function's name.
        fuse: make one executable and one node of computations and operations that follow each other at one place,
            unless another place would wait longer for their results (Pathways, Figure 5: "Fused"). This saves a
            launch for each, and the graph shows less.
        categories: what the memory of arguments and results is held for, by path: ``{"params": "parameters",
            "result[0]": "parameters"}`` holds for every array in ``params`` and in the first result. It divides
            ``run.memory(by="category")`` and changes no amount.

    Returns:
        The program, or a decorator that makes one.

    Raises:
        UsageError: ``fn`` is not a function, or a category is unknown.
    """
    for path, category in (categories or {}).items():
        check(category, f"pw.program(categories={{{path!r}: {category!r}}})")
    statics = Statics.of(fn, static_argnums, static_argnames, donate_argnums, donate_argnames)

    def make(fn: Callable[..., Any]) -> Program:
        made = Program(fn, statics, name, fuse, categories)
        functools.update_wrapper(made, fn, updated=())
        return made

    if fn is None:
        return make
    if not callable(fn):
        raise UsageError(f"pw.program({fn!r}) needs a function, got {a_type_of(fn)}.")
    return make(fn)
