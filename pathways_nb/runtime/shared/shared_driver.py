"""The driver of one kernel on a shared controller: it compiles, holds futures and fetches, and orders nothing."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol, cast

from pathways_nb.controller.events_and_instructions import Grant, Instruction, Refuse, Removed, Waited
from pathways_nb.plan.call_numbers import BUFFER_BITS, CALL_BITS
from pathways_nb.plan.plan import Placement
from pathways_nb.runtime.cluster.cluster_driver import ClusterDriver
from pathways_nb.runtime.cluster.host_events import RangeLost
from pathways_nb.runtime.cluster.host_island import HostAttachment, HostDied, HostIsland
from pathways_nb.runtime.event_loop import Clock
from pathways_nb.runtime.hosts import reports
from pathways_nb.runtime.lowering.attachment import Island
from pathways_nb.runtime.shared import protocol
from pathways_nb.runtime.shared.protocol import ToKernel
from pathways_nb.runtime.shared.remote_core import RemoteMachine, RemoteMessenger, Wire
from pathways_nb.trace.rows import Row
from pathways_nb.util.waiting import Workers


class ControllerLink(Protocol):
    """The way to a shared controller."""

    kernel: int
    offset: float
    """Seconds to add to the controller's stamps for this kernel's clock."""

    def send(self, items: list[protocol.FromKernel]) -> None:
        """Send items, in order; does not wait."""

    def receive(self) -> list[ToKernel]:
        """Wait a while for what the controller says.

        Raises:
            HostDied: the controller is gone.
        """

    def look(self, part: str) -> Any:
        """Return a part of the core's accounts."""

    def island(self, view: protocol.IslandView) -> HostIsland:
        """Return an island as this kernel uses it."""

    def leave(self) -> None:
        """Leave the controller."""


