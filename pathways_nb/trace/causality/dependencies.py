"""Which event waited for which: the edges of a record's happened-before graph.

Events are a DAG's (see ``happened_before``), in the order of their starts; every edge goes from an earlier to a later
one. *Data*: from what made or brought a node's inputs in the same run. *Link*: from what travelled before it on any of
its links. *Order*: from what ran before on any of its devices. *Dispatch*: from the message or enqueue that brought it
to its island. Before those come what held the run back (a stall, compiling, Python waiting for a value) and, under
sequential dispatch, the producers and whatever else it was held for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from pathways_nb.trace.metrics import BUSY, COMPILING, sent
from pathways_nb.trace.record import Events, Label
from pathways_nb.util.intervals import Intervals

DISPATCH, ORDER, LINK, DATA = range(4)
"""Sorts of edges; of several sources that end together, the one of the highest sort is said to have been waited for."""
_STREAMS = 4
"""Events that may run side by side on a device."""


class Edges(NamedTuple):
    """Positions of the events at both ends of each edge, and its sort."""

    source: np.ndarray
    target: np.ndarray
    sort: np.ndarray

    @classmethod
    def of(cls, source: np.ndarray, target: np.ndarray, sort: int) -> Edges:
        """Edges of one sort, without those from -1, which is none, and those that would go back."""
        known = (source >= 0) & (source < target)
        return cls(source[known], target[known], np.full(int(known.sum()), sort, np.int8))

    @classmethod
    def joined(cls, *parts: Edges) -> Edges:
        """All edges of ``parts``."""
        return cls(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def edges_of(events: Events, answers: np.ndarray) -> Edges:
    """All edges between ``events``, which lie in the order of their starts.

    Args:
        events: on devices and of the controller.
        answers: when Python began to wait for a value and when it got it, in seconds, in two rows; the ends rise.
    """
    rows = np.flatnonzero(events.is_("kind", *BUSY, "transfer"))
    data, order = _data(events, rows), Edges.joined(_device_order(events), _link_order(events))
    dispatch, brought_by = _dispatch(events, rows, Edges.joined(data, order))
    heads = _heads(events, rows, brought_by)
    apart = (heads[data.target] != data.target) & (events["end"][data.source] <= events["start"][heads[data.target]])
    asked = Edges.of(data.source[apart], heads[data.target[apart]], DATA)  # dispatched when they were done
    messages = np.flatnonzero(sent(events))
    held = _held_back(events, np.union1d(heads[rows], messages), rows, answers)
    return Edges.joined(data, order, dispatch, asked, held)


def _data(events: Events, rows: np.ndarray) -> Edges:
    """From each of a node's producers, and from each transfer made for it, to the node."""
    pairs = np.array(sorted(_pairs(events.labels)), np.int64).reshape(-1, 2)
    low, high = (np.searchsorted(pairs[:, 0], events.label[rows], side) for side in ("left", "right"))
    target, which = _each(rows, low, high)
    run = events["run"]
    source = last_before(rows, (rows, run[rows], events.label[rows]), (target, run[target], pairs[which, 1]))
    return Edges.of(source, target, DATA)


def _pairs(labels: Sequence[Label]) -> Iterator[tuple[int, int]]:
    """(Label of a node or transfer, label of one of its producers): of the same microbatch where it has one there."""
    makers: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for number, label in enumerate(labels):
        if label.node >= 0 and label.kind in (*BUSY, "transfer"):
            node = label.program, label.client, label.node
            makers[node].append(number)
            makers[*node, label.microbatch, label.token_slice].append(number)
    for number, label in enumerate(labels):
        for parent in label.parents if label.kind in (*BUSY, "transfer") else ():
            node = label.program, label.client, parent
            found = makers.get((*node, label.microbatch, label.token_slice)) or makers.get(node, [])
            yield from ((number, maker) for maker in found if maker != number)


def _link_order(events: Events) -> Edges:
    """From the last transfer before it on each of its links."""
    rows, link = turns(events)
    order = np.lexsort((rows, link))
    rows, link = rows[order], link[order]
    same = link[1:] == link[:-1]
    return Edges.of(rows[:-1][same], rows[1:][same], LINK)


