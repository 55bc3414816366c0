"""Numbers and types as words for error texts and tables: ``"1 device"``, ``"2 devices"``, ``"an int"``.

One place for the plural and the article, so that no text says ``"1 devices"`` or ``"a int"``; and for names, which may
have any characters, on one line.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence

import numpy as np

_UNSEEN = {"Cc", "Cs", "Zl", "Zp"}
"""Unicode's categories of control characters, halves of pairs, and separators of lines and paragraphs."""


def plural(count: float, thing: str, ending: str = "s") -> str:
    """Return a noun in the number that ``count`` requires: ``thing`` for one, else its plural.

    Args:
        count: how many there are.
        thing: the noun in the singular; a final ``y`` behind a consonant becomes ``ies``.
        ending: appended otherwise.
    """
    if count == 1:
        return thing
    # "copy" and "copies", but "day" and "days".
    return f"{thing[:-1]}ies" if thing.endswith("y") and thing[-2] not in "aeiou" else thing + ending


def counted(count: int, thing: str, ending: str = "s") -> str:
    """Return a number with its noun: ``"1 launch"``, ``"2 launches"`` (with the ending ``es``)."""
    return f"{count} {plural(count, thing, ending)}"


def first_ones(names: Sequence[str], most: int) -> str:
    """Return names in one line, the first ones of many: ``"a, b and 3 more"``."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def axes_in_words(sizes: Mapping[str, int]) -> str:
    """Return the axes of a mesh with the devices along each: ``"data 16 × model 4"``."""
    return " × ".join(f"{axis} {size}" for axis, size in sizes.items())


def a_type_of(value: object) -> str:
    """Return the type of a value with its article: ``"a str"``, ``"an int"``, ``"an ndarray of dtype object"``."""
    name = type(value).__name__
    # Of an array of anything but numbers it is the elements that are wrong.
    if isinstance(value, np.ndarray) and value.dtype.kind in "OSU":
        return f"an {name} of dtype {value.dtype}"
    # "an ndarray" is said as "an en-dee-array".
    return f"{'an' if name[:1].lower() in 'aeio' or name.startswith('nd') else 'a'} {name}"


def visible(text: str) -> str:
    """Return the text with escapes in place of characters that no line can show, such as the end of a line."""
    # Nearly all texts are; only the others are looked at letter by letter.
    if text.isprintable():
        return text
    return "".join(one.encode("unicode_escape").decode() if _is_unseen(one) else one for one in text)


def _is_unseen(one: str) -> bool:
    return one in "\ufffe\uffff" or (unicodedata.category(one) in _UNSEEN and one != "\t")
