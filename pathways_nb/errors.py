"""The errors a user can meet. Each text says what is wrong, where, both values, and the fix."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from numbers import Integral, Real


class PathwaysError(Exception):
    """Base of every error of this package."""


class NotAttachedError(PathwaysError):
    """Nothing is attached, or what was attached has been let go."""


class PlaceError(PathwaysError, ValueError):
    """A virtual slice asks for devices that do not exist."""


class ShardingError(PathwaysError, ValueError):
    """A sharding does not fit its place or its array."""


class UsageError(PathwaysError):
    """A call that cannot mean what it says, with the call that does.

    Not a ``TypeError``: JAX would catch and reword it on its way out of a traced operator.
    """


class OutOfMemoryError(PathwaysError, MemoryError):
    """A program needs more memory than its devices have, or than those who hold it will give back."""


class PolicyError(PathwaysError, RuntimeError):
    """A user's policy raised, or returned what it was not offered."""


class ScheduleError(PathwaysError, ValueError):
    """A pipeline schedule that cannot be carried out, with the first dependency that it breaks."""


class NodeError(PathwaysError, RuntimeError):
    """A node failed while it ran."""


class CancelledError(PathwaysError, RuntimeError):
    """A node was cancelled before it was dispatched."""


class LostError(PathwaysError, RuntimeError):
    """A result is gone: its devices were let go, or a later call donated it."""


def is_number(value: object) -> bool:
    """Whether it is a finite number, of Python or NumPy; a truth value is none."""
    try:
        return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # a whole number beyond the range of floats
        return False


def is_index(value: object) -> bool:
    """Whether it is a whole number, of Python or NumPy; a truth value is none."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def nearest(name: str, names: Iterable[str]) -> list[str]:
    """Up to three names that were probably meant: those that hold what was written, then those that look like it."""
    names, written = list(names), name.lower()
    holding = [one for one in names if len(written) > 1 and written in one.lower()]
    return list(dict.fromkeys(holding + difflib.get_close_matches(written, names, cutoff=0.5)))[:3]


def did_you_mean(name: object, names: Iterable[str]) -> str:
    """``" Did you mean 'tpu_v3'?"`` for what was probably meant, or nothing if no name is near."""
    near = nearest(name, names) if isinstance(name, str) else []
    return f" Did you mean {' or '.join(map(repr, near))}?" if near else ""


def size(count: float) -> str:
    """Bytes as people say them: ``size(1_500_000)`` is ``"1.5 MB"`` (powers of 1000)."""
    for unit in ("B", "KB", "MB", "GB", "TB"):
        if count < 999.5 or unit == "TB":
            break
        count /= 1000
    return f"{three_digits(count)} {unit}"


def three_digits(value: float) -> str:
    """Three digits, and never an exponent."""
    return f"{value:.0f}" if value >= 99.95 else f"{value:.3g}"
