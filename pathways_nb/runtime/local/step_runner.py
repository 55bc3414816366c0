"""Carries out the steps of an island's order on its devices, one after another: brings, moves and launches.

It is the same on an island of this process and on a host of a cluster; what differs is its ``StepInputs``. Launches
that nothing stands against go out in one loop over what the plan has resolved; all else gets a closer look.
"""

from __future__ import annotations

from collections.abc import Iterator

from pathways_nb.errors import LostError, PathwaysError
from pathways_nb.runtime.faults import InjectedFault, check_devices
from pathways_nb.runtime.local.enqueue_lane import EnqueueLane
from pathways_nb.runtime.local.inputs import Arrival, StepInputs
from pathways_nb.runtime.local.launch_watcher import LaunchWatcher
from pathways_nb.runtime.local.transfer_watcher import TransferWatcher
from pathways_nb.runtime.local.watcher import Clock, LaunchRange, Sent, stamp, wait_for
from pathways_nb.runtime.lowering.compiled_steps import CompiledStep, ResolvedLaunch
from pathways_nb.runtime.lowering.transfers import bring, delivered, share_devices
from pathways_nb.runtime.run_state import RunState
from pathways_nb.trace.rows import WINDOW_FULL, Row


class StepRunner:
    """Carries out steps on one island.

    Args:
        island: its index.
        devices: its number of devices.
        clock: the controller's clock, in seconds.
        inputs: how values reach this process.
        lane: records what it waits for.
    """

    def __init__(self, island: int, devices: int, clock: Clock, inputs: StepInputs, lane: EnqueueLane):
        self.island, self.clock, self.inputs, self.lane = island, clock, inputs, lane
        self.lost_devices: set[int] = set()
        """Devices that are lost."""
        self.computing = LaunchWatcher(f"pathways-watch-{island}", clock, devices)
        self.moving = TransferWatcher(f"pathways-watch-moves-{island}", clock)

    # ---- the common case

    def use_all_in_place(self, run: RunState) -> int:
        """Use all arguments of the island as they are if they lie at their places, and return how many."""
        return 0 if self.lost_devices or self.inputs.has_remote(run) else run.bring_all(self.island)

    def use_in_place(self, run: RunState, step: int) -> bool:
        """Use an argument that lies at its place already, without any event.

        It is the common case, and its cost is paid by every argument of every call.

        Returns:
            Whether it does.
        """
        action = run.compiled_plan.actions[step]
        if action.step.argument < 0 or step in run.compiled_plan.awaited or self.lost_devices:
            return False
        entry = run.arguments[action.step.argument]
        array = entry.array
        if array is None or run.stopped or entry.error is not None or getattr(array, "sharding", None) != action.target:
            return False
        if action.step.argument in run.compiled_plan.taken_over and (entry.shared or run.is_read_by_others(step)):
            return False
        run.slots[action.step.outputs[0]] = array
        run.has_brought(step)
        run.done[step] = 1
        return True

    def launch_all(
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
        slots, errors, flight, faults = run.slots, run.errors, computing.flight, self.inputs.faults(run)
        for launch in launches:
            if (run.stopped or errors or faults or self.lost_devices) and not is_checked:
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

    # ---- with a closer look

    def may_be_late(self, run: RunState, step: int) -> bool:
        """Return whether steps behind a step that is not ready may go first: it brings a value from elsewhere.

        A launch keeps its place, and so does a move among the island's devices: a launch behind it may take its
        source's memory.
        """
        steps = run.compiled_plan.plan.steps
        if self.inputs.keeps_order:
            return False
        if steps[step].kind == "move":
            return all(steps[producer].reader != self.island for producer in steps[step].producers)
        return steps[step].kind == "bring"

    def carry_out(self, launch_range: LaunchRange, step: int) -> None:
        """Carry out a step that is ready, or record why it fails."""
        run = launch_range.run
        action = run.compiled_plan.actions[step]
        try:
            error = None
            if action.step.kind == "launch":
                error = self._launch(launch_range, step, action)
            elif self.inputs.is_remote(run, step):
                self._expect(launch_range, step, action)
            elif action.step.kind == "bring":
                error = self._bring(launch_range, step, action)
            else:
                error = self._move(launch_range, step, action)
        except Exception as cause:  # whatever it raised is the user's to see; JAX may raise what an input got earlier
            error = self._error_of(run, step, cause)
        if error is not None:
            self._give_up(launch_range, step, error)

    def _error_of(self, run: RunState, step: int, cause: Exception) -> PathwaysError:
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
        check_devices(action.label, self.lost_devices)
        self.inputs.strike(run, step)
        launch = self.inputs.steps(run).launches[step]
        self.launch_all(launch_range, iter((launch,)), is_checked=True)
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
            check_devices(action.label, self.lost_devices)
            dispatched = self.clock()
            array, moved = bring(entry.array, action.target)
            source = entry.located if moved else None  # what is at its place is copied whole, if at all
            if taken_over and entry.shared and share_devices(entry.array, array):
                array, moved = array.copy(), True  # also what moved: there it is the same memory still
            if taken_over and moved:
                entry.array = None  # its handle is consumed: what was copied is of no use to anybody
        finally:
            run.has_brought(step)
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
            check_devices(action.label, self.lost_devices)
            dispatched = self.clock()
            array = delivered(run.slots[slot], action.target)
        finally:  # a result's memory may be taken over now
            run.has_moved(run.results.get(slot, ()))
        run.fill(step, [array])
        run.let_go(step, self.island)
        self.moving.follow(Sent(launch_range, step, array, dispatched))
        return None

    def _expect(self, launch_range: LaunchRange, step: int, action: CompiledStep) -> None:
        """Take a value from another process when it comes; the steps after it go on."""
        run = launch_range.run
        check_devices(action.label, self.lost_devices)

        def arrived(arrival: Arrival | PathwaysError) -> None:
            if isinstance(arrival, PathwaysError):
                run.errors.setdefault(step, arrival)  # all hosts of the island know it
                return self._do_without(launch_range, step, arrival)
            try:
                array = arrival.on_devices()
            except Exception as cause:  # of whatever class JAX raises
                return self._do_without(launch_range, step, run.node_error(step, cause))
            run.fill(step, [array])
            run.let_go(step, self.island)
            wait_for(array)
            end = stamp(run, step, self.clock())
            self.inputs.note(run, step, arrival, min(arrival.began, end), end)
            run.mark_done(step)
            launch_range.step_done()

        self.inputs.expect(run, step, arrived)

    def _do_without(self, launch_range: LaunchRange, step: int, error: PathwaysError) -> None:
        """End a step whose value will not come."""
        run = launch_range.run
        substitute = self.inputs.substitute(run, step, error)
        if substitute is None:
            self._give_up(launch_range, step, error)
        else:
            run.errors.pop(step, None)
            run.fill(step, [substitute])
            run.mark_done(step)
            run.let_go(step, self.island)
            launch_range.step_done()
        run.launched.notify_all()
