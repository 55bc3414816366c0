"""The columns of the token-slice explorer: slices as boxes, the cost surface, and bars of both terms of the latency.

Live figure and still picture draw the same columns. Tokens are along the axes of slices and surface; times are in
seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from pathways_nb.trace.metrics import duration
from pathways_widgets.drawing import palette
from pathways_widgets.drawing.still_text import text_width, wrapped
from pathways_widgets.drawing.style import Style
from pathways_widgets.drawing.views import Columns, Words

SUM, WAITS = palette.SKY, palette.ORANGE
"""Colours of the sum of all slices, and of the slowest slice, for which all other stages wait."""
SOURCES = {
    "tokens_boxes": ("left", "right", "top", "bottom", "tokens", "context", "seconds", "colour", "x", "y", "text"),
    "tokens_headings": ("x", "y", "text"),
    "tokens_surface": ("left", "right", "bottom", "top", "tokens", "context", "seconds", "colour"),
    "tokens_best": ("tokens", "context", "seconds"),
    "tokens_even": ("tokens", "context", "seconds"),
    "tokens_bars": ("x", "left", "right", "sum", "latency", "waits", "slices", "name", "text", "y"),
}
_LINE, _GAP = 1.7, 0.7
"""Height of a line of headings, and the gap between rows, in heights of text."""
_HIGHEST = 3.0
"""Height of the axis of bars, in latencies of the optimum; higher bars are cut off."""
_HALF, _APART = 0.4, 0.5
"""Half the width of a bar, and the space between the optimum and the uniform slicings."""
_SHADES = 32
"""Colours of the cost surface."""


class DrawnSlices(Protocol):
    """The token slices of a group of sequences."""

    heading: str
    tokens: np.ndarray  # (slices,)
    context: np.ndarray  # (slices,) tokens before each
    seconds: np.ndarray  # (slices,)


class DrawnSlicing(Protocol):
    """What is drawn; ``pathways_nb.parallel.terapipe.slicing_picture.SlicingPicture`` has it."""

    @property
    def rows(self) -> Sequence[Any]:
        """A ``DrawnSlices`` for each different group of the optimum, then two uniform slicings."""

    @property
    def uniform(self) -> Sequence[Any]:
        """Terms of uniform slicings."""

    @property
    def surface(self) -> Any:
        """The cost surface: ``tokens``, ``context``, ``seconds`` of each cell, ``token_step``, ``context_step``."""

    @property
    def best(self) -> int:
        """Number of slices of the best uniform slicing."""

    @property
    def own(self) -> int:
        """The user's own number of slices."""

    @property
    def length(self) -> int:
        """Tokens of a sequence."""

    @property
    def note(self) -> str:
        """What is not exact."""

    @property
    def error(self) -> str:
        """Why there is no picture."""

    @property
    def optimum(self) -> Any:
        """Terms of the optimum: ``slices``, ``sum``, ``waits``, ``latency``; None where there is ``error``."""

    @property
    def best_uniform(self) -> Any:
        """Terms of the best uniform slicing."""

    @property
    def lines(self) -> Sequence[str]:
        """The picture in words."""


class TokenLayout(NamedTuple):
    """Ranges of the axes, and titles.

    Args:
        height: of the boxes, in pixels.
        length: tokens of a sequence.
        highest: tokens of the cost surface.
        latency: seconds of the longest bar.
        bars: right end of the axis of bars.
        surface_title: title of the cost surface.
        bars_title: title of the bars.
    """

    height: float
    length: float = 1.0
    highest: float = 1.0
    latency: float = 1.0
    bars: float = 1.0
    surface_title: str = ""
    bars_title: str = ""


def columns_of(picture: DrawnSlicing, width: float, style: Style) -> tuple[dict[str, Columns], TokenLayout]:
    """Return the columns of every source, and the layout.

    Args:
        picture: what to draw.
        width: pixels of the boxes' axis, to which text is fitted.
        style: sizes of text.
    """
    sources: dict[str, Columns] = {name: {column: [] for column in SOURCES[name]} for name in SOURCES}
    boxes, headings, height = _rows(picture, width, style)
    sources["tokens_headings"] = headings
    if picture.error:
        return sources, TokenLayout(height)
    sources |= {"tokens_boxes": boxes, "tokens_surface": _surface(picture), "tokens_bars": _bars(picture)}
    # The last row, the user's own uniform slicing, is no mark on the surface: only the two to compare are.
    own, even = picture.rows[:-2], picture.rows[-2]
    sources["tokens_best"] = {
        name: np.concatenate([getattr(row, name) for row in own]) for name in SOURCES["tokens_best"]
    }
    sources["tokens_even"] = {name: getattr(even, name) for name in SOURCES["tokens_even"]}
    return sources, _layout(picture, sources, height)


