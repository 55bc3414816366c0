"""Marks: what a picture consists of, described once over its tables and drawn in two ways.

A mark says how every row of one table looks: as a box, a line, a text. ``draw`` adds the marks of a view to a Bokeh
figure, whose tables then change while a run goes on; ``shapes_of`` draws the same marks as shapes of a still picture.
So a view is its tables and its marks, and neither way of drawing can show what the other does not. The kinds of marks
are in ``box_marks``, ``point_marks`` and ``line_marks``. Axes and titles, which Bokeh has itself, are in ``time_axis``
and ``still_frame``; legends are in ``legends``.

Numbers of marks are pixels on a screen; the style (``style``) scales them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np
from bokeh.models import ColumnDataSource, GlyphRenderer, LinearColorMapper
from bokeh.models.glyph import Glyph
from bokeh.plotting import figure

from pathways_widgets.drawing.palette import pale
from pathways_widgets.drawing.scene import Rect, Shape
from pathways_widgets.drawing.still_frame import LIGHT, Frame
from pathways_widgets.drawing.style import Style
from pathways_widgets.drawing.tooltips import Tooltip
from pathways_widgets.drawing.views import Columns, Words

DIMMED_ALPHA = 0.5
"""Opacity of the rows that are not selected while others are."""


class Role(NamedTuple):
    """A colour of the theme: one of the roles in ``palette.THEMES``; still pictures have the light theme."""

    name: str


class Column(NamedTuple):
    """A value that differs from row to row: the column that has it.

    Args:
        name: of the column.
        colours: the colours that the numbers in the column stand for; empty if the column has the values themselves.
    """

    name: str
    colours: tuple[str, ...] = ()


Colour = str | Role | Column
"""A colour, or where it comes from; an empty text is none."""


@dataclass(frozen=True, kw_only=True)
class PictureMark(ABC):
    """How the rows of one table look.

    Args:
        source: name of the table.
        name: name of Bokeh's glyph, needed if a colour is a ``Role``, because a theme sets colours by model name.
        renderer: name of Bokeh's renderer, needed if its visibility is a property of the view.
        is_dimmed: whether rows fade while others of the table are selected.
        tooltip: what the pointer finds here.
    """

    source: str = ""
    name: str = ""
    renderer: str = ""
    is_dimmed: bool = False
    tooltip: Tooltip | None = None

    @abstractmethod
    def glyph(self, style: Style) -> Glyph:
        """Return Bokeh's glyph."""

    def named_glyph(self, style: Style) -> Glyph:
        """Return Bokeh's glyph with the name by which a theme finds it."""
        glyph = self.glyph(style)
        glyph.name = self.name or None
        return glyph

    @abstractmethod
    def shapes(self, rows: Columns, frame: Frame) -> Iterator[Shape]:
        """Yield the shapes of some rows.

        Args:
            rows: the columns of the table.
            frame: where they are on the page.
        """

    @property
    def roles(self) -> dict[str, str]:
        """Property of the glyph -> role in the theme."""
        found = ((self.property_of(one.name), getattr(self, one.name)) for one in fields(self))
        return {name: value.name for name, value in found if isinstance(value, Role)}

    @staticmethod
    def property_of(colour: str) -> str:
        """Return the property of the glyph that has one of this mark's colours."""
        return f"{colour}_color"


def draw(
    fig: figure, marks: Iterable[PictureMark], tables: Mapping[str, ColumnDataSource], style: Style
) -> dict[PictureMark, GlyphRenderer]:
    """Add marks to a figure from back to front, with their tooltips.

    Args:
        fig: the figure.
        marks: the marks.
        tables: their tables, by name.
        style: sizes of text and lines.

    Returns:
        The renderer of each mark.
    """
    drawn, tools = dict[PictureMark, GlyphRenderer](), dict[Tooltip, list[GlyphRenderer]]()
    for mark in marks:
        glyph = mark.named_glyph(style)
        # Those that Bokeh would make itself, in the browser, for rows that are selected and for others have their sizes
        # for ever: ``graph.js`` could not fit them to a page.
        selected = {"selection_glyph": _same(glyph), "nonselection_glyph": _same(glyph, DIMMED_ALPHA)}
        drawn[mark] = fig.add_glyph(tables[mark.source], glyph, **(selected if mark.is_dimmed else {}))
        drawn[mark].name = mark.renderer or None
        if mark.tooltip is not None:
            # Marks with the same tooltip share a tool: two tools would show it twice where both marks are.
            tools.setdefault(mark.tooltip, []).append(drawn[mark])
    fig.add_tools(*(tooltip.tool(renderers) for tooltip, renderers in tools.items()))
    return drawn


