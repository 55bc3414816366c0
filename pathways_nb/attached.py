"""The controller as a person holds it: devices, calls, the record, the status.

It joins programs, the pure core, a driver and the record; every decision is the core's.
"""

from __future__ import annotations

import gc
import html
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh

from pathways_nb import current, elastic, tenants, values
from pathways_nb.backends.driver import QUEUED, Driver
from pathways_nb.backends.engine import Clock
from pathways_nb.backends.lowering import Lowered
from pathways_nb.backends.pauses import Pauses
from pathways_nb.controller.machine import Machine
from pathways_nb.controller.policies import Policy, policy_of
from pathways_nb.controller.resources import Resources
from pathways_nb.errors import NotAttachedError, OutOfMemoryError, UsageError, size
from pathways_nb.gather import Gather, check_futures, consume
from pathways_nb.program.places import VirtualSlice
from pathways_nb.program.plan import Placement, Plan, lower
from pathways_nb.program.program import Program, Traced
from pathways_nb.program.signature import Signature
from pathways_nb.progress import to_standard_error
from pathways_nb.run import Run
from pathways_nb.status import status_of
from pathways_nb.trace.metrics import counted, duration
from pathways_nb.trace.record import Label, Record, Row, label_of

_HISTORY = 2_000
"""Events remembered of what runs outside any recording."""
_LONG_LOWERING = 1.0
"""Seconds of lowering after which a garbage collection is a small part."""


@dataclass(frozen=True)
class Simulated:
    """What was asked for of simulated devices; see ``pw.attach``."""

    chip: Any = None
    network: Any = None
    devices_per_host: int | None = None
    topology: tuple[int, ...] | None = None
    noise: float = 0.0
    seed: int = 0
    values: bool = False


@dataclass(frozen=True)
class Specification:
    """What was asked for; attaching the same again does nothing."""

    kind: str
    islands: Any
    devices_per_island: int | None
    dispatch: str
    pin: bool
    policy: str | Policy = "stride"
    hbm: float | None = None
    dcn_latency: float = 0.0
    simulated: Simulated | None = None
    """What else simulated devices are like."""

    def as_dict(self) -> dict[str, Any]:
        """Plain data; a policy of the user's, a chip and a network by their names."""
        parts = (self, self.simulated) if self.simulated is not None else (self,)
        plain = {field.name: getattr(part, field.name) for part in parts for field in fields(part)}
        plain |= {name: _named(plain[name]) for name in ("policy", "chip", "network") if name in plain}
        return {name: value for name, value in plain.items() if name != "simulated"}


def _named(value: Any) -> str | None:
    """A function, a chip or a network by its name."""
    if value is None or isinstance(value, str):
        return value
    return getattr(value, "__name__", None) or getattr(value, "name", None) or str(value)


class _Epoch:
    """The time between two resets: what was lowered in one does not hold in the next."""


