"""The sharded dataflow graphs of a run: one box per sharded computation, coloured by virtual slice; data flow right.

Every program is drawn once, with its number of runs. Edges that cross a network are thick and name bytes and route.
Coordinates are pixels of a page that is wide enough, y downwards, so that boxes can be fitted to their text; a narrower
page shows all of it smaller. Pictures of programs are kept while nothing about them changes, because a live figure
updates up to ten times a second. Boxes and curves are computed in ``graph_columns``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

from bokeh.models import Range1d, TapTool, WheelZoomTool
from bokeh.plotting import figure

from pathways_widgets.drawing import palette
from pathways_widgets.drawing.box_marks import CardMark
from pathways_widgets.drawing.line_marks import LineMark
from pathways_widgets.drawing.picture_marks import Column, Role, draw, shapes_of, theme_roles
from pathways_widgets.drawing.point_marks import FONT, DotMark, TextMark
from pathways_widgets.drawing.scene import Shape
from pathways_widgets.drawing.still_frame import Frame
from pathways_widgets.drawing.tooltips import Tooltip
from pathways_widgets.drawing.views import CLIPPED, FULL_WIDTH, Columns, DrawnProgram, RunLike, View, Window
from pathways_widgets.graph.graph_columns import BETWEEN, MARGIN, TITLE, legend, picture, widest
from pathways_widgets.graph.program_picture import ProgramPicture, in_strips, moved

MOST_PROGRAMS = 12
TALLEST = 720.0
"""Height in pixels that is visible at once; a small map beside a taller graph shows where the rest is."""

_TITLE_LETTER = 8.0
"""Width in pixels of a letter of a title, about."""
_SOURCES = {
    "graph_nodes": [
        *"x y width height fill name name_y sub sub_y outline".split(),
        *"title kind place outputs line needed parts ids".split(),
    ],
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
_NODE = Tooltip(
    (
        ("what", "@title · @kind"),
        ("where", "@place"),
        ("makes", "@outputs"),
        ("written in", "@line"),
        ("value needed in", "@needed"),
        ("holds", "@parts"),
    ),
    optional=("where", "makes", "written in", "value needed in", "holds"),
)
# The line that the pointer finds has many pieces, of which several may be under it: one of them tells enough.
_EDGE = Tooltip(
    (("edge", "@ends"), ("carries", "@amount"), ("laid out", "@layouts")),
    optional=("carries", "laid out"),
    in_toolbar=False,
    most=1,
)
_REACH = 12.0
"""Width in pixels of the invisible line along an edge under which the pointer finds it."""
_OUTSIDE = Role("text")
"""Colour of text outside of boxes; that in boxes is the same in every theme."""


def node_cards(tooltip: Tooltip) -> CardMark:
    """Return the mark of a graph's nodes."""
    return CardMark(
        source="graph_nodes",
        fill=Column("fill"),
        line=Column("outline"),
        line_width=2.0,
        radius=5.0,
        is_dimmed=True,
        tooltip=tooltip,
    )


