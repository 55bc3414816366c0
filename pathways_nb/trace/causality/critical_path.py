"""The critical path of a record, and the slack of everything that is not on it.

The path starts at the event that ends last and goes back to the event that it waited for last, and so on to the
beginning. The time between two events belongs to the path as well, with its cause, so the segments tile the makespan:
their lengths add up to it, in measured and simulated records alike.

What waited for what is decided in ``happened_before``; this module only follows it.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from pathways_nb.timing.timed import Timed
from pathways_nb.trace.causality.happened_before import CAUSES, Dag
from pathways_nb.trace.metrics import duration
from pathways_nb.trace.record import Events
from pathways_nb.util.text_table import Printed, Table
from pathways_nb.util.words import counted

_NONE = 1e-9
"""Seconds below which a gap or a slack counts as none."""


class Segment(NamedTuple):
    """A part of a critical path.

    Args:
        start: in seconds since the run began.
        end: in seconds since the run began.
    """

    start: float
    end: float
    cause: str
    """``"compute"``, ``"collective"``, or why time passed otherwise, as in ``happened_before.CAUSES``."""
    name: str
    """Name of the event; of a gap, name of the event after it."""
    event: int
    """Id of the event; -1 for a gap."""
    island: int
    """Index of the island; -1 for the controller."""


@dataclass(frozen=True, repr=False)
class CriticalPath(Printed):
    """What the makespan consists of: consecutive segments without gaps, first to last.

    Args:
        segments: the segments.
        inferred: how many causes are inferred from stamps, in words; empty if all were recorded.
    """

    segments: tuple[Segment, ...]
    inferred: str = ""

    @property
    def length(self) -> float:
        """Seconds of all segments: the makespan."""
        return sum(segment.end - segment.start for segment in self.segments)

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds by cause, the longest first."""
        found: dict[str, float] = defaultdict(float)
        for segment in self.segments:
            found[segment.cause] += segment.end - segment.start
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    @cached_property
    def events(self) -> frozenset[int]:
        """Ids of the events on it."""
        return frozenset(segment.event for segment in self.segments if segment.event >= 0)

    def _table(self) -> Table:
        total = self.length or 1.0
        groups: dict[tuple[str, str], list[float]] = defaultdict(list)
        for segment in self.segments:
            name = segment.name if segment.event >= 0 else f"before {segment.name}"
            groups[name, segment.cause].append(segment.end - segment.start)
        ranked = sorted(groups.items(), key=lambda item: -sum(item[1]))
        rows = [(*key, str(len(parts)), duration(sum(parts)), f"{sum(parts) / total:.0%}") for key, parts in ranked]
        causes = ", ".join(f"{cause} {seconds / total:.0%}" for cause, seconds in self.seconds.items())
        title = f"critical path {duration(self.length)}: {causes}" + (f" ({self.inferred})" if self.inferred else "")
        return Table(title, ("what", "cause", "times", "takes", "share"), rows)


def critical_path(events: Events) -> CriticalPath:
    """Return the chain of events and gaps that the makespan consists of; its length is the makespan.

    Args:
        events: of a run on any backend. With estimated stamps, an event counts up to the start of the next one.
    """
    dag = Dag.of(events)
    return path_of(dag, dag.timed)


def path_of(dag: Dag, timed: Timed) -> CriticalPath:
    """Return the critical path for given times.

    Args:
        dag: the happened-before graph.
        timed: its events, as they ran or as they would run with other durations.
    """
    if not dag.counts.any():
        return CriticalPath(())
    start, counted = timed.start, np.flatnonzero(dag.counts)
    begin, ends = start[counted].min(), timed.end[counted]
    until = float(ends.max())
    gaps, found, passed = dag.causes_of_gaps(timed.source), list[Segment](), list[int]()
    # Of several that end last, the one that began last.
    for event in timed.chain(int(counted[np.flatnonzero(ends == until)[-1]])):
        found.append(_segment(dag, event, max(start[event], begin), until, CAUSES[dag.causes[event]]))
        until = float(max(timed.released[event], begin)) if timed.source[event] >= 0 else begin
        # A gap below rounding counts for the event before it, so that no segment of 0 seconds appears.
        if timed.source[event] >= 0 and start[event] - until <= _NONE:
            until = float(start[event])
        elif until < start[event]:
            found.append(_segment(dag, event, until, start[event], CAUSES[gaps[event]], gap=True))
        passed.append(event)
        if until <= begin:
            break
    # Found backward, from the end of the makespan.
    segments = tuple(segment for segment in found[::-1] if segment.end > segment.start)
    return CriticalPath(segments, dag.guessed(np.array(passed)))


def _segment(dag: Dag, event: int, start: float, end: float, cause: str, gap: bool = False) -> Segment:
    label = dag.events.labels[dag.events.label[event]]
    cause = label.kind if cause == "dependency" else cause
    return Segment(
        float(start), float(end), cause, label.name, -1 if gap else int(dag.events["id"][event]), label.island
    )


@dataclass(frozen=True, repr=False)
class Slack(Printed):
    """How much later each event on a device could end without a longer makespan; 0 on the critical path.

    Args:
        events: events on devices, in the order of their starts.
        seconds: slack of each of them, (events,).
    """

    events: Events
    seconds: np.ndarray

    def _table(self) -> Table:
        groups: dict[tuple[str, str, str], list[float]] = defaultdict(list)
        for number, seconds in zip(self.events.label.tolist(), self.seconds.tolist(), strict=True):
            label = self.events.labels[number]
            groups[label.name, label.kind, str(label.island)].append(seconds)
        ranked = sorted(groups.items(), key=lambda item: min(item[1]))
        rows = [
            (*key, str(len(parts)), duration(min(parts)), duration(float(np.median(parts)))) for key, parts in ranked
        ]
        critical = int(np.count_nonzero(self.seconds <= _NONE))
        title = f"slack of {counted(len(self.events), 'event')} on devices, of which {critical} have none"
        return Table(title, ("what", "kind", "island", "times", "least", "median"), rows)


def slack(events: Events) -> Slack:
    """Return how much later each event on a device could end without a longer makespan, in seconds.

    The order of events is kept, and so is every gap after what an event waited for.
    """
    dag = Dag.of(events)
    on_devices = dag.on_devices
    return Slack(dag.events.select(on_devices), dag.slack[on_devices])
