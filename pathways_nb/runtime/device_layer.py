"""What a driver does in its own way: open this file to write one, and ``local/local_driver.py`` for an example.

``Driver`` has what drivers have in common, and calls these.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from pathways_nb.controller.events_and_instructions import Launch
from pathways_nb.errors import PathwaysError
from pathways_nb.plan.plan import Placement, Plan
from pathways_nb.program.program_tracer import Traced
from pathways_nb.runtime.entries import Entry
from pathways_nb.runtime.lowering.compiled_plan import CompiledPlan
from pathways_nb.runtime.lowering.layouts import Targets, Undeclared
from pathways_nb.runtime.run_state import RunState
from pathways_nb.trace.record import Record
from pathways_nb.trace.rows import Cause

_NOTHING = contextlib.nullcontext()


class DeviceLayer(ABC):
    """How launches are carried out on one kind of devices, and how time passes there."""

    quality = "exact"
    """The quality of stamps that are read from the clock."""
    priced = ""
    """One line that says what decides how long simulated nodes take; empty where devices run them."""
    compiled_by = ""
    """The compiler of the simulated chip that compiles nodes, with its version; empty without one."""

    @abstractmethod
    def lower(
        self, traced: Traced, plan: Plan, targets: Targets, record: Record, say: Callable[[str], object]
    ) -> CompiledPlan:
        """Compile a plan for this driver's devices.

        Args:
            traced: the program's trace.
            plan: its plan.
            targets: the layouts in which arguments are brought.
            record: where compiling is recorded.
            say: shows progress.
        """

    @abstractmethod
    def location(self, value: Any) -> Hashable:
        """Return where and in which layout an entry or argument lies, for ``sharding_for``; ``None`` on no device."""

    @abstractmethod
    def sharding_for(self, location: Any, argument: Undeclared) -> Any:
        """Return the sharding in which an argument at this location is used: its own if it lies at the place."""

    @abstractmethod
    def as_kept(self, leaf: Any, name: str) -> Any:
        """Convert a value from outside into the form in which it is kept until a program brings it to its place.

        Args:
            leaf: the value.
            name: its name in errors.
        """

    @abstractmethod
    def put(self, value: Any, sharding: Any) -> Any:
        """Put a value onto devices and return the array."""

    @abstractmethod
    def _launch(self, run: RunState, launch: Launch, cause: Cause) -> None:
        """Begin to carry out a range of a run's order, for a reason."""

    @abstractmethod
    def _is_at(self, entry: Entry, compiled_plan: CompiledPlan, position: int) -> bool:
        """Return whether an argument lies where the bring at ``position`` among the plan's brings it."""

    @abstractmethod
    def _lost(self, where: Placement) -> None:
        """Make everything that runs on these devices from now on fail."""

    @abstractmethod
    def _restored(self, island: int) -> None:
        """Let an island's devices run again."""

    @abstractmethod
    def _joined(self, island: int) -> None:
        """Take in another island, which the attachment has by now."""

    @abstractmethod
    def _end(self, patience: float) -> None:
        """End all threads of this driver."""

    def enter(self) -> None:  # noqa: B027  (real time passes anyway)
        """Count this thread as a client until it leaves: simulated time advances only while it waits."""

    def leave(self) -> None:  # noqa: B027
        """End a block that this thread entered."""

    def calling(self, client: str, name: str = "") -> contextlib.AbstractContextManager[None]:
        """Return a context in which this thread makes a call; in simulated time threads take turns.

        Args:
            client: for which it calls.
            name: of what it calls.
        """
        return _NOTHING

    def poll(self) -> None:  # noqa: B027
        """Let simulated time advance: this thread asks whether something is done, and may ask again for ever."""

    def spend(self, budget: float) -> None:  # noqa: B027  (most have no watchers)
        """Limit the share of time for which a watcher may keep a core busy; 0 looks only as flow control needs it."""

    def wait_for_devices(self) -> bool:
        """Wait for devices that are on their way back, and return whether there were any."""
        return False

    def wait_for_island(self, island: int) -> int:
        """Wait until an island has been added by another process, and return its index."""
        return island

    def hosts(self) -> list[dict[str, Any]]:
        """Return a row for each host that is a process of its own; none if the devices are this process's."""
        return []

    def waits(self) -> list[str]:
        """Return what is waited for, a line each, of which the programs under way do not tell; takes no lock."""
        return []

    def explain(self, where: Placement, failed: str, cause: BaseException) -> PathwaysError | None:
        """Return the error for the user of what failed since its devices did: lost, or without memory.

        Args:
            where: the devices.
            failed: what failed, where and on which line, as the beginning of a sentence.
            cause: what was raised.

        Returns:
            The error; ``None`` if the devices are not to blame.
        """
        return None

    def _prepare(self, run: RunState, arguments: Sequence[int]) -> None:  # noqa: B027
        """Take note of a run, whose arguments are in these logical buffers, before the controller knows it."""

    @property
    @abstractmethod
    def sampled(self) -> float:
        """The share of launches whose end was watched; the stamps of the others are interpolated."""
