"""Dispatchers: one persistent thread per island launches what the controller ordered, in that order.

A new thread per call would let two islands take turns instead of running side by side (measured). Launching from the
user's thread would stall it whenever the host is oversubscribed.

A step that cannot be carried out yet does not hold up the steps behind it if it is a transfer: a ``LateTransfers``
thread carries it out later. Only a launch that needs the value waits, and the launches behind it, which keep the order.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence

from pathways_nb.errors import LostError, PathwaysError
from pathways_nb.program import jax_contexts
from pathways_nb.runtime.faults import Fault, InjectedFault, check_devices
from pathways_nb.runtime.launch_causes import brought_by
from pathways_nb.runtime.local.enqueue_lane import EnqueueLane
from pathways_nb.runtime.local.host_lane import HostLane
from pathways_nb.runtime.local.late_transfers import LateTransfers
from pathways_nb.runtime.local.launch_watcher import LaunchWatcher
from pathways_nb.runtime.local.transfer_watcher import TransferWatcher
from pathways_nb.runtime.local.watcher import Clock, LaunchRange, Sent
from pathways_nb.runtime.lowering.compiled_steps import CompiledStep, IslandSteps, ResolvedLaunch
from pathways_nb.runtime.lowering.transfers import bring, delivered, share_devices
from pathways_nb.runtime.run_state import Execution
from pathways_nb.timing.waits import MESSAGE
from pathways_nb.trace.rows import BY, WINDOW_FULL, Cause, Row


class Dispatcher(threading.Thread):
    """Carries out ranges of runs on one island.

    Args:
        island: its index.
        devices: its number of devices.
        clock: the controller's clock, in seconds.
        on_done: called with each range whose steps have all ended, and the island.
        faults: decide which launches fail.
        latency: seconds between the sending of a range and its arrival.
    """

    def __init__(
        self,
        island: int,
        devices: int,
        clock: Clock,
        on_done: Callable[[LaunchRange, int], None],
        faults: Sequence[Fault] = (),
        latency: float = 0.0,
    ):
        super().__init__(name=f"pathways-island-{island}", daemon=True)
        self.island, self.clock, self.faults, self.latency = island, clock, faults, latency
        self.gone: set[int] = set()
        """Devices that are lost."""
        self.on_done: Callable[[LaunchRange], None] = lambda launch_range: on_done(launch_range, island)
        self.inbox: queue.SimpleQueue[tuple[LaunchRange, float, Cause] | None] = queue.SimpleQueue()
        self.lane = EnqueueLane(island, clock, latency)
        self.late = LateTransfers(f"pathways-late-{island}", self._is_ready, self._carry_out)
        self.computing = LaunchWatcher(f"pathways-watch-{island}", clock, devices)
        self.moving = TransferWatcher(f"pathways-watch-moves-{island}", clock)
        self.host = HostLane(island, clock, faults)

    def start(self) -> None:
        """Start this thread and those that belong to it."""
        super().start()
        self.late.start()
        self.computing.start()
        self.moving.start()

    @property
    def threads(self) -> tuple[threading.Thread, ...]:
        """This thread and those that belong to it; the host lane if that has begun."""
        return self, self.late, self.computing, self.moving, *([self.host] if self.host.begun else [])

    def send(
        self, run: Execution, start: int, stop: int, sent: float | None = None, cause: Cause = BY[MESSAGE]
    ) -> None:
        """Queue steps ``start`` to ``stop`` of the run's order on this island, after everything sent before.

        Args:
            run: the run.
            start: position of the first step.
            stop: position after the last step.
            sent: when the message is sent, on the clock; now if left out.
            cause: why it is sent.
        """
        # One more than its steps: the range is over when its own enqueue is recorded, too.
        launch_range = LaunchRange(run, start, stop, stop - start + 1, self.on_done, threading.Lock())
        sent = self.clock() if sent is None else sent
        if run.compiled_plan.plan.has_host_work:  # at once: it runs ahead of what the dispatcher still waits for
            self.host.hand(launch_range, sent + self.latency)
        self.inbox.put((launch_range, sent, cause))

    def stop(self) -> None:
        """End after what was sent before."""
        self.inbox.put(None)

    def run(self) -> None:
        """Carry out ranges until stopped."""
        while self._next():
            pass
        self.late.stop()
        self.late.join()  # it still hands transfers to the watcher
        self.computing.stop()
        self.moving.inbox.put(None)
        self.host.stop()

    def _next(self) -> bool:
        """Carry out one range.

        It is a function of its own so that nothing of a range stays referenced while the thread waits for the next.

        Returns:
            Whether there was one.
        """
        order = self.inbox.get()
        if order is not None:
            launch_range, sent, cause = order
            if self.latency:
                self.lane.arrive(launch_range.run, sent, cause)
            self.lane.begin(sent, cause)
            self._launch_range(launch_range)
        return order is not None

    def _launch_range(self, launch_range: LaunchRange) -> None:
        run, at_once = launch_range.run, 0
        jax_contexts.adopt(run.compiled_plan.contexts)
        self.computing.begin()
        steps = run.compiled_plan.plan.steps
        for others, launches in self._resolved(run).stretches(launch_range.start, launch_range.stop):
            for step in others:
                if self._is_there(run, step):
                    at_once += 1
                elif not steps[step].on_host:  # those at the host are the host lane's
                    self._step(launch_range, step)
            left = iter(launches)
            while (launch := self._launch_all(launch_range, left)) is not None:
                self._step(launch_range, launch.step)
        self.computing.end()
        self.lane.end(run)
        launch_range.step_done(at_once + 1)

    def _is_there(self, run: Execution, step: int) -> bool:
        """Use an argument that lies at its place already, without any event.

        It is the common case, and its cost is paid by every argument of every call.

        Returns:
            Whether it does.
        """
        action = run.compiled_plan.actions[step]
        if action.step.argument < 0 or step in run.compiled_plan.awaited or self.gone:
            return False
        entry = run.arguments[action.step.argument]
        array = entry.array
        if array is None or run.stopped or entry.error is not None or getattr(array, "sharding", None) != action.target:
            return False
        if action.step.argument in run.compiled_plan.taken_over and (entry.shared or entry.pending_reads > 1):
            return False
        run.slots[action.step.outputs[0]] = array
        run.has_read((entry,))
        run.done[step] = 1
        return True

    def _step(self, launch_range: LaunchRange, step: int) -> None:
        """Carry out one step, or leave it to the thread of late transfers."""
        run = launch_range.run
        with self.computing.elsewhere():  # what is under way may end long before this step is carried out
            if not self._is_ready(run, step):
                if self._may_be_late(run, step):
                    run.hold_inputs(step, self.island)
                    self.late.add(launch_range, step)
                    return
                self.lane.wait(
                    run,
                    lambda: run.launched.wait(lambda: self._is_ready(run, step)),
                    lambda: brought_by(run, step, self.island),
                )
            self._carry_out(launch_range, step)

    def _is_ready(self, run: Execution, step: int) -> bool:
        """Return whether all that a step reads exists, or never will; other threads call it, also when a run is over.

        A wait that has ended is asked until it is removed, and meanwhile its run may finish.
        """
        action, slots, arguments = run.compiled_plan.actions[step], run.slots, run.arguments
        if run.finished:  # asked last: both were there, or the run has dropped them
            return True
        if action.step.kind == "bring":
            entry = arguments[action.step.argument]
            exists = entry.array is not None or entry.error is not None
            taken_over = action.step.argument in run.compiled_plan.taken_over
            return run.stopped or (exists and (not taken_over or entry.pending_reads <= 1))
        for slot in action.step.inputs:
            if slots[slot] is None:
                return run.stopped or any(producer in run.errors for producer in action.step.producers)
        return True

    def _may_be_late(self, run: Execution, step: int) -> bool:
        """Return whether steps behind a step that is not ready may go first: it brings a value from elsewhere.

        A launch keeps its place, and so does a move among the island's devices: a launch behind it may take its
        source's memory.
        """
        steps = run.compiled_plan.plan.steps
        if steps[step].kind == "move":
            return all(steps[producer].reader != self.island for producer in steps[step].producers)
        return steps[step].kind == "bring"

    def _carry_out(self, launch_range: LaunchRange, step: int) -> None:
        """Carry out a step that is ready, or record why it fails."""
        run = launch_range.run
        action = run.compiled_plan.actions[step]
        carry_out = {"bring": self._bring, "move": self._move, "launch": self._launch}[action.step.kind]
        try:
            error = carry_out(launch_range, step, action)
        except Exception as cause:  # whatever it raised is the user's to see; JAX may raise what an input got earlier
            error = self._error_of(run, step, cause)
        if error is not None:
            self._give_up(launch_range, step, error)

    def _error_of(self, run: Execution, step: int, cause: Exception) -> PathwaysError:
        """Return the error for the user about a step that raised; one that is the step's own is recorded."""
        own = isinstance(cause, (InjectedFault, LostError))
        error = None if own else run.inherited_error(step)
        if error is None:
            error, now = run.node_error(step, cause), self.clock()
            label = run.own(run.compiled_plan.actions[step].label)
            run.record.add(Row(label, now, now, run.serial, status="failed"))  # it was never launched
        return error

    def _give_up(self, launch_range: LaunchRange, step: int, error: PathwaysError) -> None:
        """End a step that has no outputs and never will."""
        launch_range.run.fail(step, error)
        launch_range.run.let_go(step, self.island)
        launch_range.step_done()

    def _launch(self, launch_range: LaunchRange, step: int, action: CompiledStep) -> PathwaysError | None:
        run = launch_range.run
        if (error := run.reason_to_skip(step)) is not None:
            return error
        assert action.call is not None
        check_devices(action.label, self.gone)
        for fault in self.faults:
            fault.strike(action.label, run.client)
        launch = run.compiled_plan.resolved(self.island).launches[step]
        self._launch_all(launch_range, iter((launch,)), is_checked=True)
        return None

    def _resolved(self, run: Execution) -> IslandSteps:
        """Return the steps of a run on this island."""
        return run.compiled_plan.resolved(self.island)

    def _launch_all(
        self, launch_range: LaunchRange, launches: Iterator[ResolvedLaunch], is_checked: bool = False
    ) -> ResolvedLaunch | None:
        """Launch nodes as long as nothing stands against it.

        It is the common case, and its cost is paid by every node of every call.

        Args:
            launch_range: what they are part of.
            launches: the nodes.
            is_checked: whether it is known that nothing does.

        Returns:
            The launch that could not go out, or ``None``.
        """
        run, computing, clock = launch_range.run, self.computing, self.clock
        slots, errors, flight = run.slots, run.errors, computing.flight
        for launch in launches:
            if (run.stopped or errors or self.faults or self.gone) and not is_checked:
                return launch
            inputs = launch.read(slots)
            if not launch.is_certain and any(one is None for one in inputs):
                return launch
            if len(flight) >= computing.window:
                self.lane.wait(run, computing.wait_for_room, lambda: computing.room, WINDOW_FULL)
            dispatched = clock()
            try:
                if launch.may_block and (flight or not run.compiled_plan.was_short(launch.step)):
                    with computing.elsewhere():
                        arrays = launch.call(*inputs)
                else:
                    arrays = launch.call(*inputs)
                if launch.tells:
                    run.fill(launch.step, arrays)
                elif launch.output >= 0:
                    (slots[launch.output],) = arrays
                else:
                    for slot, array in zip(launch.outputs, arrays, strict=False):
                        slots[slot] = array
            except Exception as cause:  # whatever it raised is the user's to see
                with computing.elsewhere():  # the ends of its inputs tell whose error it is
                    self._give_up(launch_range, launch.step, self._error_of(run, launch.step, cause))
                continue
            run.begun = True
            if launch.shares or run.late:
                run.let_go(launch.step, self.island)
            else:
                for slot in launch.frees:
                    slots[slot] = None
            computing.add(launch_range, launch, arrays[launch.witness], dispatched)
        return None

    def _bring(self, launch_range: LaunchRange, step: int, action: CompiledStep) -> PathwaysError | None:
        """Bring an argument to its place, and return the error that prevents it, if any."""
        run = launch_range.run
        argument = action.step.argument
        entry = run.arguments[argument]
        taken_over = argument in run.compiled_plan.taken_over
        try:
            error = entry.error or run.reason_to_skip(step)
            if error is not None:
                return error
            check_devices(action.label, self.gone)
            dispatched = self.clock()
            array, moved = bring(entry.array, action.target)
            source = entry.located if moved else None  # what is at its place is copied whole, if at all
            if taken_over and entry.shared and share_devices(entry.array, array):
                array, moved = array.copy(), True  # also what moved: there it is the same memory still
            if taken_over and moved:
                entry.array = None  # its handle is consumed: what was copied is of no use to anybody
        finally:
            run.has_read((entry,))
        run.fill(step, [array])
        run.let_go(step, self.island)
        if moved:
            size = run.compiled_plan.crossing(step, source)
            self.moving.follow(Sent(launch_range, step, array, dispatched, entry.route_to(self.island), size, entry))
        else:  # nothing happened, nothing is recorded
            run.mark_done(step)
            launch_range.step_done()
        return None

    def _move(self, launch_range: LaunchRange, step: int, action: CompiledStep) -> PathwaysError | None:
        """Send a value from another place, and return the error that prevents it, if any."""
        run = launch_range.run
        (slot,) = action.step.inputs
        try:
            if (error := run.reason_to_skip(step)) is not None:
                return error
            check_devices(action.label, self.gone)
            dispatched = self.clock()
            array = delivered(run.slots[slot], action.target)
        finally:  # a result's memory may be taken over now
            run.has_read(run.results.get(slot, ()))
        run.fill(step, [array])
        run.let_go(step, self.island)
        self.moving.follow(Sent(launch_range, step, array, dispatched))
        return None
