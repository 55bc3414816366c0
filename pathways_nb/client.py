"""The client: attach, call, record. It joins programs, the controller's pure core, a driver and the record."""

from __future__ import annotations

import contextlib
import functools
import html
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
import numpy as np
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from pathways_nb.backends import islands as islands_module
from pathways_nb.backends.executables import Executables
from pathways_nb.backends.islands import Attachment
from pathways_nb.backends.local import LocalDriver
from pathways_nb.backends.lowering import Lowered, Lowering
from pathways_nb.controller.machine import Machine
from pathways_nb.controller.resources import Resources
from pathways_nb.errors import NotAttachedError, PathwaysError, UsageError
from pathways_nb.futures import Future
from pathways_nb.gather import Gather, refuse_tracers
from pathways_nb.program import context, lines, specs
from pathways_nb.program.computation import Computation
from pathways_nb.program.graph import Graph
from pathways_nb.program.places import VirtualSlice
from pathways_nb.program.plan import Plan, lower
from pathways_nb.program.program import Program, Traced
from pathways_nb.program.signature import aval_of
from pathways_nb.run import Run
from pathways_nb.trace.metrics import duration, size
from pathways_nb.trace.record import Label, Record, Row

KINDS = ("auto", "cpu", "gpu", "tpu")
clock = time.perf_counter
_executables = Executables(clock)


@dataclass(frozen=True)
class Specification:
    """What was asked for; attaching the same again does nothing."""

    kind: str
    islands: Any
    devices_per_island: int | None
    dispatch: str
    pin: bool


