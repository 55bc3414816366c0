"""Values on their way into the object store and out of it: arguments, ``pw.put``, and the futures of results.

Here a Python value gets its logical buffer, and a logical buffer its future. Small values (at most a few hundred bytes)
that a program used at several places keep a copy at each, so that the next call need not send them again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from pathways_nb.cost.jaxpr.splits import bytes_on_device
from pathways_nb.errors import LostError, UsageError
from pathways_nb.plan import source_lines
from pathways_nb.plan.footprint import Allocation
from pathways_nb.plan.memory_categories import VALUES
from pathways_nb.plan.plan import Placement, Plan
from pathways_nb.plan.virtual_slice import VirtualSlice, is_alive
from pathways_nb.program import specs
from pathways_nb.program.models import builder, how_to_split, with_static_parts
from pathways_nb.program.narrowing import NarrowingError
from pathways_nb.program.signature import Aval, aval_of
from pathways_nb.runtime.driver import Driver
from pathways_nb.runtime.entries import Entry, Hold
from pathways_nb.runtime.lowering.compiled_plan import CompiledPlan
from pathways_nb.runtime.sim.simulated_pod import Abstract
from pathways_nb.session import tenant_scope
from pathways_nb.session.future_kinds import FutureKind
from pathways_nb.session.futures import Future
from pathways_nb.session.session import Session
from pathways_nb.trace.rows import Row, label_of
from pathways_nb.util.words import a_type_of


def hold(
    session: Session, plan: Plan, leaves: Sequence[Any], client: str, name: Callable[[int], str]
) -> tuple[list[int], list[Hold]]:
    """Store the arguments of a plan.

    Args:
        session: the controller.
        plan: the plan.
        leaves: its arguments.
        client: who calls it.
        name: returns what errors call an argument.

    Returns:
        The logical buffer of each argument, and the tokens of those buffers that were made only for this call.
    """
    driver = session.driver
    if (known := _all_held(driver, leaves)) is not None and not plan.again:
        return known, []
    # A future of another controller has no buffer here: its value is fetched and stored like one of the user's.
    held = [leaf.held_in(driver.entries) if isinstance(leaf, Future) else None for leaf in leaves]
    # All of them before the first is stored: one that is lost must leave nothing behind.
    values = {at: _value_from_outside(driver, leaves[at], name, at) for at, one in enumerate(held) if one is None}
    tokens, buffers = list[Hold](), list[int]()
    for at, buffer in enumerate(held):
        if buffer is None:
            tokens.append(Hold())
            size = getattr(values[at], "nbytes", 0)
            buffer = driver.store(values[at], size, client, tokens[-1], "an argument").buffer
        buffers.append(buffer)
    for leaf, place in plan.again:
        copy = _copy(driver, leaves[leaf], plan.placements[place])
        buffers.append(buffers[leaf] if copy is None else copy.buffer)
    return buffers, tokens


_entries_of, _buffers_of = attrgetter("_entry"), attrgetter("buffer")


def _all_held(driver: Driver, leaves: Sequence[Any]) -> list[int] | None:
    """Return the buffers of leaves that are all futures which this controller holds, else ``None``; in C mostly."""
    try:
        entries = list(map(_entries_of, leaves))
        buffers = list(map(_buffers_of, entries))
    except AttributeError:  # a value from outside, or a future without a buffer
        return None
    return buffers if list(map(driver.entries.get, buffers)) == entries else None


def _value_from_outside(driver: Driver, leaf: Any, name: Callable[[int], str], at: int) -> Any:
    """Convert an argument that this controller does not hold; one that is kept with padding gets it again."""
    called = name(at) if isinstance(leaf, jax.ShapeDtypeStruct) else "an argument"  # names take time
    try:
        value = driver.as_kept(leaf, called)
    except LostError as error:
        raise LostError(f"{name(at)}: {error}") from None
    if not isinstance(leaf, Future) or leaf.aval.padded is None:
        return value
    padded = leaf.aval.on_devices
    return replace(value, aval=padded) if isinstance(value, Abstract) else with_padding(value, padded.shape)


def with_padding(value: Any, shape: Sequence[int]) -> Any:
    """Return a host value with zeros behind it, so that it has the given shape."""
    if np.shape(value) == tuple(shape):
        return value
    return np.pad(value, [(0, wide - size) for wide, size in zip(shape, value.shape, strict=True)])


def arguments(driver: Driver, plan: Plan, leaves: Sequence[Any]) -> list[Any]:
    """Return the arguments of a plan: its leaves, then the copies kept at further places that leaves are brought to.

    Where no such copy exists, the leaf itself stands in its place and is sent.
    """
    found = list(leaves)
    for leaf, place in plan.again:
        copy = _copy(driver, leaves[leaf], plan.placements[place])
        found.append(leaves[leaf] if copy is None else copy)
    return found


def _copy(driver: Driver, leaf: Any, where: Placement) -> Future | None:
    """Return the copy of a small value that its program left on these devices, if that still exists."""
    copy = leaf.copies.get(where) if isinstance(leaf, Future) else None
    return copy if copy is not None and copy.is_held_in(driver.entries) else None


def location(driver: Driver, leaf: Any) -> Hashable:
    """Return where and in which layout an argument lies; see ``Driver.location``."""
    if isinstance(leaf, Future):
        buffer = leaf.held_in(driver.entries)
        return None if buffer is None else driver.location(driver.entry_of(buffer))
    return driver.location(leaf)


def homes(driver: Driver, leaves: Sequence[Any]) -> tuple[int | None, ...]:
    """Return the place of each argument; ``None`` if unknown, or for a scalar, which may be used anywhere."""

    def home(leaf: Any) -> int | None:
        lies_there = isinstance(leaf, Future) and leaf.shape and leaf.held_in(driver.entries) is not None
        return leaf.place if lies_there and leaf.place is not None and is_alive(leaf.place) else None

    return tuple(map(home, leaves))


def no_place(given: Any) -> str:
    """Return the error of ``pw.put`` without a place: what was given, and the places that the user's variables hold."""
    said = "on which place?" if given is None else f"on={given!r} is {a_type_of(given)}, not a place."
    held = source_lines.users_variables().items()
    found = [f"{name} ({place.axes_text})" for name, place in held if isinstance(place, VirtualSlice)]
    if not found:
        return f"put: {said} Make one, place = pw.virtual_slice(2), and write pw.put(tree, on=place)."
    there = ", ".join(found[:8]) + (", …" if len(found) > 8 else "")
    first, are = found[0].partition(" ")[0], "are" if len(found) > 1 else "is"
    return f"put: {said} Write pw.put(tree, on={first}). There {are} {there}."


