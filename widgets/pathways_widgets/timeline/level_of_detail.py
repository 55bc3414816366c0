"""Level of detail: which boxes to draw for any number of events.

A browser pans smoothly over some thousand boxes, but a record may have millions of events. Events therefore become
arrays of numbers once, as they arrive. A *track* is a band of lanes together with a kind and a client. Events too short
to be seen are merged per track and per bin of about one pixel into one box, as long as their busy time: the picture
keeps how busy a lane is. Tracks that differ only in the client are one *row*; the boxes of a bin in one row are placed
side by side, as the events were, and do not cover each other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from pathways_nb.trace.record import Events
from pathways_nb.trace.rows import Label
from pathways_widgets.drawing.palette import code_of
from pathways_widgets.drawing.views import Window
from pathways_widgets.timeline.lanes import Lanes

MOST_BOXES = 3000
PIXELS = 900
MOST_CELLS = 4_000_000
"""Largest number of entries of the tables in which events are counted."""


class Digest:
    """The numbers of all events seen so far; times in seconds since the start of the run.

    Args:
        lanes: positions of the lanes.
    """

    def __init__(self, lanes: Lanes):
        self._lanes = lanes
        # (events,) columns
        self.start = self.end = np.zeros(0)
        self.track = np.zeros(0, np.int32)
        self.well = np.zeros(0, bool)
        """Whether each event ended well; those that did not are never merged."""
        self.top: list[float] = []
        self.bottom: list[float] = []
        self.code: list[int] = []
        self.client: list[str] = []
        self.row: list[int] = []
        """The row of each track; ``top``, ``bottom``, ``code`` and ``client`` are lists over tracks as well."""
        self._tracks: dict[tuple[Any, ...], int] = {}
        self._rows: dict[tuple[Any, ...], int] = {}
        self._last_id = -1

    def extend(self, events: Events) -> None:
        """Add the new events of a record.

        A record usually only grows, so only its end is read. If it no longer begins with the events that were read
        before, everything is read again.

        Args:
            events: all events of the record.
        """
        known = len(self.start)
        if known and (len(events) < known or events["id"][known - 1] != self._last_id):
            self.start = self.end = np.zeros(0)
            self.track, self.well = np.zeros(0, np.int32), np.zeros(0, bool)
            known = 0
        if len(events) == known:
            return
        fresh = events.select(np.arange(known, len(events)))
        self.start = np.concatenate([self.start, fresh["start"]])
        # No box may have a negative width, whatever the stamps say.
        self.end = np.concatenate([self.end, np.maximum(fresh["end"], fresh["start"])])
        self.track = np.concatenate([self.track, self._tracks_of(fresh)])
        self.well = np.concatenate([self.well, fresh.is_("status", "ok")])
        self._last_id = int(events["id"][-1])

    def within(self, window: Window) -> np.ndarray:
        """Return the indices of the events that overlap ``window``."""
        return np.flatnonzero((self.end >= window[0]) & (self.start <= window[1]))

    def _tracks_of(self, events: Events) -> np.ndarray:
        """Return the track of each event, computed once for each label: a million events have few labels."""
        # (labels,) track of each label that occurs; the others are never looked up.
        by_label = np.zeros(len(events.labels), np.int32)
        for number in np.unique(events.label).tolist():
            by_label[number] = self._track(events.labels[number])
        return by_label[events.label]

    def _track(self, label: Label) -> int:
        """Return the track of a label; a new one if there is none yet."""
        kind, island, device, devices = label.kind, label.island, label.device, label.devices
        code = code_of(kind, label.name)
        # Forward and backward work has different colours, so it is in different rows of one band.
        row = (kind, code_of(kind, "") != code, island, device, devices, label.stream)
        track = self._tracks.get((row, label.client))
        if track is None:
            track = self._tracks[row, label.client] = len(self._tracks)
            self.row.append(self._rows.setdefault(row, len(self._rows)))
            self.client.append(label.client)
            top, bottom = self._lanes.band(kind, island, device, devices, label.stream)
            self.top.append(top)
            self.bottom.append(bottom)
            self.code.append(code)
        return track


@dataclass(frozen=True)
class Boxes:
    """The boxes to draw: some for one event each, then some for several.

    Args:
        alone: indices of events with a box of their own, (events alone,).
        track: the track of each merged box, (merged,), as the three that follow.
        start: its start, in seconds.
        busy: the busy time of its events, in seconds.
        count: the number of its events.
        members: indices of merged events, (members,).
        box_of: for each of them the position of its merged box, (members,).
    """

    alone: np.ndarray
    track: np.ndarray
    start: np.ndarray
    busy: np.ndarray
    count: np.ndarray
    members: np.ndarray
    box_of: np.ndarray

    def __len__(self) -> int:
        return len(self.alone) + len(self.track)

    def joined(self, other: Boxes) -> Boxes:
        """Return these boxes and those of other events."""
        pairs = {name: [getattr(one, name) for one in (self, other)] for name in self.__dataclass_fields__}
        pairs["box_of"][1] = pairs["box_of"][1] + len(self.track)
        return Boxes(**{name: np.concatenate(both) for name, both in pairs.items()})


def choose_boxes(
    digest: Digest,
    window: Window,
    most: int = MOST_BOXES,
    wanted: Callable[[], np.ndarray] | None = None,
    opened: Window | None = None,
) -> Boxes:
    """Return boxes for the events in ``window`` that keep the busy time of every track.

    Args:
        digest: the events.
        window: the part of the time axis to draw, in seconds.
        most: largest number of boxes, about. Where more tracks than this are visible, each still has one box.
        wanted: says which events a filter leaves, of all, (events,); ``None`` for all. Of events that have all boxes of
            their own, all are drawn: the page hides what is not wanted, and shows it again without the kernel.
        opened: the part that is seen, if it is less: half of the boxes are for its events.
    """
    inside = digest.within(window)
    if wanted is not None and len(inside) > most:
        inside = inside[wanted()[inside]]
    if opened is None or len(inside) <= most:
        return _fitting(digest, inside, window, most)
    near = (digest.end[inside] >= opened[0]) & (digest.start[inside] <= opened[1])
    seen = _fitting(digest, inside[near], opened, most // 2)
    return seen.joined(_fitting(digest, inside[~near], window, most // 2))


def _fitting(digest: Digest, inside: np.ndarray, window: Window, most: int) -> Boxes:
    """Return at most about ``most`` boxes for the events with the indices ``inside``, which are in ``window``."""
    span = max(window[1] - window[0], 1e-12)
    none = np.zeros(0, np.int64)
    boxes = Boxes(inside, track=none, start=none, busy=none, count=none, members=none, box_of=none)
    # Tracks without an event in the window need no box.
    tracks = max(int(np.count_nonzero(np.bincount(digest.track[inside]))), 1)
    # Start with bins of a pixel, or so wide that all tracks together can fit into ``most`` boxes.
    width = span / min(PIXELS, max(most // tracks, 1), max(MOST_CELLS // max(len(digest.code), 1), 1))
    # First every event alone; then bins, twice as wide each time, until the boxes are few enough.
    while len(boxes) > most:
        boxes = _merge(digest, inside, window[0], width)
        # All of the window is one bin: fewer boxes than tracks there cannot be.
        if width > 2 * span:
            break
        width *= 2
    return boxes


def _merge(digest: Digest, inside: np.ndarray, origin: float, width: float) -> Boxes:
    """Return boxes in which events shorter than ``width`` are merged by track and bin.

    Args:
        digest: the events.
        inside: indices of the events to draw.
        origin: left edge of the first bin, in seconds.
        width: width of a bin, in seconds.
    """
    start, durations = digest.start[inside], digest.end[inside] - digest.start[inside]
    # What failed is never merged: it is what a reader looks for.
    short = (durations < width) & digest.well[inside]
    start, durations, alone, members = start[short], durations[short], inside[~short], inside[short]
    # An event that began before the window counts in the first bin.
    bins = np.maximum((start - origin) // width, 0).astype(np.int64)
    per_track = int(bins.max(initial=0)) + 1
    # (members,) track and bin as one number, so that counting is one pass over the events.
    cell = digest.track[members] * per_track + bins
    count = np.bincount(cell)
    # (boxes,) the cells that have events; each becomes a box.
    used = np.flatnonzero(count)
    position = np.zeros(len(count), np.int64)
    # (cells,) the box of each cell.
    position[used] = np.arange(len(used))
    first = np.full(len(count), np.inf)
    np.minimum.at(first, cell, start)
    busy = np.bincount(cell, durations)[used]
    track = (used // per_track).astype(np.int32)
    group = np.array(digest.row, np.int64)[track] * per_track + used % per_track
    start = _side_by_side(group, first[used], busy)
    return Boxes(alone, track, start, busy, count[used], members, position[cell])


def _side_by_side(group: np.ndarray, start: np.ndarray, durations: np.ndarray) -> np.ndarray:
    """Return starts such that no box of a group begins before the one before it ends.

    A box is delayed by the boxes before it, not shortened, so its busy time stays. Groups are shifted far apart on one
    axis so that a single running maximum serves all of them.

    Args:
        group: the group of each box: its row and its bin.
        start: the start of each box, in seconds.
        durations: the duration of each box, in seconds.
    """
    # By group, within it by start: the order in which the boxes are placed.
    order = np.lexsort((start, group))
    # (boxes,) busy time of the boxes before each. A start minus that must not fall from box to box, or two would
    # overlap; the running maximum delays each box by just so much.
    group, before = group[order], np.cumsum(durations[order]) - durations[order]
    # More than any start or sum: so the maximum of one group never reaches into the next.
    apart = np.concatenate([[0], np.cumsum(group[1:] != group[:-1])]) * (2 * (start.max(initial=0) + durations.sum()))
    found = np.empty_like(start)
    found[order] = np.maximum.accumulate(start[order] - before + apart) - apart + before
    return found