class Controller:
    """The single controller of a notebook: devices, the order of work on them, and the record of it.

    Made by ``pw.attach``. As a ``with`` block it restores the previous one at the end.
    """

    def __init__(self, specification: Specification, attach: Callable[[], Attachment], devices: tuple[int, ...]):
        self.specification, self._attach = specification, attach
        self.islands = devices
        self.resources = Resources(devices)
        self.machine = Machine(dispatch=specification.dispatch)  # type: ignore[arg-type]
        self.record = Record()
        self.driver_or_none: LocalDriver | None = None
        self.closed = False
        self.recordings: list[tuple[Run, Gather]] = []
        self._scopes: list[Controller | None] = []
        self._lowered: weakref.WeakSet[Traced] = weakref.WeakSet()

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
            sys.setswitchinterval(1e-3)
            attachment = self._attach()
            self.driver_or_none = LocalDriver(attachment, self.machine, clock, _executables)
            if attachment.note:
                print(attachment.note)
        return self.driver_or_none

    @property
    def platform(self) -> str:
        """The kind of device, which decides what can share a trace."""
        return self.driver.attachment.kind

    def mesh_of(self, place: VirtualSlice) -> AbstractMesh:
        """The abstract mesh of a virtual slice, as its devices here would have it."""
        placement = self.resources.place([place])[place.serial]
        self._forget_with(place)
        return self.driver.attachment.islands[placement.island].mesh(placement, place).abstract_mesh

    def settle(self) -> None:
        """Let go of what this controller replaced, if it was not attached as a ``with`` block."""
        _settle()

    def _forget_with(self, place: VirtualSlice) -> None:
        if place.serial not in self._watched:
            self._watched.add(place.serial)
            weakref.finalize(place, self.resources.forget, place.serial).atexit = False

    @property
    def _watched(self) -> set[int]:
        return self.__dict__.setdefault("_watched_serials", set())

    # ---- calls

    def dispatch(
        self, program: Program, args: tuple[Any, ...], kwargs: dict[str, Any], check_donated: bool = True
    ) -> Any:
        """Trace and lower what is new, submit, and return the outputs as futures.

        Raises:
            PathwaysError: the call cannot be carried out; nothing was submitted.
        """
        call = program.signature(args, kwargs)
        refuse_tracers(call, f"pw.program(jax.grad({program.name}))")
        avals = call.avals()
        for leaf in call.leaves if check_donated else ():
            if isinstance(leaf, Future):
                leaf.check_usable()
        record = self.active_record()
        traced = program.cached(call, avals, self.platform)
        if traced is None:
            began = clock()
            traced = program.trace(call, avals, self.platform, self.mesh_of)
            record.add(Row(Label("trace", program.name, program.name), began, clock(), quality="exact"))
        lowered = self.lowered(traced)
        buffers, temporary = self._hold(call.leaves)
        waited = self.driver.wait_for_room()
        if waited > 1e-3:
            label = Label("stall", "back-pressure: 64 programs queued", program.name)
            record.add(Row(label, clock() - waited, clock(), quality="exact"))
        run, results = self.driver.submit(lowered, buffers, record, "")
        for buffer in temporary:
            self.driver.release(buffer)
        where = lines.here()
        for index in call.donated if check_donated else ():
            if isinstance(call.leaves[index], Future):
                call.leaves[index].consume(where)
        for recording, _ in self.recordings[-1:]:
            recording.add(run)
        return jax.tree.unflatten(traced.out_tree, self._futures(lowered, results))

    def lowered(self, traced: Traced) -> Lowered:
        """The program on this controller's devices, lowered and compiled once."""
        found = traced.lowered.get(self)
        if found is None:
            found = traced.lowered[self] = self._lower(traced)
        return found

    def _lower(self, traced: Traced) -> Lowered:
        record = self.active_record()
        began = clock()
        placements = self.resources.place(traced.graph.places)
        plan: Plan = lower(traced.graph, placements, traced.arguments)
        record.add(Row(Label("lower", traced.name, traced.name), began, clock(), quality="exact"))
        islands = self.driver.attachment.islands
        return Lowering(traced, plan, islands, _executables).lower(record, self._say)

    def _say(self, line: str) -> None:
        for run, _ in self.recordings[-1:]:
            run.note = line
        print(line, file=sys.stderr)

    def _hold(self, leaves: Sequence[Any]) -> tuple[list[int], list[int]]:
        """A logical buffer for each argument, and those made only for this call."""
        buffers, temporary = [], []
        for leaf in leaves:
            if isinstance(leaf, Future):
                owner, buffer = leaf.reference()
                if owner is self:
                    buffers.append(buffer)
                    continue
                leaf = leaf.result()
            value = self.snapshot(leaf)
            temporary.append(self.driver.store(value, getattr(value, "nbytes", 0), ""))
            buffers.append(temporary[-1])
        return buffers, temporary

    def snapshot(self, value: Any) -> Any:
        """A value that the caller can no longer change: NumPy arrays are copied, JAX's need not be."""
        if isinstance(value, jax.Array):
            return value
        aval = aval_of(value)
        return np.array(value, dtype=None if aval is None else aval.dtype)

    def _futures(self, lowered: Lowered, buffers: Sequence[int]) -> list[Future]:
        futures = []
        traced, plan = lowered.traced, lowered.plan
        for buffer, value, slot in zip(buffers, traced.results, plan.results, strict=True):
            future = Future(self, traced.avals[value], traced.name)
            future.bind(buffer, self.driver.entries[buffer], lowered.shardings[slot])
            futures.append(future)
        return futures

    def put(self, tree: Any, place: VirtualSlice, shardings: Any) -> Any:
        """Place every leaf; see ``pw.put``."""
        leaves, structure = jax.tree.flatten(tree)
        specs.check_tree(shardings, "shardings", "put", place)
        wanted = specs.spread(shardings, tree, "shardings", "put")
        mesh = self.driver.attachment.islands[self.resources.place([place])[place.serial].island].mesh(
            self.resources.placements[place.serial], place
        )
        self._forget_with(place)
        return jax.tree.unflatten(structure, [self._put(x, s, place, mesh) for x, s in zip(leaves, wanted, strict=True)])

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
        label = Label("transfer", f"put → {place.label}", place=place.label, island=placement.island,
                      device=placement.first, devices=placement.count, bytes=aval.bytes, route="host")  # fmt: skip
        self.active_record().add(Row(label, began, clock()))
        future = Future(self, aval, f"put on {place.label}")
        buffer = self.driver.store(array, aval.bytes, "")
        future.bind(buffer, self.driver.entries[buffer], sharding)
        return future

    # ---- records

    def active_record(self) -> Record:
        """Where events go now: the innermost recording, or the controller's own history."""
        return self.recordings[-1][0].record if self.recordings else self.record

    def gather(self) -> Gather:
        """Where loose calls go now."""
        return self.recordings[-1][1] if self.recordings else Gather(self, "call")

    def flush(self) -> None:
        """Send what was gathered."""
        if self.recordings:
            self.recordings[-1][1].flush()

    # ---- life

    def reset(self) -> None:
        """Free buffers, programs and records; keep the devices."""
        if self.driver_or_none is not None:
            _close_driver(self)
        self.machine = Machine(dispatch=self.specification.dispatch)  # type: ignore[arg-type]
        self.resources = Resources(self.islands)
        self._watched.clear()
        self.record.clear()
        self.recordings.clear()
        for traced in list(self._lowered):
            traced.lowered.pop(self, None)
        self._generation = getattr(self, "_generation", 0) + 1

    def close(self) -> None:
        """Cancel what is queued and let the devices go; results held on them are lost."""
        if not self.closed:
            _close_driver(self)
            self.closed = True

    def __enter__(self) -> Controller:
        global _replaced
        if _replaced is not None and _replaced[0] is self:
            self._scopes.append(_replaced[1])
            _replaced = None
        else:
            self._scopes.append(self)  # attached before: leaving the block changes nothing
        return self

    def __exit__(self, *exception: object) -> None:
        global _current
        previous = self._scopes.pop()
        if previous is not self:
            self.close()
            _current = previous

    def status(self) -> str:
        """Islands, devices, places and memory as text."""
        rows = [repr(self)]
        driver = self.driver
        held = self.machine.ledger.bytes_by_owner()
        for island in driver.attachment.islands:
            devices = ", ".join(str(device.id) for device in island.devices)
            pinned = f", pinned to core {', '.join(map(str, island.cores))}" if island.cores else ""
            rows.append(f"  island {island.index}: {len(island.devices)} × {island.devices[0].device_kind}, "
                        f"ids {devices}{pinned}{_memory(island.devices)}")  # fmt: skip
        for serial, placement in sorted(self.resources.placements.items()):
            rows.append(f"  place {self.resources.names[serial]}: {placement}")
        rows.append(
            f"  object store: {len(self.machine.ledger.buffers)} buffers, {size(sum(held.values()))} logical; "
            f"{len(driver.runs)} programs under way; {driver.sampled:.0%} of ends watched"
        )
        return "\n".join(rows)

    def _repr_html_(self) -> str:
        first, *rest = self.status().split("\n")
        items = "".join(f"<li>{html.escape(row.strip())}</li>" for row in rest)
        return f"<div><b>{html.escape(first)}</b><ul>{items}</ul></div>"

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        kind = self.specification.kind
        counts = set(self.islands)
        sizes = str(self.islands[0]) if len(counts) == 1 else " + ".join(map(str, self.islands))
        islands = f"{len(self.islands)} island{'s' * (len(self.islands) > 1)}"
        return f"<controller {kind}: {islands} × {sizes} devices, {self.specification.dispatch} dispatch{state}>"