def put(session: Session, tree: Any, place: VirtualSlice, shardings: Any, category: str) -> Any:
    """Place every leaf of a tree; see ``pw.put``.

    Returns:
        The tree with a future for each array.
    """
    tree = with_static_parts(tree)
    paths, structure = jax.tree_util.tree_flatten_with_path(tree)
    specs.check_tree(shardings, "shardings", "put", place)
    wanted = specs.spread(shardings, tree, "shardings", "put")
    where = session.located(place)
    names = [f"put: tree{jax.tree_util.keystr(path)}" if path else "put: the array" for path, _ in paths]
    found = [(name, leaf, spec) for name, (_, leaf), spec in zip(names, paths, wanted, strict=True)]
    avals = [_checked(tree, *each, place) for each in found]  # all of them before the first is put
    placed = [_put(session, *each, aval, place, *where, category) for each, aval in zip(found, avals, strict=True)]
    return builder(structure)(placed)


def kinds_of(
    session: Session, compiled_plan: CompiledPlan, cropped: Sequence[tuple[int, tuple[int, ...]]]
) -> list[FutureKind]:
    """Return what each result of a program is as a future, and after them each copy that it leaves at other places.

    Args:
        session: the controller.
        compiled_plan: of the program.
        cropped: positions of results that are kept with padding, with the shapes of their values.
    """
    plan, shapes = compiled_plan.plan, dict(cropped)
    found = []
    for at, (aval, slot) in enumerate(zip(compiled_plan.results, plan.results, strict=True)):
        if at in shapes:
            aval = replace(aval, shape=shapes[at], padded=aval.shape)
        place = plan.slots[slot].place
        where = plan.placements[plan.steps[compiled_plan.result_steps[at]].place]
        found.append(session.kind(aval, compiled_plan.name, compiled_plan.shardings[slot], place, where))
    return found


