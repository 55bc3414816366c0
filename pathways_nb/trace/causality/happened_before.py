"""The happened-before graph of a record: what each event waited for, and what follows if something takes less time.

An event begins a fixed *gap* after the last of its sources releases it. Most sources release when they end. A source
that is still under way when its target begins (an enqueue that launches many nodes, an estimated stamp, a transfer that
has left its link) releases a fixed part of its duration before its end. So all recorded times follow from durations and
gaps alone. With other durations, the graph is evaluated again instead of repeating the run; its order is kept.

``dependencies`` finds the edges. ``critical_path``, ``breakdown`` and ``what_if`` use the graph, so they cannot
contradict each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pathways_nb.timing.timed import Timed
from pathways_nb.timing.waits import CALL, LINK, Waits
from pathways_nb.trace.causality.dependencies import edges_of
from pathways_nb.trace.metrics import BUSY, COMPILING, WORK, makes_span, sent
from pathways_nb.trace.record import Events
from pathways_nb.util.words import counted

CAUSES = ("dependency", "host", "transfer", "dispatch", "call", "memory", "scheduling", "compile", "other")
"""What an event can have waited for: work on devices, work on a host, a transfer, its dispatch, the call of its program
by Python, memory or its turn among other programs (these three as the controller recorded them), compiling; *other* is
what nothing in the record explains."""
_SAME = 1e-9
"""Seconds up to which two ends count as equal."""


@dataclass(frozen=True, eq=False)
class Dag:
    """Events in the order of their starts, and the edges between them.

    Args:
        events: those on devices, and what the controller did for them.
        answers: see ``edges_of``.
    """

    events: Events
    answers: np.ndarray

    @classmethod
    def of(cls, events: Events, since: float | None = None) -> Dag:
        """Return the graph of a record.

        Args:
            events: the record.
            since: seconds from which on compiling and stalls count; from the start of the makespan if left out.
        """
        span = makes_span(events)
        since = events["start"][span].min(initial=np.inf) if since is None else since
        held = events.is_("kind", "stall") & (events["run"] >= 0)  # Python's own pauses hold no run back
        held |= events.is_("kind", *COMPILING)
        kept = span | (held & (events["end"] > since))
        inside = events.select(kept)
        # By start, as edges go forward only; of equal starts the shorter one first, which may have released the other.
        order = np.lexsort((inside["id"], inside["end"], inside["start"]))
        waits = events.of_kind("wait")
        answers = np.stack([waits["start"], waits["end"]])
        # (2, waits) seconds, by the ends: ``searchsorted`` needs them to rise.
        return cls(inside.select(order), answers[:, np.argsort(answers[1], kind="stable")])

    @cached_property
    def start(self) -> np.ndarray:
        """Start of each event, in seconds."""
        return self.events["start"]

    @cached_property
    def durations(self) -> np.ndarray:
        """Duration of each event, in seconds."""
        return np.maximum(self.events["end"] - self.start, 0.0)

    @cached_property
    def counts(self) -> np.ndarray:
        """Which of the events make up the makespan."""
        return makes_span(self.events)

    @cached_property
    def on_devices(self) -> np.ndarray:
        """Which of the events happened on devices, or on a host for them."""
        return self.events.is_("kind", *WORK)

    @cached_property
    def span(self) -> tuple[float, float]:
        """Start and end of the makespan, in seconds."""
        if not self.counts.any():
            return 0.0, 0.0
        return float(self.start[self.counts].min()), float((self.start + self.durations)[self.counts].max())

    @cached_property
    def timed(self) -> Timed:
        """The events as timed tasks, with edges sorted by target."""
        source, target, why = edges_of(self.events, self.answers)
        # (edges,) seconds: how long the source takes, and after how much of it the target began.
        durations, until = self.durations[source], self.start[target] - self.start[source]
        part = np.where(durations > until, until / np.where(durations > 0, durations, 1.0), 1.0)
        # A transfer leaves its links before it arrives: the next one need not wait for the latency.
        left = self.events["latency"] / np.where(self.durations > 0, self.durations, np.inf)
        part = np.where(why == LINK, np.maximum(1.0 - left, 0.0)[source], part)
        recorded_why = self.events.stored("why")
        return Timed(Waits.of(source, target, why, part), self.start, self.durations, _SAME, recorded_why)

    @cached_property
    def slack(self) -> np.ndarray:
        """How much later each event could end without a longer makespan, in seconds."""
        return self.timed.slack(np.where(self.counts, self.span[1] - (self.start + self.durations), np.inf))

    @cached_property
    def causes(self) -> np.ndarray:
        """What an event waits for that waits for each of the events, as positions in ``CAUSES``."""
        words = []
        # By label, not by event: ``CAUSES`` depends on nothing else.
        for label in self.events.labels:
            held = "memory" if "memory" in label.name or "back-pressure" in label.name else "scheduling"
            stall = held if label.kind == "stall" and label.route != "DCN" else "dispatch"
            known = {**dict.fromkeys(BUSY, "dependency"), "stall": stall, "enqueue": "dispatch"}
            known |= {kind: kind for kind in ("host", "transfer")}
            words.append(CAUSES.index(known.get(label.kind, "compile" if label.kind in COMPILING else "other")))
        return np.array(words, np.int8)[self.events.label]

    def guessed(self, rows: np.ndarray) -> str:
        """Return in words how many of these events have causes that follow from stamps; empty if none has.

        That is so where none was told, and where what was told is outside of the record.

        Args:
            rows: positions of events.
        """
        asked = (self.on_devices | self.events.is_("kind", "enqueue") | sent(self.events))[rows]
        rows = rows[asked & (self.timed.source[rows] >= 0)]
        told = (self.events.stored("why")[rows] == CALL) | self.timed.has_recorded_why[rows]
        inferred = int((~told).sum())
        if inferred < len(rows):
            return f"causes of {inferred} of {counted(len(rows), 'event')} inferred" if inferred else ""
        return "causes inferred" if inferred else ""

    def causes_of_gaps(self, waited_for: np.ndarray) -> np.ndarray:
        """Return why each event began later than its release by ``waited_for``, as positions in ``CAUSES``."""
        dispatch, call, transfer, other = (CAUSES.index(word) for word in ("dispatch", "call", "transfer", "other"))
        # If what it waited for was the controller's work, the rest of the wait is the controller's as well.
        sent_late = ~self.on_devices | (waited_for < 0) | ~self.on_devices[waited_for]
        # A trace of devices alone tells nothing of who sent their work.
        sent_late &= not self.on_devices.all()
        moved = self.events.is_("kind", "transfer")  # a network that was busy
        # Nothing could be dispatched before Python called it.
        is_call = self.events.is_("kind", "enqueue") & (self.events.stored("why") == CALL)
        return np.where(is_call, call, np.where(sent_late, dispatch, np.where(moved, transfer, other)))
