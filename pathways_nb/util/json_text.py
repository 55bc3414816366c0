"""JSON from outside: read within limits, and checked with errors that name the position in the file.

Every file that this package reads again (plans, cases, chips, calibrations, saved runs and states) may be written by
hand or damaged, so nothing in it is trusted: size, depth, types and ranges are checked before use. ``parse`` and
``read`` turn text into Python values; a ``Field`` is such a value with the path that leads to it, for errors such as
``programs[0].nodes[3].inputs[0] is 9, not a whole number from 0 to 7``. What is written and read again declares its
fields once, by the methods of ``Field`` (``json_forms``).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pathways_nb.errors import nearest
from pathways_nb.util.words import a_type_of, counted

MOST_TEXT = 16 * 2**20
"""Limit in bytes for a file of hardware parameters; those that people write have a few hundred."""
_DEEPEST = 50
"""Limit for brackets within brackets."""
_SHOWN = 60
"""Limit in characters for a value that an error repeats."""
LARGEST = 2**53
"""Limit for sizes and counts in files; up to it, every whole number is exact as a float."""

_LARGEST_NUMBER = 1e300
"""Limit for other numbers in files: what is computed from a few of them is a float still."""


class DamagedError(ValueError):
    """A file or a part of it is not as it should be; the text is a clause without a full stop."""


def parse(text: str) -> Any:
    """Return the Python values of a JSON text.

    Raises:
        DamagedError: it is not JSON, is nested too deeply for Python, or has a number with thousands of digits.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise DamagedError(f"not JSON, line {error.lineno} column {error.colno}: {error.msg}") from None
    except RecursionError:
        raise DamagedError("brackets are nested more deeply than Python can read") from None
    except ValueError:  # Python's limit on the digits of a whole number
        raise DamagedError("a number has more digits than Python reads (4300)") from None


def read(path: Path) -> Any:
    """Return the Python values of a JSON file.

    Raises:
        FileNotFoundError: the file does not exist.
        DamagedError: it cannot be read, is too large, or ``parse`` refuses it.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MOST_TEXT + 1)  # one byte more than allowed, which tells that there are more
        text = data.decode()
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:  # no such path, or no UTF-8
        raise DamagedError(f"cannot be read ({said(error)})") from None
    if len(data) > MOST_TEXT:
        raise DamagedError(f"cannot be read (more than {MOST_TEXT >> 20} MiB, no file of this kind is so large)")
    found = parse(text)
    check_depth(found)
    return found


def check_depth(value: Any) -> None:
    """Check that a value is not nested too deeply to be printed and written again.

    Raises:
        DamagedError: it is nested more deeply than anything that was saved.
    """
    # A loop, not a recursion: that could exceed Python's own limit before the depth is known.
    level = [value]
    for _ in range(_DEEPEST):
        lists = [list(one.values()) if isinstance(one, dict) else one for one in level if isinstance(one, (dict, list))]
        level = [inner for one in lists for inner in one]
    if level:
        raise DamagedError(f"brackets are nested more than {_DEEPEST} deep")


def said(error: Exception) -> str:
    """Return the text of another library's error, shortened if it quotes the file at length."""
    text = str(error) or type(error).__name__
    return text if len(text) <= 2 * _SHOWN else f"{text[: 2 * _SHOWN - 1]}…"


def shortened(value: object) -> str:
    """Return ``repr(value)`` for an error, shortened if it is long."""
    # repr of thousands of digits may be refused by Python, and takes a time that grows with their square.
    if isinstance(value, int) and value.bit_length() > 4 * _SHOWN:
        return f"a number of about {round(value.bit_length() * math.log10(2))} digits"
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # ValueError: a number of thousands of digits is in it
        return f"{a_type_of(value)} of many levels or digits"
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


def is_text(value: object) -> bool:
    """Return whether a value is text that can be written to a file: half of a surrogate pair cannot."""
    if not isinstance(value, str):
        return False
    try:
        return value.isascii() or bool(value.encode())
    except UnicodeEncodeError:
        return False


