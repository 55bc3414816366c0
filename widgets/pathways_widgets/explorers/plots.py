"""Pictures of several plots: each plot is its marks, its axes and its legend, as a Bokeh figure and as a still picture.

Changing a choice of an explorer changes columns and the properties that follow the data: the browser keeps its models.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bokeh.models import ColumnDataSource, LegendItem
from bokeh.plotting import figure

from pathways_widgets.drawing import style
from pathways_widgets.drawing.legends import Swatch, add_legend, draw_swatch, legend_shapes
from pathways_widgets.drawing.picture_marks import PictureMark, draw, shapes_of, theme_roles
from pathways_widgets.drawing.plane import Axes, frame, roles
from pathways_widgets.drawing.scene import Scene, Shape
from pathways_widgets.drawing.still_frame import Frame
from pathways_widgets.drawing.views import CLIPPED, FULL_WIDTH, Columns, Drawing

WIDTH = 740.0
"""Pixels of the widest axis, to which text is fitted until a page has another width."""


@dataclass(frozen=True, eq=False)
class Plot:
    """One plot of a picture.

    Args:
        name: of the figure; its parts are ``name_x``, ``name_y``, ``name_across`` and ``name_up`` (the ranges),
            ``name_title`` and ``name_legend``.
        marks: what it shows, from back to front.
        x: title of the horizontal axis.
        y: title of the vertical axis.
        legend: the entries of its legend.
        explained: by the words of an entry, the mark that it explains, where there is one.
        tools: Bokeh's tools.
    """

    name: str
    marks: tuple[PictureMark, ...]
    x: str = ""
    y: str = ""
    legend: tuple[Swatch, ...] = ()
    explained: Mapping[str, PictureMark] = field(default_factory=dict)
    tools: str = "xpan,box_zoom,reset"

    @property
    def roles(self) -> dict[str, dict[str, str]]:
        """Model name -> property -> role in the theme."""
        return roles(self.name) | theme_roles(self.marks) | {f"{self.name}_title": {"text_color": "text"}}

    def figure(self, height: float, tables: Mapping[str, ColumnDataSource], looks: style.Style) -> figure:
        """Return the Bokeh figure, whose ranges are set by ``range_properties``."""
        plot = frame(self.name, Axes(self.x, self.y, (0.0, 1.0), (0.0, 1.0), {}, height), self.tools)
        # By these names the properties that a kernel sends reach the models that the browser has.
        plot.x_range.name, plot.y_range.name = f"{self.name}_across", f"{self.name}_up"
        plot.title.name, plot.title.text_font_size = f"{self.name}_title", f"{looks.font}px"
        plot.title.text_font_style, plot.stylesheets = "normal", [CLIPPED]
        for axis in (plot.xaxis[0], plot.yaxis[0]):
            axis.axis_label_text_font_size = axis.major_label_text_font_size = f"{looks.font}px"
            axis.minor_tick_line_color = None
        drawn = draw(plot, self.marks, tables, looks)
        if self.legend:
            # An entry of its own costs Bokeh as much as a mark, so entries for marks that are drawn have none.
            glyphs = {text: drawn[mark] for text, mark in self.explained.items()}
            items = [
                LegendItem(label={"value": one.text}, renderers=[glyphs.get(one.text) or draw_swatch(plot, one, looks)])
                for one in self.legend
            ]
            add_legend(plot, f"{self.name}_legend", items, looks)
        return plot

    def range_properties(self, across: tuple[float, float], up: tuple[float, float]) -> dict[str, dict[str, Any]]:
        """Return the properties of both ranges: their ends, to which the reset tool returns, too."""
        ends = {f"{self.name}_across": across, f"{self.name}_up": up}
        return {
            name: {"start": start, "end": end, "reset_start": start, "reset_end": end}
            for name, (start, end) in ends.items()
        }

    def shapes(self, sources: Mapping[str, Columns], place: Frame) -> Iterator[Shape]:
        """Yield the marks."""
        return shapes_of(self.marks, sources, place)

    def legend_shapes(self, top: float, place: Frame) -> list[Shape]:
        """Return the legend above the plot, from ``top`` downwards."""
        return legend_shapes([self.legend], top, place.right, place.left)[0]


class PlotsDrawing(Drawing):
    """Draws a picture as several plots, in a live figure and in a still picture.

    Args:
        columns: names of the columns of each source.
        plots: the plots.
    """

    def __init__(self, columns: Mapping[str, Sequence[str]], plots: Sequence[Plot]):
        super().__init__(columns, {name: found for plot in plots for name, found in plot.roles.items()})

    @abstractmethod
    def update(self, picture: Any) -> dict[str, Columns]:
        """Return the columns of every source."""

    @abstractmethod
    def still(self, picture: Any, width: float = FULL_WIDTH) -> Scene:
        """Return the picture as shapes, for files and for viewers without scripts.

        Args:
            picture: what to draw.
            width: pixels of the page.
        """
