"""What makes two calls equal: the tree, shapes, dtypes and static values of their arguments, and JAX's contexts.

Arguments are bound to parameter names first. Then ``f(x)`` and ``f(v=x)`` are one call, static and donated arguments
may be given by name or number, and errors can name the argument they mean.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np

from pathways_nb.errors import PathwaysError, UsageError
from pathways_nb.program import jax_contexts
from pathways_nb.program.jax_contexts import Contexts
from pathways_nb.program.models import builder, has_model, how_to_split, with_static_parts
from pathways_nb.program.narrowing import NarrowingError, held_as
from pathways_nb.program.static_arguments import Statics
from pathways_nb.util.words import a_type_of

_MOST_SHOWN = 8
_EXACT = itertools.repeat(True)
_WIDEST = {int: np.dtype(np.int64), float: np.dtype(np.float64), complex: np.dtype(np.complex128)}
"""Of Python's numbers: the type in which JAX holds them with 64 bits."""


@dataclass(frozen=True)
class Aval:
    """Shape, dtype and weak type of one array argument or result.

    Args:
        shape: of the value.
        dtype: its element type.
        weak_type: whether the type is weak, as in JAX.
        padded: its shape on devices, if padding follows the value there; ``None`` if it has none.
    """

    shape: tuple[int, ...]
    dtype: Any
    weak_type: bool = False
    padded: tuple[int, ...] | None = field(default=None, hash=False)

    @property
    def on_devices(self) -> Aval:
        """The array on devices, padding included."""
        return self if self.padded is None else Aval(self.padded, self.dtype, self.weak_type)

    @property
    def value(self) -> Aval:
        """The value alone, as it is where no padding is kept."""
        return self if self.padded is None else Aval(self.shape, self.dtype, self.weak_type)

    @property
    def struct(self) -> jax.ShapeDtypeStruct:
        """The same as a ``jax.ShapeDtypeStruct``."""
        return jax.ShapeDtypeStruct(self.shape, self.dtype, weak_type=self.weak_type)

    @property
    def bytes(self) -> int:
        """Size of the whole array in bytes."""
        return math.prod(self.shape) * int(self.dtype.itemsize)


class ArrayAttributes:
    """A base class with the attributes of an array that follow from its abstract value, ``aval``."""

    aval: Aval

    @property
    def shape(self) -> tuple[int, ...]:
        """The global shape."""
        return self.aval.shape

    @property
    def dtype(self) -> Any:
        """The element type."""
        return self.aval.dtype

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.aval.shape)

    @property
    def nbytes(self) -> int:
        """The size of the whole array in bytes."""
        return self.aval.bytes


class Deferred:
    """Base class of futures, which a trace must distinguish from values that it can use."""

    aval: Aval

    def result(self) -> Any:
        """Wait for the host value and return it."""

    def wait(self) -> None:
        """Wait until it is computed."""

    def check_there(self) -> None:
        """Raise the known reason why there will be no value, without waiting."""

    def located(self) -> tuple[Any, Any, Any]:
        """Return its sharding, its devices and its place, as far as they are known, without waiting."""
        raise NotImplementedError


def aval_of(leaf: Any, exact: bool = False) -> Aval | None:
    """Return shape and type of an array, a number, a future, a struct or an ``Aval``; ``None`` of anything else.

    Args:
        leaf: the value.
        exact: whether to refuse numbers that JAX would hold as others.

    Raises:
        NarrowingError: it has such a number.
    """
    # First: a future looks like an array below, and reading it there could wait or raise.
    if isinstance(leaf, Deferred):
        return leaf.aval
    if isinstance(leaf, Aval):
        return leaf
    if isinstance(leaf, (bool, int, float, complex)):
        return Aval((), held_as(leaf, _WIDEST.get(type(leaf), type(leaf)), exact), weak_type=True)
    if isinstance(leaf, (np.ndarray, np.generic)):
        # Objects, texts and times. Structures (V) are not refused here: bfloat16 and its like are of that kind.
        if leaf.dtype.kind in "OUSMmT":
            return None
        return Aval(leaf.shape, held_as(leaf, leaf.dtype, exact))
    if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
        return Aval(tuple(leaf.shape), leaf.dtype, bool(getattr(leaf, "weak_type", False)))
    return None