def _memory(devices: Sequence[Any]) -> str:
    """Memory in use where devices tell; CPU devices and some proxies do not."""
    try:
        stats = [device.memory_stats() or {} for device in devices]
    except Exception:  # a backend may refuse to answer, which is no reason to refuse a status
        return ""
    used = sum(s.get("bytes_in_use", 0) for s in stats)
    limit = sum(s.get("bytes_limit", 0) for s in stats)
    return f", {size(used)} of {size(limit)} in use" if limit else ""


def _close_driver(controller: Controller) -> None:
    driver, controller.driver_or_none = controller.driver_or_none, None
    if driver is not None:
        driver.close()


# ---- the current controller

_current: Controller | None = None
_replaced: tuple[Controller, Controller | None] | None = None
_default_allowed = False


def allow_default() -> None:
    """From now on the first need attaches ``"auto"``: what ``%load_ext pathways_nb`` does."""
    global _default_allowed
    _default_allowed = True


def _settle() -> None:
    """A plain ``attach`` replaced another controller, and no ``with`` block claimed to restore it: let it go."""
    global _replaced
    if _replaced is not None:
        _, old = _replaced
        _replaced = None
        if old is not None:
            old.close()


def current() -> Controller:
    """The controller that calls go to.

    Raises:
        NotAttachedError: nothing is attached.
    """
    _settle()
    if (_current is None or _current.closed) and _default_allowed and not (_current and _current.closed):
        attach("auto")
    if _current is None or _current.closed:
        raise NotAttachedError(
            'nothing is attached: call pw.attach("auto") first (or pw.attach("cpu", islands=2, devices_per_island=4)).'
        )
    return _current


