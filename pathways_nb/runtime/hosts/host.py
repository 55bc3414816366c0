"""One host of an island: its devices, the values on them, and the runs under way.

It carries out messages in the order in which they come and reports what it finds. It knows neither Ray nor the
controller's state: ``deliver`` gives a value to another host.
"""

from __future__ import annotations

import math
import pickle
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pathways_nb.errors import LostError, PathwaysError
from pathways_nb.plan.plan import Placement, Plan
from pathways_nb.runtime.entries import Entry, promised, stored, will_move, will_read
from pathways_nb.runtime.hosts.arrivals import Arrivals, assembled
from pathways_nb.runtime.hosts.crossings import key_impl, numbers
from pathways_nb.runtime.hosts.device_route import DeviceRoute
from pathways_nb.runtime.hosts.host_run import HostPlan, HostRun, missing, plain
from pathways_nb.runtime.hosts.messages import (
    Call,
    Devices,
    Drop,
    Failed,
    ForgetPlans,
    Given,
    Held,
    IslandLost,
    Message,
    NodeFacts,
    Parcel,
    PortableNode,
    Range,
    Send,
    Stop,
)
from pathways_nb.runtime.hosts.node_compiler import NodeCompiler
from pathways_nb.runtime.hosts.portable_plan import PortablePlan, concrete
from pathways_nb.runtime.hosts.remote_inputs import RemoteInputs
from pathways_nb.runtime.hosts.reports import Broken, RangeEnded, Report, Reports, RunRecord
from pathways_nb.runtime.hosts.sender import Deliver, Outgoing, Sender
from pathways_nb.runtime.local.dispatcher import Dispatcher
from pathways_nb.runtime.local.watcher import Clock, LaunchRange
from pathways_nb.runtime.lowering.pieces import Located
from pathways_nb.runtime.lowering.transfers import shards_of
from pathways_nb.util.waiting import Condition


