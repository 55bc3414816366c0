"""The local driver: launches on JAX devices of this process, by a dispatcher and watchers for each island."""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import jax

from pathways_nb.controller.events_and_instructions import Completed, Launch, PutRequested, Voided
from pathways_nb.controller.state_machine import StateMachine
from pathways_nb.errors import LostError, OutOfMemoryError, PathwaysError
from pathways_nb.plan.plan import Placement, Plan
from pathways_nb.program.program_tracer import Traced
from pathways_nb.runtime.driver import Driver, as_kept
from pathways_nb.runtime.entries import Entry
from pathways_nb.runtime.event_loop import Clock
from pathways_nb.runtime.local.device_failures import is_exhausted, is_loss, may_be_loss, words_of
from pathways_nb.runtime.local.dispatcher import Dispatcher
from pathways_nb.runtime.local.foreign_memory import ForeignMemory
from pathways_nb.runtime.local.inputs import LocalInputs
from pathways_nb.runtime.local.loss_watch import LossWatch
from pathways_nb.runtime.local.watcher import LaunchRange
from pathways_nb.runtime.lowering.attachment import Attachment, Island
from pathways_nb.runtime.lowering.compiled_plan import CompiledPlan
from pathways_nb.runtime.lowering.executables import Executables
from pathways_nb.runtime.lowering.host_steps import HOST
from pathways_nb.runtime.lowering.layouts import Targets, Undeclared, on_mesh
from pathways_nb.runtime.lowering.plan_compiler import PlanCompiler
from pathways_nb.runtime.lowering.transfers import lies_at, prepare, share_devices
from pathways_nb.runtime.run_state import RunState
from pathways_nb.trace.record import Record
from pathways_nb.trace.rows import Cause, Row
from pathways_nb.util import forks
from pathways_nb.util.waiting import Condition

_TRIES, _PATIENCE = 5, 2.0
"""Tries to read the store while others change it, and seconds to wait for a thread that asks devices."""
_open: weakref.WeakSet[LocalDriver] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Close all drivers at exit: threads that the interpreter stops inside JAX's C++ code would abort the process."""
    for driver in () if forks.is_child() else list(_open):
        driver.close(patience=10.0)