def attach(
    kind: Literal["auto", "cpu", "gpu", "tpu"] = "auto",
    *,
    islands: int | Sequence[Sequence[int]] | None = None,
    devices_per_island: int | None = None,
    dispatch: Literal["parallel", "sequential"] = "parallel",
    pin: bool = True,
) -> Controller:
    """Attach devices and make their controller the current one.

    Args:
        kind: ``"cpu"`` makes virtual devices, ``"gpu"`` and ``"tpu"`` take what JAX shows, ``"auto"`` takes
            accelerators if there are any and says what it chose.
        islands: how many (default 2 on CPU), or on accelerators a list of device positions for each.
        devices_per_island: on CPU, default 4.
        dispatch: ``"parallel"`` (asynchronous) or ``"sequential"``: steps go out one after another (Pathways, Fig. 4).
        pin: give each CPU island cores of its own.

    Raises:
        PlaceError: the numbers do not fit what there is. UsageError: an unknown kind or mode of dispatch.
    """
    global _current, _replaced
    _settle()
    _check_choice("kind", kind, KINDS)
    _check_choice("dispatch", dispatch, ("parallel", "sequential"))
    found, devices = islands_module.accelerators() if kind != "cpu" else (None, [])
    chosen = _choose(kind, found)
    specification = Specification(chosen, _hashable(islands), devices_per_island, dispatch, pin)
    if _current is not None and not _current.closed and _current.specification == specification:
        return _current
    made = _controller(specification, islands, devices)
    _replaced = (made, _current)
    _current = made
    return made


def _controller(specification: Specification, islands: Any, devices: list[Any]) -> Controller:
    if specification.kind != "cpu":
        attachment = islands_module.attach_accelerators(specification.kind, devices, islands)  # type: ignore[arg-type]
        counts = tuple(len(island.devices) for island in attachment.islands)
        return Controller(specification, lambda: attachment, counts)
    count, each = 2 if islands is None else islands, specification.devices_per_island or 4
    if specification.devices_per_island is not None:
        each = specification.devices_per_island
    islands_module.check_counts(count, each)
    return Controller(
        specification, lambda: islands_module.attach_cpu(count, each, specification.pin), (each,) * count
    )


def _choose(kind: str, found: str | None) -> str:
    if kind == "auto":
        chosen = found or "cpu"
        other = (
            'for virtual CPU devices: pw.attach("cpu")' if found else "for other numbers: "
            'pw.attach("cpu", islands=2, devices_per_island=8)'
        )  # fmt: skip
        print(f"attached {chosen}; {other}")
        return chosen
    if kind in ("gpu", "tpu") and found != kind:
        raise UsageError(
            f'attach("{kind}"): JAX sees {"no accelerator" if found is None else f"a {found}"} here. '
            f'Use pw.attach("{found or "cpu"}") or pw.attach("auto").'
        )
    return kind


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise UsageError(f"attach({name}={value!r}): choose one of {', '.join(map(repr, choices))}.")


def _hashable(islands: Any) -> Any:
    return islands if islands is None or isinstance(islands, int) else tuple(map(tuple, islands))


def reset() -> None:
    """Free buffers, programs and records of the current controller without a kernel restart."""
    _settle()
    if _current is not None and not _current.closed:
        _current.reset()


# ---- calls, as the runner of computations and programs


def _users_view(method: Callable[..., Any]) -> Callable[..., Any]:
    """Our own errors point at the user's lines, without the frames between."""

    @functools.wraps(method)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        try:
            return method(*args, **kwargs)
        except PathwaysError as error:
            raise error.with_traceback(lines.users_traceback(error.__traceback__))  # noqa: B904  (it is the same error)

    return wrapped