_NODES = node_cards(_NODE)
MARKS = (
    LineMark(source="graph_local", line=palette.NEUTRAL, line_width=1.4, is_bent=True),
    LineMark(source="graph_transfers", line=palette.TRANSFER, line_width=Column("width"), is_bent=True),
    LineMark(source="graph_touch", line_width=_REACH, tooltip=_EDGE),
    DotMark(source="graph_heads", shape="arrow", size=7.0, fill=palette.NEUTRAL),
    DotMark(source="graph_arrows", shape="arrow", size=12.0, fill=palette.TRANSFER),
    CardMark(source="graph_needed", fill=palette.pale(palette.NEEDED), line=palette.NEEDED, radius=3.0),
    _NODES,
    CardMark(
        source="graph_chips",
        renderer="graph_chips_drawn",
        width=12.0,
        height=12.0,
        fill=Column("fill"),
        line=Column("outline"),
        line_width=2.0,
    ),
    TextMark(source="graph_nodes", y="name_y", text="name", is_dimmed=True),
    TextMark(source="graph_nodes", y="sub_y", text="sub", size=10.0, is_dimmed=True),
    TextMark(source="graph_needed", size=10.0),
    TextMark(
        source="graph_labels",
        name="graph_labels_text",
        size=10.0,
        text_colour=_OUTSIDE,
        background=Role("background"),
        padding=2,
    ),
    TextMark(
        source="graph_titles", name="graph_titles_text", size=13.0, text_colour=_OUTSIDE, align="left", is_bold=True
    ),
    TextMark(
        source="graph_legend",
        name="graph_legend_text",
        renderer="graph_legend_drawn",
        text_colour=_OUTSIDE,
        align="left",
    ),
)
"""What is drawn, from back to front; on a page the legend is text above the figure (``graph.js``)."""
_LEGEND = {f"graph_{part}_drawn": {"visible": False} for part in ("chips", "legend")}
"""Properties of the renderers of the legend in a live figure."""
_BELOW = 28.0
"""Pixels below the lowest box of a still picture."""


class GraphView(View):
    """Draws the programs of a run.

    Args:
        islands: not used; every view takes it.
        names: not used; every view takes it.
        page: width in pixels of a still picture, which cannot be dragged, so all of the graph must be visible.
    """

    def __init__(self, islands: tuple[int, ...] = (), names: tuple[str, ...] = (), page: float | None = None):
        super().__init__(_SOURCES, theme_roles(MARKS))
        # The layout assumes text of the screen's size; larger text leaves fewer such pixels in the same cell.
        self._max_width = (page or FULL_WIDTH) / self.style.factor
        self._width = FULL_WIDTH
        self._is_still = False
        self._drawn: object = None
        self._pictures: dict[object, ProgramPicture] = {}

    @cached_property
    def root(self) -> figure:
        """The Bokeh figure; made when first needed."""
        made = graph_figure(FULL_WIDTH)
        nodes = draw(made, MARKS, self.tables, self.style)[_NODES]
        made.add_tools(TapTool(renderers=[nodes]))
        return made

    def update(self, run: RunLike, window: Window | None = None) -> dict[str, Columns]:
        """Return the boxes and edges of every program; ``window`` changes nothing, because a graph has no time axis.

        Args:
            run: what to draw.
            window: ignored.
        """
        # A live figure asks ten times a second, and a graph seldom changes: layouts are kept meanwhile.
        state = tuple((_key(program), program.runs) for program in run.programs)
        if state != self._drawn:
            self._drawn = state
            self._rebuild(run.programs)
        return self.sources

    def still(self, run: RunLike, width: float, top: float) -> tuple[list[Shape], float]:
        """Return all of the graphs as shapes, scaled to the page, and their height in pixels; wide ones in strips.

        Args:
            run: what to draw.
            width: width of the page in pixels.
            top: pixels above the picture.
        """
        self._max_width, self._is_still = width / self.style.factor, True
        sources = self.update(run)
        # A page may be narrower than the graph: then all of it shrinks, texts and lines as well.
        scale = min(width / max(self._width, self._max_width), self.style.factor)
        lowest = max([0.0, *_bottoms(sources)]) + _BELOW
        frame = Frame(
            left=0.0,
            right=width,
            top=top,
            bottom=top + scale * lowest,
            across=(0.0, width / scale),
            up=(lowest, 0.0),
            font=scale * FONT,
            line=scale,
            column_factor=scale / self.style.factor,
        )
        picked = self.picked.among(sources, "graph_nodes", "ids", "title")
        return [*shapes_of(MARKS, sources, frame, picked=picked)], scale * lowest

    def _rebuild(self, programs: Sequence[DrawnProgram]) -> None:
        """Lay out all programs again, as far as they changed."""
        shown = programs[:MOST_PROGRAMS]
        places = {place.serial: place.label for program in shown for place in program.graph.places}
        # By serial, so that a colour does not depend on which program was called first.
        colours = _colours(dict(sorted(places.items())))
        # Only what is drawn now is kept for the next time, so that the table does not grow with the notebook.
        known, self._pictures = self._pictures, {}
        pictures = [self._picture(program, colours, known) for program in shown]
        if self._is_still:
            pictures = [in_strips(one, widest(self._max_width)) for one in pictures]
        chips, top = legend(shown, colours, self._max_width)
        titles = [_title(program) for program in shown]
        if len(programs) > len(shown):
            pictures, titles = (
                [*pictures, ProgramPicture()],
                [*titles, f"… and {len(programs) - len(shown)} more programs"],
            )
        whole, height = _stacked(pictures, titles, top)
        whole.rows |= chips.rows
        self.sources = _columns_of(whole, _SOURCES)
        texts = zip(self.sources["graph_titles"]["x"], self.sources["graph_titles"]["text"], strict=True)
        titled = (x + _TITLE_LETTER * len(text) for x, text in texts)
        self._width = max([0.0, *(one.width + 2 * MARGIN for one in pictures), *titled])
        # Where the page is as wide, the graph has this size; else ``graph.js`` fits it to the page, text included.
        self.properties = {"graph": {"tags": [self._width, height, top, self.style.factor, TALLEST]}, **_LEGEND}

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
        # Without a free colour the first choice is used twice: better than a colour that stood for another slice.
        position = _seen.setdefault(name, len(_seen))
        tries = (palette.place_colour(position + step) for step in range(len(palette.PLACES)))
        found[serial] = next((c for c in tries if c not in found.values()), palette.place_colour(position))
    return found


