"""The one record of what happened, for every backend, view, export, metric and test.

Recording must not disturb what it measures, and a record may hold a million events. So events arrive as short rows (a
shared label and two stamps), from any thread and without a lock, and are stored as columns: a label's number and the
stamps. Columns of a label's fields are made only when they are asked for.

Times are in seconds, sizes in bytes. A record only remembers: it starts nothing and refers to nothing that runs.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Sequence
from dataclasses import fields
from itertools import groupby
from typing import Any, overload

import numpy as np

from pathways_nb.timing.waits import WHY
from pathways_nb.trace.label_columns import LabelColumns
from pathways_nb.trace.rows import QUALITIES, STATUSES, Cause, Label, Row, RowRange
from pathways_nb.util.columns import last_before
from pathways_nb.util.words import counted

_NOT_TOLD = Cause(-1)
STORED: dict[str, type] = {  # what is kept for each event
    **{"label": np.int32, "start": np.float64, "end": np.float64, "run": np.int32},
    **{"quality": np.uint8, "status": np.uint8},
    **{"why": np.int8, "released_label": np.int32, "released_run": np.int32},
}
UNKNOWN = {"why": -1, "released_label": -1, "released_run": -1}
"""What stands in the columns of ``STORED`` for an event whose cause is not known, as in older files."""
_WORDS = {"quality": np.array(QUALITIES, object), "status": np.array(STATUSES, object),
          "why": np.array([*WHY, ""], object)}  # fmt: skip
LABEL_COLUMNS = tuple(field.name for field in fields(Label))
COLUMNS, TUPLES = ("id", *LABEL_COLUMNS, *Row._fields[1:-1], "why", "released_by"), ("parents", "links")


class Events:
    """Events as NumPy columns of equal length, named by ``COLUMNS``; times in seconds, sizes in bytes.

    ``events["start"]`` is a column, ``events[:10]`` are the first ten, ``for event in events`` yields dictionaries.

    Args:
        labels: what the events have in common except their stamps.
        stored: for each event its label's number, stamps and codes, by the names in ``STORED``.
        ids: one for each event, in the order in which events were recorded.
        known: the fields of ``labels``, as far as somebody asked for them before.
    """

    def __init__(
        self, labels: Sequence[Label], stored: dict[str, np.ndarray], ids: np.ndarray, known: LabelColumns | None = None
    ):
        self.labels, self._stored, self._ids = labels, stored, ids
        self._columns = known or LabelColumns(labels)

    @classmethod
    def from_rows(cls, rows: Sequence[Row]) -> Events:
        """Return rows as columns."""
        record = Record()
        for row in rows:
            record.add(row)
        return record.events()

    def __len__(self) -> int:
        return len(self._ids)

    @overload
    def __getitem__(self, name: str) -> np.ndarray: ...
    @overload
    def __getitem__(self, name: slice) -> Events: ...
    def __getitem__(self, name: str | slice) -> np.ndarray | Events:
        if isinstance(name, slice):
            return self.select(np.arange(len(self))[name])
        if name == "id":
            return self._ids
        if name in _WORDS:
            return _WORDS[name][self._stored[name]]
        if name in self._stored:
            return self._stored[name]
        if name == "released_by":
            return np.append(self._ids, -1)[self.releasers]
        if name not in LABEL_COLUMNS:
            raise KeyError(f"{name!r} is no column of events; choose from {', '.join(COLUMNS)}")
        return self.by_label(name)[self.label]

    @property
    def label(self) -> np.ndarray:
        """The position of each event's label in ``labels``."""
        return self._stored["label"]

    def stored(self, name: str) -> np.ndarray:
        """Return a column of ``STORED``: quality and status as positions in ``QUALITIES`` and ``STATUSES``."""
        return self._stored[name]

    @property
    def releasers(self) -> np.ndarray:
        """The position of the event that let each begin, where the controller said which; -1 elsewhere."""
        # (events,) positions. The cause names a label and a call; meant is the last such event that began before.
        found = np.full(len(self), -1)
        told = np.flatnonzero(self._stored["released_label"] >= 0)
        if len(told):
            rows, begun, of = np.arange(len(self)), self._stored["start"], self._stored
            asked = begun[told], of["released_label"][told], of["released_run"][told]
            found[told] = last_before(rows, (begun, of["label"], of["run"]), asked)
        return found

    def by_label(self, name: str) -> np.ndarray:
        """Return column ``name`` of the labels: one value for each of ``labels``, not for each event."""
        return self._columns.column(name)

    def is_(self, name: str, *values: object) -> np.ndarray:
        """Return whether each event has one of ``values`` in column ``name``.

        Only the labels are compared, of which there are few, so this is fast for many events.
        """
        if name in _WORDS:
            words = _WORDS[name]
            return np.isin(self._stored[name], [code for code in (*range(len(words)), -1) if words[code] in values])
        # (labels,), spread over the events by their labels' numbers.
        found: np.ndarray = self._columns.fits(name, values)[self.label]
        return found

    def select(self, mask: np.ndarray) -> Events:
        """Return the events for which ``mask`` is true, or those at the given indices."""
        stored = {name: part[mask] for name, part in self._stored.items()}
        return Events(self.labels, stored, self._ids[mask], self._columns)

    def of_kind(self, *kinds: str) -> Events:
        """Return the events of these kinds."""
        return self.select(self.is_("kind", *kinds))

    def without(self, kinds: Collection[str]) -> Events:
        """Return the events of other kinds: all of them, not copied, if none is of these kinds."""
        if not any(label.kind in kinds for label in self.labels):
            return self
        return self.select(~self.is_("kind", *kinds))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield each event as a dictionary, for tests and small tables."""
        columns = {name: self[name] for name in COLUMNS}
        for i in range(len(self)):
            yield {name: values[i] for name, values in columns.items()}

    def __repr__(self) -> str:
        return f"<{counted(len(self), 'event')}: {', '.join(COLUMNS)}>"


class Record:
    """Remembers events until it is cleared; ``add`` may be called from any thread and takes under a microsecond.

    Args:
        limit: number of newest events to remember, approximately; ``None`` means all.
        origin: time that counts as 0, in seconds on the clock of the added rows.
    """

    def __init__(self, limit: int | None = None, origin: float = 0.0) -> None:
        self.limit, self.origin = limit, origin
        self._rows: list[Row | RowRange] = []
        self._in_ranges = 0
        """Number of events in ranges among ``_rows``, less the number of ranges; without those in ``_more``."""
        self._more: list[int] = []
        """The same of each range that was added since somebody had the lock."""
        self._lock = threading.Lock()
        self._first = self._count = 0
        self._labels: list[Label] = []
        """Only ever grows: columns that were given out refer to positions in it."""
        self._columns = LabelColumns(self._labels)
        self._numbers: dict[Label, int] = {}
        self._stored: dict[str, np.ndarray] = {name: np.empty(0, dtype) for name, dtype in STORED.items()}

    @classmethod
    def of(cls, events: Events) -> Record:
        """Return a record of these events."""
        record = cls()
        record._count, record._labels = len(events), list(events.labels)
        record._columns = LabelColumns(record._labels)
        record._numbers = {label: number for number, label in enumerate(events.labels)}
        record._stored = {name: events.stored(name).copy() for name in STORED}
        return record

    def add(self, row: Row) -> None:
        """Remember one event."""
        self._rows.append(row)  # list.append is atomic, so the hot path needs no lock
        if self.limit is not None and len(self._rows) + self._in_ranges > 2 * self.limit:
            self._trim()

    def add_range(self, rows: RowRange) -> None:
        """Remember the events of a range, in one step."""
        self._more.append(len(rows) - 1)  # first: whoever finds the range must find its size
        self._rows.append(rows)
        if self._lock.acquire(blocking=False):  # it may be held for as long as columns are made
            try:
                self._count_ranges()
            finally:
                self._lock.release()
        while self.limit is not None and len(self._rows) + self._in_ranges > 2 * self.limit and self._trim():
            pass

    def events(self) -> Events:
        """Return all events as columns; times in seconds since ``origin``.

        Only rows added since the last call are turned into columns.
        """
        with self._lock:
            # A copy: other threads may append while columns are made; exactly these rows are deleted at the end.
            arrived = self._rows[:]
            self._count_ranges()
            fresh = self._columns_of(arrived)
            added = len(fresh["start"])
            first, count = self._count, self._count + added
            for name, values in fresh.items():
                if count > len(self._stored[name]):  # double the space, so that each event is copied rarely
                    self._stored[name] = np.concatenate([self._stored[name], np.empty(count, STORED[name])])
                self._stored[name][first:count] = values
            self._count = count
            del self._rows[: len(arrived)]  # last: an interrupt before it loses nothing
            self._in_ranges -= added - len(arrived)
            if self.limit is not None and self._count > 2 * self.limit:
                self._forget(self._count - self.limit)
            ids = np.arange(self._first, self._first + self._count, dtype=np.int64)
            stored = {name: part[: self._count] for name, part in self._stored.items()}
            return Events(self._labels, stored, ids, self._columns)

    def correct(self, rows: np.ndarray, start: np.ndarray, end: np.ndarray, quality: str = "exact") -> None:
        """Replace stamps; every event gets a new id.

        Columns that were given out before do not change. Views compare ids, so new ones make them draw the events
        again.

        Args:
            rows: positions in ``events()``.
            start: new starts of these events, in seconds since ``origin``.
            end: new ends.
            quality: how the new stamps are known.
        """
        with self._lock:
            for name, values in (("start", start), ("end", end), ("quality", QUALITIES.index(quality))):
                # Columns that were given out must not change under a view that draws them.
                self._stored[name] = self._stored[name].copy()
                self._stored[name][rows] = values
            self._first += self._count

    def absorb(self, other: Record) -> None:
        """Add all events of another record, which may have another origin."""
        events = other.events()
        columns = (events[name].tolist() for name in ("label", "start", "end", "run", "quality", "status"))
        causes = zip(*(events.stored(name).tolist() for name in UNKNOWN), strict=True)
        for (number, start, end, call, quality, status), (why, by, of) in zip(
            zip(*columns, strict=True), causes, strict=True
        ):
            at, label = other.origin, None if by < 0 else events.labels[by]
            cause = None if why < 0 else Cause(why, label, of)
            self.add(Row(events.labels[number], start + at, end + at, call, quality, status, cause))

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            gone = self._rows[:]
            self._count_ranges()
            del self._rows[: len(gone)]
            self._in_ranges -= sum(map(_size, gone)) - len(gone)
            self._forget(self._count)
            # New lists: events that were given out still refer to the old one.
            self._labels, self._numbers = [], {}
            self._columns = LabelColumns(self._labels)

    def _count_ranges(self) -> None:
        """Count the events of the ranges that were added; the caller has the lock."""
        count = len(self._more)
        self._in_ranges += sum(self._more[:count])
        del self._more[:count]

    def _forget(self, count: int) -> None:
        """Forget the oldest ``count`` events; ids continue, so that views notice."""
        self._first += count
        self._stored = {name: part[count : self._count].copy() for name, part in self._stored.items()}
        self._count -= count

    def _trim(self) -> bool:
        """Forget columns and the oldest events not among them yet: one more than ``limit``, as after each event.

        Returns:
            Whether that could be done now.
        """
        assert self.limit is not None
        if not self._lock.acquire(blocking=False):  # never wait: a garbage collection in events() may add a row
            return False
        try:
            if len(self._rows) + self._in_ranges <= 2 * self.limit:  # another thread has made columns of them
                return False
            left, whole = (self.limit + 1, 0) if self._in_ranges else (0, self.limit + 1)
            while left and left >= (size := _size(self._rows[whole])):
                left, whole = left - size, whole + 1
            # So many events have gone in ``whole`` entries.
            self._in_ranges -= self.limit + 1 - left - whole
            if left:
                first = self._rows[whole]
                assert isinstance(first, RowRange)
                self._rows[whole] = first.behind(left)
                self._in_ranges -= left
            del self._rows[:whole]
            self._forget(self._count)
            return True
        finally:
            self._lock.release()

    def _columns_of(self, arrived: Sequence[Row | RowRange]) -> dict[str, np.ndarray]:
        """Return rows and ranges as columns (events,). Labels are numbers: a loop of thousands of steps has few."""
        count, at = sum(map(_size, arrived)), 0
        made: dict[str, np.ndarray] = {name: np.empty(count, dtype) for name, dtype in STORED.items()}
        for _, group in groupby(arrived, type):
            found = list(group)
            rows = [one for one in found if isinstance(one, Row)]
            ranges = [one.columns(self._number) for one in found if isinstance(one, RowRange)]
            for columns in [self._of_rows(rows)] if rows else ranges:
                where = slice(at, at + len(columns["label"]))
                for name, values in columns.items():
                    made[name][where] = values
                at = where.stop
        made["start"] -= self.origin
        made["end"] -= self.origin
        return made

    def _of_rows(self, rows: Sequence[Row]) -> dict[str, Any]:
        causes = [row.cause or _NOT_TOLD for row in rows]
        return {
            "label": [self._number(row.label) for row in rows],
            "start": [row.start for row in rows],
            "end": [row.end for row in rows],
            "run": [row.run for row in rows],
            "quality": [QUALITIES.index(row.quality) for row in rows],
            "status": [STATUSES.index(row.status) for row in rows],
            "why": [cause.why for cause in causes],
            "released_label": [-1 if cause.label is None else self._number(cause.label) for cause in causes],
            "released_run": [cause.run for cause in causes],
        }

    def _number(self, label: Label) -> int:
        number = self._numbers.get(label)
        if number is None:
            number = self._numbers[label] = len(self._labels)
            self._labels.append(label)
        return number


def _size(rows: Row | RowRange) -> int:
    return len(rows) if isinstance(rows, RowRange) else 1