class Client:
    """Carries out calls made outside any trace, on the current controller."""

    @_users_view
    def call(self, computation: Computation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A loose call of a computation."""
        call = computation.signature(args, kwargs)
        refuse_tracers(call, f"pw.program(jax.grad({computation.name}))")
        controller = current()
        gather = controller.gather()
        result = gather.add(computation, args, kwargs)
        if not controller.recordings:
            gather.flush()
        return result

    @_users_view
    def call_program(self, program: Program, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call of a program: what was gathered goes out first."""
        refuse_tracers(program.signature(args, kwargs), f"pw.program(jax.grad({program.name}))")
        controller = current()
        controller.flush()
        return controller.dispatch(program, args, kwargs)

    @_users_view
    def run_program(self, program: Program, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Run:
        """Call, wait, and return the run."""
        with record(name=program.name) as run:
            run.outputs = self.call_program(program, args, kwargs)
        wait(run.outputs)
        return run

    @_users_view
    def graph_of(self, program: Program, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Graph:
        """The graph for these arguments."""
        controller = current()
        call = program.signature(args, kwargs)
        avals = call.avals()
        traced = program.cached(call, avals, controller.platform)
        return (traced or program.trace(call, avals, controller.platform, controller.mesh_of)).graph


context.set_runner(Client())


@contextlib.contextmanager
def record(name: str = "run", show: str | Sequence[str] = ()) -> Iterator[Run]:
    """Record what runs inside the block: loose calls become one program, programs go out as they are called.

    The end of the block waits for what was submitted in it. An interrupt cancels what is not dispatched yet.

    Args:
        name: of the run.
        show: ``"graph"``, ``"timeline"``, or ``"graph,timeline"``: displayed here, live.
    """
    views = tuple(part for part in (show.split(",") if isinstance(show, str) else show) if part)
    controller = current()
    controller.flush()
    run = Run(name, controller.islands, clock())
    display = _display(run, views)
    entry = (run, Gather(controller, name))
    controller.recordings.append(entry)
    try:
        try:
            yield run
        finally:
            controller.flush()
        _wait_for(controller, run)
    except KeyboardInterrupt:
        controller.driver.cancel([execution.serial for execution in run.unfinished()])
        raise
    except BaseException:
        with contextlib.suppress(KeyboardInterrupt):
            _wait_for(controller, run)
        raise
    finally:
        if entry in controller.recordings:
            controller.recordings.remove(entry)
        run.finished = True
        if display is not None:
            display.stop()


def _display(run: Run, views: tuple[str, ...]) -> Any:
    if not views:
        return None
    from pathways_widgets.live import LiveDisplay

    display = LiveDisplay(run, views)
    display.start()
    return display


def _wait_for(controller: Controller, run: Run) -> None:
    driver = controller.driver_or_none
    if driver is not None:
        driver.bell.wait(lambda: not run.unfinished() or driver.broken)
        driver.check()


def get(tree: Any) -> Any:
    """Wait for every future in ``tree`` and return it with host values (NumPy) in their places."""
    return jax.tree.map(lambda leaf: leaf.result() if isinstance(leaf, Future) else leaf, tree)


def wait(tree: Any) -> Any:
    """Wait for every future in ``tree`` to be computed; returns ``tree``."""
    for leaf in jax.tree.leaves(tree):
        if isinstance(leaf, Future):
            leaf.wait()
    return tree


def put(tree: Any, on: VirtualSlice, shardings: Any = None) -> Any:
    """Place every array of ``tree`` on a virtual slice; returns futures.

    Args:
        tree: arrays or numbers from anywhere.
        on: the virtual slice.
        shardings: a ``pw.P``, or a prefix tree of them; replicated if left out.

    Raises:
        ShardingError: a spec does not fit. UsageError: a leaf is not an array.
    """
    controller = current()
    controller.flush()
    return controller.put(tree, on, shardings)


__all__ = ["Controller", "attach", "current", "duration", "get", "put", "record", "reset", "wait"]
