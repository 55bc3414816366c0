"""The inputs of a host of a cluster: other hosts send parcels, and only some of its island's steps are its own.

A step that brings or moves a value from another host does not stop the steps after it: the launch that needs the value
waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sized
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from pathways_nb.errors import LostError, PathwaysError
from pathways_nb.runtime.faults import InjectedFault
from pathways_nb.runtime.hosts.arrivals import Arrivals, Parts, assembled, parts_of, senders, whole, zeros
from pathways_nb.runtime.hosts.crossings import cuts
from pathways_nb.runtime.hosts.host_run import HostPlan, HostRun, plain, shape_of
from pathways_nb.runtime.hosts.messages import Call, Coming, Given, Parcel
from pathways_nb.runtime.hosts.reports import Reports, StepFailed
from pathways_nb.runtime.local.inputs import Arrival, LocalInputs, OnArrived
from pathways_nb.runtime.lowering.compiled_steps import IslandSteps
from pathways_nb.runtime.lowering.pieces import Located
from pathways_nb.runtime.run_state import RunState


class Receiver(Protocol):
    """What the inputs need of their host."""

    island: int
    number: int
    lockstep: bool
    arrivals: Arrivals
    reports: Reports
    per_host: Callable[[int], int]
    clock: Callable[[], float]

    def is_sent(self, run: HostRun, move: int) -> bool:
        """Return whether a value moves by parcels."""


@dataclass(slots=True, eq=False)
class _Came:
    """An ``Arrival``: ranges of indices with their values, and where the step brings them."""

    parts: Parts
    target: Located
    sharding: Any
    shape: tuple[int, ...]
    key_impl: Any
    route: str
    bytes: int
    began: float

    def on_devices(self) -> Any:
        return assembled(self.parts, self.target, self.sharding, self.shape, self.key_impl)

    def on_host(self) -> np.ndarray:
        return whole(self.parts, self.shape)


class RemoteInputs:
    """The inputs of one host.

    Args:
        host: it.
    """

    def __init__(self, host: Receiver):
        self._host, self._local = host, LocalInputs(host.island)

    @property
    def keeps_order(self) -> bool:
        """See ``StepInputs``."""
        return self._host.lockstep

    def steps(self, run: RunState) -> IslandSteps:
        """See ``StepInputs``."""
        return _plan(run).resolved(self._host.island)

    def is_mine(self, run: RunState, step: int) -> bool:
        """See ``StepInputs``."""
        return step in _plan(run).mine

    def faults(self, run: RunState) -> Sized:
        """See ``StepInputs``."""
        return _of_host(run).faults

    def strike(self, run: RunState, step: int) -> None:
        """See ``StepInputs``."""
        if (fault := _of_host(run).faults.get(step)) is not None:
            raise InjectedFault(fault)

    def is_ready(self, run: RunState, step: int) -> bool:
        """See ``StepInputs``; what comes from another host is expected, and is there at a launch."""
        if self.is_remote(run, step):
            return True
        coming = _of_host(run).coming
        return coming.isdisjoint(run.compiled_plan.plan.steps[step].producers) and self._local.is_ready(run, step)

    def has_remote(self, run: RunState) -> bool:
        """See ``StepInputs``."""
        return True

    def is_remote(self, run: RunState, step: int) -> bool:
        """See ``StepInputs``."""
        mine = _of_host(run)
        kind = run.compiled_plan.plan.steps[step].kind
        if kind == "bring":
            return isinstance(mine.argument(step), Coming | Given)
        return kind == "move" and self._host.is_sent(mine, step)

    def expect(self, run: RunState, step: int, arrived: OnArrived) -> None:
        """See ``StepInputs``."""
        mine, plan, action = _of_host(run), _plan(run), run.compiled_plan.actions[step]
        argument = mine.argument(step) if action.step.kind == "bring" else None
        where = plan.portable.located(action.step.outputs[0]), action.target, shape_of(run, step)
        if isinstance(argument, Given):
            error = run.reason_to_skip(step)
            arrived(error or _Came(argument.parts, *where, argument.key_impl, "host", -1, self._host.clock()))
            return
        if isinstance(argument, Coming):
            source, generation = argument.source, argument.generation
        else:
            source = plan.portable.located(action.step.inputs[0])
            generation = _call(mine).generations[source.where.island]
        host, target, shape = self._host, where[0], where[2]
        routes = cuts(source, target, shape, host.per_host(source.where.island), host.per_host(host.island))
        mine.coming.add(step)

        def came(parcels: list[Parcel], error: PathwaysError | None) -> None:
            if error is not None:
                arrived(error)
                return
            parts, began = parts_of(parcels, routes, host.number), max(parcel.began for parcel in parcels)
            size = sum(values.nbytes for _, values in parts)
            arrived(_Came(parts, *where, parcels[0].key_impl, "DCN", size, began))

        key, hosts = (run.serial, step), senders(routes, host.number)
        host.arrivals.expect(key, (source.where.island, generation), hosts, came)

    def substitute(self, run: RunState, step: int, error: PathwaysError) -> Any:
        """Return zeros if the senders died: this host may be the only one of its island without the value.

        Then it goes on, so that all hosts launch the same; the controller sees to it that nobody is given what comes of
        the zeros.
        """
        if not (self._host.lockstep and isinstance(error, LostError)):
            return None
        action = run.compiled_plan.actions[step]
        (slot,) = action.step.outputs
        value = run.compiled_plan.plan.graph.values[run.compiled_plan.plan.slots[slot].value]
        self._host.reports.add(StepFailed(run.serial, step, plain(error)))
        return zeros(_plan(run).portable.located(slot), action.target, shape_of(run, step), value.dtype)

    def note(self, run: RunState, step: int, arrival: Arrival, start: float, end: float) -> None:
        """See ``StepInputs``."""
        label = run.compiled_plan.actions[step].label
        differs = {"route": arrival.route, **({"bytes": arrival.bytes} if arrival.bytes >= 0 else {})}
        run.record.add_step(step, label, start, end, "estimated", "ok", **differs)  # type: ignore[attr-defined]


def _of_host(run: RunState) -> HostRun:
    assert isinstance(run, HostRun)
    return run


def _plan(run: RunState) -> HostPlan:
    plan = _of_host(run).host_plan
    assert plan is not None
    return plan


def _call(run: HostRun) -> Call:
    assert run.call is not None
    return run.call