class SharedDriver(ClusterDriver):
    """Carries out a shared controller's instructions that are about this kernel's runs and buffers.

    Args:
        attachment: the islands.
        machine: stands for the core.
        clock: returns seconds.
        link: the way to the controller.
        note: receives events that belong to no program in particular.
        on_lost: called with an island whose hosts died, before anything fails for it.
        on_removed: called in a thread of its own with devices that are gone, as all of a lost island are.
        on_rebuilt: called likewise with an island that has all its devices again, mostly on new hosts.
        on_joined: called likewise with an island that was added, and its budget.
        lost_devices: devices that were removed before.
    """

    def __init__(
        self,
        attachment: HostAttachment,
        machine: RemoteMachine,
        clock: Clock,
        link: ControllerLink,
        note: Callable[[Row], None],
        on_lost: Callable[[int], None],
        on_removed: Callable[[Placement], None],
        on_rebuilt: Callable[[int], None],
        on_joined: Callable[[HostIsland, int], None],
        lost_devices: Sequence[Placement] = (),
    ):
        self.link = link
        self._on_joined = on_joined
        machine.wire, machine.look = Wire(link.send), link.look
        wire = machine.wire
        super().__init__(
            attachment, cast(Any, machine), clock, note, on_lost, on_removed, on_rebuilt,
            messenger=lambda driver: cast(Any, RemoteMessenger(list(attachment.islands), wire)),
        )  # fmt: skip
        self._numbers = itertools.count(link.kernel << CALL_BITS)
        self._buffers = itertools.count(link.kernel << BUFFER_BITS)
        self.plans.salt = f"kernel {link.kernel}"
        for where in lost_devices:
            self._mark_lost(where)
        for island in attachment.islands:
            if island.lost:  # they are being rebuilt, and this kernel heard of it only now
                self.messenger.rebuilding.add(island.index)
                on_lost(island.index)
        self._devices = Workers("pathways-devices", 1)
        self._stream = threading.Thread(target=self._receive, name="pathways-stream", daemon=True)
        self._stream.start()

    def add(self, island: Island, budget: int) -> None:
        """Take in an island that the controller has added; the core knows it."""
        self.attachment = replace(self.attachment, islands=(*self.attachment.islands, cast(HostIsland, island)))
        self.messenger.islands.append(self.islands[island.index])
        self.ended.notify_all()

    def wait_for_island(self, island: int) -> int:
        """Wait until an island has been added, and return its index."""
        self.ended.wait(lambda: len(self.islands) > island or self.broken)
        self.check()
        return island

    def _receive(self) -> None:
        """Carry out what the controller says until this driver or the controller ends."""
        try:
            while not self.closed:
                for item in self.link.receive():
                    self._told(item)
        except HostDied as died:
            if not self.closed:
                self.event_loop.failure = RuntimeError(f"the shared controller is gone: {died}")
                self.ended.notify_all()
        except BaseException as error:
            self.event_loop.failure = error
            self.ended.notify_all()
            raise

    def _told(self, item: ToKernel) -> None:
        match item:
            case protocol.Lost(island) | protocol.Silent(island) if island >= len(self.islands):
                self._aside(lambda: self._told(item))  # the island is still being taken in
            case protocol.Reported(island, report):
                self.reported(island, self._in_my_time(report))
            case protocol.Lost(island, generation, host):
                self.islands[island].lost = host
                self.messenger.rebuilding.add(island)
                self.lost(island, generation, self.islands[island].loss)
            case protocol.Silent(island, hosts):
                self.silent(island, hosts)
            case protocol.StandsStill() if self.runs:
                self._aside(self.stands_still)
            case protocol.StandsStill():
                pass
            case Removed(where):
                self._mark_lost(where)
                self._aside(lambda: self._on_removed(where))
            case protocol.Rebuilt(view):
                self._lost_devices.pop(view.index, None)
                self._renew(view)
                self._aside(lambda: self._back(view.index))
            case protocol.Renewed(view):
                self._renew(view)
                self._free_to_use(view.index)
            case protocol.Joined(view):
                self._aside(lambda: self._on_joined(self.link.island(view), view.budget))
            case Waited() | Grant() | Refuse():
                self._obey(replace(item, since=item.since + self.link.offset))
            case _:
                self._obey(item)

    def _obey(self, instruction: Instruction) -> None:
        """Carry out an instruction of the core, unless this driver has closed, which forgets all values."""
        with self.event_loop.deciding:
            if not self.closed:
                self._carry_out(instruction)

    def _mark_lost(self, where: Placement) -> None:
        taken = range(where.first, where.first + where.count)
        self._lost_devices[where.island] = self._lost_devices.get(where.island, frozenset()).union(taken)

    def _aside(self, work: Callable[[], None]) -> None:
        """Do work that may wait for calls under way, which wait for this stream; one after the other."""
        self._devices.submit(work)

    def _renew(self, view: protocol.IslandView) -> None:
        """Use the hosts that an island has now."""
        island, new = self.islands[view.index], self.link.island(view)
        with island.sending:
            if island.generation != view.generation:
                island.forget()
            island.links, island.generation, island.lost, island.silent = new.links, view.generation, view.lost, ""

    def _back(self, island: int) -> None:
        self._on_rebuilt(island)
        self._free_to_use(island)

    def _free_to_use(self, island: int) -> None:
        self.messenger.rebuilding.discard(island)
        self.ended.notify_all()

    def _in_my_time(self, report: reports.Report | RangeLost) -> reports.Report | RangeLost:
        """Return a report with stamps on this kernel's clock."""
        offset = self.link.offset
        if isinstance(report, reports.StepRows):
            rows = [(step, start + offset, end + offset, *rest) for step, start, end, *rest in report.rows]
            return reports.StepRows(report.run, rows)  # type: ignore[arg-type]
        if isinstance(report, reports.HostRow):
            return report._replace(start=report.start + offset, end=report.end + offset)
        if isinstance(report, reports.OtherRow):
            row = report.row
            return replace(report, row=row._replace(start=row.start + offset, end=row.end + offset))
        return report

    def _end(self, patience: float) -> None:
        with self.event_loop.deciding:  # what the stream has begun to carry out needs its values
            pass
        super()._end(patience)
        self._devices.close()
        self.link.leave()
