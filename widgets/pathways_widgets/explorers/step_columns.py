"""The columns of the explorer of a sharded step: buckets as a band over the parameters, lanes of one device, memory.

Live figure and still picture draw the same columns. Times are in seconds; memory is in ``StepLayout.unit``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby, takewhile
from typing import Any, NamedTuple, Protocol

import numpy as np

from pathways_widgets.drawing import palette
from pathways_widgets.drawing.still_text import text_width, wrapped
from pathways_widgets.drawing.style import Style
from pathways_widgets.drawing.views import Columns
from pathways_widgets.explorers.step_memory_columns import MEMORY_SOURCES, memory_columns

COMPUTE, BACKWARD, UPDATE, STALL = palette.SKY, palette.GREEN, palette.PURPLE, palette.VERMILION
SUMS = palette.ORANGE
"""Colours of computation and of waiting; a collective has the colour of its bucket."""
PLAIN = {
    **{"compute": COMPUTE, "backward": BACKWARD, "partial sums": SUMS, "stall": STALL},
    **dict.fromkeys(("update", "gather new parameters"), UPDATE),
}
SOURCES = {
    "step_band": ("left", "right", "top", "bottom", "colour", "name", "bucket", "bytes"),
    "step_labels": ("x", "y", "text"),
    "step_headings": ("x", "y", "text"),
    "step_boxes": ("left", "right", "top", "bottom", "colour", "edge", "kind", "words", "bytes", "seconds", "exposed"),
    "step_hatched": ("left", "right", "top", "bottom", "hatch"),
    "step_box_labels": ("x", "y", "text"),
    **MEMORY_SOURCES,
    "step_lane_names": ("y", "text"),
}  # fmt: skip
_LINE, _GAP = 1.7, 0.7
"""Height of a line of headings, and the gap between rows, in heights of text."""
_LEAST = 1.5
"""Pixels of the narrowest parameter."""
_EDGED = 6.0
"""Pixels of the narrowest box with an edge and a pattern; thousands of patterns would take seconds to draw."""


class DrawnBand(Protocol):
    """The buckets of one pass over the step: ``numbers`` of the buckets of all parameters, ``lines`` of each bucket."""

    heading: str
    numbers: np.ndarray  # (parameters,)
    lines: Sequence[str]


class DrawnStep(Protocol):
    """What is drawn; ``pathways_nb.parallel.fsdp.step_picture.StepPicture`` has it."""

    @property
    def lines(self) -> Sequence[str]:
        """The picture in words: headings and note, or the error."""

    @property
    def names(self) -> Sequence[str]:
        """Of the parameters."""

    @property
    def sizes(self) -> np.ndarray:
        """Bytes of each parameter, ``(parameters,)``."""

    @property
    def bands(self) -> Sequence[Any]:
        """A ``DrawnBand``, or one for each pass."""

    @property
    def lanes(self) -> Sequence[str]:
        """Names of the lanes."""

    @property
    def boxes(self) -> Sequence[Any]:
        """On the lanes: ``lane``, ``kind``, ``start``, ``end``, ``bucket``, ``words``, ``bytes``, ``exposed``."""

    @property
    def collectives(self) -> Sequence[Any]:
        """The boxes that are collectives, in order."""

    @property
    def times(self) -> np.ndarray:
        """Seconds at which the memory changes, ``(times,)``."""

    @property
    def memory(self) -> Mapping[Any, np.ndarray]:
        """By category, bytes from each time to the next, ``(times,)``."""

    @property
    def limit(self) -> float:
        """Bytes that a device has; 0 if that is not known."""

    @property
    def passes(self) -> Sequence[tuple[str, str]]:
        """Name and schedule before the passes and after each."""

    @property
    def error(self) -> str:
        """Why there is no picture."""


class StepLayout(NamedTuple):
    """Ranges of the axes.

    Args:
        height: of headings and bands, in pixels.
        end: seconds of the step.
        lanes: names of the lanes.
        highest: of the memory's axis, in units.
        unit: of the memory.
    """

    height: float
    end: float = 1.0
    lanes: tuple[str, ...] = ()
    highest: float = 1.0
    unit: str = "GB"


def columns_of(picture: DrawnStep, width: float, style: Style) -> tuple[dict[str, Columns], StepLayout]:
    """Return the columns of every source, and the layout.

    Args:
        picture: what to draw.
        width: pixels of the axes, to which text is fitted.
        style: sizes of text.
    """
    sources: dict[str, Columns] = {name: {column: [] for column in SOURCES[name]} for name in SOURCES}
    headings, height = _headings(picture.lines, width, style)
    sources["step_headings"] = headings
    if picture.error:
        return sources, StepLayout(height)
    bands, height = _bands(picture, height, width, style, headings)
    sources |= bands
    # A step that takes no time has an axis, too: pixels of a second are divided by its length.
    end = max((box.end for box in picture.boxes), default=0.0) or 1.0
    names = {number + 0.5: name for number, name in enumerate(picture.lanes)}
    sources["step_lane_names"] = {"y": list(names), "text": list(names.values())}
    sources |= _boxes(picture, width / end, style)
    columns, top, unit = memory_columns(picture.times, picture.memory, end, picture.limit)
    sources |= columns
    return sources, StepLayout(height, end, tuple(picture.lanes), top, unit)


def _headings(lines: Sequence[str], width: float, style: Style) -> tuple[Columns, float]:
    """Return the words above the band, broken into lines, and their height."""
    line = _LINE * style.font
    fitted = [part for text in lines for part in wrapped(text, lambda part: text_width(part, style.font) <= width)]
    y = [(number + 0.5) * line for number in range(len(fitted))]
    return {"x": [0.0] * len(fitted), "y": y, "text": fitted}, len(fitted) * line


# ---- buckets


def _bands(
    picture: DrawnStep, y: float, width: float, style: Style, headings: Columns
) -> tuple[dict[str, Columns], float]:
    """Return the boxes of parameters and their labels, and the height of all; the bands' headings are added."""
    edges = _edges(picture.sizes, width)
    boxes: Columns = {name: [] for name in SOURCES["step_band"]}
    labels: Columns = {name: [] for name in SOURCES["step_labels"]}
    for band in picture.bands:
        line = _LINE * style.font
        for name, value in (("x", 0.0), ("y", y + line / 2), ("text", band.heading)):
            headings[name].append(value)
        y += line
        for name, values in _parameters(picture, band, edges, (y, y + style.lane)).items():
            boxes[name] += values
        for x, text in _labels(band, edges, width, style):
            for name, value in (("x", x), ("y", y + style.lane / 2), ("text", text)):
                labels[name].append(value)
        y += style.lane + _GAP * style.font
    return {"step_band": boxes, "step_labels": labels}, y