def _same(glyph: Glyph, alpha: float | None = None) -> Glyph:
    """Return a copy of a glyph, whose boxes and lines have an opacity if one is given."""
    # Text stays as it is: what is not selected must be readable, in the dark theme too, where its box becomes darker.
    alphas = {name: alpha for name in ("fill_alpha", "line_alpha") if alpha is not None and hasattr(glyph, name)}
    copy = glyph.clone(**alphas)
    copy.name = None  # a theme finds a model by its name, which therefore only one may have
    return copy


def theme_roles(marks: Iterable[PictureMark]) -> dict[str, dict[str, str]]:
    """Return the roles of the colours of marks: name of the glyph -> property -> role in the theme."""
    return {mark.name: roles for mark in marks if (roles := mark.roles)}


def shapes_of(
    marks: Iterable[PictureMark],
    sources: Mapping[str, Columns],
    frame: Frame,
    properties: Mapping[str, Mapping[str, Any]] | None = None,
    picked: Mapping[str, np.ndarray] | None = None,
) -> Iterator[Shape]:
    """Yield the shapes of marks, from back to front.

    Args:
        marks: the marks.
        sources: their tables, by name.
        frame: where they are on the page.
        properties: properties of a view by model name; marks that are not ``visible`` are left out.
        picked: by the name of a table, which of its rows are picked; the others fade.
    """
    for mark in marks:
        rows, chosen = sources[mark.source], (picked or {}).get(mark.source)
        if not (properties or {}).get(mark.renderer, {}).get("visible", True):
            continue
        if chosen is None or not mark.is_dimmed:
            yield from mark.shapes(rows, frame)
        else:
            yield from map(_faded, mark.shapes(some_rows(rows, ~chosen), frame))
            yield from mark.shapes(some_rows(rows, chosen), frame)


def _faded(shape: Shape) -> Shape:
    """Return a shape as it is while others are picked; text stays readable."""
    if not isinstance(shape, Rect):
        return shape
    return replace(shape, fill=shape.fill and pale(shape.fill), line=shape.line and pale(shape.line))


def some_rows(columns: Columns, mask: np.ndarray) -> Columns:
    """Return the rows of a table for which ``mask`` is true."""
    return {name: _some(column, mask) for name, column in columns.items()}


def _some(column: Any, mask: np.ndarray) -> Any:
    if isinstance(column, Words):
        return Words(column.words, column.numbers[mask])
    return column[mask] if isinstance(column, np.ndarray) else [column[row] for row in np.flatnonzero(mask).tolist()]


def pixels(value: float | Column, factor: float) -> Any:
    """Return a length as Bokeh reads it: a number of pixels, scaled, or the column that has it."""
    return value.name if isinstance(value, Column) else factor * value


def colour(value: Colour) -> Any:
    """Return a colour as Bokeh reads it; what a theme sets is black until then."""
    if isinstance(value, Role):
        return "black"
    if isinstance(value, str):
        return value or None
    if not value.colours:
        return value.name
    # Half a step more on each side, so that each whole number is in the middle of the range of its colour.
    mapper = LinearColorMapper(list(value.colours), low=-0.5, high=len(value.colours) - 0.5)
    return {"field": value.name, "transform": mapper}


def colours_in(value: Colour, rows: Columns, count: int) -> Sequence[str]:
    """Return the colour of each row of a still picture."""
    if not isinstance(value, Column):
        return [LIGHT[value.name] if isinstance(value, Role) else value] * count
    return [value.colours[number] for number in values_in(value, rows, 0)] if value.colours else list(rows[value.name])


def values_in(value: Any, rows: Columns, count: int) -> list[Any]:
    """Return the value of each row: those of a column, or a constant for ``count`` rows."""
    if not isinstance(value, Column):
        return [value] * count
    column = rows[value.name]
    # Numbers of Python, since shapes are written as text one by one, for which those of NumPy are slow.
    return column.tolist() if isinstance(column, np.ndarray) else list(column)


def numbers_in(value: str | float, rows: Columns) -> np.ndarray:
    """Return positions: those of a column, or one for all rows."""
    return np.asarray(rows[value] if isinstance(value, str) else value, float)
