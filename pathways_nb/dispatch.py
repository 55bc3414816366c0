"""A call on its way to the devices: traced, placed, lowered, held back while too much is queued, submitted.

Nothing is decided here: places are the resource manager's, order and memory the controller's core's.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax

from pathways_nb import tenants, values
from pathways_nb.backends.driver import QUEUED
from pathways_nb.backends.lowered import Lowered
from pathways_nb.errors import OutOfMemoryError, size
from pathways_nb.gather import check_futures, consume
from pathways_nb.program.plan import Plan, lower
from pathways_nb.program.program import Program, Traced
from pathways_nb.program.signature import Aval, Signature
from pathways_nb.trace.record import Label, Record, Row, label_of

if TYPE_CHECKING:
    from pathways_nb.attached import Controller

_LONG_LOWERING = 1.0
"""Seconds of lowering after which a garbage collection is a small part."""


def dispatch(controller: Controller, program: Program, call: Signature, gathered: bool) -> Any:
    """See ``Controller.dispatch``."""
    controller.driver.engine.refuse_policies()
    avals = call.avals()
    if not gathered:
        check_futures(call)
    record = controller.active_record()
    traced = _traced(controller, program, call, avals, record)
    ready = lowered(controller, traced)
    client = tenants.told(controller)
    _refuse_for_tenant(controller, ready, client)
    _wait_for_room(controller, program, client, record)
    made = _submit(controller, ready, call, client, record, gathered)
    if controller.twin is not None:
        values.compute_beside(controller.twin, program, call, made)
    return jax.tree.unflatten(traced.out_tree, made)


def _traced(
    controller: Controller, program: Program, call: Signature, avals: tuple[Aval, ...], record: Record | None
) -> Traced:
    """The program's trace for these arguments; tracing it takes time that is recorded."""
    traced = program.cached(call, avals, controller.platform)
    if traced is not None:
        return traced
    with program.tracing:  # of several threads that call it first, one traces it
        traced = program.cached(call, avals, controller.platform)
        if traced is None:
            began = controller.clock()
            traced = program.trace(call, avals, controller.platform, controller.mesh_of)
            if record is not None:
                record.add(Row(Label("trace", program.name, program.name), began, controller.clock(), quality="exact"))
    return traced


def _refuse_for_tenant(controller: Controller, ready: Lowered, client: str) -> None:
    tenant = tenants.now()
    if tenant is not None and tenant.memory:
        limits = [tenant.memory] * len(controller.islands)
        _refuse_too_large(ready, limits, f"give {client!r} a larger memory=")


def _wait_for_room(controller: Controller, program: Program, client: str, record: Record) -> None:
    waited = controller.driver.wait_for_room(client)
    if waited > 1e-3:
        now = controller.clock()
        label = label_of("stall", f"back-pressure: {QUEUED} programs queued", program.name, client)
        record.add(Row(label, now - waited, now, quality=controller.driver.quality))


def _submit(
    controller: Controller, ready: Lowered, call: Signature, client: str, record: Record, gathered: bool
) -> list[Any]:
    """Queue a run; returns the futures of its results."""
    driver = controller.driver
    buffers, temporary = values.hold(controller, call.leaves, client)
    try:
        run, results = driver.submit(ready, buffers, record, client)
    finally:
        for buffer in temporary:
            driver.release(buffer)
    if not gathered:
        consume(call)
    for recording, _ in controller.recordings[-1:]:
        recording.add(run)
    return values.futures(controller, ready, results)


def traced(controller: Controller, program: Program, call: Signature) -> Traced:
    """See ``Controller.traced``."""
    return _traced(controller, program, call, call.avals(), None)


def lowered(controller: Controller, traced: Traced, refuse: bool = True) -> Lowered:
    """See ``Controller.lowered``."""
    epoch = controller.epoch  # before devices are chosen: they may change meanwhile
    found = traced.lowered.get(epoch)
    if found is None:
        with traced.lowering:
            found = traced.lowered.get(epoch)
            if found is None:
                found = traced.lowered[epoch] = _lower(controller, traced)
    if refuse:
        _refuse_too_large(found, controller.budgets, "attach with a larger hbm=")
    return found


def plan_of(controller: Controller, traced: Traced) -> Plan:
    """A program placed on a controller's devices."""
    return lower(traced.graph, controller.place(traced.places), traced.arguments, traced.places[0])


def _lower(controller: Controller, traced: Traced) -> Lowered:
    record, clock = controller.active_record(), controller.clock
    began = clock()
    plan = plan_of(controller, traced)
    record.add(Row(Label("lower", traced.name, traced.name), began, clock(), quality="exact"))
    try:
        found = controller.driver.lower(traced, plan, record, controller.say)
    finally:
        for run, _ in controller.recordings[-1:]:
            run.note = ""
    if clock() - began > _LONG_LOWERING:
        gc.collect()  # it left much behind, and would be due in the midst of a step (see ``pauses``)
    return found


def _refuse_too_large(ready: Lowered, budgets: Sequence[int], fix: str) -> None:
    """A program that could never finish is refused, with what it needs where."""
    for peak in ready.peaks:
        if 0 < (budget := budgets[peak.where.island]) < peak.bytes:
            raise OutOfMemoryError(
                f"{peak.program} needs {size(peak.bytes)} on each device of {peak.where}, where there are "
                f"{size(budget)}. Its peak is {peak.parts}. Use more devices or smaller arrays, or {fix}."
            )
