"""Token slices as a still picture, for viewers without scripts: the columns of the live one, as shapes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from pathways_nb.trace.metrics import duration
from pathways_widgets.drawing import palette, style
from pathways_widgets.drawing.box_marks import BoxMark
from pathways_widgets.drawing.legends import Swatch, legend_shapes
from pathways_widgets.drawing.scene import Curve, Polygon, Rect, Scene, Shape, Text
from pathways_widgets.drawing.time_axis import round_steps, time_ticks
from pathways_widgets.drawing.views import FULL_WIDTH, Columns
from pathways_widgets.explorers.token_columns import SUM, WAITS, DrawnSlicing, columns_of
from pathways_widgets.explorers.token_view import BEST, EVEN, HEIGHT, WORDS

_LIGHT = palette.THEMES["light"]
_INK = _LIGHT["text"]


class _Plot(NamedTuple):
    """The position of a plot on the page in pixels, and its ranges."""

    left: float
    top: float
    width: float
    height: float
    across: tuple[float, float]
    up: tuple[float, float]

    def x(self, value: float) -> float:
        """Return the pixel of a value of the horizontal axis."""
        return self.left + (value - self.across[0]) / (self.across[1] - self.across[0]) * self.width

    def y(self, value: float) -> float:
        """Return the pixel of a value of the vertical axis; values above it are cut off."""
        share = (min(value, max(self.up)) - self.up[0]) / (self.up[1] - self.up[0])
        return self.top + (1 - share) * self.height

    def box(self, left: float, right: float, bottom: float, top: float, fill: str, line: str = "") -> Rect:
        """Return a box between values of both axes."""
        x, y = self.x(left), self.y(top)
        return Rect(x, y, self.x(right) - x, self.y(bottom) - y, fill, line, 0.5)


def scene_of_tokens(picture: DrawnSlicing, width: float = FULL_WIDTH) -> Scene:
    """Return the pictures as shapes.

    Args:
        picture: what to draw.
        width: pixels of the page.
    """
    looks = style.current()
    font, margin = looks.font, 1.5 * looks.font
    sources, layout = columns_of(picture, width - 2 * margin, looks)
    rows = _Plot(margin, 0.0, width - 2 * margin, layout.height, (0.0, layout.length), (layout.height, 0.0))
    if picture.error:
        scene = Scene(width, layout.height + font, _LIGHT["background"])
        scene.shapes += _rows(rows, sources)
        return scene
    top, half = layout.height + 8.5 * font, width / 2
    scene = Scene(width, top + HEIGHT + 4.5 * font, _LIGHT["background"])
    left, wide = 6 * font, half - 7.5 * font
    surface = _Plot(left, top, wide, HEIGHT, (0.0, layout.length), (0.0, layout.highest))
    bars = _Plot(half + left, top, wide, HEIGHT, (-1.0, layout.bars), (0.0, layout.latency))
    scene.shapes += _rows(rows, sources)
    scene.shapes += _across(rows, WORDS["tokens"])
    scene.shapes += _surface(surface, sources, layout.surface_title)
    scene.shapes += _bars(bars, sources["tokens_bars"], layout.bars_title)
    return scene


def _rows(plot: _Plot, sources: dict[str, Columns]) -> Iterator[Shape]:
    """Yield the boxes of slices with their text, and the headings."""
    font = style.current().font
    for one in _records(sources["tokens_boxes"]):
        yield plot.box(one["left"], one["right"], one["bottom"], one["top"], one["colour"], palette.BOX_EDGE)
        yield Text(plot.x(one["x"]), plot.y(one["y"]), one["text"], font, palette.INK, "middle")
    for one in _records(sources["tokens_headings"]):
        yield Text(plot.left, plot.y(one["y"]), one["text"], font, _INK)


def _surface(plot: _Plot, sources: dict[str, Columns], title: str) -> Iterator[Shape]:
    """Yield the cost surface with the marks of slices."""
    yield from _upwards(plot, [(step, f"{step:g}") for step in round_steps(*plot.up, 5)], WORDS["length"])
    for one in _records(sources["tokens_surface"]):
        yield plot.box(one["left"], one["right"], one["bottom"], one["top"], one["colour"], one["colour"])
    for name, colour, size in (("tokens_even", EVEN, 4.5), ("tokens_best", BEST, 3.5)):
        for one in _records(sources[name]):
            x, y = plot.x(one["context"]), plot.y(one["tokens"])
            for edge, fill in ((size + 1, palette.INK), (size, colour)):
                yield Polygon(((x - edge, y), (x, y - edge), (x + edge, y), (x, y + edge)), fill)
    yield from _head(
        plot, title, [Swatch(WORDS["best"], BoxMark(fill=BEST)), Swatch(WORDS["even"], BoxMark(fill=EVEN))]
    )
    yield from _across(plot, WORDS["context"])


def _bars(plot: _Plot, bars: Columns, title: str) -> Iterator[Shape]:
    """Yield the bars of both terms, their sums, and the numbers of slices."""
    font = style.current().font
    yield from _upwards(plot, list(time_ticks(*plot.up, 5)), WORDS["latency"])
    for one in _records(bars):
        yield plot.box(one["left"], one["right"], 0.0, one["sum"], SUM)
        yield plot.box(one["left"], one["right"], one["sum"], one["latency"], WAITS)
        yield Text(
            plot.x(one["x"]), plot.y(one["y"]) - 0.6 * font, duration(one["latency"]), 0.8 * font, _INK, "middle"
        )
        for number, word in enumerate(one["name"].split("\n")):
            at = plot.top + plot.height + (0.8 + 1.1 * number) * font
            yield Text(plot.x(one["x"]), at, word, 0.9 * font, _INK, "middle")
    yield from _head(
        plot, title, [Swatch(WORDS["sum"], BoxMark(fill=SUM)), Swatch(WORDS["waits"], BoxMark(fill=WAITS))]
    )


def _head(plot: _Plot, title: str, swatches: list[Swatch]) -> Iterator[Shape]:
    """Yield the title and the legend above a plot."""
    font = style.current().font
    yield Text(plot.left, plot.top - 3 * font, title, font, _INK)
    yield from legend_shapes([swatches], plot.top - 2.2 * font, plot.left + plot.width, plot.left)[0]


def _across(plot: _Plot, title: str) -> Iterator[Shape]:
    """Yield the numbers of tokens below a plot."""
    font, below = style.current().font, plot.top + plot.height
    for step in round_steps(*plot.across, 6):
        yield Text(plot.x(step), below + 0.8 * font, f"{step:g}", font, _INK, "middle")
    yield Text(plot.left + plot.width / 2, below + 2.2 * font, title, font, _LIGHT["soft"], "middle")


def _upwards(plot: _Plot, ticks: list[tuple[float, str]], title: str) -> Iterator[Shape]:
    """Yield grid lines with their values left of a plot, and what they are."""
    font = style.current().font
    for value, text in ticks:
        y = plot.y(value)
        yield Curve(((plot.left, y), (plot.left + plot.width, y)), _LIGHT["grid"])
        yield Text(plot.left - 0.5 * font, y, text, font, _INK, "end")
    yield Text(plot.left, plot.top - 4.4 * font, title, font, _LIGHT["soft"])


def _records(columns: Columns) -> Iterator[dict[str, Any]]:
    """Yield the rows of columns."""
    for values in zip(*columns.values(), strict=True):
        yield dict(zip(columns, values, strict=True))
