"""A picture as one list of rectangles, curves and words, in pixels with y downwards; written as SVG or PNG.

For viewers that run no scripts: saved notebooks, papers, mail. Neither a browser nor Bokeh is needed, because Bokeh's
own export needs a browser and a driver for it. Views place their shapes themselves, by their marks
(``picture_marks``); ``figures.run_still`` puts those of a run together.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from typing import Literal

import numpy as np
from PIL import Image, ImageDraw

from pathways_nb.util.words import visible
from pathways_widgets.drawing import palette
from pathways_widgets.drawing.still_text import as_written, font_of, text_width

Align = Literal["start", "middle", "end"]
_STEPS = 16
"""Straight pieces with which a Bézier curve is drawn in a PNG."""
_HATCH_GAP = 6.0


@dataclass(frozen=True)
class Rect:
    """A rectangle; ``hatch`` is one of the patterns of ``palette.HATCHES``, or empty.

    ``fill`` may end with two hexadecimal digits more, its opacity.
    ``dash`` is the length of the dashes of its edge and of the gaps between them; empty for a solid edge.
    """

    x: float
    y: float
    width: float
    height: float
    fill: str = ""
    line: str = ""
    line_width: float = 1.0
    radius: float = 0.0
    hatch: str = ""
    dash: tuple[float, ...] = ()

    def sides(self) -> list[Curve]:
        """Return the four sides, for an edge that is dashed."""
        x, y, right, bottom = self.x, self.y, self.x + self.width, self.y + self.height
        corners = [(x, y), (right, y), (right, bottom), (x, bottom), (x, y)]
        return [
            Curve(ends, self.line, self.line_width, dash=self.dash[0], gap=self.dash[1]) for ends in pairwise(corners)
        ]


@dataclass(frozen=True)
class Curve:
    """A line through points; four points with ``bezier`` are a cubic Bézier curve.

    ``dash`` is the length of the dashes of a line that is not bent, 0 for a solid line; ``gap`` is that of
    the gaps between them, 0 for half a dash.
    """

    points: tuple[tuple[float, float], ...]
    line: str
    line_width: float = 1.0
    bezier: bool = False
    dash: float = 0.0
    gap: float = 0.0

    def straight(self) -> list[tuple[float, float]]:
        """Return the points of a polyline that looks the same."""
        if not self.bezier:
            return list(self.points)
        return [_on_bezier(self.points, step / _STEPS) for step in range(_STEPS + 1)]

    @property
    def between(self) -> float:
        """The length of the gaps."""
        return self.gap or self.dash / 2

    def strokes(self) -> list[list[tuple[float, float]]]:
        """Return the visible polylines: one, or one for each dash."""
        if not self.dash:
            return [self.straight()]
        found: list[list[tuple[float, float]]] = []
        period, done = self.dash + self.between, 0.0
        for (x0, y0), (x1, y1) in pairwise(self.points):
            # A line without length must not divide by it. Around a corner the pattern goes on.
            length = max(math.dist((x0, y0), (x1, y1)), 1e-9)
            for begin in np.arange(-(done % period), length, period):
                ends = max(begin / length, 0.0), min((begin + self.dash) / length, 1.0)
                if ends[0] < ends[1]:
                    found.append([(x0 + part * (x1 - x0), y0 + part * (y1 - y0)) for part in ends])
            done += length
        return found


@dataclass(frozen=True)
class Polygon:
    """A filled polygon without a border."""

    points: tuple[tuple[float, float], ...]
    fill: str


@dataclass(frozen=True)
class Text:
    """One line of text, centred vertically at ``y``."""

    x: float
    y: float
    text: str
    size: float
    fill: str
    align: Align = "start"
    bold: bool = False
    background: str = ""


Shape = Rect | Curve | Polygon | Text


@dataclass
class Scene:
    """Shapes from back to front on a background."""

    width: float
    height: float
    background: str
    shapes: list[Shape] = field(default_factory=list)

    def svg(self, width: str = "") -> str:
        """Return the picture as SVG.

        Args:
            width: length on the page such as ``"3.3in"``; empty for one pixel per unit.
        """
        ratio = f'viewBox="0 0 {self.width:g} {self.height:g}"'
        length, unit = length_parts(width) if width else (self.width, "")
        size = f'width="{length:g}{unit}" height="{length * self.height / self.width:g}{unit}"'
        body = "\n".join(part for shape in self.shapes for part in _svg(shape))
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} {ratio} font-family="Helvetica, Arial, sans-serif">\n'
            f'<rect width="100%" height="100%" fill="{self.background}"/>\n{body}\n</svg>\n'
        )

    def png(self, scale: float = 2.0) -> bytes:
        """Return the picture as PNG; a palette of 256 colours keeps it small.

        Args:
            scale: dots per pixel.
        """
        size = max(round(self.width * scale), 1), max(round(self.height * scale), 1)
        image = Image.new("RGB", size, self.background)
        # With opacity, so that the lines of patterns are mixed with what they cover.
        draw = ImageDraw.Draw(image, "RGBA")
        for shape in self.shapes:
            _paint(draw, shape, scale)
        data = io.BytesIO()
        # Dithering would dot the areas, which have few colours.
        image.quantize(256, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE).save(data, "PNG")
        return data.getvalue()


def length_parts(length: str) -> tuple[float, str]:
    """Return the number and the unit of a length such as ``"3.3in"``.

    Raises:
        ValueError: it is no length.
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*(px|in|cm|mm|pt)\s*", length)
    if found is None:
        raise ValueError(f"savefig(width={length!r}): write a number and px, in, cm, mm or pt, such as '3.3in'.")
    return float(found[1]), found[2]