class Controller:
    """The single controller of a notebook: devices, the order of work on them, and the record of it.

    Made by ``pw.attach``. As a ``with`` block it restores the previous one at the end.
    """

    def __init__(
        self,
        specification: Specification,
        start: Callable[[Controller], Driver],
        devices: tuple[int, ...],
        budgets: tuple[int, ...] = (),
        clock: Clock = time.perf_counter,
    ):
        self.specification, self._start_driver = specification, start
        self.clock = clock
        """Seconds; everything recorded is on it."""
        self.islands = devices
        self.budgets = budgets or (0,) * len(devices)
        """Bytes of memory per device of each island; 0 where nobody knows."""
        self._asked = self.islands, self.budgets
        self.resources = Resources(devices, threading.RLock())
        self.machine = self._machine()
        self.record = Record(limit=_HISTORY)
        self.driver_or_none: Driver | None = None
        self._life = threading.RLock()
        """Held while the engine starts or ends, or devices change: other threads must find all of it or nothing."""
        self._pauses: Pauses | None = None
        self.closed = False
        self.twin: Controller | None = None
        """Of a simulated one: real devices that compute the values, if they are asked for."""
        self.recordings: list[tuple[Run, Gather]] = []
        self.scopes: list[Controller | None] = []
        """For each ``with`` block entered: what it restores; itself if it was attached before."""
        self._epoch = _Epoch()
        self._opened: dict[str, tenants.Tenant] = {}
        """By name: the tenant that the engine was told of last, until a client of that name is closed."""
        self._placed: weakref.WeakSet[VirtualSlice] = weakref.WeakSet()

    def _machine(self) -> Machine:
        asked = self.specification
        return Machine(asked.dispatch, policy_of(asked.policy), self.islands, self.budgets)  # type: ignore[arg-type]

    # ---- devices

    @property
    def driver(self) -> Driver:
        """The engine on the devices, started when first needed.

        Raises:
            NotAttachedError: the devices have been let go.
        """
        if self.closed:
            raise NotAttachedError(
                f"the devices of {self!r} have been let go. Call pw.attach(...) again, or use the current controller."
            )
        driver = self.driver_or_none
        if driver is None:
            with self._life:
                if self.closed:
                    return self.driver
                driver = self.driver_or_none or self._start()
        return driver

    def _start(self) -> Driver:
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
        placement = self._place([place])[place.serial]
        return placement, self.driver.attachment.islands[placement.island].mesh(placement, place)

    def _place(self, places: Sequence[VirtualSlice]) -> dict[int, Placement]:
        """Devices for virtual slices; they are given back when nobody holds the slice any more."""
        for place in places:
            if place not in self._placed:
                self._placed.add(place)
                weakref.finalize(place, self.resources.forget, place.serial).atexit = False
        return self.resources.place(places)

    def begin_epoch(self) -> None:
        """Devices have changed: every program is lowered again at its next call."""
        self._epoch = _Epoch()

    def remove(self, island: int, first: int = 0, count: int | None = None) -> None:
        """Lose devices while programs run, as by a failure: ``count`` of an island from ``first`` on, by default all.

        Nodes that were to run there fail, with everything that depends on them; data that lay only there is lost, and
        says so by name. Places there move to other devices at the next call, and everything else goes on.

        Raises:
            PlaceError: there are no such devices.
        """
        with self._life:
            elastic.remove(self, island, first, count)

    def add(self, devices: int | None = None, island: int | None = None) -> int:
        """Add an island of ``devices`` virtual devices, or give ``island`` its removed devices back.

        Returns:
            The island's index.

        Raises:
            PlaceError: there is no such island. UsageError: both are given, or accelerators, of which there are no
                more.
        """
        with self._life:
            return elastic.add(self, devices, island)

    def shares_devices_with(self, other: Controller) -> bool:
        """Whether both hold the same physical devices; CPU islands are always a controller's own."""
        kinds = {self.specification.kind, other.specification.kind}
        return not self.closed and len(kinds) == 1 and not kinds <= {"cpu", "sim"}

    # ---- calls

    def dispatch(self, program: Program, call: Signature, gathered: bool = False) -> Any:
        """Trace and lower what is new, submit, and return the outputs as futures.

        Args:
            program: what to call. call: its arguments.
            gathered: whether it stands for loose calls, which have been checked and have donated already.

        Raises:
            PathwaysError: the call cannot be carried out; nothing was submitted.
        """
        self.driver.engine.refuse_policies()
        self.driver.acts(lowering=True)
        avals = call.avals()
        if not gathered:
            check_futures(call)
        record = self.active_record()
        traced = program.cached(call, avals, self.platform)
        if traced is None:
            began = self.clock()
            traced = program.trace(call, avals, self.platform, self.mesh_of)
            record.add(Row(Label("trace", program.name, program.name), began, self.clock(), quality="exact"))
        lowered = self.lowered(traced)
        client = self.client()
        if (tenant := tenants.now()) is not None and tenant.memory:
            limits = [tenant.memory] * len(self.islands)
            self._refuse_too_large(lowered, limits, f"give {client!r} a larger memory=")
        waited = self.driver.wait_for_room(client)
        if waited > 1e-3:
            label = label_of("stall", f"back-pressure: {QUEUED} programs queued", program.name, client)
            record.add(Row(label, self.clock() - waited, self.clock(), quality=self.driver.quality))
        buffers, temporary = values.hold(self, call.leaves, client)
        try:
            run, results = self.driver.submit(lowered, buffers, record, client)
        finally:
            for buffer in temporary:
                self.driver.release(buffer)
        if not gathered:
            consume(call)
        for recording, _ in self.recordings[-1:]:
            recording.add(run)
        made = values.futures(self, lowered, results)
        if self.twin is not None:
            values.compute_beside(self.twin, program, call, made)
        return jax.tree.unflatten(traced.out_tree, made)

    def client(self) -> str:
        """The name of the tenant for whom calls are made here, whom the engine has been told of."""
        tenant = tenants.now()
        if tenant is None:
            return ""
        if self._opened.get(tenant.name) is not tenant:
            self.driver.open(tenant.name, tenant.share, tenant.priority, tenant.memory)
            self._opened[tenant.name] = tenant
        return tenant.name

    def knows(self, name: str) -> bool:
        """Whether a client of this name has called anything and is open."""
        return name in self._opened

    def close_client(self, name: str) -> Callable[[], None]:
        """A tenant is gone: its programs are given up, and what it alone holds is freed.

        Takes no lock. Who wants to wait until it is so calls what this returns.
        """
        driver = self.driver_or_none
        if self._opened.pop(name, None) is None or driver is None:
            return lambda: None
        return driver.close_client(name)

    def give_up(self, name: str) -> None:
        """Forget what is gathered for a client that closes: sent later, it would open it again."""
        for _, gather in tuple(self.recordings):
            gather.give_up(name)

    def wait_for_client(self, client: str) -> None:
        """Wait until nothing of a client is under way."""
        driver = self.driver_or_none
        if driver is not None:
            driver.ended.wait(lambda: not driver.runs_of(client) or driver.broken)

    def settle(self) -> None:
        """Wait until all that has been called by now has ended, well or not."""
        self.flush()
        driver, runs = self.driver, tuple(self.driver.runs)
        driver.ended.wait(lambda: driver.broken or not any(run in driver.runs for run in runs))

    def cancel(self, client: str | tenants.Tenant) -> None:
        """Give up a client's programs: nothing more of them is dispatched. The name ``""`` means those of no client.

        Raises:
            UsageError: there is no such client.
        """
        client = client.name if isinstance(client, tenants.Tenant) else client
        self.flush()
        if client and not self.knows(client):
            known = ", ".join(map(repr, self._opened)) or "none"
            raise UsageError(f"cancel({client!r}): no client of that name has called anything; there are: {known}.")
        self.driver.cancel(self.driver.runs_of(client))

    def lowered(self, traced: Traced, refuse: bool = True) -> Lowered:
        """The program on this controller's devices, lowered and compiled once.

        Raises:
            OutOfMemoryError: it needs more memory than they have, unless ``refuse`` is false.
        """
        epoch = self._epoch  # before devices are chosen: they may change meanwhile
        found = traced.lowered.get(epoch)
        if found is None:
            found = traced.lowered[epoch] = self._lower(traced)
        if refuse:
            self._refuse_too_large(found, self.budgets, "attach with a larger hbm=")
        return found

    def traced(self, program: Program, call: Signature) -> Traced:
        """The program's trace for these arguments, which is not recorded."""
        avals = call.avals()
        traced = program.cached(call, avals, self.platform)
        return traced or program.trace(call, avals, self.platform, self.mesh_of)

    def plan_of(self, program: Program, call: Signature) -> Plan:
        """The program placed on this controller's devices, not compiled."""
        return self._plan(self.traced(program, call))

    def _plan(self, traced: Traced) -> Plan:
        return lower(traced.graph, self._place(traced.places), traced.arguments, traced.places[0])

    def _lower(self, traced: Traced) -> Lowered:
        record = self.active_record()
        began = self.clock()
        plan = self._plan(traced)
        record.add(Row(Label("lower", traced.name, traced.name), began, self.clock(), quality="exact"))
        try:
            lowered = self.driver.lower(traced, plan, record, self._say)
        finally:
            for run, _ in self.recordings[-1:]:
                run.note = ""
        if self.clock() - began > _LONG_LOWERING:
            gc.collect()  # it left much behind, and would be due in the midst of a step (see ``pauses``)
        return lowered

    def _refuse_too_large(self, lowered: Lowered, budgets: Sequence[int], fix: str) -> None:
        """A program that could never finish is refused, with what it needs where."""
        for peak in lowered.peaks:
            if 0 < (budget := budgets[peak.where.island]) < peak.bytes:
                raise OutOfMemoryError(
                    f"{peak.program} needs {size(peak.bytes)} on each device of {peak.where}, where there are "
                    f"{size(budget)}. Its peak is {peak.parts}. Use more devices or smaller arrays, or {fix}."
                )

    def _say(self, line: str) -> None:
        shown = False
        for run, _ in self.recordings[-1:]:
            run.note, shown = line, run.on_display
        if not shown:
            to_standard_error(line)

    # ---- records

    def active_record(self) -> Record:
        """Where events go now: the innermost recording, or the controller's own history."""
        for run, _ in self.recordings[-1:]:
            return run.record
        return self.record

    def note(self, row: Row) -> None:
        """Record what happened to no program in particular."""
        self.active_record().add(row)

    def gather(self) -> Gather:
        """Where loose calls go now."""
        return self.recordings[-1][1] if self.recordings else Gather(self)

    def flush(self) -> None:
        """Send what was gathered."""
        if self.recordings:
            self.recordings[-1][1].flush()

    # ---- life

    def reset(self) -> None:
        """Free buffers, programs and records; keep the devices."""
        with self._life:
            if self.driver_or_none is not None:
                self._close_driver()
            self.islands, self.budgets = self._asked
            self.machine = self._machine()
            self._opened.clear()
            self.resources = Resources(self.islands, threading.RLock())
            self._placed.clear()
            self._epoch = _Epoch()
            self.record.clear()
            self.recordings.clear()
            if self.twin is not None:
                self.twin.reset()

    def close(self) -> None:
        """Cancel what is queued and let the devices go; results held on them are lost."""
        with self._life:
            if not self.closed:
                self.closed = True
                self._close_driver()
                if self.twin is not None:
                    self.twin.close()

    def __enter__(self) -> Controller:
        current.enter(self)
        return self

    def __exit__(self, *exception: object) -> None:
        current.leave(self)

    def _close_driver(self) -> None:
        driver, self.driver_or_none = self.driver_or_none, None
        if self._pauses is not None:
            self._pauses.stop()
        if driver is not None:
            driver.close()

    def status(self) -> str:
        """Islands, devices, places, clients and memory as text."""
        return status_of(self)

    def _repr_html_(self) -> str:
        first, *rest = self.status().split("\n")
        items = "".join(f"<li>{html.escape(row.strip())}</li>" for row in rest)
        return f"<div><b>{html.escape(first)}</b><ul>{items}</ul></div>"

    @property
    def size_text(self) -> str:
        """How many islands of how many devices, in words."""
        counts = set(self.islands)
        sizes = str(self.islands[0]) if len(counts) == 1 else " + ".join(map(str, self.islands))
        devices = "device" if counts == {1} else "devices"
        return f"{counted(len(self.islands), 'island')} × {sizes} {devices}"

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        asked = self.specification
        late = f", messages take {duration(asked.dcn_latency)}" if asked.dcn_latency else ""
        return f"<controller {asked.kind}: {self.size_text}, {asked.dispatch} dispatch{late}{state}>"


def _share_python_often() -> None:
    """Dispatchers launch from threads of their own: behind a busy cell each launch would wait Python's usual 5 ms."""
    sys.setswitchinterval(min(5e-4, sys.getswitchinterval()))
