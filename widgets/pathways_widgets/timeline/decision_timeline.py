"""The timeline of a run with one decision of its controller: a line at its time, a border around what it enqueued.

The run is drawn once. A step to another decision changes these two small tables and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from bokeh.plotting import figure

from pathways_nb.controller.decisions import Decision
from pathways_nb.trace.metrics import BUSY
from pathways_nb.trace.record import Events
from pathways_nb.trace.rows import GAUGE_KINDS, HOST_KIND
from pathways_widgets.drawing.box_marks import BoxMark
from pathways_widgets.drawing.line_marks import LineMark
from pathways_widgets.drawing.picture_marks import Role
from pathways_widgets.drawing.views import ENDS, SIDES, Columns, RunLike, Window
from pathways_widgets.timeline.level_of_detail import PIXELS
from pathways_widgets.timeline.timeline_view import Timeline

AT, CHOSEN = "timeline_step", "timeline_chosen"
"""The sources of the line and of the borders."""
_SOURCES = {AT: ENDS, CHOSEN: SIDES}
_MARKS = (
    BoxMark(source=CHOSEN, name="timeline_chosen_border", line=Role("text"), line_width=2.5),
    LineMark(source=AT, name="timeline_step_line", line=Role("text"), line_width=2.0),
)


class DecisionTimeline(Timeline):
    """A timeline that points at one decision, or at none.

    Args:
        islands: number of devices of each island.
        pixels: width to which text is fitted.
        names: names of the islands; empty for numbers.
    """

    def __init__(self, islands: tuple[int, ...], pixels: float = PIXELS, names: tuple[str, ...] = ()):
        super().__init__(islands, pixels, names)
        self.add_marks(_SOURCES, _MARKS)
        self._decisions: tuple[Decision | None, ...] = ()
        self._calls: tuple[Events, np.ndarray, np.ndarray] | None = None

    @cached_property
    def root(self) -> figure:
        """The Bokeh figure; made when first needed."""
        made = super().root
        for renderer in made.renderers:
            # On the layer above: Bokeh then paints a step without the thousands of boxes below it.
            if renderer.data_source.name in _SOURCES:
                renderer.level = "overlay"
        return made

    def update(self, run: RunLike, window: Window | None = None) -> dict[str, Columns]:
        """Return what the timeline draws, and what points at the present decision.

        Args:
            run: what to draw.
            window: the visible part of the time axis; ``None`` for all of it.
        """
        super().update(run, window)
        if self._calls is None or len(self._calls[0]) != len(self._digest.start):
            events = run.events.without(GAUGE_KINDS)
            # (events,) sorted by call, so that a step finds those of its call at once among any number.
            order = np.argsort(events["run"], kind="stable")
            self._calls = events, order, events["run"][order]
        self.point(*self._decisions)
        return self.sources

    def point(self, *decisions: Decision | None) -> dict[str, Columns]:
        """Return the columns that point at a decision, or at one of each policy; empty ones for none.

        Of several policies, the islands of each follow those of the one before.
        """
        self._decisions = decisions
        each = len(self.lanes.islands) // max(len(decisions), 1)
        lines, borders = list[tuple[float, ...]](), list[tuple[float, ...]]()
        for number, one in enumerate(decisions):
            if one is not None:
                first = number * each
                top, bottom = 0.0, self.lanes.bounds[-1]
                if decisions[1:]:
                    top, bottom = self.lanes.whole(first)[0], self.lanes.whole(first + each - 1)[1]
                lines.append((one.at, top, one.at, bottom))
                borders += self._borders(one, first)
        found = {AT: _columns(ENDS, lines), CHOSEN: _columns(SIDES, borders)}
        self.sources |= found
        return found

    def _borders(self, decision: Decision, first_island: int) -> list[tuple[float, ...]]:
        """Return a border for each lane on which a decision enqueued something, around all of that."""
        assert self._calls is not None
        events, order, calls = self._calls
        first, last = np.searchsorted(calls, [decision.serial, decision.serial + 1])
        rows = order[first:last]
        chosen = {(first_island + island, node) for island, nodes in decision.nodes.items() for node in nodes}
        labels = [events.labels[number] for number in events.label[rows].tolist()]
        rows = rows[[one.kind in (*BUSY, HOST_KIND) and (one.island, one.node) in chosen for one in labels]]
        track, digest = self._digest.track[rows], self._digest
        return [
            (
                float(digest.start[rows[track == one]].min()),
                float(digest.end[rows[track == one]].max()),
                digest.top[one],
                digest.bottom[one],
            )
            for one in np.unique(track).tolist()
        ]


def _columns(names: tuple[str, ...], rows: Sequence[tuple[float, ...]]) -> Columns:
    return {name: np.array([row[at] for row in rows], float) for at, name in enumerate(names)}
