"""Dispatchers: one persistent thread per island launches what the controller ordered, in that order.

A new thread per call would let two islands take turns instead of running side by side (measured). Launching from the
user's thread would stall it whenever the host is oversubscribed.

A step that cannot be carried out yet does not hold up the steps behind it if it is a transfer: a ``LateTransfers``
thread carries it out later. Only a launch that needs the value waits, and the launches behind it, which keep the order.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from pathways_nb.program import jax_contexts
from pathways_nb.runtime.launch_causes import brought_by
from pathways_nb.runtime.local.enqueue_lane import EnqueueLane
from pathways_nb.runtime.local.host_lane import HostLane
from pathways_nb.runtime.local.inputs import StepInputs
from pathways_nb.runtime.local.late_transfers import LateTransfers
from pathways_nb.runtime.local.launch_watcher import LaunchWatcher
from pathways_nb.runtime.local.step_runner import StepRunner
from pathways_nb.runtime.local.transfer_watcher import TransferWatcher
from pathways_nb.runtime.local.watcher import Clock, LaunchRange
from pathways_nb.runtime.run_state import RunState
from pathways_nb.timing.waits import MESSAGE
from pathways_nb.trace.rows import BY, Cause


class Dispatcher(threading.Thread):
    """Carries out ranges of runs on one island.

    Args:
        island: its index.
        devices: its number of devices.
        clock: the controller's clock, in seconds.
        on_done: called with each range whose steps have all ended, and the island.
        inputs: how values reach this process.
        latency: seconds between the sending of a range and its arrival.
        on_failure: called with an error of this thread's own, which then ends; ``None`` lets Python print it.
    """

    def __init__(
        self,
        island: int,
        devices: int,
        clock: Clock,
        on_done: Callable[[LaunchRange, int], None],
        inputs: StepInputs,
        latency: float = 0.0,
        on_failure: Callable[[BaseException], None] | None = None,
    ):
        super().__init__(name=f"pathways-island-{island}", daemon=True)
        self.island, self.clock, self.latency, self.on_failure = island, clock, latency, on_failure
        self.on_done: Callable[[LaunchRange], None] = lambda launch_range: on_done(launch_range, island)
        self.inbox: queue.SimpleQueue[tuple[LaunchRange, float, Cause] | None] = queue.SimpleQueue()
        self.lane = EnqueueLane(island, clock, latency)
        self.runner = StepRunner(island, devices, clock, inputs, self.lane)
        self.late = LateTransfers(f"pathways-late-{island}", inputs.is_ready, self.runner.carry_out)
        self.host = HostLane(island, clock, inputs)

    @property
    def computing(self) -> LaunchWatcher:
        """What its launches are followed by."""
        return self.runner.computing

    @property
    def moving(self) -> TransferWatcher:
        """What transfers to it are followed by."""
        return self.runner.moving

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

    def send(self, run: RunState, start: int, stop: int, sent: float | None = None, cause: Cause = BY[MESSAGE]) -> None:
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
        try:
            while self._next():
                pass
        except BaseException as error:  # whatever it is, nobody must wait for ever for what is launched here
            if self.on_failure is None:
                raise
            self.on_failure(error)
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
        run, runner, start, stop = launch_range.run, self.runner, launch_range.start, launch_range.stop
        jax_contexts.adopt(run.compiled_plan.contexts)
        runner.computing.begin()
        mine, steps = runner.inputs.steps(run), run.compiled_plan.plan.steps
        in_place = runner.use_all_in_place(run) if stop - start == len(mine.order) else 0
        for others, launches in mine.stretches(start, stop, with_brings=not in_place):
            for step in others:
                if runner.use_in_place(run, step):
                    in_place += 1
                elif not steps[step].on_host:  # those at the host are the host lane's
                    self._step(launch_range, step)
            left = iter(launches)
            while (launch := runner.launch_all(launch_range, left)) is not None:
                self._step(launch_range, launch.step)
        runner.computing.end()
        self.lane.end(run)
        launch_range.step_done(in_place + 1)

    def _step(self, launch_range: LaunchRange, step: int) -> None:
        """Carry out one step, or leave it to the thread of late transfers."""
        run, runner = launch_range.run, self.runner
        if not runner.inputs.is_mine(run, step):
            run.mark_done(step)
            launch_range.step_done()
            return
        with runner.computing.elsewhere():  # what is under way may end long before this step is carried out
            if not runner.inputs.is_ready(run, step):
                if runner.may_be_late(run, step):
                    run.hold_inputs(step, self.island)
                    self.late.add(launch_range, step)
                    return
                self.lane.wait(
                    run,
                    lambda: run.launched.wait(lambda: runner.inputs.is_ready(run, step)),
                    lambda: brought_by(run, step, self.island),
                )
            runner.carry_out(launch_range, step)
