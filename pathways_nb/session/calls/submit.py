"""The path of a call to the devices: trace, place, compile, wait for queue space, submit.

Nothing is decided here: the resource manager chooses places, and the controller's core chooses order and memory. Each
stage is cached: a trace by signature, a plan by epoch (the time between two changes of devices), a compiled plan by the
layouts in which its arguments arrive.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import jax

from pathways_nb.controller.events_and_instructions import NOTABLE
from pathways_nb.errors import LostError, OutOfMemoryError, UsageError, size
from pathways_nb.plan.footprint import Peak
from pathways_nb.plan.plan import Plan
from pathways_nb.plan.plan_lowering import lower
from pathways_nb.program import jax_contexts
from pathways_nb.program.program_tracer import ProgramTracer, Traced
from pathways_nb.program.signature import Aval, Signature, aval_of
from pathways_nb.runtime.driver import QUEUED
from pathways_nb.runtime.lowering.compiled_plan import CompiledPlan
from pathways_nb.runtime.lowering.compiled_steps import CompiledStep
from pathways_nb.runtime.lowering.layouts import Layouts
from pathways_nb.runtime.run_state import RunState
from pathways_nb.session import tenant_scope
from pathways_nb.session.calls import stored_values
from pathways_nb.session.calls.donation import check_futures, check_usable, consume
from pathways_nb.session.calls.known_calls import KnownCall
from pathways_nb.session.exclusive import Exclusive
from pathways_nb.session.futures import Future, made_anew
from pathways_nb.session.session import Session
from pathways_nb.trace.record import Record
from pathways_nb.trace.rows import Label, Row, label_of

_LARGER = "attach with a larger hbm="
_LARGEST = 3
"""Buffers that an error on memory lists."""
_LONG_LOWERING = 1.0
"""Seconds of compiling after which a garbage collection is a small part."""

T = TypeVar("T")
_exclusive: WeakKeyDictionary[object, Exclusive] = WeakKeyDictionary()
_finding = threading.Lock()


def _alone(session: Session, made_once: ProgramTracer | Traced, make: Callable[..., T], *args: Any) -> T:
    """Make a trace or plan, which ``made_once`` owns, while no other thread makes one; of several only one makes it."""
    what = "plan" if isinstance(made_once, Traced) else "trace"
    with _finding:
        # A lock for each program and each trace: threads that trace different programs do not wait for each other.
        found = _exclusive.setdefault(made_once, Exclusive(f"the {what} of {made_once.name!r}"))
    return found.run(session, make, *args)


def dispatch(
    session: Session,
    program: ProgramTracer,
    call: Signature,
    futures: Sequence[Future] | None = None,
    seen: int | None = None,
) -> tuple[Any, KnownCall | None]:
    """Trace and compile what is new, and submit the call.

    Args:
        session: the session.
        program: the program to call.
        call: its arguments.
        futures: those of batched calls that the program stands for, in the order of its results. Such calls were
            checked and have donated already. For any other program, futures are made.
        seen: of batched calls, ``session.donations`` before they were checked.

    Returns:
        The program's output tree, with a future for each array, and what equal calls need; ``None`` if they need more.

    Raises:
        PathwaysError: the call cannot be carried out; nothing was submitted.
    """
    # A policy is called while the core decides: a call from within it would wait for that decision for ever.
    session.driver.event_loop.refuse_policies()
    avals = call.avals()
    seen = session.donations if seen is None else seen
    if futures is None:
        check_futures(call)
    record = session.active_record()
    traced = _traced(session, program, call, avals, record)
    conclude = program.accept(traced, call)
    ready = compiled_plan(session, traced, call)
    # It may refuse the values: before anything is stored, donated or queued.
    if conclude is not None:
        conclude()
    kinds = stored_values.kinds_of(session, ready, traced.cropped)
    known = KnownCall(ready, tuple(kinds), call.donated, None, traced.build)
    made, run = submit(session, known, call.leaves, call.name, seen, futures)
    if not ready.plan.again:  # else it hangs on the copies that there are
        known = replace(known, moved=run.moved)
    # After the simulated call: if that is refused, nothing is computed either.
    if session.value_session is not None:
        _compute_values(session.value_session, program, call, made)
    return traced.build(made), None if session.value_session is not None else known


def _compute_values(value_session: Session, program: ProgramTracer, call: Signature, made: Sequence[Future]) -> None:
    """Compute on real devices the values that simulated devices only take the time of, and give them to ``made``."""
    leaves = [leaf.value_holder if isinstance(leaf, Future) else leaf for leaf in call.leaves]
    for name, leaf in zip(call.names, leaves, strict=True):
        if leaf is None or isinstance(leaf, jax.ShapeDtypeStruct):
            raise UsageError(f"{name} has a shape but no values, and values=True computes with them. Pass an array.")
    computed, _ = dispatch(value_session, program, replace(call, leaves=leaves))
    results = jax.tree.leaves(computed)
    for future, result in zip(made, results, strict=True):
        future.set_value_holder(result)


def _traced(
    session: Session, program: ProgramTracer, call: Signature, avals: tuple[Aval, ...], record: Record | None
) -> Traced:
    """Return the program's trace for these arguments.

    A program without any computation has no place of its own: its operations run where its arguments lie.
    """
    traced = _traced_once(session, program, call, avals, record)
    # Only a trace tells whether a program has a place, so one without any is traced a second time, for these homes.
    homes = stored_values.homes(session.driver, call.leaves) if traced.is_unplaced else ()
    if any(home is not None for home in homes):
        traced = _traced_once(session, program, replace(call, homes=homes), avals, record)
    return traced


def _traced_once(
    session: Session, program: ProgramTracer, call: Signature, avals: tuple[Aval, ...], record: Record | None
) -> Traced:
    """Return the cached trace, or trace the program and record the time this takes."""
    found = program.cached(call, avals, session.platform)
    return found or _alone(session, program, _trace, session, program, call, avals, record)


def _trace(
    session: Session, program: ProgramTracer, call: Signature, avals: tuple[Aval, ...], record: Record | None
) -> Traced:
    traced = program.cached(call, avals, session.platform)
    if traced is None:
        began = session.clock()
        with jax_contexts.of_places():
            traced = program.trace(call, avals, session.platform, session.mesh_of)
        if record is not None:
            record.add(Row(Label("trace", program.name, program.name), began, session.clock(), quality="exact"))
    return traced


def submit(
    session: Session,
    known: KnownCall,
    leaves: Sequence[Any],
    name: Callable[[int], str],
    seen: int,
    futures: Sequence[Future] | None = None,
) -> tuple[Sequence[Future], RunState]:
    """Queue a call of which all is known but its arguments.

    Args:
        session: the session.
        known: what equal calls share.
        leaves: its arguments.
        name: returns what errors call an argument.
        seen: ``session.donations`` before it was checked that no argument was donated.
        futures: as in ``dispatch``.

    Returns:
        The futures of its results, and the run.

    Raises:
        LostError: another thread has donated an argument meanwhile.
    """
    driver, ready, record = session.driver, known.compiled_plan, session.active_record()
    tenant = tenant_scope.current()
    client = tenant_scope.registered_name(session) if tenant is not None else ""
    if tenant is not None and tenant.memory:
        _refuse_too_large(ready, [tenant.memory] * len(session.islands), f"give {client!r} a larger memory=")
    if (waited := driver.wait_for_capacity(client)) > NOTABLE:
        label = label_of("stall", f"back-pressure: {QUEUED} programs queued", ready.name, client)
        record.add(Row(label, session.clock() - waited, session.clock(), quality=driver.quality))
    buffers, temporary = stored_values.hold(session, ready.plan, leaves, client, name)
    held = made_anew(len(known.kinds) - len(futures or ()))
    held = [*futures, *held] if futures else held
    with session.donating:
        # A call that takes an argument over waits for its readers: one that came behind it would wait for it in turn.
        if session.donations != seen:
            check_usable(leaves, name, () if futures is None else known.donated)
        run, entries = driver.submit(ready, buffers, held, record, client, known.moved)
        if futures is None:
            consume(session, known.donated, leaves)
    del temporary  # their buffers live on while the call needs them
    driver.check_held(entries)
    for recording, _ in session.recordings[-1:]:
        # The innermost alone: at its end it hands on what it has to the one around it.
        recording.add(run)
        if session.attach_options.simulated is not None:
            sizes = [aval.bytes for aval in _without_values(ready, leaves)]
            recording.count_as_placed(len(sizes), sum(sizes))
    return stored_values.bind(ready, known.kinds, entries, held), run


def _without_values(ready: CompiledPlan, leaves: Sequence[Any]) -> Iterator[Aval]:
    """Yield the arguments that are shapes without values; a simulated call assumes they lie where it needs them."""
    for leaf in (leaves[argument] for argument in {ready.plan.leaves[argument] for argument in ready.brought}):
        if isinstance(leaf, jax.ShapeDtypeStruct) and (aval := aval_of(leaf)) is not None:
            yield aval


def traced(session: Session, program: ProgramTracer, call: Signature) -> Traced:
    """Return the program's trace for these arguments; the time it takes is not recorded."""
    return _traced(session, program, call, call.avals(), None)


