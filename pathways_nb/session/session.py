"""What is attached, as all parts of this room share it: devices with their driver, the core, places, the record.

It joins the pure core, a driver and the record, and decides nothing; what calls do with it is in ``submit`` and others.
"""

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from jax.sharding import AbstractMesh, Mesh

from pathways_nb.controller.policies import policy_of
from pathways_nb.controller.resources import Resources
from pathways_nb.controller.state_machine import StateMachine
from pathways_nb.errors import NotAttachedError
from pathways_nb.plan.plan import Placement
from pathways_nb.plan.virtual_slice import VirtualSlice
from pathways_nb.program.computation import Computation
from pathways_nb.program.signature import Signature
from pathways_nb.results.run import Run
from pathways_nb.runtime.driver import Driver
from pathways_nb.runtime.event_loop import Clock
from pathways_nb.runtime.gc_pauses import Pauses
from pathways_nb.session.attach_options import AttachOptions
from pathways_nb.trace.metrics import counted, duration
from pathways_nb.trace.record import Record, Row
from pathways_nb.util import forks
from pathways_nb.util.progress import to_standard_error
from pathways_nb.util.unique import Unique

_HISTORY = 2_000
"""Events remembered of what runs outside any recording."""


class _Epoch:
    """The time between two resets: what was lowered in one does not hold in the next."""


class Pending(Protocol):
    """Loose calls that have not gone out yet."""

    def add(self, computation: Computation, call: Signature) -> Any:
        """Take a call; returns its outputs as futures."""

    def flush(self) -> None:
        """Send them."""

    def give_up(self, client: str) -> None:
        """Forget those of a client that closes."""


