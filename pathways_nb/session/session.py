"""``Session``: the state that the modules of this package share.

A session joins the pure core (``controller``), a driver (``runtime``), the placements of virtual slices and the event
record. It takes no decision. What calls do with it is in functions of ``submit``, ``tenant_scope`` and ``elasticity``
that take the session as an argument: methods here would make this module import all of them, and they import it.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

from jax.sharding import AbstractMesh, Mesh

from pathways_nb.controller.device_grid import DeviceGrid
from pathways_nb.controller.policies import policy_of
from pathways_nb.controller.resources import Resources
from pathways_nb.controller.state_machine import StateMachine
from pathways_nb.errors import LostError, NotAttachedError, PlaceError
from pathways_nb.plan.plan import Placement
from pathways_nb.plan.virtual_slice import VirtualSlice
from pathways_nb.program.computation import Computation
from pathways_nb.program.jax_contexts import Contexts
from pathways_nb.program.signature import Aval, Signature
from pathways_nb.results.run import Run
from pathways_nb.runtime.driver import Driver
from pathways_nb.runtime.event_loop import Clock
from pathways_nb.runtime.gc_pauses import Pauses
from pathways_nb.runtime.interpreter_settings import InterpreterSettings
from pathways_nb.session.attach_options import AttachOptions
from pathways_nb.session.future_kinds import FutureKind
from pathways_nb.trace.metrics import duration
from pathways_nb.trace.record import Record
from pathways_nb.trace.rows import Row
from pathways_nb.util import forks
from pathways_nb.util.progress import show_progress
from pathways_nb.util.unique import Unique
from pathways_nb.util.words import counted, plural

_HISTORY = 2_000
"""Events kept of what runs outside any recording."""


class _Epoch:
    """The time between two changes of the devices; programs compiled in one epoch are not valid in the next."""


class Pending(Protocol):
    """Calls of computations that are batched and not dispatched yet."""

    def add(self, computation: Computation, call: Signature) -> Any:
        """Add a call and return its outputs as futures."""

    def flush(self, here: Contexts | None = None) -> None:
        """Dispatch all batched calls; ``here`` are JAX's contexts of this thread, if they are known."""

    def give_up(self, client: str) -> None:
        """Drop the batched calls of a client that closes."""

    def interrupt(self, thread: int) -> int:
        """Cancel the batched calls of a thread that was interrupted, and return how many those were."""


