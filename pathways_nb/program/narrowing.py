"""Refuses values that JAX's types cannot hold.

Unless 64 bits are enabled, JAX keeps 64-bit values in 32 bits, and an integer out of range becomes another number
without a word. Floats are rounded, as in JAX; one that would become infinite is refused, and
so is a type of NumPy that JAX lacks.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pathways_nb.errors import UsageError


class NarrowingError(UsageError):
    """A value does not fit the type in which JAX holds it; the text lacks what the value is an argument of."""


def held_as(value: Any, dtype: Any, exact: bool) -> Any:
    """Return the type in which JAX holds a value from outside.

    Args:
        value: a number, or an array by NumPy.
        dtype: its type.
        exact: whether to look at its elements, which is done only if the type becomes a smaller one.

    Raises:
        NarrowingError: JAX has no such type, or holds the value in fewer bits, in which an integer is out of range or a
            finite float infinite.
    """
    held = jax.dtypes.canonicalize_dtype(dtype)
    if not _is_of_jax(held):
        raise NarrowingError(f" is {dtype}, which JAX does not have. {_instead(held)}")
    if exact and held != dtype:
        _check(value, held)
    return held


@functools.cache
def _is_of_jax(dtype: np.dtype[Any]) -> bool:
    try:
        jnp.promote_types(dtype, dtype)
    except ValueError:
        return bool(dtype == jax.dtypes.float0)
    return True


def _instead(dtype: np.dtype[Any]) -> str:
    """Return what to do with an array of a type that JAX lacks."""
    native = dtype.newbyteorder("=")
    if dtype.kind in "biufc" and _is_of_jax(native):
        return f"Its bytes are in the order of another processor: pass array.astype(np.{native.name})."
    if dtype.kind in "fc":
        small, large = ("float32", "float64") if dtype.kind == "f" else ("complex64", "complex128")
        return f"Pass array.astype(np.{small}), or np.{large} where jax_enable_x64 is on."
    return "Pass an array of numbers, such as one of its fields or array.astype(np.float32)."


def _check(value: Any, held: np.dtype[Any]) -> None:
    limits: Any = np.iinfo(held) if held.kind in "iu" else np.finfo(held)
    if type(value) is int:  # of any length, which NumPy does not have
        if not limits.min <= value <= limits.max:
            raise _error("", value, "int", held, limits)
        return
    array = np.asarray(value)
    if array.dtype.kind != "c":
        # ``fmin`` and ``fmax`` pass over NaN, which every float type holds; 0 is in every range, and an empty array
        # needs it.
        low, high = (extreme.reduce(array, axis=None, initial=0) for extreme in (np.fmin, np.fmax))
        if limits.min <= low and high <= limits.max:
            return
    if held.kind in "iu":
        lost = (array < limits.min) | (array > limits.max)
    else:
        with np.errstate(over="ignore"):
            lost = np.isfinite(array) & ~np.isfinite(array.astype(held))
    for index in np.argwhere(lost)[:1].tolist():
        kept = "float" if type(value) is float else "complex" if type(value) is complex else array.dtype.name
        raise _error(str(index) if index else "", array[tuple(index)].item(), kept, held, limits)


def _error(where: str, value: Any, given: str, held: np.dtype[Any], limits: Any) -> NarrowingError:
    span = f"{limits.min} to {limits.max}" if held.kind in "iu" else f"up to {float(limits.max):.5g}"
    return NarrowingError(
        f"{where} is {value!r}, which {held} cannot hold ({span}), and JAX keeps {given} as {held}. Pass smaller "
        f'numbers, or keep 64 bits: jax.config.update("jax_enable_x64", True).'
    )