class Session(Unique):
    """Devices, the order of work on them, and the record of it.

    Args:
        specification: what was asked for.
        start: makes the driver when it is first needed.
        devices: how many each island has.
        budgets: bytes of memory per device of each island; 0 where nobody knows.
        clock: seconds; everything recorded is on it.
    """

    _not_pickled = "cannot be pickled: its devices are this process's. Call pw.attach(...) in the other process."

    def __init__(
        self,
        attach_options: AttachOptions,
        start: Callable[[Any], Driver],
        devices: tuple[int, ...],
        budgets: tuple[int, ...] = (),
        clock: Clock = time.perf_counter,
    ):
        self.attach_options, self._start_driver = attach_options, start
        self.clock = clock
        self.islands = devices
        self.budgets = budgets or (0,) * len(devices)
        self._asked = self.islands, self.budgets
        self.resources = Resources(devices, threading.RLock())
        self.machine = self._machine()
        self.record = Record(limit=_HISTORY)
        self.driver_or_none: Driver | None = None
        self.life = threading.RLock()
        """Held while the engine starts or ends, or devices change: other threads must find all of it or nothing."""
        self._pauses: Pauses | None = None
        self.closed = False
        self.twin: Session | None = None
        """Of a simulated one: real devices that compute the values, if they are asked for."""
        self.recordings: list[tuple[Run, Pending]] = []
        self.scopes: list[Session | None] = []
        """For each ``with`` block entered: what it restores; itself if it was attached before."""
        self.epoch = _Epoch()
        self.opened: dict[str, object] = {}
        """By name: the tenant that the engine was told of last, until a client of that name is closed."""
        self._placed: weakref.WeakSet[VirtualSlice] = weakref.WeakSet()

    def _machine(self) -> StateMachine:
        asked = self.attach_options
        return StateMachine(asked.dispatch, policy_of(asked.policy), self.islands, self.budgets)  # type: ignore[arg-type]

    # ---- devices

    @property
    def driver(self) -> Driver:
        """The engine on the devices, started when first needed.

        Raises:
            NotAttachedError: the devices have been let go, or this is a forked child.
        """
        forks.refuse()
        if self.closed:
            raise NotAttachedError(
                f"the devices of {self!r} have been let go. Call pw.attach(...) again, or use the current controller."
            )
        driver = self.driver_or_none
        if driver is None:
            with self.life:
                if self.closed:
                    return self.driver
                driver = self.driver_or_none or self._start()
        return driver

    def _start(self) -> Driver:
        forks.started()
        driver = self.driver_or_none = self._start_driver(self)
        if self.clock is time.perf_counter:
            _share_python_often()
            self._pauses = Pauses(self.clock, self.note)
        if driver.attachment.note:
            print(driver.attachment.note)
        return driver

    @property
    def platform(self) -> str:
        """The kind of device, which decides what can share a trace."""
        return self.driver.attachment.kind

    def mesh_of(self, place: VirtualSlice) -> AbstractMesh:
        """The abstract mesh of a virtual slice, as its devices here would have it."""
        return self.located(place)[1].abstract_mesh

    def located(self, place: VirtualSlice) -> tuple[Placement, Mesh]:
        """Where a virtual slice lies, and its devices there."""
        placement = self.place([place])[place.serial]
        return placement, self.driver.attachment.islands[placement.island].mesh(placement, place)

    def place(self, places: Sequence[VirtualSlice]) -> dict[int, Placement]:
        """Devices for virtual slices; they are given back when nobody holds the slice any more."""
        for place in places:
            if place not in self._placed:
                self._placed.add(place)
                weakref.finalize(place, self.resources.forget, place.serial).atexit = False
        return self.resources.place(places)

    def begin_epoch(self) -> None:
        """Devices have changed: every program is lowered again at its next call."""
        self.epoch = _Epoch()

    def shares_devices_with(self, other: Session) -> bool:
        """Whether both hold the same physical devices; CPU islands are always a controller's own."""
        kinds = {self.attach_options.kind, other.attach_options.kind}
        return not self.closed and len(kinds) == 1 and not kinds <= {"cpu", "sim"}

    def settle(self) -> None:
        """Wait until all that has been called by now has ended, well or not, and what was dropped is freed."""
        self.flush()
        driver, runs = self.driver, tuple(self.driver.runs)
        driver.ended.wait(lambda: driver.broken or not any(run in driver.runs for run in runs))
        if not driver.broken:
            driver.event_loop.in_turn(lambda: None)

    # ---- records

    def say(self, line: str) -> bool:
        """Tell of progress: on the display of what is recorded, and true; else on standard error, and false."""
        shown = False
        for run, _ in self.recordings[-1:]:
            run.note, shown = line, run.on_display
        if line and not shown:
            to_standard_error(line)
        return shown

    def active_record(self) -> Record:
        """Where events go now: the innermost recording, or the controller's own history."""
        for run, _ in self.recordings[-1:]:
            return run.record
        return self.record

    def note(self, row: Row) -> None:
        """Record what happened to no program in particular."""
        self.active_record().add(row)

    def flush(self) -> None:
        """Send what was gathered."""
        if self.recordings:
            self.recordings[-1][1].flush()

    # ---- life

    def reset(self) -> None:
        """Free buffers, programs and records; keep the devices."""
        forks.refuse()
        with self.life:
            if self.driver_or_none is not None:
                self._close_driver()
            self.islands, self.budgets = self._asked
            self.machine = self._machine()
            self.opened.clear()
            self.resources = Resources(self.islands, threading.RLock())
            self._placed.clear()
            self.epoch = _Epoch()
            self.record.clear()
            self.recordings.clear()
            if self.twin is not None:
                self.twin.reset()
            if self.attach_options.simulated is not None:
                _ = self.driver  # as at the beginning: this thread takes part

    def close(self) -> None:
        """Cancel what is queued and let the devices go; results held on them are lost."""
        if forks.is_child():  # they are the parent's
            return
        with self.life:
            if not self.closed:
                self.closed = True
                self._close_driver()
                if self.twin is not None:
                    self.twin.close()

    def _close_driver(self) -> None:
        driver, self.driver_or_none = self.driver_or_none, None
        if self._pauses is not None:
            self._pauses.stop()
        if driver is not None:
            driver.close()

    @property
    def size_text(self) -> str:
        """How many islands of how many devices, in words."""
        counts = set(self.islands)
        sizes = str(self.islands[0]) if len(counts) == 1 else " + ".join(map(str, self.islands))
        devices = "device" if counts == {1} else "devices"
        return f"{counted(len(self.islands), 'island')} × {sizes} {devices}"

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        asked = self.attach_options
        late = f", messages take {duration(asked.dcn_latency)}" if asked.dcn_latency else ""
        return f"<controller {asked.kind}: {self.size_text}, {asked.dispatch} dispatch{late}{state}>"


def _share_python_often() -> None:
    """Dispatchers launch from threads of their own: behind a busy cell each launch would wait Python's usual 5 ms."""
    sys.setswitchinterval(min(5e-4, sys.getswitchinterval()))