def _on_bezier(points: tuple[tuple[float, float], ...], t: float) -> tuple[float, float]:
    """Return the point at parameter ``t`` from 0 to 1 on a cubic Bézier curve."""
    weights = (1 - t) ** 3, 3 * (1 - t) ** 2 * t, 3 * (1 - t) * t**2, t**3
    x, y = (sum(w * point[axis] for w, point in zip(weights, points, strict=True)) for axis in (0, 1))
    return x, y


def _offsets(length: float) -> Iterator[float]:
    """Return the positions of parallel hatch lines over ``length`` pixels."""
    return (_HATCH_GAP * (number + 0.5) for number in range(int(length / _HATCH_GAP + 0.5)))


def _hatching(shape: Rect) -> Iterator[tuple[tuple[float, float], tuple[float, float]]]:
    """Yield the ends of the hatch lines within a box: vertical, horizontal, slanted for ``"/"``, crossed for ``"x"``.

    SVG and PNG draw the same lines, so both look the same.
    """
    for x in _offsets(shape.width) if shape.hatch == "|" else ():
        yield (shape.x + x, shape.y), (shape.x + x, shape.y + shape.height)
    for y in _offsets(shape.height) if shape.hatch == "-" else ():
        yield (shape.x, shape.y + y), (shape.x + shape.width, shape.y + y)
    for slope in (1.0,) if shape.hatch == "/" else (1.0, -1.0) if shape.hatch == "x" else ():
        offset = _HATCH_GAP
        while offset < shape.width + shape.height:
            # A slanted line enters and leaves at whichever sides of the box it meets.
            low, high = max(0.0, offset - shape.height), min(offset, shape.width)
            ends = [(x, offset - x if slope > 0 else shape.height - offset + x) for x in (low, high)]
            first, second = ((shape.x + x, shape.y + y) for x, y in ends)
            yield first, second
            offset += _HATCH_GAP


