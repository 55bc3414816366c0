"""The cluster driver: carries out the controller's instructions on hosts of a Ray cluster.

A program travels once, known by its content, and each call sends every host one message for a range of steps. The core
that decides is the same as on local and simulated devices. Values stay on their hosts: here they are entries without
arrays, until somebody fetches them.
"""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Callable, Hashable, Sequence
from functools import cache
from typing import Any

import numpy as np

from pathways_nb.controller.events_and_instructions import Completed, Fail, Finish, Free, Instruction, Launch, Skip
from pathways_nb.controller.state_machine import StateMachine
from pathways_nb.errors import LostError
from pathways_nb.plan.plan import Placement, Plan
from pathways_nb.program.program_tracer import Traced
from pathways_nb.program.signature import aval_of
from pathways_nb.runtime import abstract_places
from pathways_nb.runtime.cluster.exported_nodes import RemoteCompiler
from pathways_nb.runtime.cluster.heartbeats import EVERY, UNRESPONSIVE_AFTER
from pathways_nb.runtime.cluster.host_events import RangeLost
from pathways_nb.runtime.cluster.host_island import HostAttachment, HostDied, HostIsland, wait
from pathways_nb.runtime.cluster.messenger import Messenger
from pathways_nb.runtime.cluster.plans_on_hosts import PlansOnHosts
from pathways_nb.runtime.cluster.remote_array import Placing, remote_array
from pathways_nb.runtime.cluster.run_beginning import BufferEntry, beginning_of, given_to_each, sources_of
from pathways_nb.runtime.cluster.run_ledger import RunOnHosts
from pathways_nb.runtime.cluster.run_reports import RunReports
from pathways_nb.runtime.driver import Driver, as_kept
from pathways_nb.runtime.entries import Entry
from pathways_nb.runtime.event_loop import Clock
from pathways_nb.runtime.hosts import messages
from pathways_nb.runtime.hosts.host_run import plain
from pathways_nb.runtime.hosts.messages import NodeFacts, PortableNode
from pathways_nb.runtime.hosts.reports import Report
from pathways_nb.runtime.lowering.compiled_plan import CompiledPlan
from pathways_nb.runtime.lowering.layouts import Targets, Undeclared
from pathways_nb.runtime.lowering.pieces import Located
from pathways_nb.runtime.lowering.plan_compiler import PlanCompiler
from pathways_nb.runtime.run_state import RunState
from pathways_nb.trace.record import Record
from pathways_nb.trace.rows import Cause, Row, label_of
from pathways_nb.util import forks
from pathways_nb.util.waiting import Condition, Workers

_open: weakref.WeakSet[ClusterDriver] = weakref.WeakSet()
_SYNCHRONISE = 30.0
"""Seconds after which a run has the hosts' clocks compared with this process's again."""


@cache
def _closed_at_exit() -> None:
    """Have all drivers closed at exit; called when Ray is imported, whose own end at exit must come later."""
    atexit.register(_close_all)


def _close_all() -> None:
    for driver in () if forks.is_child() else list(_open):
        driver.close(patience=5.0)