def snapshot(value: Any) -> Any:
    """Return a value that the caller can no longer change: NumPy arrays are copied, JAX's arrays need not be."""
    if isinstance(value, (jax.Array, jax.ShapeDtypeStruct)):
        return value
    aval = aval_of(value)
    return np.array(value, dtype=None if aval is None else aval.dtype)


_NO_STATIC: Hashable = ((), ())
"""The key of static arguments of a call without any."""


@dataclass(frozen=True)
class Signature:
    """One call's arguments: array leaves, and everything else as a hashable key."""

    owner: str
    tree: Any
    leaves: list[Any]
    static_key: Hashable
    donated: tuple[int, ...]
    """Positions of donated leaves."""
    contexts: Contexts
    """JAX's contexts at the line of the call."""
    dynamic_args: tuple[Any, ...]
    _dynamic_kwargs: dict[str, Any]
    _dynamic_names: list[str]
    _static_args: dict[int, Any]
    _static_kwargs: dict[str, Any]
    homes: tuple[int | None, ...] = ()
    """Only of a program of ordinary operations: serial of the place at which each leaf lies, where known."""

    @classmethod
    def of(
        cls,
        statics: Statics,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        name: str,
        contexts: Contexts | None = None,
    ) -> Signature:
        """Bind the arguments, set static ones apart, and flatten the rest.

        Args:
            statics: the static and donated parameters.
            args: positional arguments.
            kwargs: keyword arguments.
            name: of the function, for errors.
            contexts: those of the call; by default those of this line.

        Returns:
            The signature.

        Raises:
            UsageError: the arguments do not fit the function, or a static one cannot be hashed.
        """
        args, kwargs, names = statics.bind(args, kwargs, name)
        contexts = contexts or jax_contexts.current()
        if not kwargs and not statics.has_static:  # as most calls are, and it is done at each
            leaves, tree = jax.tree.flatten((args, {}))
            if has_model(tree):
                args = with_static_parts(args)
                leaves, tree = jax.tree.flatten((args, {}))
            donated = statics.donated_leaves((i, names[i], value) for i, value in enumerate(args))
            return cls(name, tree, leaves, _NO_STATIC, donated, contexts, args, {}, names, {}, {})
        static_args = {i: a for i, (a, n) in enumerate(zip(args, names, strict=True)) if statics.is_static(i, n)}
        static_kwargs = {k: v for k, v in kwargs.items() if k in statics.static_names}
        numbers = [i for i in range(len(args)) if i not in static_args]
        dynamic: tuple[Any, ...] = with_static_parts(tuple(args[i] for i in numbers))
        rest: dict[str, Any] = with_static_parts({k: v for k, v in kwargs.items() if k not in static_kwargs})
        leaves, tree = jax.tree.flatten((dynamic, rest))
        # With their types, since 1, 1.0 and True are equal and not the same.
        static_key = (
            tuple((number, type(value), value) for number, value in static_args.items()),
            tuple((key, type(static_kwargs[key]), static_kwargs[key]) for key in sorted(static_kwargs)),
        )
        try:
            hash(static_key)
        except TypeError:
            raise UsageError(f"{name}: a static argument must be hashable, got {static_key}.") from None
        owned = [(i, names[i], value) for i, value in zip(numbers, dynamic, strict=True)] + [
            (-1, k, rest[k]) for k in sorted(rest)
        ]
        donated = statics.donated_leaves(iter(owned))
        dynamic_names = [names[i] for i in numbers]
        return cls(
            name, tree, leaves, static_key, donated, contexts, dynamic, rest, dynamic_names, static_args, static_kwargs
        )  # fmt: skip

    @property
    def names(self) -> list[str]:
        """The name of each leaf in errors: its parameter and its path within it."""
        flat, _ = jax.tree_util.tree_flatten_with_path((self.dynamic_args, self._dynamic_kwargs))
        return [
            (self._dynamic_names[path[1].idx] if path[0].idx == 0 else f"argument {path[1].key}")
            + jax.tree_util.keystr(path[2:])
            for path, _ in flat
        ]

    def name(self, leaf: int) -> str:
        """Return what errors call the leaf at a position: the function, its parameter and the path within it."""
        return f"{self.owner}: {self.names[leaf]}"

    def avals(self) -> tuple[Aval, ...]:
        """Return the shape and type of each leaf.

        Raises:
            UsageError: a leaf is not an array, a number or a future, or JAX would hold another number.
        """
        try:
            # In C, since a step has hundreds of leaves. Which leaf is at fault is looked up after an error only.
            found = tuple(map(aval_of, self.leaves, _EXACT))
        except NarrowingError:
            self.refuse_narrowed()
            raise
        for index, aval in enumerate(found):
            if aval is None:
                leaf, what = self.leaves[index], self.names[index]
                parameter = re.split(r"[.\[]", what.removeprefix("argument "))[0]
                static = f" If it selects a variant of the program, name it static: static_argnames={parameter!r}."
                raise UsageError(
                    f"{self.owner}: {what} = {leaf!r} is {a_type_of(leaf)}, not an array, a number or a future."
                    f"{how_to_split((self.dynamic_args, self._dynamic_kwargs), leaf) or static}"
                )
        return found  # type: ignore[return-value]

    def check_width(self, avals: Sequence[Aval]) -> None:
        """Refuse arrays of 64 bits where JAX would narrow them.

        Raises:
            UsageError: naming the argument, its dtype and what JAX would make of it.
        """
        for index, (leaf, aval) in enumerate(zip(self.leaves, avals, strict=True)):
            held = jax.dtypes.canonicalize_dtype(aval.dtype, allow_extended_dtype=True)
            if held != aval.dtype and not isinstance(leaf, jax.ShapeDtypeStruct):
                shape = ",".join(map(str, aval.shape))
                raise UsageError(
                    f"{self.owner}: {self.names[index]} is {aval.dtype}[{shape}], and JAX holds {held} at this line, "
                    f"where jax_enable_x64 is off. Call it in `with jax.enable_x64(True):`, or convert the array there."
                )

    def refuse_narrowed(self) -> None:
        """Refuse arguments that JAX would hold as other numbers.

        Raises:
            NarrowingError: naming the first.
        """
        for index, leaf in enumerate(self.leaves):
            try:
                aval_of(leaf, exact=True)
            except NarrowingError as error:
                raise NarrowingError(f"{self.owner}: {self.names[index]}{error}") from None

    def explain(self, error: Exception, what: str) -> None:
        """Add a note to an error from within the function: with which shapes and types it was called."""
        if isinstance(error, PathwaysError):
            return  # says it all itself
        shown = [
            f"{name.removeprefix('argument ')} {aval.dtype}[{','.join(map(str, aval.shape))}]"
            for name, leaf in zip(self.names, self.leaves, strict=True)
            if (aval := aval_of(leaf)) is not None
        ]
        more = [f"and {len(shown) - _MOST_SHOWN} more"] if len(shown) > _MOST_SHOWN else []
        error.add_note(f"in {what}, called with {', '.join([*shown[:_MOST_SHOWN], *more]) or 'no arrays'}")

    def without_leaves(self) -> Signature:
        """Return the signature without its arrays, for what outlives the call."""
        return replace(self, leaves=[], dynamic_args=(), _dynamic_kwargs={})

    def regroup(self, leaves: Sequence[Any]) -> dict[str, Any]:
        """Return the fields that hold the arguments as trees, made of other leaves."""
        dynamic, rest = jax.tree.unflatten(self.tree, leaves)
        return {"dynamic_args": dynamic, "_dynamic_kwargs": rest}

    def rebuild(self, leaves: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return positional and keyword arguments with other leaves in place of the call's own."""
        dynamic, rest = builder(self.tree)(leaves)
        remaining = iter(dynamic)
        count = len(dynamic) + len(self._static_args)
        args = tuple(self._static_args[i] if i in self._static_args else next(remaining) for i in range(count))
        return args, {**rest, **self._static_kwargs}
