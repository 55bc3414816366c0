"""The host lane of an island of hosts: host work (``pw.host``) runs on the island's first host."""

from __future__ import annotations

from typing import Any, cast

from pathways_nb.errors import CancelledError, PathwaysError
from pathways_nb.runtime.faults import InjectedFault
from pathways_nb.runtime.hosts.arrivals import parts_of, senders, whole
from pathways_nb.runtime.hosts.crossings import cuts
from pathways_nb.runtime.hosts.host_run import HostRun, shape_of
from pathways_nb.runtime.hosts.messages import Coming, Given, Parcel
from pathways_nb.runtime.local.host_lane import Clock, HostLane
from pathways_nb.runtime.local.transfer_watcher import routed
from pathways_nb.runtime.local.watcher import LaunchRange
from pathways_nb.runtime.lowering.compiled_steps import CompiledStep
from pathways_nb.runtime.lowering.pieces import Located
from pathways_nb.runtime.run_state import Execution


class ParcelLane(HostLane):
    """Carries out the steps at an island's host, whose values may come from other hosts.

    Args:
        owner: the host that it is part of.
        clock: returns seconds of the controller's clock.
    """

    def __init__(self, owner: Any, clock: Clock):
        super().__init__(owner.island, clock)
        self.owner = owner

    def _step(self, launch_range: LaunchRange, step: int) -> None:
        run = cast(HostRun, launch_range.run)
        assert run.host_plan is not None
        if step in run.host_plan.mine:
            super()._step(launch_range, step)
        else:  # it runs on the first host of the island
            run.mark_done(step)
            launch_range.step_done()

    def _bring(self, run: Execution, step: int, action: CompiledStep) -> PathwaysError | None:
        argument = cast(HostRun, run).argument(step)
        if isinstance(argument, Given):
            shape = shape_of(run, step)
            self._fetch(run, step, action.label, whole(argument.parts, shape))
            return None
        if isinstance(argument, Coming):
            return self._expect(run, step, action, argument.source, argument.generation)
        return super()._bring(run, step, action)

    def _move(self, run: Execution, step: int, action: CompiledStep) -> PathwaysError | None:
        mine = cast(HostRun, run)
        assert mine.host_plan is not None
        assert mine.call is not None
        if not self.owner.is_sent(run, step):
            return super()._move(run, step, action)
        source = mine.host_plan.portable.located(action.step.inputs[0])
        return self._expect(run, step, action, source, mine.call.generations[source.where.island])

    def _work(self, run: Execution, step: int, action: CompiledStep) -> PathwaysError | None:
        faults = cast(HostRun, run).faults
        if step in faults and run.reason_to_skip(step) is None:
            raise InjectedFault(faults[step])
        return super()._work(run, step, action)

    def _expect(
        self, run: Execution, step: int, action: CompiledStep, source: Located, generation: int
    ) -> PathwaysError | None:
        """Wait for a value from other hosts, and return the error that prevents it, if any."""
        mine, owner, shape = cast(HostRun, run), self.owner, shape_of(run, step)
        assert mine.host_plan is not None
        target = mine.host_plan.portable.located(action.step.outputs[0])
        routes = cuts(source, target, shape, owner.per_host(source.where.island), owner.per_host(owner.island))
        came: list[tuple[list[Parcel], PathwaysError | None]] = []

        def arrived(parcels: list[Parcel], error: PathwaysError | None) -> None:
            came.append((parcels, error))
            run.launched.notify_all()

        key, hosts = (run.serial, step), senders(routes, owner.number)
        owner.arrivals.expect(key, (source.where.island, generation), hosts, arrived)
        run.launched.wait(lambda: bool(came) or run.stopped)
        if not came:
            return run.reason_to_skip(step) or CancelledError(f"{action.label.name} was cancelled.")
        parcels, error = came[0]
        if error is not None:
            return error
        parts, began = parts_of(parcels, routes, owner.number), max(parcel.began for parcel in parcels)
        size = sum(values.nbytes for _, values in parts)
        self._fetch(run, step, action.label, whole(parts, shape))
        self._record(run, routed(action.label, "DCN", size), began, run.ends[step])
        return None
