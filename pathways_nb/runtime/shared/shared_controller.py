"""The shared controller: one core, one messenger, and the kernels that use them.

It knows neither Ray nor notebooks: the actor around it is in ``controller_actor``.
"""

from __future__ import annotations

import itertools
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from types import SimpleNamespace
from typing import Any

from pathways_nb.controller import log_text
from pathways_nb.controller.events_and_instructions import (
    Added,
    Closed,
    Completed,
    Fail,
    Finish,
    Free,
    Grant,
    Instruction,
    Launch,
    Lose,
    MemoryHeld,
    Refuse,
    Removed,
    Skip,
    Submitted,
    Waited,
)
from pathways_nb.controller.state_machine import StateMachine
from pathways_nb.plan.call_numbers import kernel_of_buffer, kernel_of_call
from pathways_nb.plan.plan import Placement
from pathways_nb.runtime.cluster.heartbeats import UNRESPONSIVE_AFTER
from pathways_nb.runtime.cluster.host_events import RangeLost
from pathways_nb.runtime.cluster.host_island import HostIsland
from pathways_nb.runtime.cluster.messenger import Messenger
from pathways_nb.runtime.event_loop import Clock, EventLoop
from pathways_nb.runtime.hosts.messages import Devices
from pathways_nb.runtime.hosts.reports import Broken, Report
from pathways_nb.runtime.shared import protocol
from pathways_nb.runtime.shared.protocol import ToKernel


@dataclass(eq=False)
class Outbox:
    """What a kernel is told, in order."""

    items: list[ToKernel] = field(default_factory=list)
    ready: threading.Condition = field(default_factory=threading.Condition)
    closed: bool = False

    def put(self, item: ToKernel) -> None:
        """Add an item."""
        with self.ready:
            if not self.closed:
                self.items.append(item)
                self.ready.notify()

    def collect(self, patience: float) -> list[ToKernel]:
        """Return all items, waiting up to ``patience`` seconds for the first."""
        with self.ready:
            self.ready.wait_for(lambda: bool(self.items) or self.closed, patience)
            found, self.items = self.items, []
        return found

    def close(self) -> None:
        """Take no more items, and wake who waits for one."""
        with self.ready:
            self.closed = True
            self.ready.notify_all()


@dataclass(eq=False)
class _Kernel:
    outbox: Outbox = field(default_factory=Outbox)
    clients: set[str] = field(default_factory=set)
    """The core's names of its clients."""
    plans: dict[str, protocol.Installed] = field(default_factory=dict)
    begun: dict[int, str] = field(default_factory=dict)
    """Digests of the plans of runs that are submitted next."""


