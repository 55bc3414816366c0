"""Little simulated schedules and random records, for the tests of what is computed from records.

A schedule keeps the constraints it was made from, so that a test can look for the longest chain, or evaluate it again
with other durations, without the code under test.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import strategies as st

from pathways_nb.timing.waits import WHY
from pathways_nb.trace.record import Events
from pathways_nb.trace.rows import BY, Cause, Label, Row

DEVICES = 4
"""Of each of two islands."""


@dataclass
class Made:
    """Events, how long each takes, and which ones each waits for; all at once and in order, so nothing has gaps."""

    labels: list[Label] = field(default_factory=list)
    lasts: list[float] = field(default_factory=list)
    waits_for: list[list[int]] = field(default_factory=list)

    def add(self, label: Label, lasts: float, waits_for: Sequence[int]) -> int:
        """One event more; its number."""
        self.labels.append(label)
        self.lasts.append(lasts)
        self.waits_for.append(list(waits_for))
        return len(self.labels) - 1

    def ends(self, lasts: Sequence[float] | None = None, delays: Sequence[float] | None = None) -> list[float]:
        """When each event ends, if they take ``lasts`` and begin ``delays`` later than they could."""
        found: list[float] = []
        for number, before in enumerate(self.waits_for):
            begin = max((found[i] for i in before), default=0.0) + (delays[number] if delays else 0.0)
            found.append(begin + (lasts or self.lasts)[number])
        return found

    def longest(self, number: int) -> float:
        """Seconds of the longest chain that ends with an event, by trying all of them."""
        return self.lasts[number] + max((self.longest(before) for before in self.waits_for[number]), default=0.0)

    def events(self) -> Events:
        """As a record, in the order of the ends."""
        ends = self.ends()
        rows = [
            Row(label, end - lasts, end, 0) for label, end, lasts in zip(self.labels, ends, self.lasts, strict=True)
        ]
        order = sorted(range(len(rows)), key=lambda number: (ends[number], number))
        return Events.from_rows([rows[number] for number in order])

    def ids(self) -> list[int]:
        """The id in ``events()`` of each event."""
        ends = self.ends()
        order = sorted(range(len(ends)), key=lambda number: (ends[number], number))
        return [order.index(number) for number in range(len(ends))]


@st.composite
def schedules(draw: st.DrawFn, most: int = 9, shortest: int = 1) -> Made:
    """A program of up to ``most`` nodes over two islands, sent to each by one message; all times are whole seconds."""
    made, takes = Made(), st.integers(shortest, 4)
    sent = [
        made.add(Label("stall", "message", "p", island=island, route="DCN"), draw(st.integers(1, 6)), [])
        for island in (0, 1)
    ]
    launched: list[int] = []
    places: list[tuple[int, int, int]] = []
    there: dict[tuple[int, tuple[int, int, int]], tuple[int, int]] = {}
    last: dict[tuple[int, int], int] = {}
    for node in range(draw(st.integers(1, most))):
        island, first = draw(st.integers(0, 1)), draw(st.integers(0, DEVICES - 1))
        place = island, first, draw(st.integers(1, DEVICES - first))
        where = {"island": island, "device": first, "devices": place[2]}
        parents, needs = set(), {sent[island]}
        for source in draw(st.sets(st.integers(0, node - 1), max_size=3)) if node else ():
            if places[source] == place:
                parents.add(source)
                needs.add(launched[source])
                continue
            if (source, place) not in there:
                label = Label("transfer", "move", "p", node=node, parents=(source,), **where)
                there[source, place] = made.add(label, draw(takes), [launched[source], sent[island]]), node
            number, mover = there[source, place]
            parents.add(mover)
            needs.add(number)
        devices = [(island, device) for device in range(first, first + place[2])]
        needs |= {last[device] for device in devices if device in last}
        label = Label("compute", f"n{node}", "p", node=node, parents=tuple(sorted(parents)), **where)
        launched.append(made.add(label, draw(takes), sorted(needs)))
        places.append(place)
        last |= dict.fromkeys(devices, launched[-1])
    return made


KINDS = ("compute", "collective", "transfer", "enqueue", "stall", "message", "compile", "wait", "memory")


@st.composite
def records(draw: st.DrawFn, most: int = 25) -> Events:
    """Any events at any time: overlaps, unknown parents, nothing of a length, causes that cannot be."""
    rows: list[Row] = []
    for _ in range(draw(st.integers(0, most))):
        kind, first = draw(st.sampled_from(KINDS)), draw(st.integers(0, DEVICES - 1))
        label = Label(
            "stall" if kind == "message" else kind,
            draw(st.sampled_from(["f", "g", "memory of island 0", "waits its turn"])),
            "p",
            node=draw(st.integers(-1, 4)),
            island=draw(st.integers(0, 1)),
            device=first,
            devices=draw(st.integers(1, DEVICES - first)),
            parents=tuple(draw(st.lists(st.integers(0, 4), max_size=2))),
            route="DCN" if kind == "message" else "",
        )
        start = draw(st.integers(0, 40)) / 4
        by = draw(st.sampled_from([None, *rows]))
        causes = [None, BY[why := draw(st.integers(0, len(WHY) - 1))], by and Cause(why, by.label, by.run)]
        lasts, run = draw(st.integers(0, 20)) / 4, draw(st.integers(-1, 1))
        rows.append(Row(label, start, start + lasts, run, cause=draw(st.sampled_from(causes))))
    return Events.from_rows(rows)
