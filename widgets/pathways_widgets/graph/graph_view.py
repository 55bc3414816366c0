"""The sharded dataflow graphs of a run: one box per sharded computation, coloured by virtual slice; data flow right.

Every program is drawn once, with its number of runs. Edges that cross a network are thick and name bytes and route.
Coordinates are pixels at a width of ``FULL_WIDTH``, y downwards, so that boxes can be fitted to their text. Pictures of
programs are kept while nothing about them changes, because a live figure updates up to ten times a second. Boxes and
curves are computed in ``graph_columns``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

from bokeh.models import ColumnDataSource, HoverTool, Range1d, TapTool, WheelZoomTool
from bokeh.plotting import figure

from pathways_widgets.drawing import palette
from pathways_widgets.drawing.style import Style
from pathways_widgets.drawing.views import CLIPPED, DIMMED, FULL_WIDTH, Columns, DrawnProgram, RunLike, View, Window
from pathways_widgets.graph.graph_columns import MARGIN, WIDEST, ProgramPicture, columns_of, legend, picture, stacked

MOST_PROGRAMS = 12
TALLEST = 720.0
"""Height in pixels that is visible at once; the rest is reached by dragging."""

_SOURCES = {
    "graph_nodes": "x y width height fill name sub outline lift title kind place outputs line needed parts ids".split(),
    "graph_needed": "x y width height text".split(),
    "graph_local": "x0 y0 x1 y1 cx0 cy0 cx1 cy1".split(),
    "graph_transfers": "x0 y0 x1 y1 cx0 cy0 cx1 cy1 width".split(),
    "graph_touch": "x0 y0 x1 y1 ends amount layouts".split(),
    "graph_heads": "x y".split(),
    "graph_arrows": "x y".split(),
    "graph_labels": "x y text".split(),
    "graph_titles": "x y text".split(),
    "graph_chips": "x y fill outline".split(),
    "graph_legend": "x y text".split(),
}
_TOOLTIPS = [
    ("what", "@title · @kind"),
    ("where", "@place"),
    ("makes", "@outputs"),
    ("written in", "@line"),
    ("value needed in", "@needed"),
    ("holds", "@parts"),
]


_EDGE_TOOLTIPS = [("edge", "@ends"), ("carries", "@amount"), ("laid out", "@layouts")]
_REACH = 12.0
"""Width in pixels of the invisible line along an edge under which the pointer finds it."""


class GraphView(View):
    """Draws the programs of a run.

    Args:
        islands: not used; every view takes it.
        names: not used; every view takes it.
        page: width in pixels of a still picture, which cannot be dragged, so all of the graph must be visible.
    """

    def __init__(self, islands: tuple[int, ...] = (), names: tuple[str, ...] = (), page: float | None = None):
        super().__init__(_SOURCES, _roles())
        # The layout assumes text of the screen's size; larger text leaves fewer such pixels in the same cell.
        self._max_width = (page or FULL_WIDTH) / self.style.factor
        self._widest = math.inf if page else self._max_width * WIDEST / FULL_WIDTH
        self._drawn: object = None
        self._pictures: dict[object, ProgramPicture] = {}

    @cached_property
    def root(self) -> figure:
        """The Bokeh figure; made when first needed."""
        made = _frame()
        _draw(made, self.tables, self.style)
        return made

    def update(self, run: RunLike, window: Window | None = None) -> dict[str, Columns]:
        """Return the boxes and edges of every program; ``window`` changes nothing, because a graph has no time axis.

        Args:
            run: what to draw.
            window: ignored.
        """
        state = tuple((_key(program), program.runs) for program in run.programs)
        if state != self._drawn:
            self._drawn = state
            self._rebuild(run.programs)
        return self.sources

    def _rebuild(self, programs: Sequence[DrawnProgram]) -> None:
        """Lay out all programs again, as far as they changed."""
        shown = programs[:MOST_PROGRAMS]
        places = {place.serial: place.label for program in shown for place in program.graph.places}
        colours = _colours(dict(sorted(places.items())))
        known, self._pictures = self._pictures, {}
        pictures = [self._picture(program, colours, known) for program in shown]
        chips, top = legend(shown, colours, self._max_width)
        titles = [_title(program, one, self._widest) for program, one in zip(shown, pictures, strict=True)]
        if len(programs) > len(shown):
            pictures, titles = (
                [*pictures, ProgramPicture()],
                [*titles, f"… and {len(programs) - len(shown)} more programs"],
            )
        whole, height = stacked(pictures, titles, top)
        whole.rows |= chips.rows
        self.sources = columns_of(whole, _SOURCES)
        self.sources["graph_nodes"]["lift"] = [self.style.factor * lift for lift in self.sources["graph_nodes"]["lift"]]
        factor = self.style.factor
        seen = min(height, TALLEST / factor)
        width = max([self._max_width, *(one.width + 2 * MARGIN for one in pictures)])
        self.properties = {
            "graph": {"height": int(factor * seen) + 8},
            "graph_x": {"start": 0.0, "end": width if width <= self._widest else self._max_width},
            "graph_y": {"start": seen, "end": 0.0},
        }

    def _picture(
        self, program: DrawnProgram, colours: dict[int, str], known: dict[object, ProgramPicture]
    ) -> ProgramPicture:
        """Return the picture of a program, the last one if nothing about the program changed.

        Args:
            program: what to draw.
            colours: colour of each virtual slice, by its serial.
            known: pictures of the last update.
        """
        key = (_key(program), tuple(colours[place.serial] for place in program.graph.places))
        self._pictures[key] = known.get(key) or picture(program, colours, self._max_width)
        return self._pictures[key]


_seen: dict[str, int] = {}
"""Names of virtual slices in the order in which they were first drawn: a name keeps its colour from cell to cell."""


def _colours(places: dict[int, str]) -> dict[int, str]:
    """Return a colour for each virtual slice (serial -> name), all different while there are enough colours."""
    found: dict[int, str] = {}
    for serial, name in places.items():
        position = _seen.setdefault(name, len(_seen))
        tries = (palette.place_colour(position + step) for step in range(len(palette.PLACES)))
        found[serial] = next((c for c in tries if c not in found.values()), palette.place_colour(position))
    return found


def _title(program: DrawnProgram, one: ProgramPicture, most: float) -> str:
    """Return the title of a program: its name, its number of runs, and whether a part of it is hidden."""
    title = f"{program.graph.name} ×{program.runs}" if program.runs > 1 else program.graph.name
    return title + ("  (drag to see the rest)" if one.width + 2 * MARGIN > most else "")


def _key(program: DrawnProgram) -> tuple[object, ...]:
    """Return what a program's picture depends on, as a value that can be compared."""
    names = tuple(place.label for place in program.graph.places)
    tables = program.where, program.routes, program.needed
    return id(program.graph), names, *(tuple(table.items()) for table in tables)


