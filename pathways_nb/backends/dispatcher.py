"""Dispatchers: one persistent thread per island launches what the controller ordered, in that order.

A new thread per call would let two islands take turns instead of running side by side (measured), and launching from
the user's thread would stall it whenever the host is oversubscribed.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

import jax

from pathways_nb.backends.executables import like_for_like, send
from pathways_nb.backends.execution import Entry, Execution
from pathways_nb.backends.lowering import Action, reshard
from pathways_nb.backends.watcher import Launched, Portion, Watcher
from pathways_nb.trace.record import Label, Row

Clock = Callable[[], float]
IN_FLIGHT = 24
"""Launches under way per island: at 32 per device XLA's CPU client blocks, and may starve a collective."""
_LONG_WAIT = 1e-3


class Dispatcher(threading.Thread):
    """Carries out portions of runs on one island.

    Args:
        island: its index.
        clock: the controller's.
        on_done: told of each portion whose steps have all ended.
    """

    def __init__(self, island: int, clock: Clock, on_done: Callable[[Portion, int], None]):
        super().__init__(name=f"pathways-island-{island}", daemon=True)
        self.island, self.clock = island, clock
        self.on_done: Callable[[Portion], None] = lambda portion: on_done(portion, island)
        self.inbox: queue.SimpleQueue[tuple[Execution, int, int] | None] = queue.SimpleQueue()
        self.window = threading.Semaphore(IN_FLIGHT)
        self.computing = Watcher(f"pathways-watch-{island}", clock, self._ended)
        self.moving = Watcher(f"pathways-watch-moves-{island}", clock, lambda count: None)

    def start(self) -> None:
        super().start()
        self.computing.start()
        self.moving.start()

    @property
    def threads(self) -> tuple[threading.Thread, ...]:
        """Itself and its watchers."""
        return self, self.computing, self.moving

    def stop(self) -> None:
        """End after what was ordered before."""
        self.inbox.put(None)

    def run(self) -> None:
        while (order := self.inbox.get()) is not None:
            self._portion(*order)
        self.computing.inbox.put(None)
        self.moving.inbox.put(None)

    def _portion(self, run: Execution, start: int, stop: int) -> None:
        plan = run.lowered.plan
        portion = Portion(run, stop, stop - start, self.on_done, threading.Lock())
        label = Label("enqueue", run.lowered.traced.name, run.lowered.traced.name, run.client, island=self.island)
        began, count = self.clock(), 0
        for step in plan.orders[self.island][start:stop]:
            waited = self._step(portion, step)
            count += 1
            if waited > _LONG_WAIT:  # waiting is not dispatching: it is left out of the lane
                now = self.clock()
                if now - waited > began:
                    run.record.add(Row(label, began, now - waited, run.serial, "exact"))
                began = now
        run.record.add(Row(label, began, self.clock(), run.serial, "exact"))

    def _step(self, portion: Portion, step: int) -> float:
        """Carry one step out; returns the seconds spent waiting."""
        run = portion.run
        action = run.lowered.actions[step]
        began = self.clock()
        waited = 0.0
        try:
            if action.call is not None:
                inputs = self._inputs(run, action)
                if self._is_over(portion, step):
                    return waited
                self.window.acquire()
                waited = self.clock() - began
                arrays = self._call(action, inputs)
                dispatched = began + waited
            else:
                array, waited, fresh = self._deliver(run, action)
                if self._is_over(portion, step):
                    return waited
                arrays, dispatched = [array], began + waited
                if not fresh:
                    return self._at_once(portion, step, arrays, waited)
        except Exception as error:  # whatever the launch raised is the user's to see
            run.fail(step, run.node_error(step, error))
            portion.step_done()
            return waited
        run.fill(step, arrays)
        run.let_go(step, self.island)
        launched = Launched(portion, step, arrays[action.witness], dispatched)
        if action.call is not None:
            self.computing.inbox.put(launched)
        elif launched.witness.is_ready():
            self.moving.note_now(launched)  # behind longer transfers in the queue its end would be seen late
        else:
            self.moving.inbox.put(launched)
        return waited

    def _call(self, action: Action, inputs: list[Any]) -> list[Any]:
        assert action.call is not None
        try:
            return list(action.call(*inputs))
        except BaseException:
            self.window.release()
            raise

    def _at_once(self, portion: Portion, step: int, arrays: list[Any], waited: float) -> float:
        """The value is already there: nothing moves, nothing is recorded."""
        portion.run.fill(step, arrays)
        portion.run.mark_done(step)
        portion.step_done()
        return waited

    def _is_over(self, portion: Portion, step: int) -> bool:
        """Whether the step must be skipped: its run was cancelled or an input will never come."""
        run = portion.run
        error = run.error_of(step) or self._argument_error(run, step)
        if error is None and run.stopped:
            error = run.cancelled_error(step)
        if error is None:
            return False
        run.fail(step, error)
        portion.step_done()
        return True

    def _argument_error(self, run: Execution, step: int) -> Any:
        argument = run.lowered.plan.steps[step].argument
        return run.arguments[argument].error if argument >= 0 else None

    def _inputs(self, run: Execution, action: Action) -> list[Any]:
        return [run.slots[slot] for slot in action.step.inputs]

    def _deliver(self, run: Execution, action: Action) -> tuple[Any, float, bool]:
        """The value at its place, the seconds waited for it, and whether anything had to move."""
        began = self.clock()
        step = action.step
        if step.kind == "bring":
            entry = run.arguments[step.argument]
            donated = step.argument in run.lowered.traced.donated
            self._wait_for(run, entry, readers=1 if donated else 0)
            waited = self.clock() - began
            try:
                array, fresh = (None, False) if entry.error or run.stopped else bring(entry.array, action.target)
            finally:
                entry.read(-1)
                run.launched.ring()
            return array, waited, fresh
        (slot,) = step.inputs
        (producer,) = step.producers
        run.launched.wait(lambda: run.slots[slot] is not None or producer in run.errors or run.stopped)
        waited = self.clock() - began
        source = run.slots[slot]
        return (None if source is None else send(source, action.target)), waited, True

    def _wait_for(self, run: Execution, entry: Entry, readers: int) -> None:
        """Until an argument exists and, before its memory is taken over, nobody else is still to read it."""

        def ready() -> bool:
            exists = entry.array is not None or entry.error is not None or run.stopped
            return exists and (not readers or entry.pending_reads <= readers)

        run.launched.wait(ready)

    def _ended(self, count: int) -> None:
        self.window.release(count)


def bring(array: Any, target: Any) -> tuple[Any, bool]:
    """An argument at its place, and whether anything had to move."""
    if not isinstance(array, jax.Array):
        return jax.device_put(array, target), True
    if array.sharding.is_equivalent_to(target, array.ndim):
        return array, False
    if array.sharding.device_set == target.device_set:
        return reshard(array, target), True
    moved = like_for_like(array.sharding, target.mesh)
    if moved is None:
        return send(array, target), True
    array = send(array, moved)
    return (array if moved.is_equivalent_to(target, array.ndim) else reshard(array, target)), True