class LocalDriver(Driver):
    """Carries out one controller's instructions on the devices of this process.

    Args:
        attachment: the islands.
        machine: the controller's pure core.
        clock: returns seconds.
        executables: the cache to compile with.
        note: receives events that belong to no program in particular.
        dcn_latency: seconds that a launch takes to an island's dispatcher; emulated by waiting.
        watches_memory: whether to count what others hold on the devices.
        losses: asks devices that may be lost; ``None`` where none ever is.
    """

    def __init__(
        self,
        attachment: Attachment,
        machine: StateMachine,
        clock: Clock,
        executables: Executables,
        note: Callable[[Row], None] = lambda row: None,
        dcn_latency: float = 0.0,
        watches_memory: bool = False,
        losses: LossWatch | None = None,
    ):
        super().__init__(attachment, machine, clock, note, dcn_latency, Condition())
        self.executables, self._losses = executables, losses
        self._dispatchers = [self._dispatcher(island) for island in attachment.islands]
        self._foreign: ForeignMemory | None = None
        for thread in (self.event_loop.thread, *self._dispatchers, *([losses] if losses is not None else [])):
            thread.start()
        if watches_memory:
            self._foreign = ForeignMemory(attachment.islands, machine, self.event_loop, self._arrays)
            self._foreign.begin()
        _open.add(self)

    def lower(
        self, traced: Traced, plan: Plan, targets: Targets, record: Record, say: Callable[[str], object]
    ) -> CompiledPlan:
        """Return a plan with executables, compiling what is not compiled yet."""
        compiler = PlanCompiler(traced, plan, targets, self.attachment.islands, self.executables)
        try:
            made = compiler.lower(record, say)
        except jax.errors.JaxRuntimeError as cause:
            step = plan.steps[compiler.waits_for]
            where = plan.placements[step.place]
            error = self.explain(where, f"{compiler.nodes[step.node].name} cannot be compiled for {where}", cause)
            if error is None:
                raise
            raise error from cause
        for action in made.actions:
            (slot,) = action.step.inputs if action.step.kind == "move" else (None,)
            if slot is not None and HOST not in (made.shardings[slot], action.target):
                prepare(made.shardings[slot], action.target, traced.avals[plan.slots[slot].value].struct, made.contexts)
        return made

    def location(self, value: Any) -> Hashable:
        """Return the value's sharding, which names its devices; ``None`` of a host value."""
        return getattr(value, "sharding", None)

    def sharding_for(self, location: Any, argument: Undeclared) -> Any:
        """Return the argument's own sharding if it lies in the memory of the place's devices."""
        mesh, mine = argument.otherwise.mesh, argument.otherwise
        there = (
            location is not None and location.device_set == mine.device_set and location.memory_kind == mine.memory_kind
        )
        return (on_mesh(location, mesh) if there else None) or mine

    def as_kept(self, leaf: Any, name: str) -> Any:
        """Return a copy of what its owner may change, or the value itself."""
        return as_kept(leaf, name)

    def put(self, value: Any, sharding: Any) -> Any:
        """Put a value onto devices and return the array, whose memory is not that of an array of the user's."""
        try:
            array = jax.device_put(value, sharding)
            return array.copy() if share_devices(value, array) else array
        except jax.errors.JaxRuntimeError as cause:
            where = self._placement_of(sharding)
            error = self.explain(where, "a value cannot be put", cause) if where is not None else None
            if error is None:
                raise
            raise error from cause

    def _placement_of(self, sharding: Any) -> Placement | None:
        """Return the placement that a sharding's devices are part of; ``None`` without one."""
        wanted = sharding.device_set
        for island in self.attachment.islands:
            at = [position for position, device in enumerate(island.devices) if device in wanted]
            if at:
                return Placement(island.index, at[0], at[-1] - at[0] + 1)
        return None

    def explain(self, where: Placement, failed: str, cause: BaseException) -> PathwaysError | None:
        """Return the error of devices that had too little memory, or are lost; see ``DeviceLayer.explain``."""
        if is_exhausted(cause):
            return OutOfMemoryError(
                f"{failed}: its devices have too little memory left ({words_of(cause)}). Held there by variables: "
                f"{self._holders(where)}. Drop those you no longer need (del y, or fetch y.result() and keep that), "
                f"delete arrays of your own there, or use more devices or smaller arrays."
            )
        if self._losses is not None and (is_loss(cause) or may_be_loss(cause)):
            self._losses.suspect(where.island, words_of(cause), is_loss(cause))
        if is_loss(cause):
            return LostError(
                f"{failed}: island {where.island} was lost ({words_of(cause)}). What only it held is gone: call again "
                f"from the last state that you have elsewhere. The next call takes other devices, if there are any."
            )
        return None

    def _arrays(self) -> set[int]:
        """Return the ``id`` of each array that logical buffers and programs under way have; asked by the event loop."""
        slots = [slot for run in self.runs.values() for slot in run.slots]
        return {id(entry.array) for entry in self.entries.values()} | set(map(id, slots))

    def _holders(self, where: Placement) -> str:
        """Return the largest buffers on devices, in words; takes no lock, since any thread may ask."""
        for _ in range(_TRIES):
            try:
                return self.machine.admission.holders(where) or "nothing"
            except RuntimeError:  # the event loop went on meanwhile
                continue
        return "unknown"

    def _prepare(self, run: RunState, arguments: Sequence[int]) -> None:
        if self._foreign is not None:  # what others hold on the devices counts for the run
            self._foreign.look((peak.where.island, peak.bytes) for peak in run.compiled_plan.peaks)

    def _request_put(self, event: PutRequested, changes: Iterable[object]) -> None:
        if self._foreign is not None:
            self._foreign.look([(event.allocation.placement.island, event.allocation.bytes)])
        super()._request_put(event, changes)

    def spend(self, budget: float) -> None:
        """Limit the share of time for which each watcher may keep a core busy; see ``Driver.spend``."""
        for dispatcher in self._dispatchers:
            dispatcher.computing.budget.share = dispatcher.moving.budget.share = budget

    @property
    def sampled(self) -> float:
        """The share of launches whose end was watched; the stamps of the others are interpolated."""
        seen = sum(d.computing.ends.seen for d in self._dispatchers)
        return sum(d.computing.ends.watched for d in self._dispatchers) / seen if seen else 1.0

    def _launch(self, run: RunState, launch: Launch, cause: Cause) -> None:
        self._dispatchers[launch.island].send(run, launch.start, launch.stop, cause=cause)

    def _is_at(self, entry: Entry, compiled_plan: CompiledPlan, position: int) -> bool:
        return lies_at(entry.sharding, compiled_plan.targets[position], compiled_plan.ranks[position])

    def _lost(self, where: Placement) -> None:
        self._dispatchers[where.island].runner.lost_devices |= set(range(where.first, where.first + where.count))

    def _restored(self, island: int) -> None:
        self._dispatchers[island].runner.lost_devices = set()
        if self._losses is not None:
            self._losses.lost.discard(island)  # given back by hand it may be lost once more

    def _joined(self, island: int) -> None:
        self._dispatchers.append(self._dispatcher(self.attachment.islands[island]))
        self._dispatchers[-1].start()

    def _dispatcher(self, island: Island) -> Dispatcher:
        inputs = LocalInputs(island.index, self.faults)
        devices, failed = len(island.devices), self.event_loop.fail
        return Dispatcher(island.index, devices, self.clock, self._range_done, inputs, self.dcn_latency, failed)

    def _range_done(self, launch_range: LaunchRange, island: int) -> None:
        if launch_range.run.errors:
            self.event_loop.report(Voided(launch_range.run.failed_results()))
        self.event_loop.report(
            Completed(
                launch_range.run.serial, island, launch_range.start, launch_range.stop, launch_range.device_seconds
            )
        )

    def _end(self, patience: float) -> None:
        own = [thread for thread in (self._foreign, self._losses) if thread is not None]
        for one in own:
            one.stop()
            # A loss that is being told waits for this thread, and gives up soon after.
            one.join(min(patience, _PATIENCE))
        for dispatcher in self._dispatchers:
            dispatcher.stop()
        for thread in (t for d in self._dispatchers for t in d.threads):
            thread.join(patience)
