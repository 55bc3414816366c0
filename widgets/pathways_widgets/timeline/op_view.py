"""The timeline with the ops inside launches: what each device really ran, below the launches that contain it.

Everything but the lanes is drawn by ``timeline_view``; an op is one more box, whose tooltip names its source.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from pathways_nb.trace.launch_ops import Ops
from pathways_nb.trace.record import Events
from pathways_widgets.drawing.views import Columns, Moment, RunLike, Window
from pathways_widgets.timeline.level_of_detail import PIXELS, Digest
from pathways_widgets.timeline.op_lanes import OpLanes, with_ops
from pathways_widgets.timeline.timeline_view import Timeline


class OpTimeline(Timeline):
    """A timeline with lanes for the ops of each device.

    Args:
        islands: number of devices of each island.
        pixels: width to which text is fitted.
        names: names of the islands; empty for numbers.
    """

    tooltips: ClassVar = [("line or source" if what == "line" else what, value) for what, value in Timeline.tooltips]

    def __init__(self, islands: tuple[int, ...], pixels: float = PIXELS, names: tuple[str, ...] = ()):
        super().__init__(islands, pixels, names)
        self.lanes = OpLanes(islands, names, self.style.lane)
        self._digest = Digest(self.lanes)
        self._known: tuple[Events, Ops, Events] | None = None

    def update(self, run: RunLike, window: Window | None = None) -> dict[str, Columns]:
        """Return what the timeline draws, with the boxes of ops.

        Args:
            run: what to draw.
            window: the visible part of the time axis; ``None`` for all of it.
        """
        moment = Moment.of(run)
        if self._known is None or self._known[0] is not moment.events or self._known[1] is not moment.ops:
            self._known = moment.events, moment.ops, with_ops(moment.events, moment.ops)
        super().update(replace(moment, events=self._known[2]), window)
        title = self.properties["timeline_title"]
        title["text"] = f"{title['text']} · {_said(moment.ops)}"
        return self.sources


def _said(ops: Ops) -> str:
    """Return how many of the boxes are ops, and the share of their time whose source is known."""
    if not len(ops):
        return "no ops: record with pw.profile"
    return f"{len(ops):,} are ops, the source of {ops.joined_words} of their time known"
