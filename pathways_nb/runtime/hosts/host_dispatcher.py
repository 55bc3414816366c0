"""The dispatcher of a host: launches as the local one does; values from other hosts arrive beside it.

A step that brings or moves a value from another host does not stop the steps after it: the launch that needs the value
waits for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from pathways_nb.errors import LostError, PathwaysError
from pathways_nb.runtime.faults import InjectedFault, check_devices
from pathways_nb.runtime.hosts.arrivals import assembled, parts_of, senders, zeros
from pathways_nb.runtime.hosts.crossings import cuts
from pathways_nb.runtime.hosts.host_run import HostRun, plain, shape_of
from pathways_nb.runtime.hosts.host_work_lane import ParcelLane
from pathways_nb.runtime.hosts.messages import Coming, Given, Parcel, StepFailed
from pathways_nb.runtime.local.dispatcher import Clock, Dispatcher
from pathways_nb.runtime.local.watcher import LaunchRange, stamp, wait_for
from pathways_nb.runtime.lowering.compiled_steps import CompiledStep, IslandSteps
from pathways_nb.runtime.lowering.pieces import Located
from pathways_nb.runtime.run_state import Execution


class HostDispatcher(Dispatcher):
    """Carries out ranges of runs on one host.

    Args:
        host: what it is part of.
        devices: number of devices of the whole island.
        clock: returns seconds of the controller's clock.
        on_done: called with each range whose steps have all ended, and the island.
    """

    def __init__(self, host: Any, devices: int, clock: Clock, on_done: Callable[[LaunchRange, int], None]):
        super().__init__(host.island, devices, clock, on_done)
        self.owner = host
        self.host = ParcelLane(host, clock)

    def _step(self, launch_range: LaunchRange, step: int) -> None:
        run = cast(HostRun, launch_range.run)
        if run.host_plan is not None and step not in run.host_plan.mine:  # it runs on other hosts of the island
            run.mark_done(step)
            launch_range.step_done()
        else:
            super()._step(launch_range, step)

    def _resolved(self, run: Execution) -> IslandSteps:
        """Return the steps of a run on this host; if some are to fail, all need a closer look."""
        run = cast(HostRun, run)
        steps = super()._resolved(run) if run.host_plan is None else run.host_plan.resolved(self.island)
        return IslandSteps(steps.order, {}) if run.faults else steps

    def _is_ready(self, run: Execution, step: int) -> bool:
        """Return whether a step need not wait: what comes from another host is expected, and is there at a launch."""
        assert isinstance(run, HostRun)
        action = run.compiled_plan.actions[step]
        if action.step.kind == "bring" and isinstance(run.argument(step), Coming | Given):
            return True
        if action.step.kind == "move" and self.owner.is_sent(run, step):
            return True
        return run.coming.isdisjoint(action.step.producers) and super()._is_ready(run, step)

    def _may_be_late(self, run: Execution, step: int) -> bool:
        """Return whether steps behind a step that is not ready may go first; hosts in lockstep keep the order."""
        return not self.owner.lockstep and super()._may_be_late(run, step)

    def _launch(self, launch_range: LaunchRange, step: int, action: CompiledStep) -> PathwaysError | None:
        run = cast(HostRun, launch_range.run)
        if step in run.faults and run.reason_to_skip(step) is None:
            raise InjectedFault(run.faults[step])
        return super()._launch(launch_range, step, action)

    def _bring(self, launch_range: LaunchRange, step: int, action: CompiledStep) -> PathwaysError | None:
        run = cast(HostRun, launch_range.run)
        argument = run.argument(step)
        if isinstance(argument, Coming):
            return self._expect(launch_range, step, action, argument.source, argument.generation)
        if isinstance(argument, Given):
            return self._given(launch_range, step, action, argument)
        return super()._bring(launch_range, step, action)

    def _move(self, launch_range: LaunchRange, step: int, action: CompiledStep) -> PathwaysError | None:
        run = cast(HostRun, launch_range.run)
        assert run.host_plan is not None
        assert run.call is not None
        source = run.host_plan.portable.located(action.step.inputs[0])
        if self.owner.is_sent(run, step):
            return self._expect(launch_range, step, action, source, run.call.generations[source.where.island])
        return super()._move(launch_range, step, action)

    def _given(
        self, launch_range: LaunchRange, step: int, action: CompiledStep, argument: Given
    ) -> PathwaysError | None:
        run = cast(HostRun, launch_range.run)
        if (error := run.reason_to_skip(step)) is not None:
            return error
        check_devices(action.label, self.gone)
        began, target, shape = self.clock(), _target(run, step), shape_of(run, step)
        array = assembled(argument.parts, target, action.target, shape, argument.key_impl)
        self._arrived_whole(launch_range, step, array, began, "host")
        return None

    def _expect(
        self, launch_range: LaunchRange, step: int, action: CompiledStep, source: Located, generation: int
    ) -> PathwaysError | None:
        """Take a value when its parcels come; the steps after it go on."""
        run, host = cast(HostRun, launch_range.run), self.owner
        check_devices(action.label, self.gone)
        target, shape = _target(run, step), shape_of(run, step)
        routes = cuts(source, target, shape, host.per_host(source.where.island), host.per_host(host.island))
        run.coming.add(step)

        def arrived(parcels: list[Parcel], error: PathwaysError | None) -> None:
            if error is not None:
                run.errors.setdefault(step, error)  # all hosts of the island know it
                return self._failed(launch_range, step, error, target, shape)
            parts = parts_of(parcels, routes, host.number)
            began = max(parcel.began for parcel in parcels)
            try:
                array = assembled(parts, target, action.target, shape, parcels[0].key_impl)
            except Exception as cause:  # of whatever class JAX raises
                return self._failed(launch_range, step, run.node_error(step, cause), target, shape)
            self._arrived_whole(launch_range, step, array, began, "DCN", sum(values.nbytes for _, values in parts))

        host.arrivals.expect(
            (run.serial, step), (source.where.island, generation), senders(routes, host.number), arrived
        )
        return None

    def _arrived_whole(
        self, launch_range: LaunchRange, step: int, array: Any, began: float, route: str, size: int = -1
    ) -> None:
        run, label = cast(HostRun, launch_range.run), launch_range.run.compiled_plan.actions[step].label
        run.fill(step, [array])
        run.let_go(step, self.island)
        wait_for(array)
        end = stamp(run, step, self.clock())
        differs = {"route": route, **({"bytes": size} if size >= 0 else {})}
        run.record.add_step(step, label, min(began, end), end, "estimated", "ok", **differs)  # type: ignore[attr-defined]
        run.mark_done(step)
        launch_range.step_done()

    def _failed(
        self, launch_range: LaunchRange, step: int, error: PathwaysError, target: Located, shape: tuple[int, ...]
    ) -> None:
        """End a step whose value will not come.

        If its senders died, this host may be the only one of its island without the value: then it goes on with zeros,
        so that all hosts launch the same, and the controller sees to it that nobody is given what comes of them.
        """
        run = cast(HostRun, launch_range.run)
        if self.owner.lockstep and isinstance(error, LostError):
            run.errors.pop(step, None)
            action = run.compiled_plan.actions[step]
            value = run.compiled_plan.plan.graph.values[run.compiled_plan.plan.slots[action.step.outputs[0]].value]
            run.fill(step, [zeros(target, action.target, shape, value.dtype)])
            self.owner.reports.add(StepFailed(run.serial, step, plain(error)))
            run.mark_done(step)
        else:
            run.fail(step, error)
        run.let_go(step, self.island)
        run.launched.notify_all()
        launch_range.step_done()


def _target(run: HostRun, step: int) -> Located:
    """Return where a step brings or moves its value, by placement."""
    assert run.host_plan is not None
    return run.host_plan.portable.located(run.compiled_plan.plan.steps[step].outputs[0])
