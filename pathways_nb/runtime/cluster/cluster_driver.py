"""The cluster driver: carries out the controller's instructions on hosts of a Ray cluster.

A program travels once, known by its content, and each call sends every host one message for a range of steps. The core
that decides is the same as on local and simulated devices. Values stay on their hosts: here they are entries without
arrays, until somebody fetches them.
"""

from __future__ import annotations

import atexit
import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import cache, lru_cache, partial
from typing import Any

import numpy as np

from pathways_nb.controller.events_and_instructions import (
    Completed,
    Fail,
    Finish,
    Free,
    Instruction,
    Launch,
    Skip,
    Voided,
)
from pathways_nb.controller.state_machine import StateMachine
from pathways_nb.errors import LostError
from pathways_nb.plan.plan import Placement, Plan
from pathways_nb.program.program_tracer import Traced
from pathways_nb.program.signature import aval_of
from pathways_nb.runtime import abstract_places
from pathways_nb.runtime.cluster.exported_nodes import RemoteCompiler
from pathways_nb.runtime.cluster.heartbeats import EVERY, UNRESPONSIVE_AFTER
from pathways_nb.runtime.cluster.host_island import HostAttachment, HostDied, HostIsland, wait
from pathways_nb.runtime.cluster.messenger import Beginning, Messenger, RangeLost
from pathways_nb.runtime.cluster.remote_array import Placing, RemoteArray
from pathways_nb.runtime.cluster.run_ledger import RunOnHosts, given, sources_of
from pathways_nb.runtime.driver import Driver, taken
from pathways_nb.runtime.entries import Entry
from pathways_nb.runtime.event_loop import Clock, drained
from pathways_nb.runtime.faults import InjectedFault
from pathways_nb.runtime.hosts import messages, reports
from pathways_nb.runtime.hosts.crossings import key_impl, numbers
from pathways_nb.runtime.hosts.host_run import plain
from pathways_nb.runtime.hosts.messages import Argument, Call, Coming, Held, NodeFacts, PortableNode
from pathways_nb.runtime.hosts.portable_plan import PortablePlan, located, packed
from pathways_nb.runtime.lowering.compiled_plan import CompiledPlan
from pathways_nb.runtime.lowering.host_steps import HOST
from pathways_nb.runtime.lowering.layouts import Targets, Undeclared
from pathways_nb.runtime.lowering.pieces import Located
from pathways_nb.runtime.lowering.plan_compiler import PlanCompiler
from pathways_nb.runtime.run_state import Execution
from pathways_nb.trace.record import Record
from pathways_nb.trace.rows import BY, Cause, Label, Row, label_of
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
        self._on_hosts: dict[int, RunOnHosts] = {}
        self.cluster_lost = ""
        """Why nothing will ever run on these islands again."""
        self._digests: weakref.WeakKeyDictionary[CompiledPlan, str] = weakref.WeakKeyDictionary()
        self._unused = deque[str]()
        """Digests of plans that were freed."""
        self._gone: dict[int, frozenset[int]] = {}
        """By island, devices that were removed."""
        self.salt = ""
        """Text added to digests, so that drivers that share hosts never share a plan."""
        self._forgotten: Counter[str] = Counter()
        """How often hosts were told to forget a content: what they are given later must outlive that message."""
        self._packing = threading.Lock()
        self.messenger = messenger(self) if messenger else self._messenger(unresponsive_after)
        self.compiler = RemoteCompiler(attachment.islands[0].links[0].facts.platform, self._compile_on, clock)
        self._synchronised = clock()
        self._workers = Workers("pathways-hosts", 16)
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
        self._forget_unused()
        made = PlanCompiler(traced, plan, targets, self.islands, self.compiler).lower(record, say)
        portable = PortablePlan.of(made)
        digest, data = self._packed(made, portable)
        calls: list[Any] = [action.call for action in made.actions]
        nodes = {call.digest: call for call in calls if isinstance(call, PortableNode)}
        weakref.finalize(made, self._unused.append, digest).atexit = False
        for future in [
            self._workers.submit(self._install, self.islands[island], portable, digest, data, nodes)
            for island in plan.islands
        ]:
            wait(future)
        self.messenger.installed(digest, made.plan, made.footprint)
        return made

    def _packed(self, made: CompiledPlan, portable: PortablePlan) -> tuple[str, bytes]:
        """Return a plan's digest, which is that of all plans of the same content while one is in use, and its data."""
        content, data = packed(portable)
        with self._packing:
            digest = f"{content}, {self._forgotten[content]} forgotten, {self.salt}"
            self._digests[made] = digest
        return digest, data

    def _install(
        self, island: HostIsland, portable: PortablePlan, digest: str, data: bytes, nodes: dict[str, PortableNode]
    ) -> None:
        if digest not in island.known:
            steps = zip(portable.compiled.plan.steps, portable.nodes, strict=True)
            needed = {node: nodes[node] for step, node in steps if node and step.island == island.index}
            island.ask_all("install", digest, data, needed)
            island.known.add(digest)

    def _compile_on(self, island: int, first: int, node: PortableNode) -> NodeFacts:
        found: list[NodeFacts | None] = self.islands[island].ask_all("compile", first, node)
        return next(facts for facts in found if facts is not None)

    def location(self, value: Any) -> Hashable:
        """Return devices and sharding of an entry, or ``None`` for a value from outside."""
        return abstract_places.location(value)

    def sharding_for(self, location: Any, argument: Undeclared) -> Any:
        """Return the argument's own sharding if it is on the place's devices, else the default one."""
        return abstract_places.sharding_for(location, argument)

    def take(self, leaf: Any, name: str) -> Any:
        """Return a copy of what its owner may change, or the value itself."""
        return taken(leaf, name)

    def put(self, value: Any, sharding: Any) -> Any:
        """Return the value with its sharding; ``fill`` sends it."""
        return Placing(value, sharding)

    def fill(self, entry: Entry, where: Placement, array: Any) -> None:
        """Send a value to the hosts of ``where``, as a reserved buffer."""
        buffer, island, there = entry.buffer, self.islands[where.island], Located(array.sharding, where)
        value, shape = array.value, tuple(np.shape(array.value))
        parts = self._given(value, there, shape, island)
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
        entry.array, entry.sharding, entry.where = self._remote(buffer, aval_of(value), there), array.sharding, where

    def hosts(self) -> list[dict[str, Any]]:
        """Return a row for each host; see ``Controller.hosts``."""
        now, clocks = self.clock(), self.attachment.maker.clocks
        return [
            {
                "island": island.index,
                "host": number,
                "machine": link.facts.name,
                "process": link.facts.process,
                "devices": range(number * island.per_host, (number + 1) * island.per_host),
                "clock_offset": clock.offset if clock is not None else float("nan"),
                "clock_error": clock.error_at(now) if clock is not None else float("nan"),
            }
            for island in self.islands
            if not island.lost  # its hosts are dead, and new ones are not there yet
            for number, link in enumerate(island.links)
            for clock in (clocks.get((island.index, number)),)
        ]

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

    def _prepare(self, run: Execution, arguments: Sequence[int]) -> None:
        """Decide how each argument reaches its islands, and have sent what other islands hold."""
        if self.clock() - self._synchronised > _SYNCHRONISE:
            self._synchronised = self.clock()
            self._workers.submit(self.attachment.maker.synchronise)
        compiled = run.compiled_plan
        digest = self._digests[compiled]
        reached: dict[int, list[list[Argument]]] = {
            island: [[None] * len(compiled.brings) for _ in self.islands[island].links]
            for island in compiled.plan.orders
        }
        for position, step in enumerate(compiled.brings):
            island, argument = compiled.plan.steps[step].island, compiled.brought[position]
            slot = compiled.plan.steps[step].outputs[0]
            shape = compiled.plan.graph.values[compiled.plan.slots[slot].value].shape
            target = located(compiled, slot)
            found = self._reach(run, step, arguments[argument], target, shape, position)
            for host, one in zip(reached[island], found, strict=True):
                host[position] = one
        generations, faults = tuple(island.generation for island in self.islands), self._faults(run)
        call = partial(Call, run.serial, digest, run.client)
        calls = {
            island: [call(tuple(mine), tuple(run.buffers), generations, faults) for mine in hosts]
            for island, hosts in reached.items()
        }
        homes = {b: located(compiled, s).where.island for b, s in zip(run.buffers, compiled.plan.results, strict=True)}
        self._on_hosts[run.serial] = RunOnHosts(run, generations, sources_of(reached))
        self.messenger.begin(run.serial, Beginning(digest, generations, calls, homes))

    def _reach(
        self, run: Execution, step: int, buffer: int, target: Located, shape: tuple[int, ...], position: int
    ) -> list[Argument]:
        """Return for each host of an island how an argument reaches it."""
        entry, island = self.entry_of(buffer), self.islands[target.where.island]
        where = entry.placement
        if entry.error is not None:
            return [messages.Failed(plain(entry.error))] * len(island.links)
        if where is None:
            return self._given(_host_value(entry), target, shape, island)
        lies_there = run.compiled_plan.targets[position] is not HOST and self._is_at(entry, run.compiled_plan, position)
        if where.island == target.where.island and (lies_there or len(island.links) == 1):
            return [Held(buffer)] * len(island.links)
        source = Located(entry.sharding, where)
        self.messenger.post(where.island, messages.Send(buffer, run.serial, step, source, target, shape))
        return [Coming(source, self.islands[where.island].generation)] * len(island.links)

    def _given(self, value: Any, target: Located, shape: tuple[int, ...], island: HostIsland) -> list[Any]:
        """Return for each host of an island the ranges of a value from this process that its devices need."""
        shards, impl = target.shards(shape), key_impl(value)
        values = numbers(value) if hasattr(value, "dtype") else np.asarray(value)
        boxes: list[list[Any]] = [[] for _ in island.links]
        for at in range(target.where.count):
            boxes[(target.where.first + at) // island.per_host].append(shards.box(at))
        return [given(mine, values, impl) for mine in boxes]

    def _launch(self, run: Execution, launch: Launch, cause: Cause) -> None:
        self._on_hosts[run.serial].causes[launch.island].append(cause)
        self.messenger.launch(launch)

    def _faults(self, run: Execution) -> tuple[tuple[int, str], ...]:
        """Return the steps that injected faults make fail: decided before the run is sent, so that all hosts agree."""
        found = []
        for index, action in enumerate(run.compiled_plan.actions) if self.faults else ():
            try:
                for fault in self.faults if action.step.kind in ("launch", "host") else ():
                    fault.strike(action.label, run.client)
            except InjectedFault as error:
                found.append((index, str(error)))
        return tuple(found)

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
            self._on_hosts.pop(instruction.run, None)

    def _forget_unused(self) -> None:
        """Have hosts forget plans that were freed."""
        with self._packing:
            unused = set(drained(self._unused)) - set(self._digests.values())
            self._forgotten.update(digest.partition(",")[0] for digest in unused)
        if unused:
            self.messenger.forget_plans(tuple(unused))
            for island in self.islands:
                island.known -= unused

    # ---- for the messenger

    def reported(self, island: int, report: reports.Report | RangeLost) -> None:
        """Take a host's report about a run."""
        state = None if isinstance(report, reports.Broken) else self._on_hosts.get(report.run)
        if state is None:
            return
        hosts = len(self.islands[island].links)
        match report:
            case reports.StepRows(_, rows):
                self._record_steps(state.run, island, rows)
            case reports.HostRow():
                self._record_host(state, island, report)
            case reports.OtherRow(_, row):
                state.run.record.add(row._replace(label=state.run.own(row.label), run=state.run.serial))
            case reports.StepEnded(_, step, value):
                if state.step_ended(step, hosts, value) and step not in state.run.errors:
                    self._fill(state.run, step, state.values.pop(step, None))
            case reports.StepFailed(_, step, error):
                state.fail(step, error)
            case reports.RangeEnded(_, start, stop, _):
                state.range_ended(island, start, stop, hosts)
                if state.run.errors:
                    self.event_loop.report(Voided(state.run.failed_results()))
            case RangeLost(_, _, start, stop, why):
                self._lose(state, state.run.compiled_plan.plan.orders[island][start:stop], why)

    def completed(self, run: int, island: int, start: int, stop: int, seconds: float) -> None:
        """Tell the core that a range has ended on all hosts."""
        self.event_loop.post(Completed(run, island, start, stop, seconds))

    def lost(self, island: int, generation: int, why: str) -> None:
        """Fail what needs an island whose hosts died."""
        self._on_lost(island)
        self.event_loop.safely(lambda: self._lose_all(island, generation, why))

    def _lose_all(self, island: int, generation: int, why: str) -> None:
        for state in list(self._on_hosts.values()):
            if state.generations[island] == generation:
                self._lose(state, tuple(state.lost_with(island)), why)

    def _lose(self, state: RunOnHosts, steps: Sequence[int], why: str) -> None:
        """Fail steps of a run, with all that depends on them."""
        kinds = state.run.compiled_plan.plan.steps
        for step in sorted(steps, key=lambda step: kinds[step].kind != "launch"):  # what failed is told of nodes
            state.fail(step, state.run.node_error(step, LostError(why)))
        if steps:
            self.event_loop.post(Voided(state.run.failed_results()))

    def removed(self, island: int) -> None:
        """Take an island's devices out."""
        self._on_removed(Placement(island, 0, len(self.islands[island].devices)))

    def rebuilt(self, island: int) -> None:
        """Take an island's devices in again."""
        self._on_rebuilt(island)

    def renewed(self, island: int) -> None:
        """Tell new hosts that they have no devices."""
        self.messenger.post(island, messages.Devices(self._gone[island]))

    def changed(self) -> None:
        """Wake who waits for devices."""
        self.ended.notify_all()

    def broken_by(self, error: BaseException) -> None:
        """Fail everything with an error that nobody expected."""
        self.event_loop.failure = error
        self.ended.notify_all()

    def _fill(self, run: Execution, step: int, value: Any) -> None:
        """Note that a step that makes results has ended on all hosts."""
        plan, avals = run.compiled_plan.plan, run.compiled_plan.result_avals
        arrays: list[Any] = []
        for slot in plan.steps[step].outputs:
            buffers = [b for b, s in zip(run.buffers, plan.results, strict=True) if s == slot]
            there, entries = located(run.compiled_plan, slot), run.results.get(slot, ())
            mine = [self._remote(buffer, avals[slot], there, value) for buffer, _ in zip(buffers, entries, strict=True)]
            arrays.append(mine)
        run.fill(step, [mine[0] if mine else None for mine in arrays])
        for slot, mine in zip(plan.steps[step].outputs, arrays, strict=True):
            for entry, array in zip(run.results.get(slot, ()), mine, strict=True):
                entry.array = array  # each is of its own buffer, which may be dropped before the others
        run.mark_done(step)
        self.ended.notify_all()

    def _remote(self, buffer: int, aval: Any, there: Located, value: Any = None) -> RemoteArray:
        return RemoteArray(aval, there, partial(_fetch, self.islands[there.where.island], buffer, there), value)

    def _record_host(self, state: RunOnHosts, island: int, report: reports.HostRow) -> None:
        run, cause = state.run, None if report.why < 0 else BY[report.why]
        name, route = run.compiled_plan.name, "" if report.kind == "enqueue" else "DCN"
        if route:
            cause = state.cause(island, report.device)
        what = f"message to island {island} on its way" if route else name
        host = self.islands[island].host_of(report.device)
        label = label_of(report.kind, what, name, run.client, island=island, route=route, host=host)
        quality = "estimated" if route else "exact"
        run.record.add(Row(label, report.start, report.end, run.serial, quality, cause=cause))

    def _record_steps(self, run: Execution, island: int, rows: Sequence[reports.StepRow]) -> None:
        actions, client, serial, there = run.compiled_plan.actions, run.client, run.serial, self.islands[island]
        for step, start, end, quality, status, device, devices, route, size, why in rows:
            host = there.host_of(device)
            run.recorded[step] = label = _on_host(actions[step].label, client, device, devices, route, size, host)
            cause = None if why < 0 else BY[why]
            run.record.add(Row._make((label, start, end, serial, quality, status, cause)))  # half the time of Row(…)

    def _messenger(self, unresponsive_after: float) -> Messenger:
        attachment = self.attachment
        return Messenger(list(attachment.islands), attachment.maker.rebuild, self.clock, self, unresponsive_after)

    # ---- devices that come and go

    def silent(self, island: int, hosts: dict[int, float]) -> None:
        """Show which hosts do not answer: in the status, and in pictures as stalls of their devices; see ``Owner``."""
        there = self.islands[island]
        told = [f"host {number} has not answered for {seconds:.0f} s" for number, seconds in hosts.items()]
        there.silent = f"; {', '.join(told)}" if told else ""
        now, per_host = self.clock(), there.per_host
        for number in hosts:
            what, host = f"host {number} of island {island} does not answer", there.host_of(number * per_host)
            label = label_of("stall", what, island=island, device=number * per_host, devices=per_host, host=host)
            self.memory_events.note(Row(label, now - EVERY, now))

    def stands_still(self) -> None:
        """Have what is under way written down; see ``Owner``."""
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
            self._lose_all(island.index, island.generation, why)

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
        gone = self._gone.get(where.island, frozenset()) | set(range(where.first, where.first + where.count))
        self._gone[where.island] = frozenset(gone)
        self.messenger.post(where.island, messages.Devices(self._gone[where.island]))

    def remove(self, where: Placement) -> None:
        """Remove devices; hosts of which none is left have a moment to end what they compute, and are then replaced."""
        super().remove(where)
        island = self.islands[where.island]
        if len(self._gone[where.island]) == len(island.devices) and not island.lost:
            self.messenger.withdraw(where.island)

    def _restored(self, island: int) -> None:
        self._gone[island] = frozenset()
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


def _fetch(island: HostIsland, buffer: int, there: Located, positions: list[int]) -> tuple[dict[int, np.ndarray], Any]:
    """Return shards of a buffer by their positions in the mesh, and of random keys their implementation."""
    by_host: dict[int, list[int]] = {}
    for at in positions:
        by_host.setdefault((there.where.first + at) // island.per_host, []).append(at)
    if island.lost:
        raise LostError(f"{island.loss}, and with it the value. Run what makes it again.")
    futures = {host: island.links[host].ask("fetch", buffer, mine, there) for host, mine in by_host.items()}
    found: dict[int, np.ndarray] = {}
    key_impl = None
    for host, mine in by_host.items():
        try:
            arrays, key_impl = wait(futures[host])
        except HostDied as died:
            raise LostError(f"a host of island {island.index} died while a value was fetched: {died}") from None
        found.update(zip(mine, arrays, strict=True))
    return found, key_impl


def _host_value(entry: Entry) -> Any:
    """Return the value of an entry that lies on no device; ``None`` if it has none."""
    return entry.array.host_value() if isinstance(entry.array, RemoteArray) else entry.array


@lru_cache(maxsize=16384)
def _on_host(label: Label, client: str, device: int, devices: int, route: str, size: int, host: int) -> Label:
    """Return the label of what happened on one host: its devices, and their part of the bytes and flops."""
    part = devices / label.devices if label.devices else 1.0
    differs: dict[str, Any] = {"client": client, "device": device, "devices": devices, "host": host}
    differs |= {"bytes": int(label.bytes * part), "flops": label.flops * part}
    if route:
        differs |= {"route": route, **({"bytes": size} if size else {})}
    return replace(label, **differs)
