"""``pw.save_state`` and ``pw.restore_state``: a training state on disk, and back onto any devices.

A state restored ``like`` another tree lies as that tree does; ``on`` a place it lies as ``pw.put`` would put it. Memory
on places is reserved before anything is read, by the rules of ``pw.put``. A simulated device gets shapes without
values, unless the simulation has values.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import jax
import numpy as np

from pathways_nb.errors import UsageError
from pathways_nb.plan.virtual_slice import VirtualSlice
from pathways_nb.program.narrowing import NarrowingError, held_as
from pathways_nb.session import default_controller
from pathways_nb.session.calls.client import wait
from pathways_nb.session.calls.stored_values import Reservation, with_padding
from pathways_nb.session.checkpoints import state_files
from pathways_nb.session.checkpoints.saved_layout import (
    NUMBERS,
    Leaf,
    PaddedLeaf,
    SavedLayout,
    check_names,
    flattened,
    number_type,
    rebuilt,
)
from pathways_nb.session.checkpoints.state_files import Wanted
from pathways_nb.session.checkpoints.state_targets import Target, like_tree, on_place
from pathways_nb.session.futures import Future
from pathways_nb.session.session import Session
from pathways_nb.session.tenant_scope import calling
from pathways_nb.util.words import a_type_of

_TRIES = 10
"""How often a state is read that another process replaces meanwhile."""


def save_state(path: str | PathLike[str], tree: Any, overwrite: bool = False) -> None:
    """Save a training state: parameters, optimizer state, PRNG keys; arrays are written shard by shard.

    A parameter that ``pw.fsdp`` keeps with padding is written without it, and passes through the host as a whole.
    Waits for futures. The folder appears when everything in it is on the disk, and replaces an older state in one step:
    a crash at any instant leaves one of the two. An interrupt or an error leaves nothing behind, and what a killed
    process left is removed by the next save. The subfolder ``arrays`` is an ordinary Orbax checkpoint. Nothing is
    pickled.

    Args:
        path: of the folder to make.
        tree: any pytree of futures, JAX or NumPy arrays, typed PRNG keys and numbers.
        overwrite: whether a state saved there before is replaced.

    Raises:
        OSError: the files cannot be written, as when the disk is full. An older state is as it was.
        UsageError: the path exists or is a link, a leaf is no array, Orbax is not installed, or a future is simulated
            without values.
    """
    folder = Path(path).expanduser()
    # What can be refused is refused before anything is waited for.
    state_files.orbax("save_state")
    leaves, containers = flattened(tree, "save_state")
    check_names([path for path, _ in leaves])
    state_files.claim(folder, overwrite)
    wait([leaf for _, leaf in leaves])
    stored = [_stored(path, leaf) for path, leaf in leaves]
    arrays = {leaf.name: array for leaf, array in stored if array.size}
    state_files.write(folder, SavedLayout(containers, tuple(leaf for leaf, _ in stored)), arrays, overwrite)


def restore_state(
    path: str | PathLike[str], like: Any = None, on: VirtualSlice | None = None, shardings: Any = None
) -> Any:
    """Restore a saved state onto any number of devices; each device is sent its own shard only.

    Args:
        path: of the folder.
        like: a tree of the saved structure. Each leaf is placed like the leaf here: like a future on its place, like an
            array or a ``jax.ShapeDtypeStruct`` in its sharding, else as a host value. Only with it are nodes other than
            dicts, lists and tuples rebuilt (an Optax state, a Flax or Equinox module); else they become dicts by field.
        on: the virtual slice for all arrays, whatever ``like`` says; without either, they are NumPy arrays. Python's
            numbers stay on the host as they are.
        shardings: with ``on``, a ``pw.P``, or a prefix tree of them; replicated if left out.

    Returns:
        The tree; leaves on places are futures.

    Raises:
        FileNotFoundError: there is no such path.
        ShardingError: a spec does not fit.
        UsageError: no saved state is there, a file of it is damaged, ``like`` has other leaves, shapes or dtypes, a
            value does not fit the 32 bits in which JAX holds it on devices, or Orbax is not installed.
    """
    folder = Path(path).expanduser()
    what = state_files.called("restore_state", folder)
    if on is not None and not isinstance(on, VirtualSlice):
        raise UsageError(f"{what}: on={on!r} is {a_type_of(on)}; pass a pw.virtual_slice(...).")
    if on is None and shardings is not None:
        raise UsageError(f"{what}: shardings= needs the place: pass on=pw.virtual_slice(...), or like= alone.")
    for _ in range(_TRIES):
        found = state_files.find(folder)
        before, error, tree = state_files.version_of(found), None, None
        try:
            tree = _restored(found, what, like, on, shardings)
        except UsageError as refused:
            error = refused
        # Another process may have replaced it: what was read may be of both states, and looks damaged.
        if state_files.version_of(found) == before:
            if error is not None:
                raise error
            return tree
    raise UsageError(
        f"{what}: it was replaced {_TRIES} times while it was read. Restore again, or save to a path for each step."
    )


def _restored(folder: Path, what: str, like: Any, on: VirtualSlice | None, shardings: Any) -> Any:
    """Return the tree of the state that lies in a folder now."""
    layout = state_files.read_layout(folder)
    if like is None:
        tree, targets = rebuilt(layout.tree, lambda number: number), [Target()] * len(layout.leaves)
        order: Sequence[int] = jax.tree.leaves(tree)
    else:
        layout, targets = like_tree(layout, like, what, on is not None)
        tree, order = like, range(len(layout.leaves))
    if on is not None:
        targets = on_place(layout, tree, order, targets, on, shardings, what)
    values = _values(folder, layout.leaves, targets, what)
    return jax.tree.unflatten(jax.tree.structure(tree), [values[number] for number in order])


def _stored(path: str, leaf: Any) -> tuple[Leaf, Any]:
    """Return what the layout says about a leaf, and the array that is written.

    Raises:
        UsageError: it is no array, or has no value.
    """
    value = _live(leaf) if isinstance(leaf, Future) else leaf
    if type(value) in NUMBERS.values():
        array = np.asarray(value)
        if array.dtype == object:
            raise UsageError(
                f"save_state: the leaf {path or 'itself'} is an int of {value.bit_length()} bits, and a state holds up "
                f"to 64. Save it in parts, or as text beside the state."
            )
        return Leaf(path, (), array.dtype.name, type(value).__name__), array
    if isinstance(value, jax.Array) and not isinstance(value, jax.core.Tracer):
        return _of_jax(path, value)
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind not in "OUSMm":
        array = np.asarray(value)
        return Leaf(path, array.shape, array.dtype.name), array
    raise UsageError(
        f"save_state: the leaf {path or 'itself'} is {a_type_of(value)}, which has no values that can be saved. Leaves "
        f"are futures, arrays, numbers and typed PRNG keys; take others out of the tree, as equinox.filter does."
    )


def _live(future: Future) -> Any:
    """Return a future's array; if its shards lie on hosts of a cluster or have padding, its values."""
    return future.result() if future.is_remote or future.aval.padded is not None else future._live()


