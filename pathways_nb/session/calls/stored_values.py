"""Values on their way into the object store and out of it: arguments, ``pw.put``, and the futures of results.

Here a Python value gets its logical buffer, and a logical buffer its future. Small values (at most a few hundred bytes)
that a program used at several places keep a copy at each, so that the next call need not send them again.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
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
from pathways_nb.program.signature import Aval, Signature, aval_of
from pathways_nb.runtime.driver import Driver
from pathways_nb.runtime.holds import Hold
from pathways_nb.runtime.lowering.compiled_plan import CompiledPlan
from pathways_nb.runtime.sim.simulated_pod import Abstract
from pathways_nb.session import tenant_scope
from pathways_nb.session.futures import Future
from pathways_nb.session.session import Session
from pathways_nb.trace.rows import Row, label_of
from pathways_nb.util.words import a_type_of


def hold(session: Session, plan: Plan, call: Signature, client: str) -> tuple[list[int], list[Hold]]:
    """Store the arguments of a plan.

    Returns:
        The logical buffer of each argument, and the tokens of those buffers that were made only for this call.
    """
    driver, leaves = session.driver, call.leaves
    # A future of another controller has no buffer here: its value is fetched and stored like one of the user's.
    held = [leaf.held_in(driver.entries) if isinstance(leaf, Future) else None for leaf in leaves]
    # All of them before the first is stored: one that is lost must leave nothing behind.
    values = {at: _value_from_outside(driver, call, at) for at, buffer in enumerate(held) if buffer is None}
    stored = {
        at: driver.store(value, getattr(value, "nbytes", 0), client, "an argument") for at, value in values.items()
    }
    buffers = [stored[at].buffer if buffer is None else buffer for at, buffer in enumerate(held)]
    for leaf, place in plan.again:
        copy = _copy(driver, leaves[leaf], plan.placements[place])
        buffers.append(buffers[leaf] if copy is None else copy.buffer)
    return buffers, list(stored.values())


def _value_from_outside(driver: Driver, call: Signature, at: int) -> Any:
    """Convert an argument that this controller does not hold; one that is kept with padding gets it again."""
    leaf = call.leaves[at]
    name = call.name(at) if isinstance(leaf, jax.ShapeDtypeStruct) else "an argument"  # names take time
    try:
        value = driver.take(leaf, name)
    except LostError as error:
        raise LostError(f"{call.name(at)}: {error}") from None
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


def bind(
    session: Session, compiled_plan: CompiledPlan, holds: Sequence[Hold], futures: Sequence[Future] | None
) -> list[Future]:
    """Bind futures to the results of a call, each with the copies that the call left at other places.

    Args:
        session: the session.
        compiled_plan: of the call.
        holds: tokens of the results, and after them of the copies.
        futures: of the results, if there are any yet; else they are made.

    Returns:
        The futures of the results.
    """
    driver, plan = session.driver, compiled_plan.plan
    missing = compiled_plan.results if futures is None else compiled_plan.results[len(futures) :]
    made = [Future(session, aval, compiled_plan.name) for aval in missing]
    found = made if futures is None else [*futures, *made]
    count = len(found) - len(plan.copies)
    for copy, slot, position in zip(found[count:], plan.results[count:], plan.copies, strict=True):
        found[position].keep_copy(plan.placements[plan.slots[slot].place], copy)
    for future, held, slot in zip(found, holds, plan.results, strict=True):
        # Its place first: from the moment it is bound, another thread may pass it to a call, which asks where it lies.
        future.place = plan.slots[slot].place
        future.bind(held, driver.entry_of(held.buffer), compiled_plan.shardings[slot])
    return found[:count]


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
        # On each device its shard, padding included; the whole value counts once, however many devices hold it.
        need = Allocation(where, bytes_on_device(aval.on_devices, sharding), category)
        client = tenant_scope.registered_name(session)
        self._held: Hold | None = session.driver.reserve(need, aval.on_devices.bytes, client, name)

    def fill(self, array: Any, kind: str, serial: int | None, value_holder: Any = None) -> Future:
        """Put an array there.

        Args:
            array: on these devices, in this sharding.
            kind: ``"put"`` or ``"restore"``, for the record.
            serial: of the virtual slice.
            value_holder: what has the value of a simulated array.

        Returns:
            Its future.
        """
        session, driver, where, name = self.session, self.session.driver, self.where, f"{kind} on {self.place}"
        assert self._held is not None, "it was given up"
        driver.fill(self._held.buffer, where, array)
        label = label_of("transfer", f"{kind} → {self.place}", place=self.place, island=where.island,
                         device=where.first, devices=where.count, bytes=self.aval.on_devices.bytes,
                         route="host")  # fmt: skip
        quality = "estimated" if driver.quality == "exact" else driver.quality
        session.active_record().add(Row(label, self.began, driver.clock(), quality=quality))
        future = Future(session, self.aval, name)
        future.bind(self._held, driver.entry_of(self._held.buffer), self.sharding)
        future.place = serial
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
    value = session.driver.take(leaf, name)
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
