"""The timeline with its critical path: a line through the events and gaps that add up to the makespan.

A gap belongs to no event. Its line is in the lane of the event that follows it, since that event waited. The path
itself is computed in ``trace.causality.critical_path``; everything else is drawn by ``timeline_view``.
"""

from __future__ import annotations

import numpy as np

from pathways_nb.trace.causality.critical_path import critical_path
from pathways_nb.trace.record import Events
from pathways_nb.trace.rows import GAUGE_KINDS
from pathways_widgets.drawing.line_marks import LineMark
from pathways_widgets.drawing.picture_marks import Role
from pathways_widgets.drawing.time_axis import TIME_RANGE
from pathways_widgets.drawing.views import ENDS, Columns, RunLike, Window
from pathways_widgets.timeline.level_of_detail import PIXELS, Digest
from pathways_widgets.timeline.timeline_view import Timeline

PATH = "timeline_path"
"""The source of the line."""
_LINE = LineMark(source=PATH, name="timeline_path_line", line=Role("text"), line_width=2.0)
_MOST = 3000


class CriticalTimeline(Timeline):
    """A timeline with the critical path drawn over it.

    Args:
        islands: number of devices of each island.
        pixels: width to which text is fitted.
        names: names of the islands; empty for numbers.
    """

    def __init__(self, islands: tuple[int, ...], pixels: float = PIXELS, names: tuple[str, ...] = ()):
        super().__init__(islands, pixels, names)
        self.add_marks({PATH: ENDS}, [_LINE])

    def update(self, run: RunLike, window: Window | None = None) -> dict[str, Columns]:
        """Return what the timeline draws, and the pieces of the line.

        Args:
            run: what to draw.
            window: the visible part of the time axis; ``None`` for all of it.
        """
        super().update(run, window)
        span = self.properties[TIME_RANGE]
        seen = window or (span["start"], span["end"])
        pixel = (seen[1] - seen[0]) / self._pixels
        # Levels of memory are no work, so no path leads through them.
        self.sources[PATH] = path_columns(run.events.without(GAUGE_KINDS), self._digest, pixel)
        return self.sources


def path_columns(events: Events, digest: Digest, pixel: float) -> Columns:
    """Return the pieces of the line, along lanes and between them.

    Args:
        events: the events of the run.
        digest: the lane of each event.
        pixel: seconds of one pixel; of very many pieces, those on the same pixels are drawn once.
    """
    segments = critical_path(events).segments
    owners = [segment.event for segment in segments]
    for i in range(len(owners) - 2, -1, -1):  # a gap gets the event that follows it
        # From the end, so that several gaps in a row get the event after the last of them.
        owners[i] = owners[i] if owners[i] >= 0 else owners[i + 1]
    # (segments,) the lane of the event of each segment; ids rise, so bisection finds them.
    track = digest.track[np.searchsorted(events["id"], np.array(owners, np.int64))]
    y = (np.array(digest.top)[track] + np.array(digest.bottom)[track]) / 2 if len(track) else np.zeros(0)
    left, right = (np.array([segment[i] for segment in segments], float) for i in (0, 1))
    # (4, pieces) ends of the lines: along the lane of each segment, and from lane to lane where one follows.
    along, between = np.stack([left, y, right, y]), np.stack([right[:-1], y[:-1], right[:-1], y[1:]])
    pieces = np.concatenate([along, between[:, y[:-1] != y[1:]]], axis=1)
    if pieces.shape[1] > _MOST:
        # Rounded to whole pixels in time, many pieces are equal, and each is drawn once.
        grid = np.array([[pixel], [1.0], [pixel], [1.0]])
        pieces = np.unique(np.round(pieces / grid), axis=1) * grid
    return dict(zip(ENDS, pieces, strict=True))
