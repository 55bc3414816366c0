"""Level of detail: which boxes to draw for any number of events.

Events become numbers once, as they arrive. A *track* is a band of lanes together with a kind and a client; what is too
short to be seen is merged per track and per bin of about one pixel, into a box as long as the busy time that it stands
for. Tracks that differ only in the client are one *row*: their boxes in a bin stand side by side, as their events did.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pathways_nb.trace.record import Events, Label
from pathways_widgets.drawing.palette import code_of
from pathways_widgets.drawing.views import Window
from pathways_widgets.timeline.lanes import Lanes

MOST_BOXES = 3000
PIXELS = 900
MOST_CELLS = 4_000_000
"""Entries of the largest table that is made to count events."""


class Digest:
    """The numbers of all events seen so far; times in seconds since the start of the run."""

    def __init__(self, lanes: Lanes):
        self._lanes = lanes
        self.start = self.end = np.zeros(0)
        self.track = np.zeros(0, np.int32)
        self.well = np.zeros(0, bool)
        """Whether each ended well; those that did not are never merged."""
        self.top: list[float] = []
        self.bottom: list[float] = []
        self.code: list[int] = []
        self.client: list[str] = []
        self.row: list[int] = []
        """Of each track; the other lists are of tracks, too."""
        self._tracks: dict[tuple[Any, ...], int] = {}
        self._rows: dict[tuple[Any, ...], int] = {}
        self._last_id = -1

    def extend(self, events: Events) -> None:
        """Take in what is new in ``events``, which otherwise begin like last time; begin anew if they do not."""
        known = len(self.start)
        if known and (len(events) < known or events["id"][known - 1] != self._last_id):
            self.start = self.end = np.zeros(0)
            self.track, self.well = np.zeros(0, np.int32), np.zeros(0, bool)
            known = 0
        if len(events) == known:
            return
        fresh = events.select(np.arange(known, len(events)))
        self.start = np.concatenate([self.start, fresh["start"]])
        self.end = np.concatenate([self.end, np.maximum(fresh["end"], fresh["start"])])
        self.track = np.concatenate([self.track, self._tracks_of(fresh)])
        self.well = np.concatenate([self.well, fresh.is_("status", "ok")])
        self._last_id = int(events["id"][-1])

    def within(self, window: Window) -> np.ndarray:
        """Indices of the events that touch ``window``."""
        return np.flatnonzero((self.end >= window[0]) & (self.start <= window[1]))

    def _tracks_of(self, events: Events) -> np.ndarray:
        by_label = np.zeros(len(events.labels), np.int32)
        for number in np.unique(events.label).tolist():
            by_label[number] = self._track(events.labels[number])
        return by_label[events.label]

    def _track(self, label: Label) -> int:
        kind, island, device, devices = label.kind, label.island, label.device, label.devices
        code = code_of(kind, label.name)
        row = (kind, code_of(kind, "") != code, island, device, devices)
        track = self._tracks.get((row, label.client))
        if track is None:
            track = self._tracks[row, label.client] = len(self._tracks)
            self.row.append(self._rows.setdefault(row, len(self._rows)))
            self.client.append(label.client)
            top, bottom = self._lanes.band(kind, island, device, devices)
            self.top.append(top)
            self.bottom.append(bottom)
            self.code.append(code)
        return track


@dataclass(frozen=True)
class Boxes:
    """What to draw: ``alone`` are indices of events; each merged box has its track, start, busy time and count.

    ``members`` are the indices of merged events, ``box_of`` the position of the merged box of each.
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


def choose_boxes(digest: Digest, window: Window, most: int = MOST_BOXES) -> Boxes:
    """At most about ``most`` boxes for the events in ``window``; the busy time of every track is kept.

    Fewer are impossible where more tracks than ``most`` are in sight: then each has one box.
    """
    inside = digest.within(window)
    span = max(window[1] - window[0], 1e-12)
    none = np.zeros(0, np.int64)
    boxes = Boxes(inside, track=none, start=none, busy=none, count=none, members=none, box_of=none)
    tracks = max(int(np.count_nonzero(np.bincount(digest.track[inside]))), 1)
    width = span / min(PIXELS, max(most // tracks, 1), max(MOST_CELLS // max(len(digest.code), 1), 1))
    while len(boxes) > most:
        boxes = _merge(digest, inside, window[0], width)
        if width > 2 * span:
            break
        width *= 2
    return boxes


def _merge(digest: Digest, inside: np.ndarray, origin: float, width: float) -> Boxes:
    start, lasts = digest.start[inside], digest.end[inside] - digest.start[inside]
    short = (lasts < width) & digest.well[inside]
    start, lasts, alone, members = start[short], lasts[short], inside[~short], inside[short]
    bins = np.maximum((start - origin) // width, 0).astype(np.int64)
    per_track = int(bins.max(initial=0)) + 1
    cell = digest.track[members] * per_track + bins
    count = np.bincount(cell)
    used = np.flatnonzero(count)
    position = np.zeros(len(count), np.int64)
    position[used] = np.arange(len(used))
    first = np.full(len(count), np.inf)
    np.minimum.at(first, cell, start)
    busy = np.bincount(cell, lasts)[used]
    track = (used // per_track).astype(np.int32)
    group = np.array(digest.row, np.int64)[track] * per_track + used % per_track
    start = _side_by_side(group, first[used], busy)
    return Boxes(alone, track, start, busy, count[used], members, position[cell])


def _side_by_side(group: np.ndarray, start: np.ndarray, lasts: np.ndarray) -> np.ndarray:
    """Starts such that no box of a group begins before the one before it ends."""
    order = np.lexsort((start, group))
    group, before = group[order], np.cumsum(lasts[order]) - lasts[order]
    apart = np.concatenate([[0], np.cumsum(group[1:] != group[:-1])]) * (2 * (start.max(initial=0) + lasts.sum()))
    found = np.empty_like(start)
    found[order] = np.maximum.accumulate(start[order] - before + apart) - apart + before
    return found
