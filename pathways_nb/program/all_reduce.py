"""``pw.all_reduce``: sums over places, for data parallelism over islands (Pathways, section 5.3 and Figure 12).

It adds ordinary nodes to the program: for each bucket and place a computation that adds the parts of all places. The
plan sends each part as soon as all places have made theirs (``plan.exchange_order``), so the exchange lies under the
rest of the backward pass, and under whatever else does not need the sums.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pathways_nb.errors import UsageError, is_number
from pathways_nb.plan.virtual_slice import VirtualSlice
from pathways_nb.program.computation import Computation
from pathways_nb.program.exchange_sums import ExchangeSum, marked_as_sum
from pathways_nb.program.signature import Signature
from pathways_nb.program.specs import Spec
from pathways_nb.program.static_arguments import Statics
from pathways_nb.util.words import a_type_of, counted

_MB = 1e6
_numbers = itertools.count()


class _Sum(Computation):
    """A computation whose arguments stay in the layout in which they arrive, which is that of the place's own part."""

    def _leaf_specs(self, call: Signature) -> list[Spec]:
        return [None] * len(call.leaves)


class _Leaf(NamedTuple):
    """One leaf of the tree: its path, and the part of each place."""

    path: str
    parts: tuple[Any, ...]


def all_reduce(
    trees: Sequence[Any], *, across: Sequence[VirtualSlice], mean: bool = False, bucket_mb: float = 25.0
) -> tuple[Any, ...]:
    """Add equal trees of several places, and return the sums at each of these places (Pathways, Figure 12).

    ``left_grads, right_grads = pw.all_reduce((left_grads, right_grads), across=[left, right])`` stands in a program
    between the backward passes and the updates. Each leaf leaves its island as soon as a node of each place has made
    it. The sums are launched after all that was called before, in buckets, in the order in which the leaves are made.
    So the exchange lies under the computation if the backward pass has several nodes: a computation for each layer,
    say, differentiated with ``jax.grad`` over all of them. The leaves of a single node are all made at its end.

    Each sum has the sharding of the leaf at its place; places may differ in devices and axes. The parts are added in
    the order of ``across`` everywhere, so the sums of all places are equal to the last bit.

    Args:
        trees: for each place, the tree that was computed there: arrays, of the same structure, shapes and dtypes.
        across: the places, two or more; usually one on each island.
        mean: whether to divide by the number of places.
        bucket_mb: the most 10⁶ bytes of leaves that are added in one node, positive; a larger leaf has its own.

    Returns:
        For each place, the tree of the sums, which are there.

    Raises:
        UsageError: a place is repeated or alone, the trees differ, a leaf is no array of numbers, or a leaf is computed
            at another place than its tree's.
    """
    places = _checked_places(across)
    if not is_number(bucket_mb) or not bucket_mb > 0:
        raise UsageError(f"all_reduce(bucket_mb={bucket_mb!r}): a positive number of megabytes is needed.")
    leaves, structure = _flattened(trees, places)
    # Exchanges of one program are told apart by their numbers.
    number = next(_numbers)
    body = _sum_of(mean)
    # One computation for each place and not for each leaf: leaves of equal shape then share an executable.
    add = [_Sum(body, "jit", place, None, None, Statics.of(body, (), (), (), ())) for place in places]
    sums: list[list[Any]] = [[] for _ in places]
    for position, leaf in enumerate(leaves):
        nothing = _dtype(leaf.parts[0]) == jax.dtypes.float0  # the gradient of whole numbers
        if not nothing:
            _check_numbers(leaf, mean)
        for own, found in enumerate(sums):
            # Every place adds all parts in the order of ``across``, so all sums are equal to the last bit.
            with marked_as_sum(ExchangeSum(number, position, own, len(places), int(bucket_mb * _MB))):
                found.append(leaf.parts[own] if nothing else add[own](*leaf.parts))
    return tuple(jax.tree.unflatten(structure, found) for found in sums)


