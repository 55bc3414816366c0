"""The graph of an adopted step's operations, folded by module, beside the source line of what is selected.

A level is shown at a time; a click on a card with parts opens it (``figure.js``, which also fills the pane with the
source). All levels are in the columns, and a filter shows one, so that a page without a kernel opens them as well.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from bokeh.layouts import row
from bokeh.models import CustomJS, CustomJSFilter, Row, Spacer

from pathways_nb.trace.op_graph import OpGraph
from pathways_widgets.drawing import palette
from pathways_widgets.drawing.box_marks import BoxMark
from pathways_widgets.drawing.line_marks import LineMark
from pathways_widgets.drawing.picture_marks import Column, Role, draw, shapes_of, theme_roles
from pathways_widgets.drawing.point_marks import FONT, DotMark, TextMark
from pathways_widgets.drawing.scene import Shape
from pathways_widgets.drawing.still_frame import Frame
from pathways_widgets.drawing.tooltips import Tooltip
from pathways_widgets.drawing.views import Columns, RunLike, View, Window, empty_source
from pathways_widgets.graph.graph_view import graph_figure, node_cards
from pathways_widgets.graph.module_columns import COLOURS, SEGMENTS, SOURCES, STRIP, WIDTH, columns_of

CODE_WIDTH = 400
"""Width in pixels of the pane with the source."""
_LEAST = 0.75
"""Smallest scale of the cards; on a page that is too narrow for them beside the source, the source is below."""
_WRAPPED = ":host { flex-wrap: wrap }"
_TEXT = Role("text")
_NODE = Tooltip(
    (
        ("what", "@title · @kind"),
        ("takes", "@takes{custom}"),
        ("exposed", "@exposed{custom}"),
        ("runs", "@runs"),
        ("line", "@line"),
    ),
    seconds=("takes", "exposed"),
    optional=("line",),
)
_EDGE = Tooltip((("edge", "@ends"), ("carries", "@amount")), in_toolbar=False, most=1)
MARKS = (
    LineMark(source="graph_local", line=palette.NEUTRAL, line_width=1.2, is_bent=True),
    LineMark(source="graph_touch", line_width=8.0, tooltip=_EDGE),
    DotMark(source="graph_heads", shape="down", size=7.0, fill=palette.NEUTRAL),
    node_cards(_NODE),
    *(
        BoxMark(
            source="graph_nodes", fill=COLOURS[kind], left=left, right=kind, top="over", bottom="under", is_dimmed=True
        )
        for left, (kind, _) in zip(STRIP, SEGMENTS, strict=False)
    ),
    TextMark(source="graph_nodes", text="name", lift=Column("lift"), is_dimmed=True),
    TextMark(source="graph_nodes", text="sub", lift=5.0, size=10.0, is_dimmed=True),
    TextMark(source="graph_titles", name="graph_titles_text", size=13.0, text_colour=_TEXT, align="left", is_bold=True),
    BoxMark(source="graph_chips", fill=Column("fill")),
    TextMark(source="graph_legend", name="graph_legend_text", text_colour=_TEXT, align="left"),
)
"""What is drawn, from back to front."""
_SEEN = "const level = shown.data.level[0]; return Array.from(source.data.level, (one) => one === level)"


class ModuleView(View):
    """Draws the operations of an adopted step by module.

    Args:
        islands: not used; every view takes it.
        names: not used; every view takes it.
    """

    def __init__(self, islands: tuple[int, ...] = (), names: tuple[str, ...] = ()):
        super().__init__(SOURCES, theme_roles(MARKS))
        self._drawn: OpGraph | None = None

    @cached_property
    def root(self) -> Row:
        """The Bokeh figure, and beside it the place of the source; made when first needed."""
        made = graph_figure(WIDTH)
        # No tool for taps: that of Bokeh would select nothing where a card is selected already.
        draw(made, MARKS, self.tables, self.style)
        shown = empty_source("graph_shown", ["level"])
        shown.data = {"level": [0]}
        seen = CustomJSFilter(args={"shown": shown}, code=_SEEN)
        # No mark shows the last two tables, but the page reads them: the script keeps them in the document.
        used = {"seen": seen, **{name: self.tables[name] for name in ("graph_levels", "graph_texts")}}
        shown.js_on_change("data", CustomJS(args=used, code="seen.change.emit()"))
        for renderer in made.renderers:
            renderer.view.filter = seen
        # Its tag is the colour of the line that is selected.
        code = Spacer(name="graph_code", width=CODE_WIDTH, height=made.height, tags=[f"{palette.ORANGE}60"])
        made.tags = [self.style.factor * WIDTH]
        made.min_width = int(_LEAST * self.style.factor * WIDTH)
        return row([made, code], sizing_mode="stretch_width", stylesheets=[_WRAPPED])

    def update(self, run: RunLike, window: Window | None = None) -> dict[str, Columns]:
        """Return the cards and edges of all levels; ``window`` changes nothing, because a graph has no time axis.

        Args:
            run: what to draw.
            window: ignored.
        """
        if run.op_graph is not self._drawn:
            self._drawn = run.op_graph
            self.sources = columns_of(run.op_graph, run.name)
            nodes = self.sources["graph_nodes"]
            nodes["lift"] = [self.style.factor * lift for lift in nodes["lift"]]
            height = self._height(self.sources)
            self.properties = {
                "graph": {"height": int(self.style.factor * height)},
                "graph_code": {"height": int(self.style.factor * height)},
                "graph_y": {"start": height, "end": 0.0},
            }
        return self.sources

    def still(self, run: RunLike, width: float, top: float) -> tuple[list[Shape], float]:
        """Return the whole step as shapes, none of its groups opened, and its height in pixels.

        Args:
            run: what to draw.
            width: width of the page in pixels.
            top: pixels above the picture.
        """
        sources = self.update(run)
        height, scale = self._height(sources), min(width / WIDTH, self.style.factor)
        frame = Frame(0.0, scale * WIDTH, top, top + scale * height, (0.0, WIDTH), (height, 0.0),
                      font=scale * FONT, line=scale, column_factor=scale / self.style.factor)  # fmt: skip
        shown = {name: _first(one) for name, one in sources.items()}
        picked = self.picked.among(shown, "graph_nodes", "ids", "title")
        return [*shapes_of(MARKS, shown, frame, picked=picked)], scale * height

    @staticmethod
    def _height(sources: dict[str, Columns]) -> float:
        """Return the height of the first level."""
        return max(sources["graph_levels"]["height"][:1] or [0.0]) + 10.0


def _first(columns: Columns) -> Columns:
    """Return the rows of the first level."""
    if "level" not in columns:
        return columns
    rows: list[Any] = [at for at, level in enumerate(columns["level"]) if not level]
    return {name: [one[at] for at in rows] for name, one in columns.items()}
