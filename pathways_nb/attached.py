"""The controller as a person holds it: devices, calls, the record, the status.

It joins programs, the pure core, a driver and the record; every decision is the core's.
"""

from __future__ import annotations

import gc
import html
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from pathways_nb import current, tenants
from pathways_nb.backends.executables import Executables
from pathways_nb.backends.islands import Attachment
from pathways_nb.backends.local import QUEUED, LocalDriver
from pathways_nb.backends.lowering import Lowered, Lowering
from pathways_nb.backends.pauses import Pauses
from pathways_nb.controller.machine import Machine
from pathways_nb.controller.policies import Policy, policy_of
from pathways_nb.controller.resources import Resources
from pathways_nb.errors import NotAttachedError, UsageError
from pathways_nb.futures import Future
from pathways_nb.gather import Gather, check_futures, consume
from pathways_nb.program import specs
from pathways_nb.program.places import VirtualSlice, by_serial
from pathways_nb.program.plan import Placement, lower
from pathways_nb.program.program import Program, Traced
from pathways_nb.program.signature import Signature, aval_of
from pathways_nb.run import Run
from pathways_nb.trace.metrics import size
from pathways_nb.trace.record import Label, Record, Row, label_of

clock = time.perf_counter
_executables = Executables(clock)
_HISTORY = 2_000
"""Events remembered of what runs outside any recording."""
_LONG_LOWERING = 1.0
"""Seconds of lowering after which a garbage collection is a small part."""


@dataclass(frozen=True)
class Specification:
    """What was asked for; attaching the same again does nothing."""

    kind: str
    islands: Any
    devices_per_island: int | None
    dispatch: str
    pin: bool
    policy: str | Policy = "stride"

    def as_dict(self) -> dict[str, Any]:
        """Plain data; a policy of the user's by its name."""
        policy = self.policy if isinstance(self.policy, str) else getattr(self.policy, "__name__", repr(self.policy))
        return asdict(self) | {"policy": policy}


class _Epoch:
    """The time between two resets: what was lowered in one does not hold in the next."""


