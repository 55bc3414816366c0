"""The timeline: a lane for the controller, one for each device, one for transfers; time runs to the right.

A lane for the host work of an island appears with the first such work.

An event of a gang is one box over all its devices. Gaps are drawn as gaps: nothing is stretched to fill them. Colour,
letter and pattern show the kind, so that it can be read in grey; slanted hatching a bad end; a dashed edge that its
stamps are guessed; a strip along a box its client where there are several. Times are in seconds since the start of the
run.

Which boxes are drawn is decided in ``level_of_detail``, their columns are made in ``timeline_columns``; legends, which
filter in the browser, are in ``timeline_legends``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from bokeh.models import (
    BoxSelectTool,
    ColumnDataSource,
    CustomJS,
    CustomJSTickFormatter,
    FixedTicker,
    Grid,
    Range1d,
    TapTool,
)
from bokeh.plotting import figure

from pathways_nb.trace.host_parts import devices_per_host
from pathways_nb.trace.record import Events
from pathways_nb.trace.rows import GAUGE_KINDS, HOST_KIND
from pathways_widgets.drawing import palette
from pathways_widgets.drawing.box_marks import BoxMark
from pathways_widgets.drawing.folded_time import time_span
from pathways_widgets.drawing.legends import Swatch, named_renderer, shown_swatches
from pathways_widgets.drawing.palette import DASHES
from pathways_widgets.drawing.picture_marks import PictureMark, draw, shapes_of, theme_roles
from pathways_widgets.drawing.scene import Shape
from pathways_widgets.drawing.still_frame import time_ends
from pathways_widgets.drawing.still_over_time import begin_over_time, brushed_part
from pathways_widgets.drawing.style import Style
from pathways_widgets.drawing.time_axis import (
    TIME_RANGE,
    last_end,
    shown_span,
    time_figure,
    time_roles,
    with_margins,
)
from pathways_widgets.drawing.tooltips import Tooltip
from pathways_widgets.drawing.views import SIDES, Columns, RunLike, View, Window
from pathways_widgets.timeline.busy_devices import busy_columns
from pathways_widgets.timeline.client_shares import legend_of
from pathways_widgets.timeline.event_filter import EventFilter, choices
from pathways_widgets.timeline.ghost_columns import GHOST, OUTLINE, Ghost
from pathways_widgets.timeline.happened_columns import HAPPENED, SHADE, happened_columns, has_happened
from pathways_widgets.timeline.happened_columns import LEGEND as HAPPENED_LEGEND
from pathways_widgets.timeline.happened_columns import SOURCES as HAPPENED_SOURCES
from pathways_widgets.timeline.lanes import Lanes, streams_of
from pathways_widgets.timeline.level_of_detail import PIXELS, Digest, choose_boxes
from pathways_widgets.timeline.timeline_columns import SOURCES, TimelineScale, columns_of, title_of
from pathways_widgets.timeline.timeline_legends import LEGENDS, draw_legends
from pathways_widgets.timeline.timeline_marks import FORMATS, TOOLTIPS, timeline_marks
from pathways_widgets.timeline.transfer_columns import ARROWS, TransferArrows, arrow_key, longest_arrows, modelled_words
from pathways_widgets.timeline.transfer_columns import SOURCES as ARROW_SOURCES
from pathways_widgets.timeline.why_columns import FACTS, MARK, WHY, WhyTable
from pathways_widgets.timeline.why_columns import SOURCES as WHY_SOURCES

_THIN = 0.6
"""Width in pixels of the lines between devices; those between islands have one pixel."""
_LABELS = "const {y, text} = labels.data; return text[Array.from(y).indexOf(tick)] ?? ''"


class Timeline(View):
    """Draws the events of runs.

    Args:
        islands: number of devices of each island.
        pixels: width to which text is fitted.
        names: names of the islands; empty for numbers.
    """

    tooltips: ClassVar[list[tuple[str, str]]] = TOOLTIPS

    def __init__(self, islands: tuple[int, ...], pixels: float = PIXELS, names: tuple[str, ...] = ()):
        more = {GHOST: SIDES, **HAPPENED_SOURCES, **ARROW_SOURCES}
        super().__init__(SOURCES | WHY_SOURCES | more, _roles() | theme_roles([MARK, OUTLINE, SHADE]))
        self.marks = timeline_marks(Tooltip(tuple(self.tooltips), *FORMATS))
        self.legends: tuple[tuple[Swatch, ...], ...] = LEGENDS
        self.lanes: Lanes = Lanes(islands, names, self.style.lane)
        self._pixels = pixels
        self._digest = Digest(self.lanes)
        self._reasons = WhyTable()
        self._ghost = Ghost()
        self._arrows = TransferArrows()
        self.chosen: EventFilter = EventFilter()
        """What is shown of more events than a page has boxes for; of fewer the page itself chooses."""

    def add_marks(self, columns: Mapping[str, Sequence[str]], marks: Sequence[PictureMark]) -> None:
        """Draw more marks, over those that there are and below the texts on boxes.

        Args:
            columns: the names of the columns of each of their tables.
            marks: the marks, from back to front.
        """
        self._columns = {**self._columns, **columns}
        self.sources |= {name: {column: [] for column in columns[name]} for name in columns}
        *below, texts = self.marks
        self.marks = (*below, *marks, texts)
        self.roles = self.roles | theme_roles(marks)

    @cached_property
    def root(self) -> figure:
        """The Bokeh figure; made when first needed."""
        made = _frame(self.lanes, self.tables["timeline_labels"], self.style)
        drawn = draw(made, self.marks, self.tables, self.style)
        # What a click selects is the first mark whose rows fade while others are selected.
        boxes = next(renderer for mark, renderer in drawn.items() if mark.is_dimmed)
        named_renderer(made, "timeline_strips").visible = False
        made.add_tools(
            TapTool(renderers=[boxes]),
            BoxSelectTool(dimensions="width", renderers=[], description="Totals", persistent=True),
        )
        # No mark shows these tables, but ``why.js`` reads them: the script keeps them in the document.
        made.js_on_event("tap", CustomJS(args={name: self.tables[name] for name in (WHY, FACTS)}, code=""))
        _draw_lines(made, self.lanes, self.style)
        draw_legends(made, self.style)
        return made

    def update(self, run: RunLike, window: Window | None = None) -> dict[str, Columns]:
        """Return the boxes to draw, with half a window more on each side, and the text on them.

        Args:
            run: what to draw.
            window: the visible part of the time axis; ``None`` for all of it.
        """
        everything = run.events
        events, span = everything.without(GAUGE_KINDS), time_span(everything, not run.island_names, run.last_time)
        self._set_lanes(everything, run.finished)
        self._digest.extend(events)
        # Columns for the window and its margins; what fits on a box is decided by the window alone.
        visible, around = with_margins((span["start"], span["end"]), window)
        opened = None
        if window is None:  # what is folded is there, too, and unfolds on a page without a kernel
            opened, around = visible, (0.0, last_end(everything))
        wanted = None if self.chosen == EventFilter() else lambda: self.chosen.keeps(events, self.lanes.names)
        boxes = choose_boxes(self._digest, around, wanted=wanted, opened=opened)
        scale = TimelineScale((visible[1] - visible[0]) / self._pixels, 1 / self.lanes.pixels, self.style.font, visible)
        said = modelled_words(run, events)
        self.sources = columns_of(self._digest, boxes, events, scale, said, self.lanes.names)
        self.sources["timeline_busy"] = busy_columns(events, self.lanes, around)
        self.sources[GHOST] = self._ghost.columns(run.last_time, events, self.lanes, window and around, scale.seconds)
        self.sources |= happened_columns(everything, self.lanes, window and around, scale.seconds)
        self.sources[ARROWS] = self._arrows.columns(run.finished, events, self._digest, boxes, visible, said)
        reasons, note = self._reasons.columns(run, events, self._digest, said)
        self.sources |= reasons
        clients = legend_of(events)
        guessed = {name: len(self.sources[f"timeline_{name}"]["left"]) > 0 for name in DASHES}
        self.properties = {
            "timeline_title": {"text": f"{run.name} · {title_of(boxes, events)}"},
            TIME_RANGE: span,
            "timeline": {"tags": clients},  # ``legends.js`` makes a row of names from these
            "timeline_boxes": {"tags": [choices(events, self.lanes.names)]},  # and ``filters.js`` a list of these
            "timeline_strips": {"visible": bool(clients)},
            **{f"timeline_key_{name}": {"visible": has_some} for name, has_some in guessed.items()},
            # What no box has needs no words in the legend.
            "timeline_key_arrows": arrow_key(self.sources[ARROWS]),
            "timeline_key_ghost": {"visible": len(self.sources[GHOST]["left"]) > 0},
            **self._kinds(),
            WHY: {"tags": [note] if note else []},
        }
        self._lay_out()
        return self.sources

    def still(self, run: RunLike, width: float, top: float) -> tuple[list[Shape], float]:
        """Return the same as shapes, and their height in pixels.

        Args:
            run: what to draw.
            width: width of the page in pixels.
            top: pixels above the picture.
        """
        left, right = time_ends(width)
        self._pixels = right - left
        self.update(run, self.window)
        self.properties["timeline_key_arrows"] = arrow_key(self.sources[ARROWS], has_taps=False)
        self.sources[ARROWS] = longest_arrows(self.sources[ARROWS])
        clients = [Swatch(name, BoxMark(fill=colour)) for _, name, colour in self.properties["timeline"]["tags"]]
        # From the top: the last legend of a figure is its uppermost.
        rows = [shown_swatches(swatches, self.properties) for swatches in reversed(self.legends)]
        # Of what happened only the words of the tags that there are.
        absent = [one for one in HAPPENED_LEGEND if one.text not in self.sources[HAPPENED]["words"]]
        rows = [[one for one in row if one not in absent] for row in rows]
        words, span = self.properties["timeline_title"]["text"], shown_span(self.properties, self.window)
        lanes = self.lanes.bounds[-1], self.lanes.pixels
        shapes, frame, height = begin_over_time(words, [*rows, clients], span, lanes, width, top)
        picked = self.picked.among(self.sources, "timeline_boxes", "id", "name")
        shapes += shapes_of(self.marks, self.sources, frame, self.properties, picked)
        shapes += brushed_part(frame, self.brushed)
        inner, bounds = _lines(self.lanes)
        shapes += [*frame.rows(inner, "background", _THIN), *frame.rows(bounds, "island")]
        shapes += frame.break_in_time(span, top)
        shapes += frame.names(self.lanes.labels)
        return shapes, height

    def _set_lanes(self, events: Events, is_over: bool) -> None:
        """Add what lanes have none yet, drop what can no longer be on any; then place events anew.

        Args:
            events: all of the run.
            is_over: whether the run is; a lane is dropped only then, since a picture should not jump while it goes on.
        """
        labels, islands = events.labels, self.lanes.islands
        working = {label.island for label in labels if label.kind == HOST_KIND}
        hosts = tuple(island for island in range(len(islands)) if island in working)
        happened = self.lanes.happened or has_happened(events)
        lanes = replace(self.lanes, hosts=hosts, streams=streams_of(labels, islands), happened=happened)
        if any(per_host := devices_per_host(labels, islands)):
            lanes = replace(lanes, per_host=per_host)
        # A record may have labels of which it has no events, as that of two runs.
        drawn = [labels[number] for number in np.flatnonzero(np.bincount(events.label)).tolist()] if is_over else []
        self._place(lanes.without_empty(drawn) if is_over else lanes)

    def _place(self, lanes: Lanes) -> None:
        """Draw on these lanes from now on."""
        if lanes != self.lanes:
            self.lanes, self._digest = lanes, Digest(lanes)

    def _kinds(self) -> dict[str, dict[str, Any]]:
        """Return which kinds the legend explains: those that occur in the record, in view or not."""
        occurring = set(np.array(self._digest.code, int)[np.unique(self._digest.track)].tolist())
        return {f"timeline_kind_{kind.name}": {"visible": code in occurring} for code, kind in enumerate(palette.KINDS)}

    def _lay_out(self) -> None:
        """Name the lanes; if they are not those of any run, also set what depends on their number."""
        labels = self.lanes.labels
        self.sources["timeline_labels"] = {"y": list(labels), "text": list(labels.values())}
        # Without these the figure was made with the right lanes, and nothing has to be sent.
        if self.lanes.grown:
            inner, bounds = _lines(self.lanes)
            self.properties["timeline"]["height"] = _height(self.lanes, self.style)
            self.properties |= {
                "timeline_y": {"start": self.lanes.bounds[-1]},
                "timeline_ticks": {"ticks": list(labels)},
                "timeline_lanes_ticks": {"ticks": inner},
                "timeline_islands_ticks": {"ticks": bounds},
            }


def _height(lanes: Lanes, style: Style) -> int:
    return max(int(lanes.bounds[-1] * lanes.pixels), 90) + int(46 * style.factor)


def _lines(lanes: Lanes) -> tuple[list[float], list[float]]:
    """Return where the lines between lanes are, and the heavier ones between islands and hosts."""
    bounds = sorted(set(lanes.bounds[:-1]) - {0.0, lanes.bounds[-1]})
    inner = [float(y) for top, bottom in pairwise(bounds) for y in np.arange(top + 1, bottom - 1) if not lanes.grouped]
    return inner, sorted([*bounds, *lanes.edges_of_hosts])


def _frame(lanes: Lanes, labels: ColumnDataSource, style: Style) -> figure:
    """Return an empty figure with a label for each lane."""
    fig = time_figure("timeline", _height(lanes, style), Range1d(lanes.bounds[-1], 0, name="timeline_y"), style)
    labels.data = {"y": list(lanes.labels), "text": list(lanes.labels.values())}
    fig.yaxis[0].ticker = FixedTicker(ticks=list(lanes.labels), name="timeline_ticks")
    fig.yaxis[0].formatter = CustomJSTickFormatter(args={"labels": labels}, code=_LABELS)
    fig.ygrid[0].visible = False
    return fig


def _draw_lines(fig: figure, lanes: Lanes, style: Style) -> None:
    """Add lines between lanes, over the boxes of gangs; heavier ones between islands."""
    inner, bounds = _lines(lanes)
    for name, ticks, width in (("timeline_lanes", inner, _THIN), ("timeline_islands", bounds, 1.0)):
        grid = Grid(
            axis=None, dimension=1, ticker=FixedTicker(ticks=ticks, name=f"{name}_ticks"), name=name, level="guide"
        )
        grid.grid_line_width = width * style.line
        fig.add_layout(grid)


def _roles() -> dict[str, dict[str, str]]:
    """Return the roles of colours of the parts of the figure; boxes have the same colours in every theme."""
    return time_roles("timeline") | {
        "timeline_lanes": {"grid_line_color": "background"},
        "timeline_islands": {"grid_line_color": "island"},
    }