def compiled_plan(session: Session, traced: Traced, call: Signature, refuse: bool = True) -> CompiledPlan:
    """Compile a program for the current devices, once for arguments in the same layouts.

    Args:
        session: the session.
        traced: the program's trace.
        call: its arguments, whose layouts decide where undeclared arguments are brought.
        refuse: whether to refuse a program that needs more memory than there is.

    Returns:
        The compiled plan.

    Raises:
        OutOfMemoryError: it needs more memory than its devices have.
        LostError: hosts that compile it died, and are not replaced.
    """
    while True:
        epoch = session.epoch
        try:
            found = _compiled(session, traced, call)
            break
        except LostError:
            if not session.driver.wait_for_devices() and session.epoch is epoch:  # else they are back since
                raise
    if refuse:
        _refuse_too_large(found, session.budgets, _LARGER)
        # With hbm= the chip is another one than the compiler knows.
        if found.refused is not None and session.attach_options.hbm is None:
            _refuse_as_compiler(found, found.refused, _LARGER)
    return found


def _compiled(session: Session, traced: Traced, call: Signature) -> CompiledPlan:
    """Return the plan that fits the call and the current devices, compiled when it is first needed."""
    epoch = session.epoch  # before devices are chosen: they may change meanwhile
    layouts = traced.layouts.get(epoch) or _alone(session, traced, _place, session, traced, epoch)
    leaves = stored_values.arguments(session.driver, layouts.plan, call.leaves) if layouts.undeclared else ()
    location = tuple(stored_values.location(session.driver, leaves[one.argument]) for one in layouts.undeclared)
    # By where the arguments lie: the usual call finds its compiled plan with one look-up.
    found = layouts.made.get(location)
    return found or _alone(session, traced, _lower_for, session, traced, layouts, location)