def _of_jax(path: str, value: jax.Array) -> tuple[Leaf, Any]:
    """Return the same of an array of JAX; of typed keys their data is written."""
    if not jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        return Leaf(path, value.shape, value.dtype.name), value
    # The private base array is only read; the public key_data would launch on the island from this thread.
    data = value._base_array if hasattr(value, "_base_array") else jax.random.key_data(value)
    return Leaf(path, value.shape, str(value.dtype), "key", str(jax.random.key_impl(value))), data


def _values(folder: Path, leaves: Sequence[Leaf], targets: Sequence[Target], what: str) -> list[Any]:
    """Return the values of all leaves: memory on places first, then all arrays at once, then their futures."""
    # On the host alone, no controller is needed, nor attached.
    if all(target.where is None for target in targets):
        read = _read(folder, leaves, targets, what)
        return [_value(*one) for one in zip(leaves, targets, read, strict=True)]
    session = default_controller.get()
    with calling(session):
        session.flush()
        return _placed(session, folder, leaves, targets, what)


def _placed(session: Session, folder: Path, leaves: Sequence[Leaf], targets: Sequence[Target], what: str) -> list[Any]:
    """Return the values of leaves of which some lie on places."""
    simulated = session.attach_options.simulated is not None
    # This process has no such devices, so arrays are read as NumPy's, and sent or only counted.
    elsewhere = simulated or session.attach_options.cluster is not None
    with _reserved(session, leaves, targets, what) as rooms:
        hosts = [
            target._replace(sharding=None, padded=None) if room and elsewhere else target
            for room, target in zip(rooms, targets, strict=True)
        ]
        known = [room is None or not simulated or session.value_session is not None for room in rooms]
        read = _read(folder, leaves, hosts, what, known)
        values = [_value(*one) for one in zip(leaves, targets, read, strict=True)]
        arrays = [_array(session, room, value) if room else value for room, value in zip(rooms, values, strict=True)]
    filled: list[Any] = []
    try:
        for room, array, target, value in zip(rooms, arrays, targets, values, strict=True):
            filled.append(room.fill(array, "restore", target.serial, value) if room else value)
    except BaseException:  # the devices were lost meanwhile
        # The one that failed has given up its memory itself; those after it still have theirs.
        for room in filter(None, rooms[len(filled) + 1 :]):
            room.give_up()
        raise
    return filled


