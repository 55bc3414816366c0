"""What a user has selected in the picture of a run: a range of its time, and what the filter leaves."""

from __future__ import annotations

from dataclasses import dataclass, field

from pathways_nb.trace.causality.breakdown import Breakdown, breakdown
from pathways_nb.trace.metrics import duration
from pathways_nb.trace.record import Events
from pathways_nb.util.words import counted
from pathways_widgets.drawing.time_axis import last_end
from pathways_widgets.drawing.views import RunLike
from pathways_widgets.timeline.event_filter import EventFilter


@dataclass(frozen=True)
class Selection:
    """A selected part of a run.

    Args:
        start: in seconds since the run began.
        end: in seconds since the run began.
        events: the events that overlap the range and that the filter leaves.
        islands: for each island, the breakdown of its time within the range, whatever the filter.
        chosen: the filter.
        is_whole: whether the range is all of the run.
    """

    start: float
    end: float
    events: Events
    islands: list[Breakdown]
    chosen: EventFilter = field(default_factory=EventFilter)
    is_whole: bool = False

    @classmethod
    def of(cls, run: RunLike, span: tuple[float, float] | None, chosen: EventFilter | None = None) -> Selection:
        """Return the selection of a run.

        Args:
            run: the run.
            span: the range, in seconds since the run began; ``None`` for all of it.
            chosen: the filter; ``None`` for none.
        """
        events, chosen = run.events, chosen or EventFilter()
        start, end = span or (0.0, last_end(events))
        # An event that is partly in the range counts; the breakdown cuts it at both ends.
        inside = (events["end"] >= start) & (events["start"] <= end)
        if chosen != EventFilter():
            inside &= chosen.keeps(events, run.island_names)
        whole = breakdown(events, run.islands, start, end)
        return cls(start, end, events.select(inside), whole, chosen, span is None)

    def __str__(self) -> str:
        busy = float((self.events["end"] - self.events["start"]).sum()) if self.chosen != EventFilter() else 0.0
        in_all = f", {duration(busy)} in all" if busy else ""
        where = "" if self.is_whole else f"{duration(self.start)} to {duration(self.end)}, "
        head = ": ".join(filter(None, [str(self.chosen), f"{where}{counted(len(self.events), 'event')}{in_all}"]))
        return head if self.is_whole else "\n".join([head, *map(str, self.islands)])