class SharedController:
    """A core whose clients are in several kernels.

    Args:
        machine: the core.
        islands: the islands, in order.
        budgets: bytes of memory per device of each island.
        rebuild: gives an island new hosts.
        clock: returns seconds.
        view: returns an island as kernels see it, given its budget.
        unresponsive_after: seconds of silence after which a host counts as dead.
    """

    def __init__(
        self,
        machine: StateMachine,
        islands: Sequence[HostIsland],
        budgets: Sequence[int],
        rebuild: Callable[[HostIsland], None],
        clock: Clock,
        view: Callable[[HostIsland, int], protocol.IslandView],
        unresponsive_after: float = UNRESPONSIVE_AFTER,
    ):
        self.machine, self.islands, self.budgets, self._view = machine, list(islands), list(budgets), view
        self.kernels: dict[int, _Kernel] = {}
        self.lost_devices: list[Placement] = []
        """Lost devices."""
        self._numbers = itertools.count(1)
        self._taking = threading.Lock()
        """Held while what a kernel says is carried out: nothing of it may come after the kernel has left."""
        self._names: dict[tuple[int, str], str] = {}
        """The core's name of each kernel's client."""
        self.messenger = Messenger(self.islands, rebuild, clock, self, unresponsive_after)
        self.event_loop = EventLoop(machine, clock, self._carry_out, lambda: None)
        self.event_loop.thread.start()
        self.messenger.start()

    # ---- kernels

    def join(self) -> int:
        """Return the number of a new kernel."""
        number = next(self._numbers)
        self.kernels[number] = _Kernel()
        return number

    def leave(self, number: int) -> None:
        """Cancel what a kernel has under way, free what only it holds, and forget it."""
        with self._taking:
            kernel = self.kernels.pop(number, None)
        if kernel is None:
            return
        kernel.outbox.close()
        for client in sorted(kernel.clients):
            self.event_loop.in_turn(lambda client=client: self.event_loop.obey(Closed(client)))  # type: ignore[misc]
        self.event_loop.in_turn(lambda: self._end_runs(number))
        self.messenger.forget_plans(tuple(kernel.plans))
        with self._taking:
            self._names = {key: name for key, name in self._names.items() if key[0] != number}

    def _end_runs(self, number: int) -> None:
        """Forget a kernel's runs that the core has ended or never got, and free the kernel's buffers."""
        for run in self.messenger.runs():
            if kernel_of_call(run) == number and run not in self.machine.calls:
                self.messenger.end(run)
        self.messenger.free([buffer for buffer in self.messenger.buffers() if kernel_of_buffer(buffer) == number])

    def receive(self, number: int, items: Sequence[protocol.FromKernel]) -> None:
        """Carry out what a kernel says, in order."""
        with self._taking:
            if (kernel := self.kernels.get(number)) is not None:
                self._take(number, kernel, items)

    def _take(self, number: int, kernel: _Kernel, items: Sequence[protocol.FromKernel]) -> None:
        for item in items:
            match item:
                case protocol.Begin(run, beginning):
                    kernel.begun[run] = beginning.plan
                    self.messenger.begin(run, beginning)
                case protocol.Post(island, message):
                    self.messenger.post(island, message)
                case protocol.Placed(buffer, island):
                    self.messenger.placed(buffer, island)
                case protocol.Ended(run, errors):
                    self.messenger.end(run, errors)
                case protocol.Installed(digest):
                    kernel.plans[digest] = item
                case protocol.Uninstall(digests):
                    for digest in digests:
                        kernel.plans.pop(digest, None)
                    self.messenger.forget_plans(digests)
                case Submitted():
                    installed = kernel.plans[kernel.begun.pop(item.run)]
                    self._event(number, replace(item, plan=installed.plan, footprint=installed.footprint))
                case _:
                    self._event(number, item)

    def views(self) -> tuple[protocol.IslandView, ...]:
        """Return the islands as kernels see them."""
        return tuple(self._view(island, budget) for island, budget in zip(self.islands, self.budgets, strict=True))

    def look(self, part: str) -> Any:
        """Return a part of the core's accounts, to be read or copied in turn with its events.

        Args:
            part: ``clients``, ``promised`` (their turns), ``begun`` (runs), ``store`` (its ``buffers``), ``memory``
                (its ``islands``), or ``log`` (as JSON).
        """
        match part:
            case "store":
                return SimpleNamespace(buffers=dict(self.machine.store.buffers))
            case "memory":
                return SimpleNamespace(islands=self.machine.memory.islands)
            case "log":
                return log_text.as_bytes(self.event_loop.logbook.log()) if self.event_loop.logbook else b""
            case _:
                return getattr(self.machine, part)

    def add(self, island: HostIsland) -> None:
        """Add an island for all kernels."""
        budget = self.budgets[0]
        self.budgets.append(budget)
        self.messenger.islands.append(island)  # the same list as ``islands``
        self.messenger.listen(island)
        self._tell_all(protocol.Joined(self._view(island, budget)))
        self.event_loop.tell(Added(island.index, len(island.devices), budget))

    def _event(self, number: int, event: Any) -> None:
        if hasattr(event, "client"):
            event = replace(event, client=self._named(number, event.client))
        if isinstance(event, Removed):
            self.lost_devices.append(event.where)
            self._tell_all(Removed(event.where), but=number)
            if len(self._lost_devices_of(event.where.island)) == len(self.islands[event.where.island].devices):
                self.messenger.withdraw(event.where.island)
        elif isinstance(event, Added):
            self.lost_devices = [where for where in self.lost_devices if where.island != event.island]
            self.messenger.bring_back(event.island)
            self._tell_all(protocol.Rebuilt(self._view(self.islands[event.island], event.budget)), but=number)
        self.event_loop.tell(event)

    def _lost_devices_of(self, island: int) -> frozenset[int]:
        lost = (range(where.first, where.first + where.count) for where in self.lost_devices if where.island == island)
        return frozenset(chain.from_iterable(lost))

    def _named(self, number: int, client: str) -> str:
        """Return the core's name of a kernel's client: its own, with the kernel's number if it is not unique."""
        key = number, client
        if key not in self._names:
            taken = client in self._names.values() or not client
            name = f"{client} of kernel {number}" if client else f"kernel {number}"
            self._names[key] = name if taken else client
        self.kernels[number].clients.add(self._names[key])
        return self._names[key]

    def _tell(self, number: int, item: ToKernel) -> None:
        if (kernel := self.kernels.get(number)) is not None:
            kernel.outbox.put(item)

    def _tell_all(self, item: ToKernel, but: int = -1) -> None:
        for number in list(self.kernels):
            if number != but:
                self._tell(number, item)

    # ---- the core's instructions

    def _carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case Launch():
                self.messenger.launch(instruction)
            case Free(buffers):
                self.messenger.free(buffers)
                for number, mine in _by_kernel(buffers).items():
                    self._tell(number, Free(tuple(mine)))
            case Lose(buffers, reasons):
                why = dict(zip(buffers, reasons, strict=True))
                for number, mine in _by_kernel(buffers).items():
                    self._tell(number, Lose(tuple(mine), tuple(why[buffer] for buffer in mine)))
            case MemoryHeld(client=client):
                for (number, own), name in list(self._names.items()):
                    if name == client:
                        self._tell(number, replace(instruction, client=own))
            case Grant(buffer) | Refuse(buffer):
                self._tell(kernel_of_buffer(buffer), instruction)
            case Skip(run):
                self.messenger.stop(run)
                self._tell(kernel_of_call(run), instruction)
            case Fail(run, error):
                self.messenger.stop(run, error)
                self._tell(kernel_of_call(run), instruction)
            case Waited(run):
                self._tell(kernel_of_call(run), instruction)
            case Finish(run):
                if kernel_of_call(run) in self.kernels:  # it knows why results are missing
                    self._tell(kernel_of_call(run), instruction)
                else:
                    self.messenger.end(run)

    # ---- for the messenger

    def reported(self, island: int, report: Report | RangeLost) -> None:
        """Pass a report on to the kernel whose run it is about."""
        if not isinstance(report, Broken):
            self._tell(kernel_of_call(report.run), protocol.Reported(island, report))

    def completed(self, run: int, island: int, start: int, stop: int, seconds: float) -> None:
        """Tell the core that a range has ended on all hosts."""
        self.event_loop.post(Completed(run, island, start, stop, seconds))

    def lost(self, island: int, generation: int, why: str) -> None:
        """Tell all kernels that an island's hosts died."""
        self._tell_all(protocol.Lost(island, generation, self.islands[island].lost))

    def silent(self, island: int, hosts: dict[int, float]) -> None:
        """Tell all kernels which hosts do not answer."""
        self._tell_all(protocol.Silent(island, hosts))

    def stands_still(self) -> None:
        """Tell all kernels that hosts report nothing."""
        self._tell_all(protocol.StandsStill())

    def removed(self, island: int) -> None:
        """Take an island's devices out."""
        where = Placement(island, 0, len(self.islands[island].devices))
        self._tell_all(Removed(where))
        self.event_loop.tell(Removed(where))

    def rebuilt(self, island: int) -> None:
        """Take an island's devices in again."""
        devices = len(self.islands[island].devices)
        self.lost_devices = [where for where in self.lost_devices if where.island != island]
        self.event_loop.tell(Added(island, devices, self.budgets[island]))
        self._tell_all(protocol.Rebuilt(self._view(self.islands[island], self.budgets[island])))

    def renewed(self, island: int) -> None:
        """Tell new hosts that they have no devices, and kernels of the hosts."""
        self.messenger.post(island, Devices(self._lost_devices_of(island)))
        self._tell_all(protocol.Renewed(self._view(self.islands[island], self.budgets[island])))

    def changed(self) -> None:
        """Do nothing: kernels were told."""

    def broken_by(self, error: BaseException) -> None:
        """End with an error that nobody expected: kernels see the controller end."""
        self.event_loop.failure = error

    def close(self) -> None:
        """End all threads."""
        self.messenger.close()
        self.event_loop.stop(5.0)


def _by_kernel(buffers: Sequence[int]) -> dict[int, list[int]]:
    found: defaultdict[int, list[int]] = defaultdict(list)
    for buffer in buffers:
        found[kernel_of_buffer(buffer)].append(buffer)
    return found
