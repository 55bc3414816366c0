"""The layout of a saved tree as plain data: its containers, and path, shape and dtype of each leaf.

Containers are stored by their kind. A dict, a list or a tuple is rebuilt from that alone. Any other node (an Optax
state, a module of Flax or Equinox) is stored with its type's name for a reader, and is rebuilt only from ``like``;
without one it becomes a dict by field. Nothing is pickled, and no name from a file is ever imported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import jax
import numpy as np

from pathways_nb.errors import UsageError
from pathways_nb.program.signature import Aval
from pathways_nb.util.json_forms import Form, list_of, one_of, record
from pathways_nb.util.json_text import DamagedError, Field, shortened

NUMBERS = {one.__name__: one for one in (bool, int, float, complex)}
KINDS = ("array", "key", *NUMBERS)
_LONGEST = 60_000
"""Bytes of a leaf's path: TensorStore keeps keys of 65,535, and appends to them."""


@dataclass(frozen=True)
class Leaf:
    """One leaf of a saved tree.

    Args:
        path: in JAX's notation, such as ``['params']['w']``; the leaf's name in the files.
        shape: of the whole array; of typed PRNG keys that of the array of keys.
        dtype: its name.
        kind: ``array``, ``key`` (typed PRNG keys), or the name of Python's type of a number.
        impl: of keys, the name of JAX's implementation.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    kind: str = "array"
    impl: str = ""

    @property
    def name(self) -> str:
        """The name of its array in the files."""
        return self.path or "value"

    @property
    def aval(self) -> Aval:
        """Its shape and type on devices."""
        if self.kind == "key":
            return Aval(self.shape, jax.eval_shape(lambda: jax.random.key(0, impl=self.impl)).dtype)
        return Aval(self.shape, jax.dtypes.canonicalize_dtype(self.dtype))

    @property
    def data_type(self) -> Any:
        """The type of its array in the files, as it is on devices."""
        return jax.numpy.uint32 if self.kind == "key" else self.aval.dtype


@dataclass(frozen=True)
class PaddedLeaf(Leaf):
    """A leaf whose array in the files has zeros behind the value, as steps of FSDP once saved it."""

    def cut(self, stored: Any, what: str) -> Any:
        """Return the value of an array from the files.

        Raises:
            UsageError: what follows the value there is not zero, so it is no padding.
        """
        value = stored[tuple(map(slice, self.shape))]
        if np.count_nonzero(stored) != np.count_nonzero(value):
            raise other_shape(what, self.path, stored.shape, self.shape)
        return value


@dataclass(frozen=True)
class SavedLayout:
    """A tree without its values.

    Args:
        tree: containers as JSON, with the number of a leaf in its place.
        leaves: in JAX's order.
        may_be_padded: whether it is from a time when what FSDP keeps with padding was saved with it.
    """

    tree: Any
    leaves: tuple[Leaf, ...]
    may_be_padded: bool = False

    def as_json(self) -> dict[str, Any]:
        """Return the same as JSON-ready data."""
        return _LAYOUT.write(self)

    @classmethod
    def from_json(cls, found: Field) -> SavedLayout:
        """Return a layout that was read from a file.

        Raises:
            DamagedError: it is none.
        """
        layout = _LAYOUT.read(found)
        numbers: list[int] = []
        # Each leaf exactly once: a damaged tree must not restore one value in two places.
        rebuilt(layout.tree, lambda number: numbers.append(number))
        if sorted(numbers) != list(range(len(layout.leaves))):
            raise DamagedError(f"{found.where or 'tree'} does not name each of {len(layout.leaves)} leaves once")
        return layout


def flattened(tree: Any, what: str) -> tuple[list[tuple[str, Any]], Any]:
    """Return path and value of each leaf, and the tree's containers as JSON.

    Args:
        tree: any pytree.
        what: the call, for errors.

    Raises:
        UsageError: a dict has keys that cannot be sorted.
    """
    leaves: list[tuple[str, Any]] = []
    return leaves, _containers(tree, (), leaves, what)


def check_names(paths: Sequence[str]) -> None:
    """Refuse leaves that cannot be told apart in the files.

    Raises:
        UsageError: two have the same path, or one has a longer path than a file can keep.
    """
    seen: set[str] = set()
    for path in paths:
        if path in seen or len(path.encode()) > _LONGEST:
            why = "twice in the tree" if path in seen else f"longer than {_LONGEST} bytes"
            raise UsageError(f"save_state: the path of the leaf {shortened(path)} is {why}. Give it another key.")
        seen.add(path)


def number_type(saved: Leaf, like: Any) -> Any:
    """Return the type of Python's number that a leaf is restored as, like another leaf or as saved; else ``None``."""
    if like is None:
        return NUMBERS.get(saved.kind)
    return type(like) if type(like) in NUMBERS.values() else None


def rebuilt(tree: Any, leaf: Callable[[int], Any]) -> Any:
    """Return the tree of these containers, with ``leaf(number)`` for each leaf.

    Raises:
        DamagedError: they are not containers as ``flattened`` returns them.
    """
    match tree:
        case None:
            return None
        case int() if not isinstance(tree, bool):
            return leaf(tree)
        case {"list": [*parts]}:
            return [rebuilt(part, leaf) for part in parts]
        case {"tuple": [*parts]}:
            return tuple(rebuilt(part, leaf) for part in parts)
        case {"dict": [*parts]}:
            return dict(_entry(part, leaf) for part in parts)
    raise DamagedError(f"tree: {tree!r:.60} is no container")


