"""One row of the record: what happened, when, and why it began then.

What is known of an event before it happens is a ``Label``, shared by all its occurrences; an occurrence is a ``Row``.
``record`` keeps rows as columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np

from pathways_nb.timing.waits import WHY

KINDS = (
    *("trace", "lower", "compile", "enqueue", "wait", "compute", "collective", "transfer", "stall", "fetch"),
    *("memory", "host", "lost", "back"),
)
"""Kinds of events, in the order in which a program meets them; last, devices that were lost and that are back."""
QUALITIES = ("exact", "estimated", "interpolated", "simulated")
"""How a stamp is known; see ``Row.quality``. Columns store positions in this tuple."""
STATUSES = ("ok", "draining", "failed")
"""How an event ended; see ``Row.status``. Columns store positions in this tuple."""
CONTROLLER_KINDS = frozenset({"trace", "lower", "compile", "enqueue", "wait", "stall", "fetch"})
"""Kinds that are drawn on the controller's lane; the others happen on devices, or on an island's host (``"host"``)."""
CONTROLLER_ROWS = {"stall": 1, "wait": 2, "fetch": 2}
"""Row of a kind of event in the controller's lane; kinds that are not listed are in row 0."""
HOST_KIND = "host"
"""The kind of host work: it happens on an island's host, on no device."""
WINDOW_FULL = "as many launches under way as may be"
"""The name of a stall in which a dispatcher waits for its own island's devices, because they have enough to do."""
WAITS_ITS_TURN = "waits its turn"
"""The name of a stall in which a client waits for its turn among others."""
WAITS_FOR_MEMORY = ("memory of island", "back-pressure: memory")
"""How the names of stalls begin in which a program, or a value that is put, waits for memory."""
GAUGE_KINDS = frozenset({"memory", "lost", "back"})
"""Kinds that say how things are and are no work: ``client`` holds ``bytes`` for ``category`` on each device meanwhile;
from now on, devices are lost or there again."""


@dataclass(frozen=True, slots=True, eq=False)
class Label:
    """All that is known of an event before it happens, shared by its occurrences.

    Labels are compared by identity: every event is looked up by its label, and hashing twenty fields would be slow.

    Args:
        kind: one of ``KINDS``.
        name: name of the node, as the user wrote it, or of what else happened.
        program: name of the program.
        client: name of the client that called the program.
        node: id in the program's graph; -1 if none.
        place: name of the virtual slice.
        island: index of the island; -1 for the controller.
        device: first device within the island.
        devices: number of devices from ``device`` on.
        stage: stage of a pipeline; -1 if none.
        microbatch: microbatch of a pipeline; -1 if none.
        token_slice: token slice of a pipeline; -1 if none.
        bytes: bytes that crossed (each copy counted) or were produced; of ``"memory"``, bytes held on each device.
        flops: floating-point operations; 0 if unknown.
        parents: node ids of the producers, in the same run.
        route: of transfers, ``"host"``, ``"local"``, ``"ICI"`` or ``"DCN"``; of messages on their way, ``"DCN"``.
        line: where the user wrote it.
        basis: where a simulated duration comes from, such as ``"declared"`` or ``"roofline, compiled"``; of a node also
            where its memory comes from, such as ``"memory compiled for 128 devices"``. Of a collective in a trace of
            another tool, who takes part in it, and the type of its elements.
        links: names of the links that a simulated transfer occupies.
        latency: seconds of a simulated transfer's duration in which it no longer occupies its links.
        category: of ``"memory"``, what the bytes are held for, such as ``"parameters"`` or ``"temporaries"``; see
            ``plan.memory_categories``.
        host: number of the host within its island, where the island has several; -1 if it has one or none is meant.
        stream: of a device in a trace of another tool, the stream or queue that it ran on; empty otherwise.
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
    basis: str = ""
    links: tuple[str, ...] = ()
    latency: float = 0.0
    category: str = ""
    host: int = -1
    stream: str = ""


label_of = lru_cache(maxsize=4096)(Label)
"""A ``Label``, the same object for the same arguments: for events that may happen in every step of a loop. Without it,
each of them would add a row to the table of labels."""


class Cause(NamedTuple):
    """Why an event began when it did, where whoever recorded it knows.

    Args:
        why: position in ``timing.waits.WHY``. Data, lane, link and message are found in the plan and the record by it.
        label: of the event that let it begin, where only the controller knows which one did.
        run: serial of that event's call.
    """

    why: int
    label: Label | None = None
    run: int = -1


BY = tuple(map(Cause, range(len(WHY))))
"""Causes of which only the reason is said, by position in ``timing.waits.WHY``."""


class Row(NamedTuple):
    """One occurrence of an event.

    Args:
        label: what is known of it beforehand.
        start: in seconds on the clock of the record.
        end: in seconds on the clock of the record.
        run: serial of the call; -1 if none.
    """

    label: Label
    start: float
    end: float
    run: int = -1
    quality: str = "estimated"
    """``"exact"`` (both stamps measured), ``"estimated"`` (start inferred), ``"interpolated"`` (not sampled) or
    ``"simulated"`` (from the cost model)."""
    status: str = "ok"
    """``"ok"``, ``"draining"`` (ended after an interrupt) or ``"failed"``."""
    cause: Cause | None = None
    """Why it began when it did; ``None`` if that is not known."""


@dataclass(slots=True, eq=False)
class RowRange:
    """Events of one call, kept as columns; its rows are made only if somebody asks for them.

    Args:
        labels: of the events.
        starts: in seconds on the clock of the record; (events,), as all columns here.
        ends: in seconds on the clock of the record.
        run: serial of the call.
        qualities: as of ``Row``, or one for all.
        status: as of ``Row``.
        whys: why each begins when it does: positions in ``timing.waits.WHY``, or one for all.
    """

    labels: Sequence[Label]
    starts: np.ndarray | Sequence[float]
    ends: np.ndarray | Sequence[float]
    run: int
    qualities: Sequence[str] | str
    status: str
    whys: Sequence[int] | int

    def __len__(self) -> int:
        return len(self.labels)

    def __iter__(self) -> Iterator[Row]:
        starts, ends = (np.asarray(column).tolist() for column in (self.starts, self.ends))
        whys = repeat(self.whys, len(self)) if isinstance(self.whys, int) else self.whys
        qualities = repeat(self.qualities, len(self)) if isinstance(self.qualities, str) else self.qualities
        for label, start, end, quality, why in zip(self.labels, starts, ends, qualities, whys, strict=True):
            yield Row(label, start, end, self.run, quality, self.status, BY[why])

    def behind(self, first: int) -> RowRange:
        """Return the events from the one at position ``first`` on."""
        whys = self.whys if isinstance(self.whys, int) else self.whys[first:]
        qualities = self.qualities if isinstance(self.qualities, str) else self.qualities[first:]
        starts, ends = self.starts[first:], self.ends[first:]
        return RowRange(self.labels[first:], starts, ends, self.run, qualities, self.status, whys)

    def columns(self, number: Callable[[Label], int]) -> dict[str, Any]:
        """Return the events as columns, or one value for all of them, as a record stores them; see ``record.STORED``.

        Args:
            number: returns the number of a label.
        """
        of = self.qualities
        return {
            "label": list(map(number, self.labels)),
            "start": self.starts,
            "end": self.ends,
            "run": self.run,
            "quality": QUALITIES.index(of) if isinstance(of, str) else [QUALITIES.index(one) for one in of],
            "status": STATUSES.index(self.status),
            "why": self.whys,
            "released_label": -1,
            "released_run": -1,
        }
