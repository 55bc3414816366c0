"""The core and the messenger of a shared controller as one kernel sees them: what it says to them is sent there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, cast

from pathways_nb.controller.events_and_instructions import Event, Instruction, Launch, Stored, Submitted
from pathways_nb.controller.turns import ContendedTurns
from pathways_nb.errors import PathwaysError
from pathways_nb.plan.footprint import NOTHING, Footprint
from pathways_nb.plan.plan import Plan
from pathways_nb.runtime.cluster.host_island import HostDied, HostIsland
from pathways_nb.runtime.cluster.run_beginning import Beginning
from pathways_nb.runtime.hosts.messages import Message
from pathways_nb.runtime.shared import protocol
from pathways_nb.runtime.shared.protocol import FromKernel


@dataclass(eq=False)
class Wire:
    """Sends items in order; those that need no answer wait for the next one that does.

    Args:
        send: sends a batch.
    """

    send: Callable[[list[FromKernel]], None]
    _waiting: list[FromKernel] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def put(self, item: FromKernel, later: bool = False) -> None:
        """Send an item, with those that wait before it; one for ``later`` waits."""
        with self._lock:
            self._waiting.append(item)
            if not later:
                batch, self._waiting = self._waiting, []
                self.send(batch)


class RemoteMachine:
    """Stands for the core: events are sent to it, and its instructions come back to the driver (``SharedDriver``)."""

    def __init__(self) -> None:
        self.wire: Wire | None = None
        self.look: Callable[[str], Any] = lambda part: None
        """Returns a part of the core's accounts (``SharedController.look``)."""

    def handle(self, event: Event, now: float = 0.0) -> list[Instruction]:
        """Send an event to the core.

        Args:
            event: what happened.
            now: of no use there, whose clock is another.

        Returns:
            Nothing; instructions come later.
        """
        assert self.wire is not None
        if isinstance(event, Submitted):
            event = replace(event, plan=cast(Any, None), footprint=NOTHING)  # the controller knows them
        self.wire.put(event, later=isinstance(event, Stored))
        return []

    @property
    def clients(self) -> Any:
        """The accounts of all kernels' clients, by name."""
        return self.look("clients")

    @property
    def store(self) -> Any:
        """The object store's ledger."""
        return self.look("store")

    @property
    def memory(self) -> Any:
        """What is held on each device."""
        return self.look("memory")

    @property
    def promised(self) -> dict[str, ContendedTurns]:
        """The turns of all kernels' clients that competed; none once the controller is gone."""
        with suppress(HostDied, PathwaysError):  # they end the text of a record, and must not hide why it failed
            return cast("dict[str, ContendedTurns]", self.look("promised"))
        return {}

    @property
    def begun(self) -> frozenset[int]:
        """The runs under way of which steps are enqueued, of all kernels."""
        return cast("frozenset[int]", self.look("begun"))

    @property
    def log(self) -> bytes:
        """The log of the core as JSON, of all kernels."""
        return cast("bytes", self.look("log"))


@dataclass(eq=False)
class RemoteMessenger:
    """Stands for the messenger; see ``Messenger`` for what its methods do.

    Args:
        islands: as this kernel sees them.
        wire: the way to the controller.
    """

    islands: list[HostIsland]
    wire: Wire
    closed: bool = False
    rebuilding: set[int] = field(default_factory=set)

    def start(self) -> None:
        """Do nothing: the controller listens."""

    def begin(self, run: int, beginning: Beginning) -> None:
        """Tell what hosts are told of a run."""
        self.wire.put(protocol.Begin(run, beginning), later=True)

    def launch(self, launch: Launch) -> None:
        """Refuse: only the controller launches."""
        raise AssertionError(launch)

    def stop(self, run: int, error: PathwaysError | None = None) -> None:
        """Do nothing: the controller has told the hosts."""

    def end(self, run: int, errors: Mapping[int, PathwaysError] | None = None) -> None:
        """Tell that a run has ended, and why results are missing."""
        self.wire.put(protocol.Ended(run, dict(errors or {})), later=not errors)

    def post(self, island: int, message: Message) -> None:
        """Send a message to all hosts of an island."""
        self.wire.put(protocol.Post(island, message))

    def placed(self, buffer: int, island: int) -> None:
        """Tell where a buffer was put."""
        self.wire.put(protocol.Placed(buffer, island))

    def free(self, buffers: Iterable[int]) -> None:
        """Do nothing: the controller has told the hosts."""

    def installed(self, digest: str, plan: Plan, footprint: Footprint) -> None:
        """Tell that hosts were given a plan."""
        self.wire.put(protocol.Installed(digest, plan, footprint), later=True)

    def forget_plans(self, digests: Sequence[str]) -> None:
        """Let all hosts forget plans."""
        self.wire.put(protocol.Uninstall(tuple(digests)))

    def withdraw(self, island: int) -> None:
        """Do nothing: the core is told of the devices, and the controller looks after the hosts."""

    def bring_back(self, island: int) -> None:
        """Do nothing: the core is told."""

    def listen(self, island: HostIsland) -> None:
        """Do nothing: the controller listens."""

    def close(self) -> None:
        """Send no more."""
        self.closed = True

    def waits(self) -> list[str]:
        """Return the islands that are being rebuilt."""
        return [f"island {island} is being rebuilt" for island in list(self.rebuilding)]

    def give_up(self) -> None:
        """Wait for no islands any more."""
        self.rebuilding.clear()

    def end_busy(self) -> None:
        """Do nothing: the hosts are other kernels', too."""

    def wait_for_hosts(self, patience: float) -> None:
        """Do nothing: the controller replaces them."""

    def join(self, patience: float) -> None:
        """Do nothing: there are no threads."""