def _lower_for(session: Session, traced: Traced, layouts: Layouts, location: tuple[Any, ...]) -> CompiledPlan:
    """Return the plan compiled for arguments in these layouts; layouts that are brought alike share one."""
    if (made := layouts.made.get(location)) is not None:
        return made
    # Many locations lead to the same shardings: an optimizer's state from the host and from elsewhere, say.
    brought = tuple(map(session.driver.sharding_for, location, layouts.undeclared))
    found = layouts.made.get(brought) or _lower(session, traced, layouts, brought)
    layouts.made[location] = layouts.made[brought] = found
    return found


def plan_of(session: Session, traced: Traced) -> Plan:
    """Return a program's plan on the current devices."""
    return lower(traced.graph, session.place(traced.places), traced.arguments, traced.places[0])


def _place(session: Session, traced: Traced, epoch: object) -> Layouts:
    if (made := traced.layouts.get(epoch)) is not None:
        return made
    began = session.clock()
    plan = plan_of(session, traced)
    layouts = traced.layouts[epoch] = Layouts.of(traced, plan, session.driver.attachment.islands)
    label = Label("lower", traced.name, traced.name)
    session.active_record().add(Row(label, began, session.clock(), quality="exact"))
    return layouts


def _lower(session: Session, traced: Traced, layouts: Layouts, brought: tuple[Any, ...]) -> CompiledPlan:
    record, clock, targets = session.active_record(), session.clock, layouts.targets(brought)
    began = clock()
    try:
        with jax_contexts.of_places():
            found = session.driver.lower(traced, layouts.plan, targets, record, session.say)
    finally:
        for recording, _ in session.recordings[-1:]:
            recording.note = ""
    if clock() - began > _LONG_LOWERING:
        gc.collect()  # it left much behind, and would be due in the midst of a step (see ``gc_pauses``)
    return found


def _refuse_too_large(ready: CompiledPlan, budgets: Sequence[int], fix: str) -> None:
    """Refuse a program that could never finish, saying what it needs where."""
    for peak in ready.peaks:
        if 0 < (budget := budgets[peak.where.island]) < peak.bytes:
            raise OutOfMemoryError(
                f"{peak.program} needs {size(peak.bytes)} on each device of {peak.where}, where there are "
                f"{size(budget)}. Its peak is {peak.parts}.{_largest(ready, peak)} Use more devices or smaller arrays, "
                f"or {fix}."
            )


def _largest(ready: CompiledPlan, peak: Peak) -> str:
    """Return a sentence on the largest buffers of the node at a peak, where the compiler of its chip has told them."""
    plan = ready.plan
    for action in ready.actions:
        memory = action.opened.memory if action.opened is not None else None
        here = action.label.name == peak.node and plan.placements[action.step.place] == peak.where
        if here and memory is not None and memory.buffers:
            listed = "; ".join(map(str, memory.buffers[:_LARGEST]))
            return f" The largest buffers there are {listed}."
    return ""


def _refuse_as_compiler(ready: CompiledPlan, refused: CompiledStep, fix: str) -> None:
    """Refuse a program of which the compiler of the simulated chip says that a node does not fit."""
    memory, label = refused.opened.memory if refused.opened is not None else None, refused.label
    if memory is not None:
        line = f" ({label.line})" if label.line else ""
        has = f", where the compiler has {size(memory.available)}" if memory.available else ""
        listed = "; ".join(map(str, memory.buffers[:_LARGEST])) or "not told"
        raise OutOfMemoryError(
            f"{label.name} of {label.program}{line} needs {size(memory.peak)} on each device of "
            f"{ready.plan.placements[refused.step.place]}{has}: {memory.refused} Its largest buffers are {listed}. "
            f"Use more devices or smaller arrays, or {fix}."
        )