@contextlib.contextmanager
def _reserved(
    session: Session, leaves: Sequence[Leaf], targets: Sequence[Target], what: str
) -> Iterator[list[Reservation | None]]:
    """Yield the memory of the leaves that lie on places; an error in the block returns it."""
    rooms: list[Reservation | None] = []
    try:
        for leaf, target in zip(leaves, targets, strict=True):
            if target.where is None:
                rooms.append(None)
                continue
            aval = target.like.aval if isinstance(target.like, Future) else leaf.aval  # a weak type is not saved
            aval, name = replace(aval, padded=target.padded), f"{what}: {leaf.path or 'the array'}"
            rooms.append(Reservation(session, aval, target.where, target.sharding, name, target.label))
        yield rooms
    except BaseException:
        for room in filter(None, rooms):
            room.give_up()
        raise


def _read(
    folder: Path, leaves: Sequence[Leaf], targets: Sequence[Target], what: str, known: Sequence[bool] | None = None
) -> list[Any]:
    """Return the stored array of each leaf.

    Args:
        folder: of the state.
        leaves: all of them.
        targets: which ``jax.Array`` to make of each; a NumPy array where there is no sharding.
        what: the call, for errors.
        known: which leaves are read; all if left out. The others are ``None``.
    """
    pairs = list(zip(leaves, targets, strict=True))
    chosen = [pair for pair, wanted in zip(pairs, known or [True] * len(pairs), strict=True) if wanted]
    direct = {
        leaf.name: Wanted(None if _passes_host(leaf) else one.sharding, one.padded)
        for leaf, one in chosen if math.prod(leaf.shape)
    }  # fmt: skip
    found = state_files.read(folder, direct)
    for leaf, one in chosen:
        value = found.get(leaf.name)
        if value is None and not math.prod(leaf.shape):  # Orbax has no empty arrays
            value = np.zeros(leaf.shape, leaf.data_type if leaf.kind == "key" else leaf.dtype)
        elif isinstance(leaf, PaddedLeaf) and value is not None:
            value = leaf.cut(value, what)
        _check_read(leaf, one, value, what)
        if isinstance(value, np.ndarray):
            found[leaf.name] = _placed_by_host(leaf, one, value, what)
    return [found.get(leaf.name) for leaf in leaves]


def _passes_host(leaf: Leaf) -> bool:
    """Return whether an array for devices is read as a whole on the host: to be cropped, or narrowed with a check."""
    return isinstance(leaf, PaddedLeaf) or (leaf.kind != "key" and leaf.dtype != leaf.data_type.name)


def _check_read(leaf: Leaf, target: Target, value: Any, what: str) -> None:
    """Refuse an array from the files that is not what the layout says.

    Raises:
        UsageError: it is missing, or has another shape or type.
    """
    shape = tuple(target.padded or leaf.shape) if isinstance(value, jax.Array) else leaf.shape
    wanted = f"{'uint32' if leaf.kind == 'key' else leaf.dtype}{list(shape)}"
    found = "nothing" if value is None else f"{value.dtype.name}{list(value.shape[: len(shape)])}"
    if wanted != found:
        raise UsageError(
            f"{what}: the state is damaged: {leaf.path or 'the array'} is {wanted} in its layout, and {found} in its "
            f"files. Restore another copy."
        )


def _placed_by_host(leaf: Leaf, target: Target, value: np.ndarray[Any, Any], what: str) -> Any:
    """Return a host array where it belongs; one for JAX in the type in which JAX holds it.

    Raises:
        UsageError: that type cannot hold a value.
    """
    kept = with_padding(value, target.padded or value.shape)
    if leaf.kind == "key" or not (target.where or target.sharding or isinstance(target.like, jax.Array)):
        return kept if target.sharding is None else jax.device_put(kept, target.sharding)
    try:
        held = held_as(value, value.dtype, exact=True)
    except NarrowingError as error:
        raise UsageError(f"{what}: {leaf.path or 'the array'}{error}") from None
    return kept.astype(held) if target.sharding is None else jax.device_put(kept.astype(held), target.sharding)


def _value(leaf: Leaf, target: Target, stored: Any) -> Any:
    """Return the value of a leaf: keys wrapped, numbers as Python's, what else is on the host as NumPy's."""
    if stored is None:
        return None
    if leaf.kind == "key":
        return jax.random.wrap_key_data(stored, impl=leaf.impl)
    if isinstance(stored, jax.Array):
        return stored
    if isinstance(target.like, jax.Array):
        return jax.numpy.asarray(stored)
    number = number_type(leaf, target.like)
    if number is not None:
        return number(stored)
    return stored if isinstance(target.like, np.ndarray) else stored[()]


def _array(session: Session, room: Reservation, value: Any) -> Any:
    """Return what a place holds: the array; its value on the way to hosts; or of simulated devices its shape."""
    driver = session.driver
    if session.attach_options.cluster is not None:
        return driver.put(with_padding(value, room.aval.on_devices.shape), room.sharding)
    if session.attach_options.simulated is None:
        return value
    return driver.put(driver.as_kept(room.aval.on_devices.struct, "the saved array"), room.sharding)