def is_whole(value: object, low: int = 0, high: int = LARGEST) -> bool:
    """Return whether a value is an ``int`` from ``low`` to ``high``; ``True`` and ``False`` are not."""
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def is_amount(value: object, low: float = 0.0, high: float = _LARGEST_NUMBER) -> bool:
    """Return whether a value is a number from ``low`` to ``high``; ``True`` and ``False`` are not."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high


@dataclass(frozen=True, slots=True)
class Field:
    """A value read from JSON and its position; methods raise ``DamagedError`` if it is not what they ask for.

    Args:
        value: the value.
        where: its path in the file, such as ``programs[0].nodes``; empty for the whole file.
    """

    value: Any
    where: str = ""

    def __getitem__(self, key: str) -> Field:
        found = self.table()
        if key not in found:
            raise DamagedError(f"{self.where or 'it'} lacks {key!r}")
        return Field(found[key], f"{self.where}.{key}" if self.where else key)

    def get(self, key: str) -> Field:
        """Return the value under ``key``; a field with ``None`` if there is none."""
        return Field(self.table().get(key), f"{self.where}.{key}" if self.where else key)

    def table(self) -> dict[str, Any]:
        """Return the value, which must be an object."""
        return self._checked(isinstance(self.value, dict), "an object")

    def only(self, *known: str) -> Field:
        """Return the field itself, which must be an object without other keys."""
        for key in self.table():
            if key not in known:
                near = "".join(f"; {one!r} is near" for one in nearest(key, known)[:1])
                raise DamagedError(
                    f"{self.where or 'it'} has {shortened(key)}, which is none of {', '.join(map(repr, known))}{near}"
                )
        return self

    def length(self) -> int:
        """Return the number of values of a list."""
        return len(self._checked(isinstance(self.value, list), "a list"))

    def rows(self, length: int | None = None) -> list[Field]:
        """Return the values of a list, which must have ``length`` of them if that is given."""
        fits = isinstance(self.value, list) and length in (None, len(self.value))
        self._checked(fits, "a list" if length is None else f"a list of {counted(length, 'value')}")
        return [Field(value, f"{self.where}[{number}]") for number, value in enumerate(self.value)]

    def entries(self) -> Iterator[tuple[int, Field]]:
        """Yield the entries of an object whose keys must be whole numbers."""
        for key in self.table():
            # Digits of other scripts are refused, and so are numbers so long that ``int`` would take a while.
            if not (key.isascii() and key.isdigit() and len(key) < 10):
                raise DamagedError(f"{self.where}: {shortened(key)} is not a whole number")
            yield int(key), self.get(key)

    def text(self) -> str:
        """Return the value, which must be text."""
        return self._checked(is_text(self.value), "text")

    def texts(self) -> tuple[str, ...]:
        """Return the value, which must be a list of texts."""
        return tuple(field.text() for field in self.rows())

    def one_of(self, *choices: str) -> str:
        """Return the value, which must be one of these texts."""
        if self.text() in choices:
            return self.value
        raise self._not(f"one of {', '.join(map(repr, choices))}")

    def whole(self, low: int = 0, high: int = LARGEST) -> int:
        """Return the value, which must be a whole number from ``low`` to ``high``."""
        # The text is made only for the error: large runs have a hundred thousand of these numbers.
        if is_whole(self.value, low, high):
            return self.value
        raise self._not(f"{low}" if low == high else f"a whole number from {low} to {high}")

    def wholes(self, low: int = 0, high: int = LARGEST) -> tuple[int, ...]:
        """Return the value, which must be a list of whole numbers from ``low`` to ``high``."""
        return tuple(field.whole(low, high) for field in self.rows())

    def seconds(self, most: float) -> float:
        """Return the value, which must be a number of seconds from 0 to ``most``."""
        return self.number(0.0, most, "a number of seconds")

    def number(self, low: float = 0.0, high: float = _LARGEST_NUMBER, what: str = "a number") -> float:
        """Return the value, which must be a number from ``low`` to ``high``."""
        if is_amount(self.value, low, high):
            return float(self.value)
        raise self._not(f"{what} from {low:g} to {high:g}")

    def numbers(self, low: float = 0.0, high: float = _LARGEST_NUMBER) -> list[float]:
        """Return the value, which must be a list of numbers from ``low`` to ``high``."""
        values = self._checked(isinstance(self.value, list), "a list of numbers")
        for at, value in enumerate(values):
            # A field for the wrong one alone: a table has ten thousands of numbers.
            if not is_amount(value, low, high):
                Field(value, f"{self.where}[{at}]").number(low, high)
        return list(map(float, values))

    def truth(self) -> bool:
        """Return the value, which must be ``true`` or ``false``."""
        return self._checked(isinstance(self.value, bool), "true or false")

    def _checked(self, holds: bool, wanted: str) -> Any:
        if not holds:
            raise self._not(wanted)
        return self.value

    def _not(self, wanted: str) -> DamagedError:
        return DamagedError(f"{self.where or 'it'} is {shortened(self.value)}, not {wanted}")