def _sum_of(mean: bool) -> Callable[..., Any]:
    """Return the function that adds its arguments in their order, or returns their mean."""

    def all_reduce(*parts: Any) -> Any:
        total = reduce(operator.add, parts)
        return (total / len(parts)).astype(total.dtype) if mean else total

    return all_reduce


def _checked_places(across: Any) -> list[VirtualSlice]:
    """Return the places.

    Raises:
        UsageError: there are fewer than two, one is repeated, or one is no place.
    """
    places = list(across) if isinstance(across, (list, tuple)) else [across]
    for place in places:
        if not isinstance(place, VirtualSlice):
            raise UsageError(
                f"all_reduce(across=…) has {place!r}, {a_type_of(place)}; give places: across=[left, right]."
            )
    if len(places) < 2:
        raise UsageError(
            f"all_reduce(across=…) has {counted(len(places), 'place')}; sums over places need two or more. Within one "
            f"place, devices add their parts inside a computation: jax.lax.psum in pw.shard_map."
        )
    repeated = next((place for at, place in enumerate(places) if place in places[:at]), None)
    if repeated is not None:
        raise UsageError(f"all_reduce(across=…) has {repeated.label} twice; each place has one tree of its own.")
    return places


def _flattened(trees: Any, places: Sequence[VirtualSlice]) -> tuple[list[_Leaf], Any]:
    """Return the leaves, each with the parts of all places, and the structure that the trees share.

    Raises:
        UsageError: the number of trees is not that of the places, or the trees differ.
    """
    if not isinstance(trees, (list, tuple)) or len(trees) != len(places):
        given = counted(len(trees), "tree") if isinstance(trees, (list, tuple)) else a_type_of(trees)
        raise UsageError(
            f"all_reduce needs a tree for each of the {len(places)} places of across=, got {given}: write "
            f"pw.all_reduce((left_grads, right_grads), across=[left, right])."
        )
    flat = [jax.tree_util.tree_flatten_with_path(tree) for tree in trees]
    structure: Any = flat[0][1]
    for place, (_, other) in zip(places, flat, strict=True):
        if structure != other:
            raise UsageError(
                f"all_reduce: the trees differ: that of {places[0].label} is {structure}, that of {place.label} is "
                f"{other}. Give the same tree from every place, such as the gradients of the same parameters."
            )
    leaves = [_Leaf(jax.tree_util.keystr(same[0][0]), tuple(leaf for _, leaf in same))
              for same in zip(*(leaves for leaves, _ in flat), strict=True)]  # fmt: skip
    for leaf in leaves:
        _check_alike(leaf, places)
    return leaves, structure


def _check_alike(leaf: _Leaf, places: Sequence[VirtualSlice]) -> None:
    """Refuse a leaf whose parts differ in shape or dtype."""
    kinds = [(jnp.shape(part), _dtype(part)) for part in leaf.parts]
    for place, kind in zip(places, kinds, strict=True):
        if kind != kinds[0]:
            first, other = (f"{dtype}[{','.join(map(str, shape))}]" for shape, dtype in (kinds[0], kind))
            raise UsageError(
                f"all_reduce: leaf {leaf.path or 'of the tree'} is {first} on {places[0].label} and {other} on "
                f"{place.label}. All parts of a sum need one shape and one dtype."
            )


def _check_numbers(leaf: _Leaf, mean: bool) -> None:
    """Refuse a leaf that cannot be added, or divided."""
    dtype = _dtype(leaf.parts[0])
    wanted = jnp.inexact if mean else jnp.number
    if not jnp.issubdtype(dtype, wanted):
        needs = "floating point numbers are needed for mean=True" if mean else "numbers are needed"
        raise UsageError(f"all_reduce: leaf {leaf.path or 'of the tree'} has the dtype {dtype}; {needs}.")


def _dtype(part: Any) -> np.dtype:
    return part.dtype if hasattr(part, "dtype") else jnp.result_type(part)
