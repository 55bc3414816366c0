"""The one record of what happened, for every backend, view, export, metric and test.

Events arrive as short rows (a shared label and two stamps), from any thread, and are stored as columns.
Times are in seconds on the clock of the controller; sizes in bytes. Nothing here is live: a record only remembers.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np

KINDS = ("trace", "lower", "compile", "enqueue", "wait", "compute", "collective", "transfer", "stall", "fetch")
CONTROLLER_KINDS = frozenset({"trace", "lower", "compile", "enqueue", "wait", "stall", "fetch"})
"""Kinds drawn on the controller's lane; the others happen on devices."""


@dataclass(frozen=True, slots=True)
class Label:
    """Everything about an event that is known before it happens; shared by all its occurrences.

    Args:
        kind: one of ``KINDS``.
        name: what the user calls it.
        program, client: whose it is.
        node: id in the program's graph, -1 if none.
        place: the virtual slice's name.
        island: index of the island, -1 for the controller.
        device, devices: first device within the island, and how many from there.
        stage, microbatch, token_slice: position in a pipeline, -1 if none.
        bytes: bytes moved or produced. flops: floating-point operations, 0 if unknown.
        parents: node ids of the producers, in the same run.
        route: for transfers, ``"host"``, ``"local"``, ``"ICI"`` or ``"DCN"``.
        line: where the user wrote it.
    """

    kind: str
    name: str
    program: str = ""
    client: str = ""
    node: int = -1
    place: str = ""
    island: int = -1
    device: int = 0
    devices: int = 0
    stage: int = -1
    microbatch: int = -1
    token_slice: int = -1
    bytes: int = 0
    flops: float = 0.0
    parents: tuple[int, ...] = ()
    route: str = ""
    line: str = ""


class Row(NamedTuple):
    """One occurrence: when, in which run, how exactly known, and how it ended."""

    label: Label
    start: float
    end: float
    run: int = -1
    quality: str = "estimated"
    """``"exact"`` (both stamps measured), ``"estimated"`` (start inferred) or ``"interpolated"`` (not sampled)."""
    status: str = "ok"
    """``"ok"``, ``"draining"`` (finished after an interrupt), ``"failed"``."""


_NUMBERS: dict[str, type] = {
    **dict.fromkeys(("node", "island", "device", "devices", "stage", "microbatch", "token_slice", "run"), np.int32),
    **dict.fromkeys(("id", "bytes"), np.int64),
    **dict.fromkeys(("flops", "start", "end"), np.float64),
}
LABEL_COLUMNS = tuple(field.name for field in fields(Label))
COLUMNS = ("id", *LABEL_COLUMNS, *Row._fields[1:])


class Events:
    """Events as NumPy columns of equal length, named by ``COLUMNS``; times in seconds, sizes in bytes."""

    def __init__(self, columns: dict[str, np.ndarray]):
        self.columns = columns

    @classmethod
    def from_rows(cls, rows: Sequence[Row], first_id: int = 0) -> Events:
        """Turn rows into columns; ids count up from ``first_id``."""
        labels = [row.label for row in rows]
        data: dict[str, list[Any]] = {"id": list(range(first_id, first_id + len(rows)))}
        data |= {name: [getattr(label, name) for label in labels] for name in LABEL_COLUMNS}
        data |= {name: [row[i] for row in rows] for i, name in enumerate(Row._fields) if i}
        return cls({name: _column(name, values) for name, values in data.items()})

    @classmethod
    def concatenate(cls, parts: Sequence[Events]) -> Events:
        """Join parts end to end."""
        return cls({name: np.concatenate([part[name] for part in parts]) for name in COLUMNS})

    def __len__(self) -> int:
        return len(self.columns["id"])

    def __getitem__(self, name: str) -> np.ndarray:
        return self.columns[name]

    def select(self, mask: np.ndarray) -> Events:
        """The events for which ``mask`` is true, or those at the given indices."""
        return Events({name: column[mask] for name, column in self.columns.items()})

    def of_kind(self, *kinds: str) -> Events:
        """The events of these kinds."""
        return self.select(np.isin(self["kind"].astype(str), kinds) if len(self) else np.zeros(0, bool))

    def rows(self) -> Iterator[dict[str, Any]]:
        """Each event as a dictionary, for tests and small tables."""
        for i in range(len(self)):
            yield {name: column[i] for name, column in self.columns.items()}

    def __repr__(self) -> str:
        return f"<{len(self)} events: {', '.join(COLUMNS)}>"


def _column(name: str, values: list[Any]) -> np.ndarray:
    if name in _NUMBERS:
        return np.asarray(values, _NUMBERS[name])
    column = np.empty(len(values), object)
    column[:] = values
    return column


class Record:
    """Remembers events until cleared. ``add`` may be called from any thread and costs under a microsecond.

    Args:
        limit: remember about this many of the newest only; ``forgotten`` counts the others.
    """

    def __init__(self, limit: int | None = None) -> None:
        self.limit, self.forgotten = limit, 0
        self._rows: list[Row] = []
        self._parts: list[Events] = [Events.from_rows([])]
        self._lock = threading.Lock()

    def add(self, row: Row) -> None:
        """Remember one event."""
        self._rows.append(row)  # list.append is atomic: no lock on the hot path
        if self.limit is not None and len(self._rows) > 2 * self.limit:
            self._trim()

    def extend(self, rows: Sequence[Row]) -> None:
        """Remember several events."""
        self._rows.extend(rows)

    def events(self, since: int = 0) -> Events:
        """All events with an id of at least ``since``, as columns."""
        with self._lock:
            count = len(self._rows)
            if count:
                fresh, self._rows[:count] = self._rows[:count], []
                self._parts.append(Events.from_rows(fresh, self._count()))
            if len(self._parts) > 32:
                self._parts = [Events.concatenate(self._parts)]
            parts = [part for part in self._parts if len(part) and part["id"][-1] >= since] or self._parts[:1]
            joined = parts[0] if len(parts) == 1 else Events.concatenate(parts)
        return joined.select(joined["id"] >= since) if since else joined

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._rows.clear()
            self._parts = [Events.from_rows([])]

    def _trim(self) -> None:
        assert self.limit is not None
        with self._lock:
            self.forgotten += self._count() + max(0, len(self._rows) - self.limit)
            self._parts = [Events.from_rows([])]
            del self._rows[: -self.limit]

    def _count(self) -> int:
        return sum(len(part) for part in self._parts)