def check_same(saved: Sequence[Leaf], paths: Sequence[str], what: str) -> None:
    """Refuse a tree whose leaves have other paths than the saved ones.

    Raises:
        UsageError: naming the first path on each side that the other lacks.
    """
    stored, given = [leaf.path for leaf in saved], list(paths)
    if stored == given:
        return
    only_saved = next((path for path in stored if path not in set(given)), None)
    only_given = next((path for path in given if path not in set(stored)), None)
    if only_saved is None and only_given is None:  # the same paths in another order
        only_saved, only_given = next((one, other) for one, other in zip_longest(stored, given) if one != other)
    raise UsageError(
        f"{what}: the trees differ. The first leaf that only the saved state has is {_path(only_saved)}, the first "
        f"that only like= has is {_path(only_given)}. Pass a tree of the structure that was saved, or leave like= out "
        f"to see the saved one."
    )


def other_shape(what: str, path: str, saved: Sequence[int], given: Sequence[int]) -> UsageError:
    """Return the error of a leaf that has another shape in ``like=`` than in the saved state."""
    return UsageError(
        f"{what}: {path or 'the array'} has the shape {tuple(saved)} in the saved state and {tuple(given)} in like=. "
        f"Pass the saved shape; it does not depend on the number of devices."
    )


def _path(path: str | None) -> str:
    """Return a path for an error text."""
    return "none" if path is None else path or "the tree itself"


def _containers(node: Any, path: tuple[Any, ...], leaves: list[tuple[str, Any]], what: str) -> Any:
    """Append the leaves of a node and return its containers."""
    if node is None:
        return None
    # JAX sorts a dict's keys, and its own error does not say in which dict they cannot be.
    if type(node) is dict and len(types := {type(key).__name__: key for key in node}) > 1:
        _check_sorted(node, types, jax.tree_util.keystr(path), what)
    # One level only: the node's own kind must be seen, not just its leaves.
    parts, _ = jax.tree_util.tree_flatten_with_path(node, is_leaf=lambda one: one is not node)
    # JAX does not look into it, so it is a leaf.
    if len(parts) == 1 and not parts[0][0]:
        leaves.append((jax.tree_util.keystr(path), node))
        return len(leaves) - 1
    inner = [_containers(part, (*path, *key), leaves, what) for key, part in parts]
    if type(node) in (list, tuple):
        return {type(node).__name__: inner}
    keys = _keys([key[0] for key, _ in parts])
    found: dict[str, Any] = {"dict": [list(pair) for pair in zip(keys, inner, strict=True)]}
    # For a reader of the file: what is restored is never made from a name in it.
    return found if type(node) is dict else found | {"type": f"{type(node).__module__}.{type(node).__qualname__}"}


def _check_sorted(node: dict[Any, Any], types: dict[str, Any], path: str, what: str) -> None:
    """Refuse a dict whose keys have no order, as JAX does without a name.

    Raises:
        UsageError: naming a key of each of two types.
    """
    try:
        sorted(node)
    except TypeError:
        (one, first), (other, second), *_ = types.items()
        raise UsageError(
            f"{what}: the dict {path or 'itself'} has keys of several types, {shortened(first)} ({one}) and "
            f"{shortened(second)} ({other}), which JAX cannot sort. Use keys of one type."
        ) from None


def _keys(entries: Sequence[Any]) -> list[Any]:
    """Return the keys of a container's parts (a dict's keys, fields or indices), as texts unless JSON can have them."""
    keys = [next(getattr(entry, name) for name in ("key", "name", "idx") if hasattr(entry, name)) for entry in entries]
    plain = {type(key) for key in keys} in ({str}, {int}, set())
    return keys if plain else [repr(key) for key in keys]


def _entry(part: Any, leaf: Callable[[int], Any]) -> tuple[str | int, Any]:
    """Return key and value of an entry of a stored dict."""
    match part:
        case [str() | int() as key, inner]:
            return key, rebuilt(inner, leaf)
    raise DamagedError(f"tree: {part!r:.60} is no entry of a dict")


_LEAF = record(Leaf, path=Field.text, shape=Field.wholes, dtype=Field.text, kind=one_of(*KINDS), impl=Field.text)


def _leaf(row: Field) -> Leaf:
    """Return a leaf that was read from a file."""
    leaf = _LEAF.read(row)
    try:
        # Makes the type: a file may name one that this JAX does not have.
        _ = leaf.aval
    except (TypeError, ValueError, KeyError):
        wrong = row["impl" if leaf.kind == "key" else "dtype"]
        raise DamagedError(f"{wrong.where} is {shortened(wrong.value)}, which JAX does not have") from None
    return leaf


_LAYOUT = record(
    SavedLayout,
    may_be_padded=Form(lambda found: found.value is not False, may_lack=True),  # older files do not say
    tree=lambda found: found.value,
    leaves=list_of(Form(_leaf, _LEAF.write)),
)
