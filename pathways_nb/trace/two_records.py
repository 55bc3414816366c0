"""Two records on one axis: what devices and controllers did in both, and what one of them costs beyond the other.

Events have the partners that ``matching`` finds. An event costs more than its partner if it takes longer, or if its
devices wait longer before it: these seconds (``Surplus``) are what a picture of both shades.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pathways_nb.trace.matching import SAME, beginning, keys_of
from pathways_nb.trace.metrics import BUSY, WORK, makes_span
from pathways_nb.trace.record import STORED, Events
from pathways_nb.trace.rows import CONTROLLER_KINDS, GAUGE_KINDS, Label

MOST_EVENTS = 20_000
"""Number of events of two records up to which it is found what each costs beyond its partner."""


@dataclass(frozen=True)
class Surplus:
    """The seconds that each event of two records costs and its partner in the other record does not.

    On one device, those of one record minus those of the other add up to the difference of both ends, if every event
    has a partner.

    Args:
        within: by which the event takes longer, (events,); 0 if it does not, or has no partner.
        before: by which its devices wait longer before it, (events,).
    """

    within: np.ndarray
    before: np.ndarray


class TwoRecords(Events):
    """Two records as one, which any view can draw."""

    surplus: Surplus
    """What each event costs beyond its partner, by the ``id`` of the event."""
    of_first: int
    """How many events are of the first record; these come first."""


def as_one_record(first: Events, second: Events, islands: int) -> TwoRecords:
    """Return two records as one: from time 0 on, what devices did and held, and what their controllers did meanwhile.

    The islands of the second come after those of the first. What its controller did on no island has the island
    ``-1 - islands``, so that a view can tell two controllers apart.

    Args:
        first: events of the first record.
        second: events of the second record.
        islands: number of islands of the first record.
    """
    labels: list[Label] = []
    parts, sides = [], []
    for offset, events in ((0, first), (islands, second)):
        begin, of_controller = beginning(events), events.is_("kind", *CONTROLLER_KINDS)
        meanwhile = of_controller & ((events["end"] > begin) | makes_span(events))
        drawn = events.is_("kind", *WORK, *GAUGE_KINDS) | meanwhile
        chosen = events.select(drawn)
        sides.append(chosen)
        start, end = chosen["start"] - begin, chosen["end"] - begin
        # Of what began before the first dispatch, as a wait of Python, the part before is cut off.
        start = np.where(meanwhile[drawn], np.maximum(start, 0.0), start)
        shifted = {"label": chosen.label + len(labels), "start": start, "end": end}
        # Positions in the table of labels, which are put one behind the other here; -1 stays unknown.
        by = chosen.stored("released_label")
        shifted["released_label"] = np.where(by < 0, by, by + len(labels))
        parts.append({name: chosen.stored(name) for name in STORED} | shifted)
        labels += [
            replace(label, island=label.island + (offset if label.island >= 0 else -offset)) for label in chosen.labels
        ]
    stored = {name: np.concatenate([part[name] for part in parts]) for name in STORED}
    both = TwoRecords(labels, stored, np.arange(len(stored["label"]), dtype=np.int64))
    both.surplus, both.of_first = _surplus(*sides), len(sides[0])
    return both


def _surplus(first: Events, second: Events) -> Surplus:
    """Return what each event costs beyond its partner; of very many events, nothing."""
    found = Surplus(*np.zeros((2, len(first) + len(second))))
    if len(first) + len(second) > MOST_EVENTS:
        return found
    a, b = _costs(first), _costs(second)
    for own, other, offset in ((a, b, 0), (b, a, len(first))):
        for key in own.keys() & other.keys():
            row, takes, waits = own[key]
            more = takes - other[key][1], waits - other[key][2]
            # What differs by rounding only is no difference.
            found.within[offset + row], found.before[offset + row] = (part if part >= SAME else 0.0 for part in more)
    return found


def _costs(events: Events) -> dict[tuple[Any, ...], tuple[int, float, float]]:
    """Return of each event on devices, by what it is known by: its position, its seconds, and those before it.

    These are the seconds since one of its devices was last busy; of transfers and host work none.
    """
    begin, start, end = beginning(events), events["start"].tolist(), events["end"].tolist()
    found: dict[tuple[Any, ...], tuple[int, float, float]] = {}
    # island -> (devices,) when each was last busy.
    last: defaultdict[int, np.ndarray] = defaultdict(lambda: np.full(1, begin))
    for key, row in keys_of(events):
        label, waits = events.labels[events.label[row]], 0.0
        if label.kind in BUSY:
            island, size = last[label.island], max(label.device + label.devices, 1)
            if len(island) < size:
                island = last[label.island] = np.pad(island, (0, size - len(island)), constant_values=begin)
            own = island[label.device : size if label.devices else None]
            waits = max(start[row] - float(own.max()), 0.0)
            np.maximum(own, end[row], out=own)
        # A launch on several hosts has a part on each, and each has a partner.
        found[(*key, label.host)] = row, end[row] - start[row], waits
    return found