def bind(
    compiled_plan: CompiledPlan, kinds: Sequence[FutureKind], entries: Sequence[Entry], futures: Sequence[Future]
) -> Sequence[Future]:
    """Bind futures to the results of a call, each with the copies that the call left at other places.

    Args:
        compiled_plan: of the call.
        kinds: of the results, and after them of the copies.
        entries: of the same.
        futures: for the same.

    Returns:
        The futures of the results.
    """
    for future, entry, made in zip(futures, entries, kinds, strict=True):
        if future._flush is None:  # spelled out: it is done for hundreds of results of a training step
            future._kind = future._known = made
            future._entry = entry
        else:
            future.bind(entry, made)
    plan = compiled_plan.plan
    if not plan.copies:
        return futures
    count = len(futures) - len(plan.copies)
    for copy, slot, position in zip(futures[count:], plan.results[count:], plan.copies, strict=True):
        futures[position].keep_copy(plan.placements[plan.slots[slot].place], copy)
    return futures[:count]


class Reservation:
    """Memory on a place for an array that is not there yet: filled, or given up.

    Args:
        session: the controller.
        aval: of the value; the array has its padding.
        where: the devices.
        sharding: of the array.
        name: of the value, in errors and pictures.
        place: label of the virtual slice.
        category: what the memory is held for.
    """

    def __init__(
        self,
        session: Session,
        aval: Aval,
        where: Placement,
        sharding: Any,
        name: str,
        place: str,
        category: str = VALUES,
    ):
        self.session, self.aval, self.where, self.sharding, self.place = session, aval, where, sharding, place
        self.began = session.driver.clock()
        self._held: Hold | None = Hold()
        # On each device its shard, padding included; the whole value counts once, however many devices hold it.
        need = Allocation(where, bytes_on_device(aval.on_devices, sharding), category)
        client = tenant_scope.registered_name(session)
        try:
            self._entry = session.driver.reserve(need, aval.on_devices.bytes, client, self._held, name)
        except BaseException:
            self._held = None  # the traceback may keep this frame
            raise

    def fill(self, array: Any, verb: str, serial: int | None, value_holder: Any = None) -> Future:
        """Put an array there.

        Args:
            array: on these devices, in this sharding.
            verb: ``"put"`` or ``"restore"``, for the record.
            serial: of the virtual slice.
            value_holder: what has the value of a simulated array.

        Returns:
            Its future.
        """
        session, driver, where, name = self.session, self.session.driver, self.where, f"{verb} on {self.place}"
        assert self._held is not None, "it was given up"
        driver.fill(self._entry, where, array)
        driver.check_held([self._entry])
        label = label_of("transfer", f"{verb} → {self.place}", place=self.place, island=where.island,
                         device=where.first, devices=where.count, bytes=self.aval.on_devices.bytes,
                         route="host")  # fmt: skip
        quality = "estimated" if driver.quality == "exact" else driver.quality
        session.active_record().add(Row(label, self.began, driver.clock(), quality=quality))
        made = session.kind(self.aval, name, self.sharding, serial, where)
        future = Future(made)
        future.bind(self._entry, made)
        future._held = self._held
        if session.value_session is not None:
            future.set_value_holder(value_holder)
        return future

    def give_up(self) -> None:
        """Return the memory."""
        self._held = None


def _checked(tree: Any, name: str, leaf: Any, spec: Any, place: VirtualSlice) -> Aval:
    """Return shape and type of a leaf that is put.

    Raises:
        ShardingError: its spec does not fit.
        UsageError: it is no array, or JAX would hold another number.
    """
    try:
        aval = aval_of(leaf, exact=True)
    except NarrowingError as error:
        raise NarrowingError(f"{name}{error}") from None
    if aval is None:
        raise UsageError(
            f"{name} = {leaf!r} is {a_type_of(leaf)}, not an array, a number or a future.{how_to_split(tree, leaf)}"
        )
    specs.check_leaf(aval.shape, spec, place, name, "shardings")
    return aval.value


def _put(
    session: Session, name: str, leaf: Any, spec: Any, aval: Aval, place: VirtualSlice, placement: Placement,
    mesh: Mesh | AbstractMesh, category: str,
) -> Future:  # fmt: skip
    value = session.driver.as_kept(leaf, name)
    sharding = NamedSharding(mesh, spec or PartitionSpec())
    held = f"put on {place.label}" + (f" ({line})" if (line := source_lines.user_line()) else "")
    # The memory is granted first: an array that is on the devices already could not wait for it.
    room = Reservation(session, aval, placement, sharding, held, place.label, category)
    try:
        array = session.driver.put(value, sharding)
    except BaseException:
        room.give_up()
        raise
    return room.fill(array, "put", place.serial, leaf.value_holder if isinstance(leaf, Future) else leaf)