class Controller:
    """The single controller of a notebook: devices, the order of work on them, and the record of it.

    Made by ``pw.attach``. As a ``with`` block it restores the previous one at the end.
    """

    def __init__(self, specification: Specification, attach: Callable[[], Attachment], devices: tuple[int, ...]):
        self.specification, self._attach = specification, attach
        self.islands = devices
        self.resources = Resources(devices)
        self.machine = self._machine()
        self.record = Record(limit=_HISTORY)
        self.driver_or_none: LocalDriver | None = None
        self._pauses: Pauses | None = None
        self.closed = False
        self.recordings: list[tuple[Run, Gather]] = []
        self.scopes: list[Controller | None] = []
        """For each ``with`` block entered: what it restores; itself if it was attached before."""
        self._epoch = _Epoch()
        self._opened: weakref.WeakSet[tenants.Tenant] = weakref.WeakSet()
        self._placed: weakref.WeakSet[VirtualSlice] = weakref.WeakSet()

    def _machine(self) -> Machine:
        asked = self.specification
        return Machine(asked.dispatch, policy_of(asked.policy), self.islands)  # type: ignore[arg-type]

    # ---- devices

    @property
    def driver(self) -> LocalDriver:
        """The engine on the devices, started when first needed.

        Raises:
            NotAttachedError: the devices have been let go.
        """
        if self.closed:
            raise NotAttachedError(
                f"the devices of {self!r} have been let go. Call pw.attach(...) again, or use the current controller."
            )
        if self.driver_or_none is None:
            _share_python_often()
            attachment = self._attach()
            self.driver_or_none = LocalDriver(attachment, self.machine, clock, _executables)
            self._pauses = Pauses(clock, lambda row: self.active_record().add(row))
            if attachment.note:
                print(attachment.note)
        return self.driver_or_none

    @property
    def platform(self) -> str:
        """The kind of device, which decides what can share a trace."""
        return self.driver.attachment.kind

    def mesh_of(self, place: VirtualSlice) -> AbstractMesh:
        """The abstract mesh of a virtual slice, as its devices here would have it."""
        return self._mesh(place).abstract_mesh

    def _mesh(self, place: VirtualSlice) -> Mesh:
        placement = self._place([place])[place.serial]
        return self.driver.attachment.islands[placement.island].mesh(placement, place)

    def _place(self, places: Sequence[VirtualSlice]) -> dict[int, Placement]:
        """Devices for virtual slices; they are given back when nobody holds the slice any more."""
        for place in places:
            if place not in self._placed:
                self._placed.add(place)
                weakref.finalize(place, self.resources.forget, place.serial).atexit = False
        return self.resources.place(places)

    def shares_devices_with(self, other: Controller) -> bool:
        """Whether both hold the same physical devices; CPU islands are always a controller's own."""
        kinds = {self.specification.kind, other.specification.kind}
        return not self.closed and len(kinds) == 1 and kinds != {"cpu"}

    # ---- calls

    def dispatch(self, program: Program, call: Signature, gathered: bool = False) -> Any:
        """Trace and lower what is new, submit, and return the outputs as futures.

        Args:
            program: what to call. call: its arguments.
            gathered: whether it stands for loose calls, which have been checked and have donated already.

        Raises:
            PathwaysError: the call cannot be carried out; nothing was submitted.
        """
        avals = call.avals()
        if not gathered:
            check_futures(call)
        record = self.active_record()
        traced = program.cached(call, avals, self.platform)
        if traced is None:
            began = clock()
            traced = program.trace(call, avals, self.platform, self.mesh_of)
            record.add(Row(Label("trace", program.name, program.name), began, clock(), quality="exact"))
        lowered = self.lowered(traced)
        client = self._client()
        waited = self.driver.wait_for_room(client)
        if waited > 1e-3:
            label = label_of("stall", f"back-pressure: {QUEUED} programs queued", program.name, client)
            record.add(Row(label, clock() - waited, clock(), quality="exact"))
        buffers, temporary = self._hold(call.leaves)
        try:
            run, results = self.driver.submit(lowered, buffers, record, client)
        finally:
            for buffer in temporary:
                self.driver.release(buffer)
        if not gathered:
            consume(call)
        for recording, _ in self.recordings[-1:]:
            recording.add(run)
        return jax.tree.unflatten(traced.out_tree, self._futures(lowered, results))

    def _client(self) -> str:
        """The name of the tenant for whom calls are made here, whom the engine has been told of."""
        tenant = tenants.now()
        if tenant is None:
            return ""
        if tenant not in self._opened:
            self._opened.add(tenant)
            self.driver.open(tenant.name, tenant.share, tenant.priority)
        return tenant.name

    def cancel(self, client: str) -> None:
        """Give up a client's programs."""
        self.flush()
        self.driver.cancel(self.driver.runs_of(client))

    def lowered(self, traced: Traced) -> Lowered:
        """The program on this controller's devices, lowered and compiled once."""
        found = traced.lowered.get(self._epoch)
        if found is None:
            found = traced.lowered[self._epoch] = self._lower(traced)
        return found

    def _lower(self, traced: Traced) -> Lowered:
        record = self.active_record()
        began = clock()
        placements = self._place(traced.places)
        plan = lower(traced.graph, placements, traced.arguments, traced.places[0])
        record.add(Row(Label("lower", traced.name, traced.name), began, clock(), quality="exact"))
        islands = self.driver.attachment.islands
        try:
            lowered = Lowering(traced, plan, islands, _executables).lower(record, self._say)
        finally:
            for run, _ in self.recordings[-1:]:
                run.note = ""
        if clock() - began > _LONG_LOWERING:
            gc.collect()  # it left much behind, and would be due in the midst of a step (see ``pauses``)
        return lowered

    def _say(self, line: str) -> None:
        shown = False
        for run, _ in self.recordings[-1:]:
            run.note, shown = line, run.on_display
        if not shown:
            print(line, file=sys.stderr)

    def _hold(self, leaves: Sequence[Any]) -> tuple[list[int], list[int]]:
        """A logical buffer for each argument, and those made only for this call."""
        driver = self.driver
        held = [leaf.held_in(driver.entries) if isinstance(leaf, Future) else None for leaf in leaves]
        values = {
            position: leaf.result() if isinstance(leaf, Future) else self.snapshot(leaf)
            for position, (leaf, buffer) in enumerate(zip(leaves, held, strict=True))
            if buffer is None
        }  # all of them before the first is stored: one that is lost must leave nothing behind
        stored = {position: driver.store(value, getattr(value, "nbytes", 0), "") for position, value in values.items()}
        return [stored[i] if buffer is None else buffer for i, buffer in enumerate(held)], list(stored.values())

    def snapshot(self, value: Any) -> Any:
        """A value that the caller can no longer change: NumPy arrays are copied, JAX's need not be."""
        if isinstance(value, jax.Array):
            return value
        aval = aval_of(value)
        return np.array(value, dtype=None if aval is None else aval.dtype)

    def _futures(self, lowered: Lowered, buffers: Sequence[int]) -> list[Future]:
        futures, driver = [], self.driver
        for buffer, aval, slot in zip(buffers, lowered.results, lowered.plan.results, strict=True):
            future = Future(self, aval, lowered.name)
            future.bind(buffer, driver.entries[buffer], lowered.shardings[slot], driver.release)
            futures.append(future)
        return futures

    def put(self, tree: Any, place: VirtualSlice, shardings: Any) -> Any:
        """Place every leaf; see ``pw.put``."""
        leaves, structure = jax.tree.flatten(tree)
        specs.check_tree(shardings, "shardings", "put", place)
        wanted = specs.spread(shardings, tree, "shardings", "put")
        mesh = self._mesh(place)
        return jax.tree.unflatten(
            structure, [self._put(x, s, place, mesh) for x, s in zip(leaves, wanted, strict=True)]
        )

    def _put(self, leaf: Any, spec: Any, place: VirtualSlice, mesh: Any) -> Future:
        aval = aval_of(leaf)
        if aval is None:
            raise UsageError(f"put({leaf!r}): a {type(leaf).__name__} is not an array, a number or a future.")
        specs.check_leaf(aval.shape, spec, place, "put: the array", "shardings")
        value = leaf.result() if isinstance(leaf, Future) else self.snapshot(leaf)
        sharding = NamedSharding(mesh, spec or PartitionSpec())
        began = clock()
        array = jax.device_put(value, sharding)
        placement = self.resources.placements[place.serial]
        label = label_of("transfer", f"put → {place.label}", place=place.label, island=placement.island,
                         device=placement.first, devices=placement.count, bytes=aval.bytes, route="host")  # fmt: skip
        self.active_record().add(Row(label, began, clock()))
        future = Future(self, aval, f"put on {place.label}")
        buffer = self.driver.store(array, aval.bytes, "")
        future.bind(buffer, self.driver.entries[buffer], sharding, self.driver.release)
        return future

    # ---- records

    def active_record(self) -> Record:
        """Where events go now: the innermost recording, or the controller's own history."""
        return self.recordings[-1][0].record if self.recordings else self.record

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
        if self.driver_or_none is not None:
            self._close_driver()
        self.machine = self._machine()
        self._opened.clear()
        self.resources = Resources(self.islands)
        self._placed.clear()
        self._epoch = _Epoch()
        self.record.clear()
        self.recordings.clear()

    def close(self) -> None:
        """Cancel what is queued and let the devices go; results held on them are lost."""
        if not self.closed:
            self._close_driver()
            self.closed = True

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
        """Islands, devices, places and memory as text."""
        rows = [repr(self)]
        driver = self.driver
        buffers = list(self.machine.ledger.buffers.values())  # a copy: the engine goes on meanwhile
        for island in driver.attachment.islands:
            devices = ", ".join(str(device.id) for device in island.devices)
            pinned = f", pinned to core {', '.join(map(str, island.cores))}" if island.cores else ""
            rows.append(f"  island {island.index}: {len(island.devices)} × {island.devices[0].device_kind}, "
                        f"ids {devices}{pinned}{_memory(island.devices)}")  # fmt: skip
        for serial, placement in sorted(self.resources.placements.items()):
            rows.append(f"  place {by_serial(serial).label}: {placement}")
        rows.append(
            f"  object store: {len(buffers)} buffers, {size(sum(entry.bytes for entry in buffers))} logical; "
            f"{len(driver.runs)} programs under way; {driver.sampled:.0%} of ends watched"
        )
        return "\n".join(rows)

    def _repr_html_(self) -> str:
        first, *rest = self.status().split("\n")
        items = "".join(f"<li>{html.escape(row.strip())}</li>" for row in rest)
        return f"<div><b>{html.escape(first)}</b><ul>{items}</ul></div>"

    @property
    def size_text(self) -> str:
        """How many islands of how many devices, in words."""
        counts = set(self.islands)
        sizes = str(self.islands[0]) if len(counts) == 1 else " + ".join(map(str, self.islands))
        return f"{len(self.islands)} island{'s' * (len(self.islands) > 1)} × {sizes} devices"

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        kind, dispatch = self.specification.kind, self.specification.dispatch
        return f"<controller {kind}: {self.size_text}, {dispatch} dispatch{state}>"


def _share_python_often() -> None:
    """Dispatchers launch from threads of their own: behind a busy cell each launch would wait Python's usual 5 ms."""
    sys.setswitchinterval(min(5e-4, sys.getswitchinterval()))


def _memory(devices: Sequence[Any]) -> str:
    """Memory in use where devices tell; CPU devices and some proxies do not."""
    try:
        stats = [device.memory_stats() or {} for device in devices]
    except Exception:  # a backend may refuse to answer, which is no reason to refuse a status
        return ""
    used = sum(s.get("bytes_in_use", 0) for s in stats)
    limit = sum(s.get("bytes_limit", 0) for s in stats)
    return f", {size(used)} of {size(limit)} in use" if limit else ""