def _edges(sizes: np.ndarray, width: float) -> np.ndarray:
    """Return the edges of parameters from 0 to 1: as wide as their bytes, the smallest so that they can be seen."""
    # More parameters than there is room for so many pixels share the width equally.
    least = min(_LEAST / width, 1 / max(len(sizes), 1))
    wide = np.maximum(sizes / (sizes.sum() or 1.0), least)
    return np.concatenate([[0.0], np.cumsum(wide / wide.sum())])


def _parameters(picture: DrawnStep, band: DrawnBand, edges: np.ndarray, rows: tuple[float, float]) -> Columns:
    """Return a box for each parameter, in the colour of its bucket."""
    numbers, count = band.numbers.tolist(), len(band.numbers)
    return {
        "left": edges[:-1].tolist(),
        "right": edges[1:].tolist(),
        "top": [rows[0]] * count,
        "bottom": [rows[1]] * count,
        "colour": [palette.bucket_colour(number) for number in numbers],
        "name": list(picture.names),
        "bucket": [f"{number}: {band.lines[number]}" for number in numbers],
        "bytes": picture.sizes.tolist(),
    }


def _labels(band: DrawnBand, edges: np.ndarray, width: float, style: Style) -> list[tuple[float, str]]:
    """Return what is written on the parts of a band, where there is room."""
    found, first = [], 0
    # A bucket whose parameters are not used one after another has several parts, each with its own label.
    for number, members in groupby(band.numbers.tolist()):
        last = first + len(list(members))
        room = (edges[last] - edges[first]) * width - 4
        if text := _words_that_fit(band.lines[number], room, style):
            found.append((float(edges[first] + edges[last]) / 2, text))
        first = last
    return found