def turns(events: Events) -> tuple[np.ndarray, np.ndarray]:
    """For each transfer and each of its links, the transfer's position and the link's number."""
    numbers: dict[str, int] = {}
    found = [
        (label, numbers.setdefault(link, len(numbers))) for label, one in enumerate(events.labels) for link in one.links
    ]
    pairs = np.array(found, np.int64).reshape(-1, 2)
    low, high = (np.searchsorted(pairs[:, 0], events.label, side) for side in ("left", "right"))
    rows, which = _each(np.arange(len(events)), low, high)
    return rows, pairs[which, 1]


def _each(rows: np.ndarray, low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each of ``rows`` as often as there are numbers from its ``low`` up to its ``high``, and these numbers."""
    count = high - low
    repeated = np.repeat(rows, count)
    return repeated, np.arange(len(repeated)) + np.repeat(low - (np.cumsum(count) - count), count)


def _device_order(events: Events) -> Edges:
    """From the last event before it on each of its devices, unless both ran side by side."""
    start, end = events["start"].tolist(), events["end"].tolist()
    rows = np.flatnonzero(events.is_("kind", *BUSY))
    low = events["device"][rows]
    columns = (rows, events["island"][rows], low, low + np.maximum(events["devices"][rows], 1))
    latest: dict[int, Intervals[int]] = defaultdict(lambda: Intervals(-1))
    """By island: the last event so far on each device, -1 for none."""
    previous: dict[int, int] = {}
    found = []
    for row, island, first, stop in zip(*(column.tolist() for column in columns), strict=True):
        for before in set(latest[island].replace(first, stop, row)):
            for _ in range(_STREAMS):
                both = min(end[before], end[row]) - start[row]
                if before < 0 or 2 * both <= min(end[before] - start[before], end[row] - start[row]):
                    break
                before = previous[before]
            previous[row] = before
            found.append((before, row))
    pairs = np.array(found, np.int64).reshape(-1, 2)
    return Edges.of(pairs[:, 0], pairs[:, 1], ORDER)


def _dispatch(events: Events, rows: np.ndarray, known: Edges) -> tuple[Edges, np.ndarray]:
    """From the last message or enqueue of its run and island that was over, or if nothing else explains why it began
    when it did, from one that was under way; and by what each event was brought, -1 if by nothing.
    """
    start, end, where = events["start"], events["end"], (events["run"], events["island"])
    messages, enqueues = np.flatnonzero(sent(events)), np.flatnonzero(events.is_("kind", "enqueue"))
    brought_by = np.full(len(start), -1)
    brought_by[enqueues] = _last_over(messages, enqueues, start, end, *where)
    orders = np.union1d(messages, enqueues)
    over = np.where(
        (events.is_("kind", "transfer") & events.is_("quality", "simulated"))[rows],  # no host need enqueue these
        _last_over(messages, rows, start, end, *where),
        _last_over(orders, rows, start, end, *where),
    )
    brought_by[rows] = over
    ready = np.full(len(start), -np.inf)
    np.maximum.at(ready, known.target, end[known.source])
    late = rows[(ready[rows] < start[rows]) & ((over < 0) | (end[over] < start[rows]))]
    begun = last_before(orders, (orders, *(key[orders] for key in where)), (late, *(key[late] for key in where)))
    brought_by[late] = begun
    parts = [(over, rows), (begun, late), (brought_by[enqueues], enqueues)]
    parts.append((_last_over(enqueues, enqueues, start, end, events["island"]), enqueues))
    return Edges.joined(*(Edges.of(source, target, DISPATCH) for source, target in parts)), brought_by


def _heads(events: Events, rows: np.ndarray, brought_by: np.ndarray) -> np.ndarray:
    """What the controller sent first for each event: a message, else an enqueue, else the event itself."""
    heads = np.where(brought_by >= 0, brought_by, np.arange(len(brought_by)))
    heads[rows] = heads[heads[rows]]
    return heads


def _held_back(events: Events, heads: np.ndarray, rows: np.ndarray, answers: np.ndarray) -> Edges:
    """To what was sent first, from a stall of its run and from compiling its program; to the first of a run on each
    island, and to its stalls, from what Python had waited for when it called; to a message that was held until then,
    from what had ended on its island and so made room, or if it is simulated, from what ended at that very time.
    """
    start, end, run = events["start"], events["end"], events["run"]
    stalls = np.flatnonzero(events.is_("kind", "stall") & ~sent(events))
    stalled = last_before(stalls, (stalls, run[stalls]), (heads, run[heads]))
    names = {name: number for number, name in enumerate(dict.fromkeys(events.by_label("program").tolist()))}
    program = np.array([names[label.program] for label in events.labels], np.int64)[events.label]
    compiled = _last_over(np.flatnonzero(events.is_("kind", *COMPILING)), heads, start, end, program)
    _, first = np.unique(np.stack([run[heads], events["island"][heads]]), axis=1, return_index=True)
    room = np.where(sent(events)[heads], _last_over(rows, heads, start, end, events["island"]), -1)
    room[~_held(start[heads], run[heads], first, answers) & ~(end[room] > start[stalled])] = -1
    at_once = _at_once(events, heads, rows)
    room = np.where(at_once >= 0, at_once, room)
    stalled = np.where(room >= 0, -1, stalled)  # what made room says it better
    first = np.concatenate([heads[first], stalls])
    answered = np.searchsorted(answers[1], start[first], "right") - 1
    at = np.where(answered >= 0, np.append(answers[1], -np.inf)[answered], -np.inf)
    waited = last_before(rows, (end[rows],), (at,))
    parts = ((stalled, heads), (compiled, heads), (waited, first), (room, heads))
    return Edges.joined(*(Edges.of(source, target, DISPATCH) for source, target in parts))


def _at_once(events: Events, heads: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """What ended on devices at the very time at which each simulated message was sent, in its own run if any did; -1:
    none. A simulated controller reacts to an end in no time, and to nothing else that takes time on devices.
    """
    start, end, run = events["start"], events["end"], events["run"]
    any_run = last_before(rows, (end[rows], end[rows]), (start[heads], start[heads]))
    own = last_before(rows, (end[rows], end[rows], run[rows]), (start[heads], start[heads], run[heads]))
    reacts = sent(events)[heads] & events.is_("quality", "simulated")[heads]
    return np.where(reacts, np.where(own >= 0, own, any_run), -1)


def _held(start: np.ndarray, run: np.ndarray, first: np.ndarray, answers: np.ndarray) -> np.ndarray:
    """Whether the record tells that the call of each of these, at positions ``first`` for the first time, was over
    before: it is not the first, a run that was called later has begun, or Python was waiting.
    """
    waiting = np.searchsorted(answers[1], start)
    found = np.append(answers[0], np.inf)[waiting] < start
    order = np.argsort(run, kind="stable")
    found[order] |= np.minimum.accumulate(start[order][::-1])[::-1] < start[order]
    found[np.setdiff1d(np.arange(len(start)), first)] = True
    return found


def _last_over(
    sources: np.ndarray, targets: np.ndarray, start: np.ndarray, end: np.ndarray, *keys: np.ndarray
) -> np.ndarray:
    """For each of ``targets`` the last of ``sources`` with the same keys that had ended when it began; -1: none."""
    asked = (start[targets], *(key[targets] for key in keys))
    return last_before(sources, (end[sources], *(key[sources] for key in keys)), asked)


def last_before(sources: np.ndarray, there: tuple[np.ndarray, ...], asked: tuple[np.ndarray, ...]) -> np.ndarray:
    """For each who asks, the last of ``sources`` with the same keys that is there by then; -1: none.

    Args:
        there: a time or position for each source, then its keys. asked: the same columns of those who ask.
    """
    columns = [np.concatenate(pair) for pair in zip(there, asked, strict=True)]
    asks = np.arange(len(columns[0])) >= len(sources)
    order = np.lexsort((asks, *columns))
    last = np.maximum.accumulate(np.where(asks[order], -1, np.arange(len(order))))
    same = last >= 0
    for key in columns[1:]:
        same &= key[order][last] == key[order]
    found = np.empty(len(order), np.int64)
    found[order] = order[last]
    found[order[~same]] = -1
    return np.where(found >= 0, np.append(sources, -1)[np.minimum(found, len(sources))], -1)[len(sources) :]
