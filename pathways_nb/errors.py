"""The errors that a user can meet.

Each text says what is wrong, where, both values, and the fix; tests check the texts. Errors that Python has a name for
are that as well (``PlaceError`` is a ``ValueError``), so that ordinary ``except`` clauses work. Everything in the
package may import this module, which imports nothing of it; therefore the few helpers that error texts share, for names
and sizes, are in it, too.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any

_LONG_WORD, _LONG_TEXT = 400, 10_000
"""Characters of a name, and of a whole text, beyond which errors show both ends only."""
_A_LONG_WORD = re.compile(rf"\S{{{_LONG_WORD + 1},}}")


class PathwaysError(Exception):
    """Base of every error of this package; of very long names its text has both ends."""

    def __init__(self, *args: object, **kwargs: Any) -> None:
        super().__init__(*(_readable(one) if isinstance(one, str) else one for one in args), **kwargs)


class NotAttachedError(PathwaysError):
    """Nothing is attached, or the attached devices were released."""


class PlaceError(PathwaysError, ValueError):
    """A virtual slice asks for devices that do not exist."""


class ShardingError(PathwaysError, ValueError):
    """A sharding does not fit its place or its array."""


class UsageError(PathwaysError):
    """A call that cannot be carried out as written; the text shows the call that can.

    Not a ``TypeError``: JAX would catch and reword it on its way out of a traced operator.
    """


class NoAttributeError(UsageError, AttributeError):
    """A ``UsageError`` that ``hasattr`` takes for a missing attribute."""


class OutOfMemoryError(PathwaysError, MemoryError):
    """A program needs more memory than its devices have, or than the holders of the memory will give back."""


class PolicyError(PathwaysError, RuntimeError):
    """A user's policy raised, or returned something other than one of the gangs it was given."""


class ScheduleError(PathwaysError, ValueError):
    """A pipeline schedule cannot be carried out; the text names the first dependency that it breaks."""


class PlanError(PathwaysError, ValueError):
    """A plan of sharded data parallelism does not fit its model, or cannot be carried out."""


class NodeError(PathwaysError, RuntimeError):
    """A node failed while it ran."""


class CancelledError(PathwaysError, RuntimeError):
    """A node was cancelled before it was dispatched."""


class LostError(PathwaysError, RuntimeError):
    """A result is gone: its devices were released or lost, or a later call donated it."""


def both_ends(text: str, most: int) -> str:
    """Return a text of at most ``most`` characters: of a longer one the beginning and the end."""
    return text if len(text) <= most else f"{text[: most // 2]}…{text[most // 2 - most + 1 :]}"


def _readable(text: str) -> str:
    """Return an error's text as somebody can read it, whatever names it repeats."""
    if len(text) <= _LONG_WORD:
        return text
    return both_ends(_A_LONG_WORD.sub(lambda word: both_ends(word[0], _LONG_WORD), text), _LONG_TEXT)


def is_number(value: object) -> bool:
    """Return whether a value is a finite number, of Python or NumPy; ``True`` and ``False`` are not."""
    try:
        return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # a whole number beyond the range of floats
        return False


def is_index(value: object) -> bool:
    """Return whether a value is a whole number, of Python or NumPy; ``True`` and ``False`` are not."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def nearest(name: str, names: Iterable[str]) -> list[str]:
    """Return up to three names that were probably meant: those that contain ``name``, then those that look like it."""
    names, written = list(names), name.lower()
    holding = [one for one in names if len(written) > 1 and written in one.lower()]
    return list(dict.fromkeys(holding + difflib.get_close_matches(written, names, cutoff=0.5)))[:3]


def did_you_mean(name: object, names: Iterable[str]) -> str:
    """Return a hint such as ``" Did you mean 'tpu_v3'?"``, or ``""`` if no name is near."""
    near = nearest(name, names) if isinstance(name, str) else []
    return f" Did you mean {' or '.join(map(repr, near))}?" if near else ""


def size(count: float) -> str:
    """Return bytes in words: ``size(1_500_000)`` is ``"1.5 MB"`` (powers of 1000)."""
    for unit in ("B", "KB", "MB", "GB", "TB"):
        if count < 999.5 or unit == "TB":
            break
        count /= 1000
    return f"{three_digits(count)} {unit}"


def duration(seconds: float) -> str:
    """Return seconds in words, in the unit that a person would use."""
    for unit, scale in (("µs", 1e6), ("ms", 1e3)):
        if seconds * scale < 999.5:
            return f"{three_digits(seconds * scale)} {unit}"
    return f"{three_digits(seconds)} s"


def three_digits(value: float) -> str:
    """Return a number with three digits and without an exponent."""
    return f"{value:.0f}" if value >= 99.95 else f"{value:.3g}"