# ---- lanes


def _boxes(picture: DrawnStep, scale: float, style: Style) -> dict[str, Columns]:
    """Return the boxes on the lanes, patterns over some, and labels.

    Args:
        picture: what to draw.
        scale: pixels of a second.
        style: sizes of text.
    """
    boxes = picture.boxes
    colours = [_colour(box) for box in boxes]
    room = [scale * (box.end - box.start) for box in boxes]  # pixels of each box
    made = {
        "left": [box.start for box in boxes],
        "right": [box.end for box in boxes],
        "top": [box.lane + 0.1 for box in boxes],
        "bottom": [box.lane + 0.9 for box in boxes],
        "colour": colours,
        # The edge of a narrow box would cover its colour.
        "edge": [palette.BOX_EDGE if wide > _EDGED else colour for wide, colour in zip(room, colours, strict=True)],
        "kind": [box.kind for box in boxes],
        "words": [box.words for box in boxes],
        "bytes": [box.bytes for box in boxes],
        "seconds": [box.end - box.start for box in boxes],
        "exposed": [box.exposed for box in boxes],
    }
    wide = [(box, pixels) for box, pixels in zip(boxes, room, strict=True) if pixels > _EDGED]
    return {
        "step_boxes": made,
        "step_hatched": _patterns([box for box, _ in wide]),
        "step_box_labels": _names(wide, style),
    }


def _patterns(boxes: Sequence[Any]) -> Columns:
    """Return the patterns over boxes."""
    hatched = [(box, _hatch(box.kind)) for box in boxes if _hatch(box.kind)]
    return {
        "left": [box.start for box, _ in hatched],
        "right": [box.end for box, _ in hatched],
        "top": [box.lane + 0.1 for box, _ in hatched],
        "bottom": [box.lane + 0.9 for box, _ in hatched],
        "hatch": [hatch for _, hatch in hatched],
    }


def _names(boxes: Sequence[tuple[Any, float]], style: Style) -> Columns:
    """Return what is written on collectives, where there is room; with each box come its pixels."""
    chosen = [(box, _words_that_fit(box.words, pixels - 4, style)) for box, pixels in boxes if box.kind not in PLAIN]
    fitting = [(box, text) for box, text in chosen if text]
    return {
        "x": [(box.start + box.end) / 2 for box, _ in fitting],
        "y": [box.lane + 0.5 for box, _ in fitting],
        "text": [text for _, text in fitting],
    }


def _colour(box: Any) -> str:
    return PLAIN.get(box.kind) or palette.bucket_colour(box.bucket)


def _hatch(kind: str) -> str:
    return palette.HATCHES["level"] if kind == "stall" else palette.HATCHES["upright"] if "reduce" in kind else ""


def _words_that_fit(words: str, room: float, style: Style) -> str:
    """Return the words for a bucket that fit: all of them, what its parameters have in common, or the end of that."""
    # Names of parameters are paths: "layers.0.mlp.up" and "layers.0.mlp.down" have "layers.0.mlp" in common.
    parts = [item.split(".") for item in words.split(", ")]
    common = [same[0] for same in takewhile(lambda same: len(set(same)) == 1, zip(*parts, strict=False))]
    more = "…" if len(parts) > 1 else ""
    forms = (words, ".".join(common) + more, common[-1] + more) if common and room > style.font / 2 else (words,)
    return next((form for form in forms if text_width(form, style.font) <= room), "")
