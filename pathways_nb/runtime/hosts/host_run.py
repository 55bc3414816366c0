"""One run as a host sees it: its own island's steps, and what it reports of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pathways_nb.errors import CancelledError, LostError, NodeError, PathwaysError
from pathways_nb.runtime.entries import Entry, stored
from pathways_nb.runtime.faults import InjectedFault
from pathways_nb.runtime.hosts.messages import Argument, Call
from pathways_nb.runtime.hosts.portable_plan import PortablePlan
from pathways_nb.runtime.hosts.reports import Broken, Report, StepEnded, StepFailed
from pathways_nb.runtime.hosts.sender import Outgoing
from pathways_nb.runtime.lowering.compiled_plan import CompiledPlan
from pathways_nb.runtime.lowering.compiled_steps import IslandSteps
from pathways_nb.runtime.lowering.transfers import shards_of
from pathways_nb.runtime.run_state import RunState


@dataclass(eq=False)
class HostPlan:
    """A plan on this host's island.

    Args:
        portable: the plan as it travelled.
        compiled: the same with this island's devices and executables.
        sends: for each step, the moves to other islands that send its outputs.
        mine: the steps in which this host takes part.
        steps: the step of each label, by the label's identity.
        unread: slots that are sent away and read by nothing on this island.
        readers: for slots that this host's devices and its host work both read, these two.
    """

    portable: PortablePlan
    compiled: CompiledPlan
    sends: Mapping[int, tuple[int, ...]]
    mine: frozenset[int]
    steps: Mapping[int, int] = field(init=False)
    unread: frozenset[int] = field(init=False)
    readers: Mapping[int, frozenset[int]] = field(init=False)

    def __post_init__(self) -> None:
        self.steps = {id(action.label): index for index, action in enumerate(self.compiled.actions)}
        plan = self.compiled.plan
        sent = {plan.steps[move].inputs[0] for moves in self.sends.values() for move in moves}
        here = {slot for step in self.mine for slot in plan.steps[step].inputs}
        self.unread = frozenset(sent - here - set(plan.results))
        mine = {plan.steps[step].reader for step in self.mine}  # other islands read what was sent to them
        self.readers = {slot: both for slot, found in plan.readers.items() if len(both := found & mine) > 1}
        self._resolved: IslandSteps | None = None

    def resolved(self, island: int) -> IslandSteps:
        """Return the steps on this host's island; of launches whose outputs are sent, others hear."""
        if self._resolved is None:
            whole = self.compiled.resolved(island)
            launches = {
                step: replace(
                    launch, tells=launch.tells or step in self.sends or not self.unread.isdisjoint(launch.outputs)
                )
                for step, launch in whole.launches.items()
                if step in self.mine
            }
            self._resolved = IslandSteps(whole.order, launches, whole.brings)
        return self._resolved