class ClusterDriver(Driver):
    """Carries out one controller's instructions on islands of hosts.

    Args:
        attachment: the islands.
        machine: the controller's pure core.
        clock: returns seconds.
        note: receives events that belong to no program in particular.
        on_lost: called with an island whose hosts died, before anything fails for it.
        on_removed: called in a thread of its own with devices that are gone, as all of a lost island are.
        on_rebuilt: called likewise with an island that has all its devices again, mostly on new hosts.
        messenger: makes what sends messages to hosts; by default it does so itself.
        unresponsive_after: seconds of silence after which a host counts as dead.
    """

    attachment: HostAttachment

    def __init__(
        self,
        attachment: HostAttachment,
        machine: StateMachine,
        clock: Clock,
        note: Callable[[Row], None] = lambda row: None,
        on_lost: Callable[[int], None] = lambda island: None,
        on_removed: Callable[[Placement], None] = lambda where: None,
        on_rebuilt: Callable[[int], None] = lambda island: None,
        messenger: Callable[[ClusterDriver], Messenger] | None = None,
        unresponsive_after: float = UNRESPONSIVE_AFTER,
    ):
        super().__init__(attachment, machine, clock, note, 0.0, Condition())
        self._on_lost, self._on_removed, self._on_rebuilt = on_lost, on_removed, on_rebuilt
        self.on_standstill: Callable[[], None] = lambda: None
        """Called when hosts have reported nothing for a while though programs are under way."""
        self.reports = RunReports(lambda: self.islands, self.event_loop, self.ended)
        self.cluster_lost = ""
        """Why nothing will ever run on these islands again."""
        self._lost_devices: dict[int, frozenset[int]] = {}
        """By island, devices that were removed."""
        self.messenger = (
            messenger(self)
            if messenger
            else Messenger(list(attachment.islands), attachment.maker.rebuild, clock, self, unresponsive_after)
        )
        self.compiler = RemoteCompiler(attachment.islands[0].links[0].facts.platform, self._compile_on, clock)
        self._synchronised = clock()
        self._workers = Workers("pathways-hosts", 16)
        self.plans = PlansOnHosts(lambda: self.islands, self.messenger, self._workers)
        self.event_loop.thread.start()
        self.messenger.start()
        _open.add(self)
        _closed_at_exit()

    @property
    def islands(self) -> tuple[HostIsland, ...]:
        """The islands, in order."""
        return self.attachment.islands

    # ---- for the client

    def lower(
        self, traced: Traced, plan: Plan, targets: Targets, record: Record, say: Callable[[str], object]
    ) -> CompiledPlan:
        """Return a plan whose nodes are compiled on their hosts; see ``Driver``."""
        self.plans.forget_unused()
        made = PlanCompiler(traced, plan, targets, self.islands, self.compiler).lower(record, say)
        self.plans.install(made)
        return made

    def _compile_on(self, island: int, first: int, node: PortableNode) -> NodeFacts:
        found: list[NodeFacts | None] = self.islands[island].ask_all("compile", first, node)
        return next(facts for facts in found if facts is not None)

    def location(self, value: Any) -> Hashable:
        """Return devices and sharding of an entry, or ``None`` for a value from outside."""
        return abstract_places.location(value)

    def sharding_for(self, location: Any, argument: Undeclared) -> Any:
        """Return the argument's own sharding if it is on the place's devices, else the default one."""
        return abstract_places.sharding_for(location, argument)

    def as_kept(self, leaf: Any, name: str) -> Any:
        """Return a copy of what its owner may change, or the value itself."""
        return as_kept(leaf, name)

    def put(self, value: Any, sharding: Any) -> Any:
        """Return the value with its sharding; ``fill`` sends it."""
        return Placing(value, sharding)

    def fill(self, entry: Entry, where: Placement, array: Any) -> None:
        """Send a value to the hosts of ``where``, as a reserved buffer."""
        buffer, island, there = entry.buffer, self.islands[where.island], Located(array.sharding, where)
        value, shape = array.value, tuple(np.shape(array.value))
        parts = given_to_each(value, there, shape, island)
        futures = [
            link.ask("store", buffer, there, shape, mine)
            for link, mine in zip(island.links, parts, strict=True)
            if mine.parts
        ]
        try:
            for future in futures:
                wait(future)
        except HostDied as died:
            self.abandon(buffer)
            raise LostError(f"a host of island {where.island} died while a value was put there: {died}") from None
        self.messenger.placed(buffer, where.island)
        entry.array = remote_array(aval_of(value), there, island, buffer)
        entry.sharding, entry.where = array.sharding, where

    def hosts(self) -> list[dict[str, Any]]:
        """Return a row for each host; see ``Controller.hosts``."""
        return self.attachment.hosts(self.clock())

    def waits(self) -> list[str]:
        """Return the ranges that hosts have not ended, and the islands that are being rebuilt; see ``Driver``."""
        return self.messenger.waits()

    def cancel(self, runs: Sequence[int]) -> None:
        """Cancel runs: none of their steps is dispatched any more."""
        super().cancel(runs)
        for run in runs:
            self.messenger.stop(run)

    def wait_for_devices(self) -> bool:
        """Wait for islands that are being rebuilt, and return whether there were any."""
        rebuilding = self.messenger.rebuilding
        if not rebuilding:
            return False
        self.ended.wait(lambda: not rebuilding or self.broken)
        return True

    def spend(self, budget: float) -> None:
        """Do nothing: hosts watch with their own usual budget."""

    @property
    def sampled(self) -> float:
        """The share of launches whose end was watched: hosts do not tell, and mark interpolated stamps as such."""
        return 1.0

    # ---- runs

    def _prepare(self, run: RunState, arguments: Sequence[int]) -> None:
        """Decide how each argument reaches its islands, and have sent what other islands hold."""
        if self.clock() - self._synchronised > _SYNCHRONISE:
            self._synchronised = self.clock()
            self._workers.submit(self.attachment.maker.synchronise)
        held = [BufferEntry(buffer, self.entry_of(buffer)) for buffer in arguments]
        plan = self.plans.digest(run.compiled_plan)
        beginning = beginning_of(run, plan, held, self.islands, self.faults, self.messenger.post)
        self.reports.runs[run.serial] = RunOnHosts(run, beginning.generations, sources_of(beginning.calls))
        self.messenger.begin(run.serial, beginning)

    def _launch(self, run: RunState, launch: Launch, cause: Cause) -> None:
        self.reports.runs[run.serial].causes[launch.island].append(cause)
        self.messenger.launch(launch)

    def _carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case Free(buffers):
                self.messenger.free(buffers)
            case Skip(run):
                self.messenger.stop(run)
            case Fail(run, error):
                self.messenger.stop(run, plain(error))
            case Finish(run):
                ended = zip(self.runs[run].buffers, map(self.entries.get, self.runs[run].buffers), strict=True)
                self.messenger.end(run, {b: plain(e.error) for b, e in ended if e is not None and e.error is not None})
        super()._carry_out(instruction)
        if isinstance(instruction, Finish):
            self.reports.runs.pop(instruction.run, None)

    # ---- for the messenger

    def reported(self, island: int, report: Report | RangeLost) -> None:
        """Take a host's report about a run."""
        self.reports.receive(island, report)

    def completed(self, run: int, island: int, start: int, stop: int, seconds: float) -> None:
        """Tell the core that a range has ended on all hosts."""
        self.event_loop.post(Completed(run, island, start, stop, seconds))

    def lost(self, island: int, generation: int, why: str) -> None:
        """Fail what needs an island whose hosts died."""
        self._on_lost(island)
        self.event_loop.safely(lambda: self.reports.lose_island(island, generation, why))

    def removed(self, island: int) -> None:
        """Take an island's devices out."""
        self._on_removed(Placement(island, 0, len(self.islands[island].devices)))

    def rebuilt(self, island: int) -> None:
        """Take an island's devices in again."""
        self._on_rebuilt(island)

    def renewed(self, island: int) -> None:
        """Tell new hosts that they have no devices."""
        self.messenger.post(island, messages.Devices(self._lost_devices[island]))

    def changed(self) -> None:
        """Wake who waits for devices."""
        self.ended.notify_all()

    def broken_by(self, error: BaseException) -> None:
        """Fail everything with an error that nobody expected."""
        self.event_loop.failure = error
        self.ended.notify_all()

    # ---- devices that come and go

    def silent(self, island: int, hosts: dict[int, float]) -> None:
        """Show which hosts do not answer: in the status, and in pictures as stalls of their devices."""
        there = self.islands[island]
        told = [f"host {number} has not answered for {seconds:.0f} s" for number, seconds in hosts.items()]
        there.silent = f"; {', '.join(told)}" if told else ""
        now, per_host = self.clock(), there.per_host
        for number in hosts:
            what, host = f"host {number} of island {island} does not answer", there.host_of(number * per_host)
            label = label_of("stall", what, island=island, device=number * per_host, devices=per_host, host=host)
            self.memory_events.note(Row(label, now - EVERY, now))

    def stands_still(self) -> None:
        """Have what is under way written down; see ``HostEvents``."""
        self.on_standstill()

    def lose_cluster(self, why: str) -> None:
        """Fail everything, and from now on every call: the cluster is gone, and with it all hosts."""
        self.messenger.give_up()
        for island in self.islands:
            island.cluster_lost, island.lost = why, island.lost or why
        self.cluster_lost = why
        self.ended.notify_all()  # before the lock below, which a thread may hold that waits in Ray
        self.event_loop.safely(lambda: self._lose_all_islands(why))
        self.ended.notify_all()

    def _lose_all_islands(self, why: str) -> None:
        for island in self.islands:
            self.reports.lose_island(island.index, island.generation, why)

    @property
    def broken(self) -> bool:
        """Whether nothing more will happen, so that waiting is in vain."""
        return bool(self.cluster_lost) or super().broken

    def check(self) -> None:
        """Raise why nothing more will happen, if that is so."""
        if self.cluster_lost:
            raise LostError(self.cluster_lost)
        super().check()

    def _is_at(self, entry: Entry, compiled_plan: CompiledPlan, position: int) -> bool:
        return abstract_places.is_at(entry, compiled_plan, position)

    def _lost(self, where: Placement) -> None:
        lost = self._lost_devices.get(where.island, frozenset()) | set(range(where.first, where.first + where.count))
        self._lost_devices[where.island] = frozenset(lost)
        self.messenger.post(where.island, messages.Devices(self._lost_devices[where.island]))

    def remove(self, where: Placement) -> None:
        """Remove devices; hosts of which none is left have a moment to end what they compute, and are then replaced."""
        super().remove(where)
        island = self.islands[where.island]
        if len(self._lost_devices[where.island]) == len(island.devices) and not island.lost:
            self.messenger.withdraw(where.island)

    def _restored(self, island: int) -> None:
        self._lost_devices[island] = frozenset()
        self.messenger.bring_back(island)
        self.messenger.post(island, messages.Devices(frozenset()))

    def _joined(self, island: int) -> None:
        self.messenger.islands.append(self.islands[island])
        self.messenger.listen(self.islands[island])

    def close(self, patience: float = 60.0) -> None:
        """Cancel what is queued, end all threads and let go of the hosts; results on them are lost."""
        super().close(patience)
        self.messenger.join(2.0)

    def _end(self, patience: float) -> None:
        self.messenger.close()
        self.messenger.end_busy()
        self.messenger.wait_for_hosts(patience)
        self.compiler.close()
        self._workers.close()