def _title(program: DrawnProgram) -> str:
    """Return the title of a program: its name and its number of runs."""
    return f"{program.graph.name} ×{program.runs}" if program.runs > 1 else program.graph.name


def _key(program: DrawnProgram) -> tuple[object, ...]:
    """Return what a program's picture depends on, as a value that can be compared."""
    names = tuple(place.label for place in program.graph.places)
    tables = program.where, program.routes, program.needed
    # A graph never changes once it is traced, so its identity stands for its content. Names of slices may change.
    return id(program.graph), names, *(tuple(table.items()) for table in tables)


def graph_figure(width: float) -> figure:
    """Return an empty figure for graphs.

    Args:
        width: that is visible at once, in pixels.
    """
    fig = figure(
        name="graph",
        height=160,
        sizing_mode="stretch_width",
        x_range=Range1d(0, width, name="graph_x"),
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


def _bottoms(sources: dict[str, Columns]) -> Iterator[float]:
    """Yield the lower ends of boxes and edges."""
    for name in ("graph_nodes", "graph_needed"):
        yield from (y + height / 2 for y, height in zip(sources[name]["y"], sources[name]["height"], strict=True))
    for name in ("graph_local", "graph_transfers"):
        yield from sources[name]["y1"]


def _stacked(pictures: Sequence[ProgramPicture], titles: Sequence[str], top: float) -> tuple[ProgramPicture, float]:
    """Return all pictures one below the other with their titles, and the height of the whole.

    Args:
        pictures: pictures of programs.
        titles: title of each.
        top: pixels above the first.
    """
    whole, y = ProgramPicture(), top
    for one, title in zip(pictures, titles, strict=True):
        whole.add("graph_titles", x=MARGIN, y=y + 16, text=title)
        y += TITLE
        for source, rows in one.rows.items():
            whole.rows.setdefault(source, []).extend(moved(row, MARGIN, y) for row in rows)
        y += one.height + BETWEEN
    return whole, y


def _columns_of(whole: ProgramPicture, names: Mapping[str, Sequence[str]]) -> dict[str, Columns]:
    """Return the columns of each source, from its rows."""
    return {
        source: {column: [row[column] for row in whole.rows.get(source, [])] for column in columns}
        for source, columns in names.items()
    }
