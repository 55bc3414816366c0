"""Where each leaf of a saved state is restored to: like a leaf of another tree, or on a place.

A tree to restore like is compared with the saved one before anything is read: paths, shapes and dtypes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import zip_longest
from typing import Any, NamedTuple

import jax
from jax.sharding import NamedSharding, PartitionSpec

from pathways_nb.errors import UsageError
from pathways_nb.plan.plan import Placement
from pathways_nb.plan.virtual_slice import VirtualSlice, by_serial, is_alive
from pathways_nb.program import specs
from pathways_nb.program.signature import aval_of
from pathways_nb.session import default_controller
from pathways_nb.session.checkpoints.saved_layout import (
    NUMBERS,
    Leaf,
    PaddedLeaf,
    SavedLayout,
    check_same,
    flattened,
    number_type,
    other_shape,
)  # fmt: skip
from pathways_nb.session.futures import Future
from pathways_nb.util.words import a_type_of


class Target(NamedTuple):
    """Where a leaf is restored to; on the host if it has no sharding.

    Args:
        sharding: of the array.
        where: devices of the controller, whose memory it accounts for; ``None`` for an array that is no future.
        serial: of the virtual slice.
        label: of the virtual slice.
        like: the leaf of ``like``, if any.
        padded: shape of the array, if padding follows the value as in a future of ``like``.
    """

    sharding: Any = None
    where: Placement | None = None
    serial: int | None = None
    label: str = ""
    like: Any = None
    padded: tuple[int, ...] | None = None


def like_tree(layout: SavedLayout, like: Any, what: str, elsewhere: bool) -> tuple[SavedLayout, list[Target]]:
    """Return the layout with the shapes of a tree, and the targets of all leaves, each like that of the tree.

    Args:
        layout: of the saved tree.
        like: the other tree.
        what: the call, for errors.
        elsewhere: whether the leaves are not placed like its leaves, but on a place.

    Raises:
        UsageError: the tree has other leaves, shapes or dtypes.
    """
    given, _ = flattened(like, what)
    check_same(layout.leaves, [path for path, _ in given], what)
    leaves = tuple(
        _as_given(saved, leaf, what, layout.may_be_padded)
        for saved, (_, leaf) in zip(layout.leaves, given, strict=True)
    )
    targets = [Target(like=leaf) if elsewhere else _target(path, leaf, what) for path, leaf in given]
    return replace(layout, leaves=leaves), targets


def _as_given(saved: Leaf, leaf: Any, what: str, may_be_padded: bool) -> Leaf:
    """Return a saved leaf with the shape that it has in ``like``; it differs only if the saved one may be padded.

    Raises:
        UsageError: the leaf of ``like`` has another shape or dtype.
    """
    aval = aval_of(leaf)
    if aval is None:
        raise UsageError(f"{what}: {saved.path or 'like='} is {a_type_of(leaf)} in like=, which is not an array.")
    if aval.shape != saved.shape and not (may_be_padded and _is_longer(saved.shape, aval.shape)):
        raise other_shape(what, saved.path, saved.shape, aval.shape)
    stored, given = saved.dtype, str(leaf.dtype if hasattr(leaf, "dtype") else aval.dtype)
    if saved.kind in NUMBERS and type(leaf) in NUMBERS.values():  # which have no size
        stored, given = saved.kind, type(leaf).__name__
    elif isinstance(leaf, tuple(NUMBERS.values())) or saved.kind in NUMBERS:  # Python's numbers have JAX's usual type
        stored, given = (str(jax.dtypes.canonicalize_dtype(one)) for one in (stored, given))
    if stored != given:
        raise UsageError(
            f"{what}: {saved.path or 'the array'} is {stored} in the saved state and {given} in like=. Pass the saved "
            f"dtype, and convert after restoring."
        )
    return saved if aval.shape == saved.shape else PaddedLeaf(**asdict(saved) | {"shape": aval.shape})


def _is_longer(saved: Sequence[int], given: Sequence[int]) -> bool:
    """Return whether a shape is longer than another in one dimension and else the same."""
    differ = [(one, other) for one, other in zip_longest(saved, given, fillvalue=0) if one != other]
    return len(saved) == len(given) and len(differ) == 1 and differ[0][0] > differ[0][1] > 0


def _target(path: str, leaf: Any, what: str) -> Target:
    """Return the target of a leaf that is restored like another one."""
    if isinstance(leaf, Future):
        return _target_of_future(path, leaf, what)
    sharding = getattr(leaf, "sharding", None)
    return Target(sharding if getattr(leaf, "committed", True) else None, like=leaf)


def _target_of_future(path: str, leaf: Future, what: str) -> Target:
    """Return the target of a leaf that is restored like a future: on its devices, in its sharding."""
    sharding, where = leaf.location_in(default_controller.get())
    if where is None:
        raise UsageError(
            f"{what}: the future {path or 'itself'} of like= is on no device that is attached now. Pass on=, or like= "
            f"with leaves on attached devices."
        )
    alive = leaf.place is not None and is_alive(leaf.place)
    label = by_serial(leaf.place).label if alive and leaf.place is not None else str(where)
    return Target(sharding, where, leaf.place, label, leaf, leaf.aval.padded)


def on_place(
    layout: SavedLayout,
    tree: Any,
    order: Sequence[int],
    like: Sequence[Target],
    place: VirtualSlice,
    prefix: Any,
    what: str,
) -> list[Target]:
    """Return the targets of all leaves on one place; Python's numbers stay on the host.

    Raises:
        ShardingError: a spec does not fit.
    """
    specs.check_tree(prefix, "shardings", what, place)
    wanted = dict(zip(order, specs.spread(prefix, tree, "shardings", what), strict=True))
    placement, mesh = default_controller.get().located(place)
    for number, saved in enumerate(layout.leaves):
        name = f"{what}: {saved.path or 'the array'}"
        specs.check_leaf(saved.shape, wanted[number], place, name, "shardings")
    return [
        Target(NamedSharding(mesh, wanted[number] or PartitionSpec()), placement, place.serial, place.label, one.like)
        if number_type(layout.leaves[number], one.like) is None
        else one
        for number, one in enumerate(like)
    ]