def _frame() -> figure:
    """Return an empty figure for graphs."""
    fig = figure(
        name="graph",
        height=160,
        sizing_mode="stretch_width",
        x_range=Range1d(0, FULL_WIDTH, name="graph_x"),
        y_range=Range1d(160, 0, name="graph_y"),
        tools="pan,reset,save",
        active_drag="pan",
        min_border=0,
        frame_align=False,
        background_fill_color=None,
        border_fill_color=None,
        stylesheets=[CLIPPED],
        output_backend="canvas",
    )
    fig.add_tools(WheelZoomTool(modifiers="ctrl"))
    fig.toolbar.logo = None
    fig.toolbar.autohide = True
    fig.axis.visible = False
    fig.grid.visible = False
    fig.outline_line_color = None
    return fig


def _draw(fig: figure, source: dict[str, ColumnDataSource], style: Style) -> None:
    """Add the glyphs of edges, tabs, boxes and the legend, from back to front."""
    ends = {end: end for end in _SOURCES["graph_local"]}
    fig.bezier(**ends, source=source["graph_local"], line_color=palette.NEUTRAL, line_width=1.4 * style.line)
    fig.bezier(**ends, source=source["graph_transfers"], line_color=palette.TRANSFER, line_width="width")
    touch = fig.segment("x0", "y0", "x1", "y1", source=source["graph_touch"], line_width=_REACH, line_alpha=0)
    for name, size, colour in (("graph_heads", 7, palette.NEUTRAL), ("graph_arrows", 12, palette.TRANSFER)):
        fig.scatter(
            "x",
            "y",
            size=size * style.factor,
            marker="triangle",
            angle=-math.pi / 2,
            source=source[name],
            color=colour,
            line_color=None,
        )
    look = {"fill_color": "fill", "line_color": "outline", "line_width": 2 * style.line}
    tab = {"fill_color": palette.pale(palette.NEEDED), "line_color": palette.NEEDED, "line_width": style.line}
    fig.rect("x", "y", "width", "height", border_radius=3, source=source["graph_needed"], **tab)
    boxes = fig.rect("x", "y", "width", "height", border_radius=5, source=source["graph_nodes"], **look, **DIMMED)
    fig.rect("x", "y", width=12, height=12, source=source["graph_chips"], **look)
    _write(fig, source, style.factor)
    fig.add_tools(HoverTool(renderers=[boxes], tooltips=_TOOLTIPS), TapTool(renderers=[boxes]))
    fig.add_tools(HoverTool(renderers=[touch], tooltips=_EDGE_TOOLTIPS, limit=1, visible=False))


def _write(fig: figure, source: dict[str, ColumnDataSource], factor: float) -> None:
    """Add the text on boxes, tabs and transfers, the titles and the legend."""
    inside = {"source": source["graph_nodes"], "text_align": "center", "text_baseline": "middle"}
    fig.text("x", "y", "name", y_offset="lift", text_font_size=f"{11 * factor}px", text_color=palette.INK, **inside)
    fig.text(
        "x", "y", "sub", y_offset=7.0 * factor, text_font_size=f"{10 * factor}px", text_color=palette.INK, **inside
    )
    tab = {"source": source["graph_needed"], "text_align": "center", "text_baseline": "middle"}
    fig.text("x", "y", "text", text_font_size=f"{10 * factor}px", text_color=palette.INK, **tab)
    for name, size, weight, align in (
        ("graph_labels", 10, "normal", "center"),
        ("graph_titles", 13, "bold", "left"),
        ("graph_legend", 11, "normal", "left"),
    ):
        words = fig.text(
            "x", "y", "text", source=source[name], text_font_size=f"{size * factor}px", text_font_style=weight
        )
        words.glyph.name = f"{name}_text"
        words.glyph.text_align, words.glyph.text_baseline = align, "middle"
        if name == "graph_labels":
            words.glyph.padding = 2


def _roles() -> dict[str, dict[str, str]]:
    """Return the roles of colours of text outside boxes; text in boxes is the same in every theme."""
    return {
        "graph_labels_text": {"text_color": "text", "background_fill_color": "background"},
        "graph_titles_text": {"text_color": "text"},
        "graph_legend_text": {"text_color": "text"},
    }
