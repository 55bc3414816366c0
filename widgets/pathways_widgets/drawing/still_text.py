"""Text of still pictures: the font that this machine has, the width of a text in it, and lines that fit.

A text is measured in the font that a PNG is drawn with; a browser's font is about as wide.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from PIL import ImageFont

from pathways_nb.util.words import visible

_FONTS = ("LiberationSans-Regular.ttf", "Arial.ttf", "Helvetica.ttc", "DejaVuSans.ttf")
"""Fonts to look for on this machine, for a PNG; else Pillow's own, which lacks some characters."""
_PLAIN = str.maketrans({"×": "x", "–": "-", "→": ">", "←": "<", "µ": "u", "…": "..."})
"""Substitutes for the characters that Pillow's own font lacks."""


def text_width(text: str, size: float) -> float:
    """Return the width in pixels of ``text`` on one line."""
    return float(font_of(size).getlength(as_written(text)))


def wrapped(text: str, fits: Callable[[str], bool]) -> Iterator[str]:
    """Yield the lines of a text, broken at `` · ``, and at spaces within a part that is longer than a line.

    Args:
        text: the text; it may have several lines, as the error of a user's function.
        fits: whether some text fits on a line.
    """
    first, *rest = text.splitlines() or [""]
    if rest:
        for one in (first, *rest):
            yield from wrapped(one, fits)
        return
    line = ""
    for part in text.split(" · "):
        if line and not fits(f"{line} · {part}"):
            yield line
            line = ""
        # A part that is longer than a line is broken at spaces, and its last piece may be followed by the next part.
        *full, line = _at_spaces(f"{line} · {part}" if line else part, fits)
        yield from full
    yield line


def _at_spaces(text: str, fits: Callable[[str], bool]) -> list[str]:
    """Return the lines of a text broken at spaces; a word that is longer than a line is not broken."""
    if fits(text):
        return [text]
    lines = [""]
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}" if lines[-1] else word
        if fits(longer):
            lines[-1] = longer
        else:
            lines.append(word)
    return [line for line in lines if line] or [""]


def as_written(text: str) -> str:
    """Return the text as the available font can write it."""
    return visible(text) if _face() else visible(text).translate(_PLAIN)


@cache
def _face() -> str:
    """Return the file of the first font of ``_FONTS`` on this machine; empty if there is none."""
    for name in _FONTS:
        with contextlib.suppress(OSError):
            ImageFont.truetype(name, 10)
            return name
    return ""


@cache
def font_of(size: float) -> Any:
    """Return the font at this size in pixels."""
    return ImageFont.truetype(_face(), size) if _face() else ImageFont.load_default(size)