def _svg(shape: Shape) -> Iterator[str]:
    """Yield the SVG elements of a shape."""
    match shape:
        case Rect():
            # With two digits more for its opacity, which programs that draw SVG read apart.
            fill, opacity = shape.fill[:7], shape.fill[7:]
            look = f'fill="{fill or "none"}"' + (f' fill-opacity="{int(opacity, 16) / 255:.2f}"' if opacity else "")
            look += f' rx="{shape.radius:g}"' if shape.radius else ""
            if shape.line:
                look += f' stroke="{shape.line}" stroke-width="{shape.line_width:g}"'
                look += f' stroke-dasharray="{" ".join(f"{one:g}" for one in shape.dash)}"' if shape.dash else ""
            place = f'x="{shape.x:.2f}" y="{shape.y:.2f}" width="{shape.width:.2f}" height="{shape.height:.2f}"'
            yield f"<rect {place} {look}/>"
            if lines := "".join(f"M{x0:.2f} {y0:.2f}L{x1:.2f} {y1:.2f}" for (x0, y0), (x1, y1) in _hatching(shape)):
                look = f'stroke="{palette.INK}" stroke-opacity="{palette.HATCH_ALPHA}" stroke-width="0.7"'
                yield f'<path d="{lines}" {look}/>'
        case Curve():
            first, *rest = (f"{x:.2f} {y:.2f}" for x, y in shape.points)
            way = f"M{first}{'C' if shape.bezier else 'L'}{' '.join(rest)}"
            dashes = f' stroke-dasharray="{shape.dash:g} {shape.between:g}"' if shape.dash else ""
            yield f'<path d="{way}" fill="none" stroke="{shape.line}" stroke-width="{shape.line_width:g}"{dashes}/>'
        case Polygon():
            yield f'<polygon points="{" ".join(f"{x:.2f},{y:.2f}" for x, y in shape.points)}" fill="{shape.fill}"/>'
        case Text():
            if shape.background:
                yield from _svg(_behind(shape))
            weight = ' font-weight="bold"' if shape.bold else ""
            yield (
                f'<text x="{shape.x:.2f}" y="{shape.y + 0.35 * shape.size:.2f}" font-size="{shape.size:g}" '
                f'fill="{shape.fill}" text-anchor="{shape.align}"{weight}>{escape(visible(shape.text))}</text>'
            )


def _behind(shape: Text) -> Rect:
    """Return the background of a text, a little larger than the text."""
    width = text_width(shape.text, shape.size) + 4
    # Two pixels more than the text on either side.
    left = shape.x - {"start": 2.0, "middle": width / 2, "end": width - 2}[shape.align]
    return Rect(left, shape.y - 0.65 * shape.size, width, 1.3 * shape.size, shape.background)


def _paint(draw: ImageDraw.ImageDraw, shape: Shape, scale: float) -> None:
    """Draw a shape into an image, with ``scale`` dots per pixel."""
    match shape:
        case Rect():
            box = [scale * shape.x, scale * shape.y, scale * (shape.x + shape.width), scale * (shape.y + shape.height)]
            # Pillow refuses a box whose right side is left of its left one, as rounding can make it.
            box[2], box[3] = max(box[2], box[0]), max(box[3], box[1])
            # Pillow draws no dashes: the sides are lines of their own, below.
            solid = "" if shape.dash else shape.line
            line_width = max(round(scale * shape.line_width), 1) if solid else 0
            draw.rounded_rectangle(box, scale * shape.radius, shape.fill or None, solid or None, line_width)
            for side in shape.sides() if shape.dash else ():
                _paint(draw, side, scale)
            for ends in _hatching(shape):
                points = [(scale * x, scale * y) for x, y in ends]
                draw.line(points, f"{palette.INK}{round(255 * palette.HATCH_ALPHA):02X}", max(round(0.7 * scale), 1))
        case Curve():
            for stroke in shape.strokes():
                points = [(scale * x, scale * y) for x, y in stroke]
                draw.line(points, shape.line, max(round(scale * shape.line_width), 1), joint="curve")
        case Polygon():
            draw.polygon([(scale * x, scale * y) for x, y in shape.points], shape.fill)
        case Text():
            if shape.background:
                _paint(draw, _behind(shape), scale)
            anchor = {"start": "lm", "middle": "mm", "end": "rm"}[shape.align]
            # One face of a font is enough: a thin stroke in the same colour makes its letters bold.
            bold = scale * shape.size / 30 if shape.bold else 0
            place, font = (scale * shape.x, scale * shape.y), font_of(scale * shape.size)
            draw.text(place, as_written(shape.text), shape.fill, font, anchor, stroke_width=bold)
