"""Sends the controller's ranges to hosts, counts what comes back, and replaces hosts that died.

It stands beside the controller's core, in the same process, and is the only sender of messages that have an order. Runs
and buffers are numbers here; what belongs to them is their owner's: a driver in this process, or in another notebook.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from pathways_nb.controller.events_and_instructions import Launch
from pathways_nb.errors import PathwaysError
from pathways_nb.plan.footprint import Footprint
from pathways_nb.plan.plan import Plan
from pathways_nb.runtime.cluster.heartbeats import UNRESPONSIVE_AFTER
from pathways_nb.runtime.cluster.host_events import HostEvents, RangeLost
from pathways_nb.runtime.cluster.host_island import HostDied, HostIsland, Link
from pathways_nb.runtime.cluster.host_watch import HostWatch
from pathways_nb.runtime.cluster.ranges_out import RangeKey, RangesOut
from pathways_nb.runtime.cluster.run_beginning import Beginning
from pathways_nb.runtime.event_loop import Clock
from pathways_nb.runtime.hosts import messages
from pathways_nb.runtime.hosts.messages import Message, Send
from pathways_nb.runtime.hosts.reports import Broken, RangeEnded, Report

_FORGET = 5e-3
"""Seconds that a ``Drop`` waits for another message to travel with."""
_DRAIN = 1.0
"""Seconds in which what runs on removed devices may end."""
_ATTEMPTS = 3
"""How often new hosts of an island are started before it stays lost."""


@dataclass(eq=False)
class Messenger:
    """The way to all hosts.

    Args:
        islands: in order; more may be added.
        rebuild: gives an island new hosts.
        clock: returns seconds.
        owner: is told what happened.
        unresponsive_after: seconds of silence after which a host counts as dead.
    """

    islands: list[HostIsland]
    rebuild: Callable[[HostIsland], None]
    clock: Clock
    owner: HostEvents
    unresponsive_after: float = UNRESPONSIVE_AFTER
    closed: bool = False
    rebuilding: set[int] = field(default_factory=set)
    """Islands whose hosts are being replaced."""
    withdrawn: set[int] = field(default_factory=set)
    """Islands whose devices were removed; new hosts do not bring them back."""
    _beginnings: dict[int, Beginning] = field(default_factory=dict)
    _homes: dict[int, int] = field(default_factory=dict)
    """The island that holds each buffer."""
    _unmade: dict[int, list[Send]] = field(default_factory=dict)
    """By buffer: the ``Send`` messages that wait until its hosts know the run that makes it."""
    _out: RangesOut = field(default_factory=RangesOut)
    _losing: threading.RLock = field(default_factory=threading.RLock)
    """Held while an island is being given up."""
    _leave: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)
    watch: HostWatch = field(init=False)
    """What looks after the hosts."""

    def __post_init__(self) -> None:
        after, owner = self.unresponsive_after, self.owner
        self.watch = HostWatch(self.islands, after, self._lose, owner.silent, owner.stands_still)
        self.watch.waits = lambda: bool(self._out)

    def start(self) -> None:
        """Begin to listen to all hosts."""
        self._spawn(self._forgetting, "pathways-forget")
        self._spawn(self._watching, "pathways-heartbeats")
        for island in self.islands:
            if island.lost:  # while the messenger before this one ended
                self._renew(island)
            self.listen(island)

    # ---- to hosts

    def begin(self, run: int, beginning: Beginning) -> None:
        """Take note of a run that the core will be told of."""
        self._beginnings[run] = beginning
        self._homes.update(beginning.homes)
        self._unmade.update({buffer: [] for buffer in beginning.homes})

    def launch(self, launch: Launch) -> None:
        """Send a range to the hosts of its island."""
        island, beginning = self.islands[launch.island], self._beginnings[launch.run]
        going = messages.Range(launch.run, launch.start, launch.stop, self.clock())
        with island.sending:
            if not island.lost and beginning.generations[island.index] == island.generation:
                key = RangeKey(launch.run, launch.island, launch.start, launch.stop)
                self._out.add(key, len(island.links))
                if launch.island in self.withdrawn:  # called by a kernel that had not heard of it
                    self._end_soon(island, {key})
                calls = beginning.calls.pop(launch.island, None)
                if calls is None:
                    island.post(going)
                else:
                    sends = self._awaiting(beginning, island.index)
                    island.post_each([(call, going, *sends) for call in calls])
                return
        why = island.loss if island.lost else f"island {island.index} lost its hosts, and has new ones"
        self.owner.reported(launch.island, RangeLost(launch.run, launch.island, launch.start, launch.stop, why))
        self.owner.completed(launch.run, launch.island, launch.start, launch.stop, 0.0)

    def stop(self, run: int, error: PathwaysError | None = None) -> None:
        """Have hosts skip what they have not launched of a run."""
        beginning = self._beginnings.get(run)
        for island in self.islands if beginning is not None else ():
            island.post(messages.Stop(run, error))

    def end(self, run: int, errors: Mapping[int, PathwaysError] | None = None) -> None:
        """Forget a run that has ended; ``errors`` says of its results why there is none."""
        beginning = self._beginnings.pop(run, None)
        if beginning is None:
            return
        for island in {self.islands[home] for home in beginning.homes.values()}:
            with island.sending:
                for send in self._awaiting(beginning, island.index):  # its hosts never heard of the run
                    island.post(replace(send, error=(errors or {}).get(send.buffer)))

    def runs(self) -> list[int]:
        """Return the runs that have not ended."""
        return list(self._beginnings)

    def buffers(self) -> list[int]:
        """Return the buffers that hosts hold, or will hold."""
        return list(self._homes)

    def _awaiting(self, beginning: Beginning, island: int) -> list[Send]:
        """Return what is to be sent of a run's results on an island, whose hosts hear of the run now."""
        mine = [buffer for buffer, home in beginning.homes.items() if home == island]
        return [send for buffer in mine for send in self._unmade.pop(buffer, ())]

    def post(self, island: int, message: Message) -> None:
        """Send a message to all hosts of an island; a ``Send`` waits until they know of the buffer's run."""
        with self.islands[island].sending:
            if isinstance(message, Send) and message.buffer in self._unmade:
                self._unmade[message.buffer].append(message)
            else:
                self.islands[island].post(message)

    def placed(self, buffer: int, island: int) -> None:
        """Take note of where a buffer was put."""
        self._homes[buffer] = island

    def free(self, buffers: Iterable[int]) -> None:
        """Let hosts forget buffers, with the next message to them."""
        for buffer in buffers:
            if (home := self._homes.pop(buffer, None)) is not None:
                with self.islands[home].sending:
                    self.islands[home].dropped.append(buffer)
                self._leave.set()

    def installed(self, digest: str, plan: Plan, footprint: Footprint) -> None:
        """Take note of a plan that hosts were given; the driver in this process remembers it itself."""

    def forget_plans(self, digests: Sequence[str]) -> None:
        """Let all hosts forget plans."""
        for island in self.islands:
            island.post(messages.ForgetPlans(tuple(digests)))

    def _forgetting(self) -> None:
        """Send leave to forget where no other message takes it along."""
        while not self.closed:
            self._leave.wait()
            time.sleep(_FORGET)
            self._leave.clear()
            for island in self.islands:
                if island.dropped:
                    island.post()

    # ---- from hosts

    def listen(self, island: HostIsland) -> None:
        """Take the reports of an island's hosts from now on."""
        for link in island.links:
            self._spawn(partial(self._listen, island, link), f"pathways-host-{island.index}")

    def _listen(self, island: HostIsland, link: Link) -> None:
        try:
            while not self.closed:
                for report in link.reports():
                    self._take(island, link, report)
        except HostDied as died:
            self.watch.dead.add(link)
            self._lose(island, self.watch.culprit(link, island.links[:1]), str(died))
        except BaseException as error:
            self.owner.broken_by(error)
            raise

    def _watching(self) -> None:
        try:
            self.watch.run()
        except BaseException as error:
            self.owner.broken_by(error)
            raise

    def _take(self, island: HostIsland, link: Link, report: Report) -> None:
        if isinstance(report, Broken):
            culprit = self.watch.culprit(link, island.links)
            self._lose(island, culprit, "its process ended" if culprit is not link else report.error)
            return
        self.watch.heard += 1
        self.owner.reported(island.index, report)
        if isinstance(report, RangeEnded) and (seconds := self._out.ended(island.index, report)) is not None:
            self.owner.completed(report.run, island.index, report.start, report.stop, seconds)

    # ---- hosts that die

    def waits(self) -> list[str]:
        """Return the ranges that hosts have not ended, and the islands that are being rebuilt, a line each."""
        return self._out.lines() + [f"island {island} is being rebuilt" for island in list(self.rebuilding)]

    def give_up(self) -> None:
        """Replace no hosts any more, and wait for none: the cluster is gone."""
        self.closed = True
        self.watch.end()
        self._leave.set()
        self._out.give_up()
        self.rebuilding.clear()

    def _lose(self, island: HostIsland, link: Link, why: str) -> None:
        """Give up an island of which a host died, and have it rebuilt."""
        with self._losing, island.sending:
            if island.lost or link not in island.links or self.closed:
                return
            self.rebuilding.add(island.index)  # first: who finds the island lost waits for its new hosts
            island.lose(link, why)
            why = f"island {island.index} lost host {island.lost}"
        self.owner.lost(island.index, island.generation, why)
        out = self._out.give_up(island.index)
        for other in self.islands:
            if other is not island:
                other.post(messages.IslandLost(island.index, island.generation, why))
        for run, _, start, stop in out:
            self.owner.completed(run, island.index, start, stop, 0.0)
        self._spawn(lambda: self._replace(island), "pathways-rebuild")

    def withdraw(self, island: int) -> None:
        """Take note that an island's devices were removed, and replace its hosts if they compute on for long."""
        self.withdrawn.add(island)
        if running := self._out.on(island):
            self._end_soon(self.islands[island], running)

    def bring_back(self, island: int) -> None:
        """Take note that an island has its devices again."""
        self.withdrawn.discard(island)

    def _end_soon(self, island: HostIsland, running: set[RangeKey]) -> None:
        self._spawn(partial(self._end_if_busy, island, running), "pathways-withdraw")

    def _end_if_busy(self, island: HostIsland, running: set[RangeKey]) -> None:
        deadline, link = time.monotonic() + _DRAIN, island.links[0]
        while self._out.any_of(running) and not self.closed:
            if time.monotonic() > deadline:
                self._lose(island, link, "it still computed when its devices were removed")
                return
            time.sleep(_FORGET)

    def _replace(self, island: HostIsland) -> None:
        """Give an island new hosts."""
        try:
            if island.index not in self.withdrawn:
                self.owner.removed(island.index)
            if self.closed:
                return
            self._renew(island)
            for buffer in [buffer for buffer, home in list(self._homes.items()) if home == island.index]:
                self._homes.pop(buffer, None)
            self.listen(island)
            (self.owner.renewed if island.index in self.withdrawn else self.owner.rebuilt)(island.index)
        except HostDied:
            if not self.closed:  # else it ended with the cluster, or with this messenger
                raise
        finally:
            self.rebuilding.discard(island.index)
            self.owner.changed()

    def _renew(self, island: HostIsland) -> None:
        for link in island.links:
            link.kill()
        self._rebuild(island)
        island.begin_life()

    def _rebuild(self, island: HostIsland) -> None:
        for _ in range(_ATTEMPTS - 1):
            try:
                return self.rebuild(island)
            except HostDied:
                if self.closed:
                    raise
        self.rebuild(island)

    # ---- life

    def close(self) -> None:
        """Listen and send no more."""
        self.closed = True
        self.watch.end()
        self._leave.set()

    def end_busy(self) -> None:
        """End the hosts that still compute when all should have ended: who comes next has them replaced."""
        for island in [self.islands[index] for index in self._out.islands()]:
            if not island.lost:
                island.lose(island.links[0], "it still computed when the devices were let go")
                for link in island.links:
                    link.kill()

    def wait_for_hosts(self, patience: float) -> None:
        """Wait up to some seconds until no hosts are being replaced any more: who comes next must find them whole."""
        deadline = time.monotonic() + patience
        while self.rebuilding and time.monotonic() < deadline:
            time.sleep(_FORGET)

    def join(self, patience: float) -> None:
        """Wait up to some seconds for all threads."""
        deadline = time.monotonic() + patience
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(deadline - time.monotonic(), 0.0))

    def _spawn(self, work: Callable[[], None], name: str) -> None:
        thread = threading.Thread(target=work, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()
