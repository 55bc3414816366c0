"""The host lane of an island: one persistent thread that runs host work, beside the devices and ahead of them.

The steps at an island's host (``Step.on_host``) are those that bring a value there, and nodes on it. A dispatcher hands
over each range as soon as it is sent, and leaves these steps out of its own loop. It waits only where a launch needs
what the host makes, so the work of the next programs is done while the devices still compute; the client's queue of
programs bounds how far ahead. The lane is first in, first out, so functions with state are called in program order.
"""

from __future__ import annotations

import queue
import threading
from typing import Any

import jax
import numpy as np

from pathways_nb.errors import CancelledError, PathwaysError
from pathways_nb.plan import source_lines
from pathways_nb.program import jax_contexts
from pathways_nb.runtime.faults import InjectedFault
from pathways_nb.runtime.local.inputs import Arrival, StepInputs
from pathways_nb.runtime.local.transfer_watcher import routed
from pathways_nb.runtime.local.watcher import Clock, LaunchRange
from pathways_nb.runtime.lowering.compiled_steps import CompiledStep
from pathways_nb.runtime.lowering.transfers import listed
from pathways_nb.runtime.run_state import RunState
from pathways_nb.timing.waits import DATA, LANE, MESSAGE
from pathways_nb.trace.rows import BY, Label, Row


