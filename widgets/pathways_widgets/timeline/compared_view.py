"""The timeline of two runs: what one of them costs and the other does not is shaded.

Shaded are the last seconds of an event that takes longer than its partner in the other run, and the last seconds before
an event whose devices wait longer for it. Which these are is computed in ``trace.two_records``.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from bokeh.plotting import figure

from pathways_nb.trace.record import Events
from pathways_nb.trace.rows import GAUGE_KINDS
from pathways_nb.trace.two_records import TwoRecords
from pathways_widgets.drawing import palette
from pathways_widgets.drawing.box_marks import BoxMark
from pathways_widgets.drawing.legends import Swatch, add_legend, named_renderer, swatch_items
from pathways_widgets.drawing.time_axis import TIME_RANGE
from pathways_widgets.drawing.views import SIDES, Columns, RunLike, Window
from pathways_widgets.timeline.level_of_detail import PIXELS, Digest
from pathways_widgets.timeline.timeline_view import Timeline

SURPLUS = "timeline_surplus"
"""The source of what is shaded."""
_SHADE = BoxMark(source=SURPLUS, renderer=f"{SURPLUS}_boxes", fill=palette.NEUTRAL, alpha=0.5)
_KEY = f"{SURPLUS}_key"
_MOST = 2000
_LEAST = 1.0
"""Pixels of the narrowest part that is shaded."""


class ComparedTimeline(Timeline):
    """A timeline of two runs.

    Args:
        islands: number of devices of each island, of the first run and then of the second.
        pixels: width to which text is fitted.
        names: names of the islands: of each its run and its number.
    """

    def __init__(self, islands: tuple[int, ...], pixels: float = PIXELS, names: tuple[str, ...] = ()):
        super().__init__(islands, pixels, names)
        self.add_marks({SURPLUS: SIDES}, [_SHADE])
        self.legends = (*self.legends, (Swatch("longer than in the other run", _SHADE, _KEY),))

    @cached_property
    def root(self) -> figure:
        """The Bokeh figure; made when first needed."""
        made: figure = super().root
        items = swatch_items(made, self.legends[-1], self.style)
        items[0].renderers += [named_renderer(made, _SHADE.renderer)]
        add_legend(made, f"{SURPLUS}_legend", items, self.style, "hide")
        return made

    def update(self, run: RunLike, window: Window | None = None) -> dict[str, Columns]:
        """Return what the timeline draws, and what is shaded.

        Args:
            run: what to draw.
            window: the visible part of the time axis; ``None`` for all of it.
        """
        super().update(run, window)
        span = self.properties[TIME_RANGE]
        start, end = window or (span["start"], span["end"])
        shaded = surplus_columns(run.events, self._digest, (end - start) / self._pixels)
        self.sources[SURPLUS] = shaded
        self.properties[_KEY] = {"visible": len(shaded["left"]) > 0}
        return self.sources


def surplus_columns(events: Events, digest: Digest, pixel: float) -> Columns:
    """Return what is shaded, as boxes; of very many the longest.

    Args:
        events: those of both runs; of other events nothing is shaded.
        digest: the lane of each event that is drawn.
        pixel: seconds of one pixel; what is narrower is not shaded.
    """
    if not isinstance(events, TwoRecords):
        return {side: np.zeros(0) for side in SIDES}
    drawn = events.without(GAUGE_KINDS)["id"]
    # (2 × events,) first what events take longer, then what their devices wait longer before them.
    seconds = np.concatenate([events.surplus.within[drawn], events.surplus.before[drawn]])
    right, rows = np.concatenate([digest.end, digest.start]), np.tile(np.arange(len(drawn)), 2)
    chosen = np.argsort(-seconds, kind="stable")[:_MOST]
    chosen = chosen[seconds[chosen] >= _LEAST * pixel]
    track = digest.track[rows[chosen]]
    columns: Columns = {"left": right[chosen] - seconds[chosen], "right": right[chosen]}
    return columns | {
        side: np.array(lanes, float)[track] for side, lanes in (("top", digest.top), ("bottom", digest.bottom))
    }