class Session(Unique):
    """Islands of devices, the order of work on them, and the record of that work.

    Args:
        attach_options: the options of ``pw.attach``.
        start: makes the driver; called when the driver is first needed, because starting JAX's devices is slow.
        devices: number of devices of each island.
        budgets: bytes of memory per device of each island; 0 where the size is unknown.
        clock: returns seconds; the time base of every recorded event.
        machine: makes what stands for a core that is elsewhere; by default the core is here.
        grids: by island, the grid of whose boxes its places must be; see ``Resources``.
    """

    _not_pickled = "cannot be pickled: its devices are this process's. Call pw.attach(...) in the other process."

    def __init__(
        self,
        attach_options: AttachOptions,
        start: Callable[[Session], Driver],
        devices: tuple[int, ...],
        budgets: tuple[int, ...] = (),
        clock: Clock = time.perf_counter,
        machine: Callable[[], Any] | None = None,
        grids: Sequence[DeviceGrid | None] = (),
    ):
        self.attach_options, self._start_driver, self._elsewhere = attach_options, start, machine
        self._grids = grids
        self.clock = clock
        self.islands = devices
        self.budgets = budgets or (0,) * len(devices)
        self._asked = self.islands, self.budgets
        self.resources = Resources(devices, threading.RLock(), grids)
        self.machine = self._machine()
        self.record = Record(limit=_HISTORY)
        self.driver_or_none: Driver | None = None
        self.life = threading.RLock()
        """Held while the event loop starts or stops and while devices change: others see all of it or nothing."""
        self._pauses: Pauses | None = None
        self._settings: InterpreterSettings | None = None
        self.closed = False
        self.on_close: Callable[[], None] = lambda: None
        """Called once, when the devices are released for good."""
        self.lost: Callable[[], str] = lambda: ""
        """Returns why its devices will never come back; empty while they may."""
        self.value_session: Session | None = None
        """Only of a simulated session attached with ``values=True``: the real devices that compute the values."""
        self.recordings: list[tuple[Run, Pending]] = []
        self.scopes: list[Session | None] = []
        """For each ``with`` block entered, the session to restore; the session itself if it was current before."""
        self.epoch = _Epoch()
        self.opened: dict[str, object] = {}
        """The tenants that the event loop knows, by name, until a client of that name is closed."""
        self.donations, self.donating = 0, threading.Lock()
        """Calls that donated something, and what is held while one is submitted that must not read it."""
        self.kinds: weakref.WeakValueDictionary[Any, FutureKind] = weakref.WeakValueDictionary()
        """What its futures are, each once, by its attributes, while a future or a known call needs it."""
        self._placed: weakref.WeakSet[VirtualSlice] = weakref.WeakSet()

    def _machine(self) -> StateMachine:
        asked = self.attach_options
        if self._elsewhere is not None:
            return cast(StateMachine, self._elsewhere())
        return StateMachine(asked.dispatch, policy_of(asked.policy), self.islands, self.budgets)  # type: ignore[arg-type]

    # ---- devices

    @property
    def driver(self) -> Driver:
        """Return the driver, starting it when it is first needed.

        Raises:
            NotAttachedError: the devices were released, or this process is a forked child.
            LostError: they are lost for good.
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
                # Again, under the lock: another thread may have started it meanwhile.
                driver = self.driver_or_none or self._start()
        return driver

    def _start(self) -> Driver:
        if why := self.lost():
            raise LostError(why)
        forks.started()
        driver = self.driver_or_none = self._start_driver(self)
        # In simulated time neither a thread's switch nor a garbage collection takes any.
        if self.clock is time.perf_counter:
            self._settings = InterpreterSettings()
            self._pauses = Pauses(self.clock, self.note)
        if driver.attachment.note:
            print(driver.attachment.note)
        return driver

    @property
    def platform(self) -> str:
        """JAX's name of the kind of device; programs traced for one platform are not used on another."""
        return self.driver.attachment.kind

    def mesh_of(self, place: VirtualSlice) -> AbstractMesh:
        """Return the abstract mesh of a virtual slice, with the axis types that its devices give it."""
        return self.located(place)[1].abstract_mesh

    def located(self, place: VirtualSlice) -> tuple[Placement, Mesh | AbstractMesh]:
        """Return the placement of a virtual slice and the mesh of its devices."""
        placement = self.place([place])[place.serial]
        return placement, self.driver.attachment.islands[placement.island].mesh(placement, place)

    def place(self, places: Sequence[VirtualSlice]) -> dict[int, Placement]:
        """Place virtual slices on devices.

        A slice gives its devices back when it is garbage collected: the finalizer is registered once for each slice.

        Args:
            places: the virtual slices; those placed already keep their devices.

        Returns:
            The placement of each slice, by its serial number.
        """
        for place in places:
            if place not in self._placed:
                self._placed.add(place)
                # Not at exit, where nobody needs the devices any more.
                weakref.finalize(place, self.resources.forget, place.serial).atexit = False
        try:
            return self.resources.place(places)
        except PlaceError:
            # Hosts that died may be on their way back, and with them the devices that are missing.
            self.driver.wait_for_devices()
            return self.resources.place(places)  # also where none are rebuilt: they may be back since

    def begin_epoch(self) -> None:
        """Make every compiled plan invalid, because the devices changed; programs compile again at their next call."""
        self.epoch = _Epoch()
        self.kinds = weakref.WeakValueDictionary()

    def kind(
        self, aval: Aval, name: str, sharding: Any = None, place: int | None = None, where: Placement | None = None
    ) -> FutureKind:
        """Return the only ``FutureKind`` of these attributes."""
        key = (aval, name, sharding, place, where)
        found = self.kinds.get(key)
        return found if found is not None else self.kinds.setdefault(key, FutureKind(self, *key))

    def shares_devices_with(self, other: Session) -> bool:
        """Return whether both sessions hold the same physical devices; CPU and simulated islands are never shared."""
        kinds = {self.attach_options.kind, other.attach_options.kind}
        return not self.closed and not self.lost() and len(kinds) == 1 and not kinds <= {"cpu", "sim"}

    def wait_all(self) -> None:
        """Wait until all calls made so far have ended, failed ones included, and the buffers they dropped are freed."""
        self.flush()
        driver, calls = self.driver, tuple(self.driver.runs)
        driver.ended.wait(lambda: driver.broken or not any(call in driver.runs for call in calls))
        if not driver.broken:
            # The buffers that a call drops are freed in the event loop: one turn later all are.
            driver.event_loop.in_turn(lambda: None)

    settle = wait_all
    """The earlier name of ``wait_all``, which users' notebooks may have."""

    # ---- records

    def say(self, line: str) -> bool:
        """Show a line of progress to the user.

        Args:
            line: the text; empty to clear the line.

        Returns:
            Whether the display of the current recording shows it; if not, it is shown by itself.
        """
        shown = False
        for recording, _ in self.recordings[-1:]:
            recording.note, shown = line, recording.on_display
        if not shown:
            show_progress(line)
        return shown

    def active_record(self) -> Record:
        """Return the record that events go to now: of the innermost recording, else the session's own history."""
        for recording, _ in self.recordings[-1:]:
            return recording.record
        return self.record

    def note(self, row: Row) -> None:
        """Record an event that belongs to no program in particular."""
        self.active_record().add(row)

    def flush(self) -> None:
        """Dispatch the calls that are batched in the innermost recording."""
        if self.recordings:
            self.recordings[-1][1].flush()

    # ---- life

    def reset(self) -> None:
        """Free all buffers, compiled programs and records, and keep the devices."""
        forks.refuse()
        with self.life:
            if self.driver_or_none is not None:
                self._close_driver()
            # Islands that were added later ended with the driver.
            self.islands, self.budgets = self._asked
            self.machine = self._machine()
            self.opened.clear()
            self.resources = Resources(self.islands, threading.RLock(), self._grids)
            self._placed.clear()
            self.begin_epoch()
            self.record.clear()
            self.recordings.clear()
            if self.value_session is not None:
                self.value_session.reset()
            if self.attach_options.simulated is not None:
                _ = self.driver  # as at the beginning: this thread takes part

    def close(self) -> None:
        """Cancel what is queued and release the devices; results that only they hold are lost."""
        if forks.is_child():  # they are the parent's
            return
        with self.life:
            if not self.closed:
                self.closed = True
                self._close_driver()
                self.begin_epoch()  # else programs would keep what they know of this session
                if self.value_session is not None:
                    self.value_session.close()
                self.on_close()

    def _close_driver(self) -> None:
        driver, self.driver_or_none = self.driver_or_none, None
        if self._pauses is not None:
            self._pauses.stop()
        if self._settings is not None:
            self._settings.release()
        if driver is not None:
            driver.close()

    @property
    def is_shared(self) -> bool:
        """Whether the controller is in a process of its own, for several kernels."""
        return self._elsewhere is not None

    @property
    def size_text(self) -> str:
        """The number of islands and of their devices, in words."""
        counts = set(self.islands)
        sizes = str(self.islands[0]) if len(counts) == 1 else " + ".join(map(str, self.islands))
        return f"{counted(len(self.islands), 'island')} × {sizes} {plural(max(counts), 'device')}"

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ", lost" if self.lost() else ""
        asked = self.attach_options
        late = f", messages take {duration(asked.dcn_latency)}" if asked.dcn_latency else ""
        driver = self.driver_or_none
        by = f", nodes compiled by {driver.compiled_by}" if driver is not None and driver.compiled_by else ""
        return f"<controller {asked.kind}: {self.size_text}, {asked.dispatch} dispatch{late}{by}{state}>"