class Host:
    """A host's state.

    Args:
        island: index of its island.
        number: its number within the island.
        devices: all devices of the island, those of other hosts included.
        hosts: number of hosts of the island.
        per_host: number of devices of each host, by island.
        deliver: gives a parcel to another host.
        clock: returns seconds of the controller's clock.
        route: the way from device to device of other hosts; ``None`` sends by NumPy.
    """

    def __init__(
        self,
        island: int,
        number: int,
        devices: Sequence[Any],
        hosts: int,
        per_host: Callable[[int], int],
        deliver: Deliver,
        clock: Clock,
        route: DeviceRoute | None = None,
    ):
        self.island, self.number, self.devices, self.per_host, self.clock = island, number, devices, per_host, clock
        self.lockstep = hosts > 1
        """Whether other hosts launch the same: then no decision to skip a launch may be this host's alone."""
        self.reports, self.arrivals, self.compiler = Reports(), Arrivals(), NodeCompiler(devices)
        self.entries: dict[int, Entry] = {}
        self.runs: dict[int, HostRun] = {}
        self._plans: dict[str, HostPlan] = {}
        self._waiting: dict[int, list[Send]] = {}
        """By buffer that is not computed yet, what is to be sent of it."""
        self._lock = threading.Lock()
        self.launched = Condition()
        self.deliver, self.route = deliver, route
        self._sender = Sender((island, number), devices, per_host, self._deliver, clock, route)
        self.dispatcher = Dispatcher(island, len(devices), clock, self._range_ended, RemoteInputs(self))
        self._sender.start()
        self.dispatcher.start()

    # ---- before programs run

    def compile(self, first: int, node: PortableNode) -> NodeFacts | None:
        """Compile a node for the devices from ``first`` on; see ``NodeCompiler.compile``.

        Returns:
            What the compiler tells; ``None`` if none of these devices is this host's.
        """
        owned = self.owns(Placement(self.island, first, math.prod(node.shape)))
        return self.compiler.compile(first, node) if owned else None

    def owns(self, where: Placement) -> bool:
        """Return whether any device of a placement on this island is this host's."""
        if where.is_host:
            return self.number == 0
        first, count = self.device_range
        return where.first < first + count and first < where.first + where.count

    def install(self, digest: str, data: bytes, nodes: Mapping[str, PortableNode]) -> None:
        """Make a plan ready to be called by its digest.

        Args:
            digest: of the plan.
            data: a pickled ``PortablePlan``.
            nodes: by digest, the nodes that the plan launches on this island.
        """
        if digest in self._plans:
            return
        portable: PortablePlan = pickle.loads(data)
        plan = portable.compiled.plan
        mine = self._mine(plan)
        for step in sorted(mine):
            if portable.nodes[step]:
                self.compile(plan.placements[plan.steps[step].place].first, nodes[portable.nodes[step]])
        compiled, sends = portable.on(self.devices, mine, self.compiler.executable)
        self._plans[digest] = HostPlan(portable, compiled, sends, mine)

    def _mine(self, plan: Plan) -> frozenset[int]:
        """Return the steps of this island's order of which a device is this host's."""
        order = plan.orders.get(self.island, ())
        return frozenset(step for step in order if self.owns(plan.placements[plan.steps[step].place]))

    # ---- values

    def store(self, buffer: int, where: Located, shape: tuple[int, ...], given: Given) -> None:
        """Put a value onto this host's devices."""
        array = assembled(given.parts, where, concrete(where, self.devices), shape, given.key_impl)
        self.entries[buffer] = stored(array, sharding=array.sharding, where=where.where)

    def fetch(self, buffer: int, positions: Sequence[int], where: Located) -> tuple[list[np.ndarray], Any]:
        """Return the shards of a computed value on some devices, and of random keys their implementation.

        Raises:
            LostError: this host does not hold it.
        """
        entry = self.entries.get(buffer) or missing(buffer)
        if entry.error is not None:
            raise plain(entry.error)
        shards = shards_of(entry.array)
        chosen = [numbers(shards[self.devices[where.where.first + at]]) for at in positions]
        return chosen, key_impl(entry.array)

    # ---- messages

    def receive(self, messages: Sequence[Message]) -> None:
        """Carry out messages, in order; nothing here waits."""
        for message in messages:
            try:
                _HANDLERS[type(message)](self, message)
            except Exception as error:  # nobody reads the answer to a message
                self.reports.add(Broken(f"it fell out of step: {type(error).__name__}: {error}"))

    def _call(self, message: Call) -> None:
        plan = self._plans[message.plan]
        arguments = [stored() for _ in plan.compiled.plan.leaves]
        for argument, found in zip(plan.compiled.brought, message.arguments, strict=True):
            if isinstance(found, Held | Failed):
                arguments[argument] = self._argument(found)
        results: dict[int, list[Entry]] = {}
        run = HostRun(
            message.run, plan.compiled, arguments, results,
            RunRecord(self.reports, message.run, plan.steps, self.device_range),  # type: ignore[arg-type]
            self.launched, Condition(), "", message.results, host=self, call=message, host_plan=plan,
        )  # fmt: skip
        slots, steps = plan.compiled.plan.results, plan.compiled.result_steps
        for buffer, slot, step in zip(message.results, slots, steps, strict=True):
            if plan.compiled.plan.steps[step].island == self.island:
                (entry,) = promised(run, (buffer,), (step,), (plan.compiled.shardings[slot],))
                self.entries[buffer] = entry
                results.setdefault(slot, []).append(entry)
        brings = zip(plan.compiled.brings, message.arguments, strict=True)
        run.unread = {step for step, found in brings if step in plan.mine and isinstance(found, Held)}
        read = {arguments[plan.compiled.plan.steps[step].argument] for step in run.unread}
        will_read(read, run.unread)
        sent = (move for step, moves in plan.sends.items() for move in moves if self.is_sent(run, move))
        will_move(entry for move in sent for entry in results.get(plan.compiled.plan.steps[move].inputs[0], ()))
        self.runs[message.run] = run

    def _argument(self, argument: Held | Failed) -> Entry:
        if isinstance(argument, Failed):
            return stored(error=argument.error)
        return self.entries.get(argument.buffer) or missing(argument.buffer)

    def _range(self, message: Range) -> None:
        run = self.runs[message.run]
        run.record.arrived(message.sent, self.clock())  # type: ignore[attr-defined]
        self.dispatcher.send(run, message.start, message.stop)

    def _stop(self, message: Stop) -> None:
        if (run := self.runs.get(message.run)) is not None:
            run.stop(message.error)

    def _send(self, message: Send) -> None:
        if not self.owns(message.source.where):
            return
        never = missing(message.buffer) if message.error is None else stored(error=message.error)
        entry = self.entries.get(message.buffer) or never
        will_move((entry,))
        with self._lock:
            if entry.array is None and entry.error is None:
                self._waiting.setdefault(id(entry), []).append(message)
                return
        self._send_entry(entry, message)

    def _drop(self, message: Drop) -> None:
        for buffer in message.buffers:
            self.entries.pop(buffer, None)

    def _forget_plans(self, message: ForgetPlans) -> None:
        for digest in message.digests:
            self._plans.pop(digest, None)

    def _set_devices(self, message: Devices) -> None:
        self.dispatcher.runner.lost_devices = set(message.lost_devices)

    def _island_lost(self, message: IslandLost) -> None:
        if self.route is not None:
            self.route.renew()
        self.arrivals.lose(message.island, message.generation, message.error)

    # ---- for runs

    def is_sent(self, run: HostRun, move: int) -> bool:
        """Return whether a value moves by parcels: to another island, or among several hosts of an island."""
        step = run.compiled_plan.plan.steps[move]
        return self.lockstep or step.island != run.compiled_plan.plan.steps[step.producers[0]].island

    def send(self, outgoing: Outgoing) -> None:
        """Queue a value to be sent."""
        self._sender.inbox.put(outgoing)

    def entry_filled(self, entry: Entry) -> None:
        """Send a result that other islands have asked for, now that it is launched or has failed."""
        with self._lock:
            waiting = self._waiting.pop(id(entry), ())
        for message in waiting:
            self._send_entry(entry, message)

    def _send_entry(self, entry: Entry, message: Send) -> None:
        run = entry.run

        def explain(cause: BaseException) -> PathwaysError:
            if isinstance(run, HostRun):
                return run.inherited_error(entry.step) or run.node_error(entry.step, cause)
            return PathwaysError(str(cause))

        self.send(
            Outgoing(
                message.run,
                message.step,
                message.source,
                message.target,
                message.shape,
                entry.array,
                entry.error,
                lambda: self._has_read(entry),
                explain,
            )
        )

    def _has_read(self, entry: Entry) -> None:
        entry.has_moved()
        self.launched.notify_all()

    @property
    def device_range(self) -> tuple[int, int]:
        """The first device of this host within its island, and their number."""
        return self.number * self.per_host(self.island), self.per_host(self.island)

    def _deliver(self, island: int, host: int, parcel: Parcel, on_taken: Callable[[bool], None]) -> None:
        if (island, host) == (self.island, self.number):
            self.arrivals.receive(parcel)
        else:
            self.deliver(island, host, parcel, on_taken)

    def pull(self, parcel: Parcel) -> None:
        """Take in a parcel whose pieces another host offers; waits until they are there, or cannot be."""
        assert self.route is not None
        assert parcel.offer is not None
        try:
            came = replace(parcel, arrays=self.route.pull(parcel.offer), offer=None)
        except Exception as cause:  # of whatever class JAX raises
            why = f"a value that host {parcel.host} of its island sent did not come to island {self.island}: {cause}"
            came = replace(parcel, error=LostError(why), offer=None)
        self.arrivals.receive(came)

    def _range_ended(self, launch_range: LaunchRange, island: int) -> None:
        run = launch_range.run
        assert isinstance(run, HostRun)
        self.reports.add(RangeEnded(run.serial, launch_range.start, launch_range.stop, launch_range.device_seconds))
        with self._lock:
            run.left -= launch_range.stop - launch_range.start
        if not run.left:
            self.end(run)

    def end(self, run: HostRun) -> None:
        """Forget a run, of which nothing is under way here."""
        if self.runs.pop(run.serial, None) is not None:
            self.arrivals.forget(run.serial)
            run.finish()

    def collect_reports(self, patience: float) -> list[Report]:
        """Return what there is to report, waiting up to ``patience`` seconds."""
        return self.reports.collect(patience)

    def reset(self) -> None:
        """Forget everything but what was compiled; nothing may be under way."""
        for holder in (self.entries, self.runs, self._plans, self._waiting):
            holder.clear()
        self.arrivals, self.dispatcher.runner.lost_devices = Arrivals(), set()
        self.reports.reset()

    def close(self) -> None:
        """End all threads after what was sent to them."""
        self.dispatcher.stop()
        self._sender.inbox.put(None)


_HANDLERS: dict[type, Callable[[Host, Any], None]] = {
    Call: Host._call,
    Range: Host._range,
    Stop: Host._stop,
    Send: Host._send,
    Drop: Host._drop,
    ForgetPlans: Host._forget_plans,
    Devices: Host._set_devices,
    IslandLost: Host._island_lost,
}
