"""Outlines of what a cell did when it was run last, where that was elsewhere, in the lanes of its present run."""

from __future__ import annotations

import numpy as np

from pathways_nb.trace.matching import beginning, keys_of
from pathways_nb.trace.record import Events
from pathways_widgets.drawing.box_marks import BoxMark
from pathways_widgets.drawing.picture_marks import Role
from pathways_widgets.drawing.views import SIDES, Columns, Window
from pathways_widgets.timeline.lanes import Lanes

GHOST = "timeline_ghost"
"""The source of the outlines."""
OUTLINE = BoxMark(source=GHOST, name=f"{GHOST}_line", renderer=f"{GHOST}_boxes", line=Role("soft"), line_width=1.5)
_APART = 2.0
"""Pixels by which an event must begin or end elsewhere to be outlined."""
_MOST = 1000


class Ghost:
    """The outlines for one run, made anew only when its events or their lanes have changed."""

    def __init__(self) -> None:
        self._made: tuple[Events, Events, Lanes] | None = None
        self._columns: Columns = {}

    def columns(self, last: Events | None, now: Events, lanes: Lanes, window: Window | None, pixel: float) -> Columns:
        """Return the boxes to outline.

        Args:
            last: what the cell did when it was run last; None for no outlines.
            now: what it does now.
            lanes: the lanes of its present run.
            window: the part of the time axis that is drawn, in seconds; ``None`` for all of it.
            pixel: seconds of one pixel.
        """
        if last is None:
            return {side: np.zeros(0) for side in SIDES}
        if self._made is None or self._made[0] is not last or self._made[2] != lanes or not _same(self._made[1], now):
            self._columns, self._made = _outlines(last, now, lanes), (last, now, lanes)
        found, (start, end) = self._columns, window or (-np.inf, np.inf)
        seen = (found["right"] >= start) & (found["left"] <= end) & (found["apart"] >= _APART * pixel)
        chosen = np.flatnonzero(seen)[:_MOST]
        return {side: found[side][chosen] for side in SIDES}


def _same(one: Events, other: Events) -> bool:
    return len(one) == len(other) and bool((one["id"] == other["id"]).all())


def _outlines(last: Events, now: Events, lanes: Lanes) -> Columns:
    """Return a box for each event on devices of the last run, and by how many seconds it is elsewhere now."""
    shift = beginning(now) - beginning(last)
    partners = dict(keys_of(now))
    left, right, start, end = last["start"] + shift, last["end"] + shift, now["start"], now["end"]
    found: Columns = {name: [] for name in (*SIDES, "apart")}
    for key, row in keys_of(last):
        label, partner = last.labels[last.label[row]], partners.get(key)
        if not 0 <= label.island < len(lanes.islands) or label.device + label.devices > lanes.islands[label.island]:
            continue  # of an island that is gone
        top, bottom = lanes.band(label.kind, label.island, label.device, label.devices, label.stream)
        apart = np.inf
        if partner is not None:
            apart = max(abs(left[row] - start[partner]), abs(right[row] - end[partner]))
        for name, value in zip(found, (left[row], right[row], top, bottom, apart), strict=True):
            found[name].append(value)
    return {name: np.array(values, float) for name, values in found.items()}
