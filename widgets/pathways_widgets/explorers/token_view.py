"""The picture of token slices: boxes of slices above, the cost surface and bars of the latency below.

Marks are described once over the columns of ``token_columns``; the live figure and the still picture draw them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any

from bokeh.layouts import column, row
from bokeh.models import Column as Rows
from bokeh.models import CustomJSTickFormatter, FixedTicker
from bokeh.plotting import figure

from pathways_widgets.drawing import palette
from pathways_widgets.drawing.box_marks import BoxMark
from pathways_widgets.drawing.legends import Swatch
from pathways_widgets.drawing.picture_marks import Column, Role
from pathways_widgets.drawing.point_marks import FONT, DotMark, TextMark
from pathways_widgets.drawing.scene import Scene, Shape, Text
from pathways_widgets.drawing.still_frame import LIGHT, Frame
from pathways_widgets.drawing.time_axis import TICKS, round_steps, time_ticks
from pathways_widgets.drawing.tooltips import Tooltip
from pathways_widgets.drawing.views import FULL_WIDTH, Columns
from pathways_widgets.explorers.plots import WIDTH, Plot, PlotsDrawing
from pathways_widgets.explorers.token_columns import SOURCES, SUM, WAITS, DrawnSlicing, TokenLayout, columns_of

HEIGHT = 300.0
"""Pixels of the two lower plots."""
_NAMES = "const {x, name} = bars.data; return name[Array.from(x).indexOf(tick)] ?? ''"
_WAITS_WORDS = "(stages − 1) × slowest slice"
_SLICE = Tooltip((("tokens", "@tokens"), ("before it", "@context"), ("seconds", "@seconds{custom}")), ("seconds",))
_TERMS = Tooltip(
    (("slices", "@slices"), ("sum", "@sum{custom}"), (_WAITS_WORDS, "@waits{custom}"), ("latency", "@latency{custom}")),
    ("sum", "waits", "latency"),
)
_AT: dict[str, Any] = {"x": "context", "y": "tokens"}
_BEST: dict[str, Any] = {"size": 7, "fill": palette.YELLOW, "line": palette.INK}
_EVEN: dict[str, Any] = {"size": 9, "fill": palette.VERMILION, "line": palette.INK, "shape": "diamond"}
_BEST_SLICES = DotMark(source="tokens_best", **_AT, **_BEST)
_EVEN_SLICES = DotMark(source="tokens_even", **_AT, **_EVEN)
_SUMS = BoxMark(source="tokens_bars", bottom=0.0, top="sum", fill=SUM, tooltip=_TERMS)
_WAITS = BoxMark(source="tokens_bars", bottom="sum", top="latency", fill=WAITS, tooltip=_TERMS)
SLICES = Plot(
    "tokens_slices",
    (
        BoxMark(source="tokens_boxes", fill=Column("colour"), line=palette.BOX_EDGE, line_width=0.5, tooltip=_SLICE),
        TextMark(source="tokens_boxes"),
        TextMark(source="tokens_headings", name="tokens_heading_text", text_colour=Role("text"), align="left"),
    ),
    x="tokens of the sequence",
)
SURFACE = Plot(
    "tokens_costs",
    (
        BoxMark(source="tokens_surface", fill=Column("colour"), line=Column("colour"), tooltip=_SLICE),
        _EVEN_SLICES,
        _BEST_SLICES,
    ),
    x="tokens before the slice",
    y="tokens of the slice",
    legend=(Swatch("optimum", DotMark(**_BEST)), Swatch("best uniform", DotMark(**_EVEN))),
    explained={"optimum": _BEST_SLICES, "best uniform": _EVEN_SLICES},
)
BARS = Plot(
    "tokens_terms",
    (
        _SUMS,
        _WAITS,
        TextMark(source="tokens_bars", name="tokens_bar_text", text_colour=Role("text"), size=0.9 * FONT,
                 anchor="bottom"),
    ),
    x="number of uniform slices",
    y="latency",
    legend=(Swatch("sum of all slices", BoxMark(fill=SUM)), Swatch(_WAITS_WORDS, BoxMark(fill=WAITS))),
    explained={"sum of all slices": _SUMS, _WAITS_WORDS: _WAITS},
)  # fmt: skip


class TokenSlices(PlotsDrawing):
    """Draws token slices, their cost and their latency."""

    def __init__(self) -> None:
        super().__init__(SOURCES, (SLICES, SURFACE, BARS))

    @cached_property
    def root(self) -> Rows:
        """The three figures."""
        slices = SLICES.figure(200, self.tables, self.style)
        slices.height, slices.frame_height, slices.min_border_left = None, 150, 20
        slices.yaxis[0].visible = slices.ygrid[0].visible = slices.xgrid[0].visible = slices.title.visible = False
        surface = SURFACE.figure(HEIGHT, self.tables, self.style)
        surface.xgrid[0].visible = surface.ygrid[0].visible = False
        below = row(surface, self._bars(), sizing_mode="stretch_width")
        return column(slices, below, sizing_mode="stretch_width")

    def _bars(self) -> figure:
        plot = BARS.figure(HEIGHT, self.tables, self.style)
        plot.xgrid[0].visible = False
        plot.xaxis[0].ticker = FixedTicker(ticks=[], name=f"{BARS.name}_ticks")
        plot.xaxis[0].formatter = CustomJSTickFormatter(args={"bars": self.tables["tokens_bars"]}, code=_NAMES)
        plot.yaxis[0].formatter = CustomJSTickFormatter(code=TICKS)
        return plot

    def update(self, picture: DrawnSlicing) -> dict[str, Columns]:
        """Return the columns of every source."""
        self.sources, layout = columns_of(picture, WIDTH, self.style)
        ranges = [plot.range_properties(*ends) for plot, ends in _ranges(layout).items()]
        self.properties = {
            **{name: ends for found in ranges for name, ends in found.items()},
            SLICES.name: {"frame_height": max(round(layout.height), 1)},
            f"{SURFACE.name}_title": {"text": layout.surface_title},
            f"{BARS.name}_title": {"text": layout.bars_title},
            f"{BARS.name}_ticks": {"ticks": [float(x) for x in self.sources["tokens_bars"]["x"]]},
        }
        return self.sources

    def still(self, picture: DrawnSlicing, width: float = FULL_WIDTH) -> Scene:
        """Return the picture as shapes, for a page of so many pixels."""
        font, margin = self.style.font, 1.5 * self.style.font
        sources, layout = columns_of(picture, width - 2 * margin, self.style)
        ranges = _ranges(layout)
        slices = Frame(margin, width - margin, 0.0, layout.height, *ranges[SLICES])
        if picture.error:
            return Scene(width, layout.height + font, LIGHT["background"], list(SLICES.shapes(sources, slices)))
        top, half = layout.height + 8.5 * font, width / 2
        scene = Scene(width, top + HEIGHT + 4.5 * font, LIGHT["background"])
        left, wide = 6 * font, half - 7.5 * font
        surface = Frame(left, left + wide, top, top + HEIGHT, *ranges[SURFACE])
        bars = Frame(half + left, half + left + wide, top, top + HEIGHT, *ranges[BARS])
        scene.shapes += [*SLICES.shapes(sources, slices), *_across(SLICES, slices)]
        tokens = ((step, f"{step:g}") for step in round_steps(*surface.up, 5))
        scene.shapes += [*_upwards(SURFACE, surface, tokens), *SURFACE.shapes(sources, surface)]
        scene.shapes += [*_head(SURFACE, surface, layout.surface_title), *_across(SURFACE, surface)]
        scene.shapes += [*_upwards(BARS, bars, time_ticks(*bars.up, 5)), *BARS.shapes(sources, bars)]
        scene.shapes += [*_names(bars, sources["tokens_bars"]), *_head(BARS, bars, layout.bars_title)]
        return scene


def _ranges(layout: TokenLayout) -> dict[Plot, tuple[tuple[float, float], tuple[float, float]]]:
    """Return the ranges of both axes of each plot."""
    return {
        SLICES: ((0.0, layout.length), (layout.height, 0.0)),  # downwards, in pixels
        SURFACE: ((0.0, layout.length), (0.0, layout.highest)),
        BARS: ((-1.0, layout.bars), (0.0, layout.latency)),
    }


# ---- the still picture


def _names(place: Frame, bars: Columns) -> Iterator[Shape]:
    """Yield the numbers of slices below the bars, with a word below the best one and the user's own."""
    for x, name in zip(bars["x"], bars["name"], strict=True):
        for number, word in enumerate(name.split("\n")):
            y = place.bottom + (0.8 + 1.1 * number) * place.font
            yield Text(place.x(x), y, word, 0.9 * place.font, LIGHT["text"], "middle")


def _head(plot: Plot, place: Frame, title: str) -> Iterator[Shape]:
    """Yield the title and the legend above a plot."""
    yield Text(place.left, place.top - 3 * place.font, title, place.font, LIGHT["text"])
    yield from plot.legend_shapes(place.top - 2.2 * place.font, place)


def _across(plot: Plot, place: Frame) -> Iterator[Shape]:
    """Yield round numbers below a plot, and what they are."""
    font = place.font
    for step in round_steps(*place.across, 6):
        yield Text(place.x(step), place.bottom + 0.8 * font, f"{step:g}", font, LIGHT["text"], "middle")
    middle = (place.left + place.right) / 2
    yield Text(middle, place.bottom + 2.2 * font, plot.x, font, LIGHT["soft"], "middle")


def _upwards(plot: Plot, place: Frame, ticks: Iterable[tuple[float, str]]) -> Iterator[Shape]:
    """Yield grid lines with their values left of a plot, and what they are."""
    for value, text in ticks:
        yield from place.rows([value])
        yield Text(place.left - 0.5 * place.font, place.y(value), text, place.font, LIGHT["text"], "end")
    yield Text(place.left, place.top - 4.4 * place.font, plot.y, place.font, LIGHT["soft"])