class HostLane(threading.Thread):
    """Carries out the steps at one island's host, in the order in which their ranges are handed over.

    Args:
        island: its index.
        clock: the controller's clock, in seconds.
        inputs: how values reach this process.
    """

    def __init__(self, island: int, clock: Clock, inputs: StepInputs):
        super().__init__(name=f"pathways-host-{island}", daemon=True)
        self.island, self.clock, self.inputs = island, clock, inputs
        self.inbox: queue.SimpleQueue[tuple[LaunchRange, float] | None] = queue.SimpleQueue()
        self.begun = False
        self._why = MESSAGE
        """What the next event of this lane waits for: a position in ``timing.waits.WHY``."""

    def hand(self, launch_range: LaunchRange, due: float) -> None:
        """Queue a range, of which the steps at the host are carried out, and counted as ended when they have.

        The first one starts the thread.

        Args:
            launch_range: any range of this island's order.
            due: when it reaches the island, on the clock.
        """
        if not self.begun:
            self.begun = True
            self.start()
        self.inbox.put((launch_range, due))

    def stop(self) -> None:
        """End after what was handed over before."""
        self.inbox.put(None)

    def run(self) -> None:
        """Carry out steps until stopped."""
        while self._next():
            pass

    def _next(self) -> bool:
        """Carry out the steps of one range.

        It is a function of its own so that nothing of a range stays referenced while the thread waits for the next.

        Returns:
            Whether there was one.
        """
        if self.inbox.empty():
            self._why = MESSAGE
        handed = self.inbox.get()
        if handed is not None:
            self._range(*handed)
        return handed is not None

    def _range(self, launch_range: LaunchRange, due: float) -> None:
        run = launch_range.run
        jax_contexts.adopt(run.compiled_plan.contexts)  # the function may call JAX
        plan = run.compiled_plan.plan
        steps = plan.orders[self.island][launch_range.start : launch_range.stop]
        mine = [step for step in steps if plan.steps[step].on_host]
        if mine and due > self.clock():  # a cancelled run is not waited for
            self._why = MESSAGE
            run.launched.wait(lambda: run.stopped, max(due - self.clock(), 0.0))
        for step in mine:
            self._step(launch_range, step)

    def _step(self, launch_range: LaunchRange, step: int) -> None:
        run = launch_range.run
        if self.inputs.is_mine(run, step):
            self._carry_out(run, step)
        else:
            run.mark_done(step)
        launch_range.step_done()

    def _carry_out(self, run: RunState, step: int) -> None:
        action = run.compiled_plan.actions[step]
        try:
            if action.step.kind == "host":
                error = self._work(run, step, action)
            elif self.inputs.is_remote(run, step):
                error = self._receive(run, step, action)
            else:
                error = self._bring(run, step, action)
        except BaseException as cause:  # whatever it raised is the user's to see; SystemExit must not end the lane
            error = self._failed(run, step, action, cause)
        if error is not None:
            run.fail(step, error)
        else:
            run.mark_done(step)
        run.let_go(step, action.step.reader)

    def _failed(self, run: RunState, step: int, action: CompiledStep, cause: BaseException) -> PathwaysError:
        """Return the error for the user: that of a value which could not be brought, else the function's own."""
        inherited = run.inherited_error(step) if action.step.kind != "host" else None
        if inherited is not None:
            return inherited
        if line := source_lines.traceback_line(cause.__traceback__):
            cause.add_note(f"raised at {line}, in host work (pw.host)")
        if action.step.kind != "host" or isinstance(cause, InjectedFault):
            now = self.clock()
            self._record(run, action.label, now, now, "failed")
        return run.node_error(step, cause)

    def _bring(self, run: RunState, step: int, action: CompiledStep) -> PathwaysError | None:
        """Bring an argument, or what another step makes, to the host; return the error that prevents it, if any."""
        entry = run.arguments[action.step.argument] if action.step.kind == "bring" else None
        if not self.inputs.is_ready(run, step):
            self._why = DATA
            run.launched.wait(lambda: self.inputs.is_ready(run, step))
        try:
            error = (entry.error if entry is not None else None) or run.reason_to_skip(step)
            if error is None and entry is not None:
                where = entry.placement
                route = "DCN" if where is not None and where.island != self.island else "host"
                self._fetch(run, step, routed(action.label, route, action.label.bytes), entry.array)
            elif error is None:
                self._fetch(run, step, action.label, run.slots[action.step.inputs[0]])
            return error
        finally:  # the memory may be taken over now
            if entry is not None:
                run.has_brought(step)
            else:
                run.has_moved(run.results.get(action.step.inputs[0], ()))

    def _receive(self, run: RunState, step: int, action: CompiledStep) -> PathwaysError | None:
        """Wait for a value from another process, and return the error that prevents it, if any."""
        came: list[Arrival | PathwaysError] = []

        def arrived(arrival: Arrival | PathwaysError) -> None:
            came.append(arrival)
            run.launched.notify_all()

        self.inputs.expect(run, step, arrived)
        run.launched.wait(lambda: bool(came) or run.stopped)
        if not came:
            return run.reason_to_skip(step) or CancelledError(f"{action.label.name} was cancelled.")
        (arrival,) = came
        if isinstance(arrival, PathwaysError):
            return arrival
        self._fetch(run, step, action.label, arrival.on_host())
        if arrival.bytes >= 0:
            self._record(run, routed(action.label, arrival.route, arrival.bytes), arrival.began, run.ends[step])
        return None

    def _fetch(self, run: RunState, step: int, label: Label, value: Any) -> None:
        """Fill the slot of a step with a value as a NumPy array that nobody can change; record what came from devices.

        It is a copy, because the memory of a device's array may be taken over later.
        """
        if isinstance(value, jax.Array):
            if not getattr(value, "is_ready", bool)():  # typed keys do not tell
                self._why = DATA
                value.block_until_ready()
            began = self.clock()
            array = np.array(listed(value))
            run.ends[step] = self.clock()
            self._record(run, label, began, run.ends[step])
            self._why = DATA  # of the work that reads it
        else:
            array = np.asarray(value).view()
            run.ends[step] = self.clock()
        array.flags.writeable = False
        run.fill(step, [array])

    def _work(self, run: RunState, step: int, action: CompiledStep) -> PathwaysError | None:
        """Run a host node, and return the error that prevents it, if any."""
        if (error := run.reason_to_skip(step)) is not None:
            return error
        self.inputs.strike(run, step)
        assert action.host is not None
        inputs = [run.slots[slot] for slot in action.step.inputs]
        began, status = self.clock(), "failed"
        try:
            arrays = action.host(inputs)
            status = "draining" if run.stopped else "ok"
        finally:
            run.ends[step] = self.clock()
            self._record(run, action.label, began, run.ends[step], status)
        run.fill(step, arrays)
        return None

    def _record(self, run: RunState, label: Label, start: float, end: float, status: str = "ok") -> None:
        run.record.add(Row(run.own(label), start, end, run.serial, "exact", status, BY[self._why]))
        self._why = LANE