def _layout(picture: DrawnSlicing, sources: dict[str, Columns], height: float) -> TokenLayout:
    """Return the ranges and titles."""
    seconds, best, even = sources["tokens_surface"]["seconds"], picture.optimum, picture.best_uniform
    title = f"time of a slice, from {duration(seconds.min())} (pale) to {duration(seconds.max())} (dark)"
    # A cost may be 0 everywhere; then no slicing is a multiple of the other.
    gain = f", {even.latency / best.latency:.2f} × the optimum" if best.latency else ""
    bars_title = f"optimum {duration(best.latency)}, best uniform {duration(even.latency)}{gain}"
    return TokenLayout(
        height,
        picture.length,
        float(sources["tokens_surface"]["top"].max()),
        1.1 * _cut(picture),
        float(sources["tokens_bars"]["right"].max()) + _APART,
        title,
        bars_title,
    )


def _rows(picture: DrawnSlicing, width: float, style: Style) -> tuple[Columns, Columns, float]:
    """Return the boxes, the headings above them, and the height of both."""
    line, y = _LINE * style.font, 0.0
    parts, headings = [], []
    for row in picture.rows:
        headings += _lines(row.heading, width, y := y + line / 2, line, style)
        y = headings[-1][0] + line / 2
        parts.append(_boxes(row, (y, y + style.lane), width / picture.length, style))
        y += style.lane + _GAP * style.font
    for text in (picture.note, picture.error):
        if text:
            headings += _lines(text, width, y + line / 2, line, style)
            y = headings[-1][0] + line / 2
    names = SOURCES["tokens_boxes"]
    boxes = {name: [each for part in parts for each in part[name]] for name in names}
    at = {"x": [0.0] * len(headings), "y": [y for y, _ in headings], "text": [text for _, text in headings]}
    return boxes, at, y


def _lines(text: str, width: float, y: float, line: float, style: Style) -> list[tuple[float, str]]:
    """Return the lines of a text with their positions."""
    fitted = wrapped(text, lambda part: text_width(part, style.font) <= width)
    return [(y + number * line, part) for number, part in enumerate(fitted)]


def _boxes(row: DrawnSlices, rows: tuple[float, float], scale: float, style: Style) -> Columns:
    """Return the boxes of one row, each as wide as its tokens, the first of the slowest in another colour.

    Args:
        row: the slices.
        rows: top and bottom.
        scale: pixels of a token.
        style: sizes of text.
    """
    # The first of equal ones: the latency counts one slowest slice, not each of them.
    slowest = int(row.seconds.argmax())
    words = [str(count) for count in row.tokens.tolist()]
    # Text is fitted here and not in the browser: the still picture shows the same text, and has no browser.
    fit = [text_width(word, style.font) + 2 <= scale * count for word, count in zip(words, row.tokens, strict=True)]
    count = len(words)
    return {
        "left": row.context.tolist(),
        "right": (row.context + row.tokens).tolist(),
        "top": [rows[0]] * count,
        "bottom": [rows[1]] * count,
        "tokens": row.tokens.tolist(),
        "context": row.context.tolist(),
        "seconds": row.seconds.tolist(),
        "colour": [WAITS if number == slowest else SUM for number in range(count)],
        "x": (row.context + row.tokens / 2).tolist(),
        "y": [sum(rows) / 2] * count,
        "text": [word if fits else "" for word, fits in zip(words, fit, strict=True)],
    }


def _surface(picture: DrawnSlicing) -> Columns:
    """Return a box for each cell of the cost surface."""
    one = picture.surface
    low, high = float(one.seconds.min()), float(one.seconds.max())
    shades = np.rint((_SHADES - 1) * (one.seconds - low) / ((high - low) or 1.0)).astype(int)
    return {
        "left": one.context,
        "right": np.minimum(one.context + one.context_step, picture.length),  # the last column of cells may stick out
        "bottom": one.tokens - one.token_step,
        "top": one.tokens,
        "tokens": one.tokens,
        "context": one.context,
        "seconds": one.seconds,
        "colour": Words([palette.heat(shade / (_SHADES - 1)) for shade in range(_SHADES)], shades),
    }


def _cut(picture: DrawnSlicing) -> float:
    """Return the seconds at which bars are cut off."""
    return min(max(one.latency for one in picture.uniform), _HIGHEST * picture.optimum.latency) or 1.0


def _bars(picture: DrawnSlicing) -> Columns:
    """Return a bar for the optimum and one for each number of uniform slices, of two parts each."""
    bars, cut = [picture.optimum, *picture.uniform], _cut(picture)
    # (bars,): the optimum at 0, the uniform slicings behind a space, because it is none of them.
    x = np.arange(len(bars)) + np.where(np.arange(len(bars)) > 0, _APART, 0.0)
    names = ["optimum"]
    for one in picture.uniform:
        marks = [word for word, count in (("best", picture.best), ("yours", picture.own)) if one.slices == count]
        names.append("\n".join([str(one.slices), *marks]))
    return {
        "x": x,
        "left": x - _HALF,
        "right": x + _HALF,
        "sum": np.array([one.sum for one in bars]),
        "latency": np.array([one.latency for one in bars]),
        "waits": np.array([one.waits for one in bars]),
        "slices": np.array([one.slices for one in bars]),
        "name": names,
        "text": [duration(one.latency) for one in bars],
        "y": np.array([min(one.latency, cut) for one in bars]),  # of the text, which is inside for a bar cut off
    }