@dataclass(eq=False)
class HostRun(RunState):
    """A run on one host.

    Args:
        host: what it is part of: where reports and values to be sent go.
        call: the message that began it.
        host_plan: its plan.
    """

    host: Any = None
    call: Call | None = None
    host_plan: HostPlan | None = None
    faults: dict[int, str] = field(init=False)
    """By step, the text of an injected fault that makes it fail."""
    coming: set[int] = field(default_factory=set)
    """Steps whose value is expected from other hosts."""
    left: int = 0
    """Steps of this island's order that have not ended."""

    def __post_init__(self) -> None:
        super().__post_init__()
        assert self.call is not None
        assert self.host_plan is not None
        self.begin()
        self.remaining_readers = {slot: set(both) for slot, both in self.host_plan.readers.items()}
        self.faults = dict(self.call.faults)
        self.left = len(self.compiled_plan.plan.orders[self.host.island])

    def argument(self, step: int) -> Argument:
        """Return how the argument that a step brings reaches this host."""
        assert self.call is not None
        return self.call.arguments[self.compiled_plan.bring_positions[step]]

    def fill(self, step: int, arrays: Sequence[Any]) -> None:
        """Store the outputs of a launched step, and send what other islands wait for."""
        super().fill(step, arrays)
        if step in self.coming:
            self.coming.discard(step)
            self.launched.notify_all()
        for slot in self.compiled_plan.plan.steps[step].outputs:
            for entry in self.results.get(slot, ()):
                self.host.entry_filled(entry)
        self._send(step)

    def fail(self, step: int, error: PathwaysError) -> None:
        """Record and report that a step has no outputs and never will."""
        launched = self.compiled_plan.plan.steps[step].kind == "launch"
        known = any(error is one for one in self.errors.values())
        if self.host.lockstep and launched and not known and _is_this_hosts_own(error):
            self.host.reports.add(Broken(f"it fell out of step: {error}"))
        super().fail(step, error)
        self.coming.discard(step)
        self._report(StepFailed(self.serial, step, plain(error)))
        for slot in self.compiled_plan.plan.steps[step].outputs:
            for entry in self.results.get(slot, ()):
                self.host.entry_filled(entry)
        self._send(step)

    def mark_done(self, step: int) -> None:
        """Record that a step has ended; report it if it makes a result."""
        super().mark_done(step)
        if step in self.compiled_plan.result_steps and step not in self.errors:
            self._report(StepEnded(self.serial, step, self._small(step)))

    def stop(self, reason: PathwaysError | None = None) -> None:
        """Skip what is not launched yet, unless other hosts of the island may have launched it."""
        if not self.host.lockstep:
            super().stop(reason)
            self.launched.notify_all()

    def _report(self, report: Report) -> None:
        self.host.reports.add(report)

    def _small(self, step: int) -> Any:
        """Return the value of a step's only output if it is one number, which its caller may well ask for."""
        outputs = self.compiled_plan.plan.steps[step].outputs
        array = self.slots[outputs[0]] if len(outputs) == 1 and self.slots else None
        if array is None or array.ndim or str(array.dtype).startswith("key<") or array.is_deleted():
            return None
        return np.asarray(next(iter(shards_of(array).values())))

    def _send(self, step: int) -> None:
        """Queue the outputs of a step for the islands that wait for them, or the reason why there are none."""
        assert self.host_plan is not None
        plan, portable = self.compiled_plan.plan, self.host_plan.portable
        for move in self.host_plan.sends.get(step, ()):
            if not self.host.is_sent(self, move):
                continue
            ((slot,), (to,)) = plan.steps[move].inputs, plan.steps[move].outputs
            shape = plan.graph.values[plan.slots[slot].value].shape
            array = None if step in self.errors else self.slots[slot]
            source, target, entries = portable.located(slot), portable.located(to), self.results.get(slot, ())
            self.host.send(
                Outgoing(
                    self.serial,
                    move,
                    source,
                    target,
                    shape,
                    array,
                    self.errors.get(step),
                    lambda entries=entries: self.has_moved(entries),  # type: ignore[misc]
                    lambda cause: self.inherited_error(step) or self.node_error(step, cause),
                )
            )
        for slot in plan.steps[step].outputs:
            if slot in self.host_plan.unread and self.slots:
                self.slots[slot] = None


def shape_of(run: RunState, step: int) -> tuple[int, ...]:
    """Return the global shape of the value that a step brings or moves."""
    plan = run.compiled_plan.plan
    return plan.graph.values[plan.slots[plan.steps[step].outputs[0]].value].shape


def plain(error: PathwaysError) -> PathwaysError:
    """Return an error as it can travel: without its cause, whose class the controller may not have."""
    return type(error)(*error.args)


def _is_this_hosts_own(error: PathwaysError) -> bool:
    """Return whether an error may have happened on this host alone: all others are known to all hosts."""
    if isinstance(error, (LostError, CancelledError)):
        return False
    return isinstance(error, NodeError) and not isinstance(error.__cause__, (InjectedFault, LostError))


def missing(buffer: int) -> Entry:
    """Return an entry for a buffer that this host does not hold."""
    return stored(error=LostError(f"buffer {buffer} was lost with the hosts that held it. Run what makes it again."))
