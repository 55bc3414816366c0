"""Which event waited for which: the edges of a record's happened-before graph.

Whoever recorded an event may have said why it began, and what let it begin (``rows.Cause``). Where nobody did, as in
profiles and older files, that is inferred from what the record says of nodes, links, devices and messages. Events are
those of a ``Dag`` (see ``happened_before``), in the order of their starts, and every edge goes from an earlier to a
later one, so the graph has no cycles by construction.

- *Data*: from what produced or brought a node's inputs in the same call.
- *Link*: from the transfer before it on any of its links.
- *Order*: from what ran before it on any of its devices, or on its host.
- *Dispatch*: from the message or enqueue that brought it to its island. Before those come what held the call back (a
  stall, compiling, Python waiting for a value) and, under sequential dispatch, the producers and whatever else it was
  held for. Before an enqueue comes also the launch that made room for it, if as many were under way as may be.

All functions work on whole columns: a record may hold a million events.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from pathways_nb.timing.waits import CALL, DATA, LANE, LINK, MESSAGE, WINDOW
from pathways_nb.trace.metrics import BUSY, COMPILING, WORK, held_back, sent, window_full
from pathways_nb.trace.record import Events
from pathways_nb.trace.rows import HOST_KIND, Label
from pathways_nb.util.columns import last_before
from pathways_nb.util.intervals import Intervals

_HOST = 1 << 30
"""What stands for an island's host among the numbers of its devices."""
_STREAMS = 4
"""Number of events that may run side by side on a device."""


class Edges(NamedTuple):
    """Edges as columns (edges,): positions of the events at both ends, and reasons.

    Args:
        source: position of the earlier event.
        target: position of the later event.
        why: why it waited, as a position in ``timing.waits.WHY``.
    """

    source: np.ndarray
    target: np.ndarray
    why: np.ndarray

    @classmethod
    def of(cls, source: np.ndarray, target: np.ndarray, why: int | np.ndarray) -> Edges:
        """Return edges without sources of -1, which mean none, and without edges that would go back."""
        # Events are sorted by start: an edge to an earlier one comes from stamps that are not exact, and could make a
        # cycle.
        known = (source >= 0) & (source < target)
        return cls(source[known], target[known], np.broadcast_to(np.int8(why), known.shape)[known])

    @classmethod
    def concatenate(cls, *parts: Edges) -> Edges:
        """Return all edges of ``parts``."""
        return cls(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def edges_of(events: Events, answers: np.ndarray) -> Edges:
    """Return all edges between ``events``, which must be in the order of their starts.

    Args:
        events: on devices and of the controller.
        answers: when Python began to wait for a value and when it got the value, in seconds: (2, answers); the ends
            rise.
    """
    # (events on devices,) positions among all events; the same in all functions below.
    rows = np.flatnonzero(events.is_("kind", *WORK))
    data, order = data_edges(events), Edges.concatenate(_device_order(events), _link_order(events))
    dispatch, brought_by = _dispatch(events, rows, Edges.concatenate(data, order))
    # What the controller sent first for each event: a message, else an enqueue, else the event itself.
    heads = np.where(brought_by >= 0, brought_by, np.arange(len(brought_by)))
    # Twice: what brought an event may be an enqueue, which a message brought.
    heads[rows] = heads[heads[rows]]
    # The producer had ended when this was sent, as under sequential dispatch: the controller may have waited for it.
    apart = (heads[data.target] != data.target) & (events["end"][data.source] <= events["start"][heads[data.target]])
    asked = Edges.of(data.source[apart], heads[data.target[apart]], DATA)  # dispatched when they were done
    messages = np.flatnonzero(sent(events))
    held = _held_back(events, np.union1d(heads[rows], messages), rows, answers)
    return Edges.concatenate(data, order, dispatch, asked, held, _window(events), _recorded(events))


def _recorded(events: Events) -> Edges:
    """Return the edges of which the record says both ends and why."""
    source = events.releasers
    target = np.flatnonzero(source >= 0)
    return Edges.of(source[target], target, events.stored("why")[target])


def _window(events: Events) -> Edges:
    """Return the edges to enqueues that waited because the window was full, from the launch that made room.

    They are guessed where the record does not say it.
    """
    start, end, island = events["start"], events["end"], events["island"]
    enqueues, launches = np.flatnonzero(events.is_("kind", "enqueue")), np.flatnonzero(events.is_("kind", *BUSY))
    # The last stall of the window. It counts below if no other enqueue of the host ended since.
    waited = _last_ended(np.flatnonzero(window_full(events)), enqueues, start, end, island)
    before = _last_ended(enqueues, enqueues, start, end, island, events["host"])
    told, known = events.stored("why")[enqueues], events.stored("released_label")[enqueues] >= 0
    # Where the controller said why, that counts; where it also said which event, ``_recorded`` has the edge.
    waited_full = (waited >= 0) & ((before < 0) | (end[waited] > end[before])) & (told < 0) | (told == WINDOW) & ~known
    freed = _last_ended(launches, enqueues[waited_full], start, end, island, events["host"])
    return Edges.of(freed, enqueues[waited_full], np.where(told[waited_full] == WINDOW, WINDOW, LANE))


def data_edges(events: Events) -> Edges:
    """Return the edges from a node's producers, and from transfers made for it, to the node.

    Args:
        events: in the order of their starts.
    """
    rows = np.flatnonzero(events.is_("kind", *WORK))
    # (pairs, 2) labels: a node and one of its producers, sorted so that those of a node lie together. Labels, not
    # events: a loop of thousands of steps has the same few.
    pairs = np.array(sorted(_pairs(events.labels)), np.int64).reshape(-1, 2)
    low, high = (np.searchsorted(pairs[:, 0], events.label[rows], side) for side in ("left", "right"))
    target, which = _repeat_ranges(rows, low, high)
    call = events["run"]
    # The last occurrence of the producer before it in the same call.
    source = last_before(rows, (rows, call[rows], events.label[rows]), (target, call[target], pairs[which, 1]))
    return Edges.of(source, target, DATA)


def transfer_edges(events: Events) -> Iterator[tuple[int, int]]:
    """Yield the positions of both ends of each edge that begins or ends with a transfer.

    Args:
        events: in the order of their starts.
    """
    source, target, _ = data_edges(events)
    moves, ends = events.is_("kind", "transfer"), events["end"]
    # A transfer carries one value: of what came before it in its node, the last has made that.
    made: dict[int, int] = {}
    for at, into in zip(source[moves[target]].tolist(), target[moves[target]].tolist(), strict=True):
        made[into] = max(made.get(into, at), at, key=ends.item)
    yield from ((at, into) for into, at in made.items())
    reads = moves[source] & ~moves[target]
    yield from zip(source[reads].tolist(), target[reads].tolist(), strict=True)


def _pairs(labels: Sequence[Label]) -> Iterator[tuple[int, int]]:
    """Yield pairs of labels: a node or transfer, and one of its producers, of the same microbatch if possible."""
    makers: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for number, label in enumerate(labels):
        if label.node >= 0 and label.kind in WORK:
            node = label.program, label.client, label.node
            # Under both: a pipeline's stage reads its own microbatch, and a value outside of microbatches is read by
            # all.
            makers[node].append(number)
            makers[*node, label.microbatch, label.token_slice].append(number)
    for number, label in enumerate(labels):
        for parent in label.parents if label.kind in WORK else ():
            node = label.program, label.client, parent
            found = makers.get((*node, label.microbatch, label.token_slice)) or makers.get(node, [])
            yield from ((number, maker) for maker in found if maker != number)


def _link_order(events: Events) -> Edges:
    """Return the edges from the last transfer before each transfer on each of its links."""
    rows, link = link_uses(events)
    order = np.lexsort((rows, link))
    rows, link = rows[order], link[order]
    # Sorted by link, then by start: neighbours on one link are one transfer and the next.
    same = link[1:] == link[:-1]
    return Edges.of(rows[:-1][same], rows[1:][same], LINK)


def link_uses(events: Events) -> tuple[np.ndarray, np.ndarray]:
    """Return the position of each transfer with the number of each of its links, as two columns."""
    numbers: dict[str, int] = {}
    found = [
        (label, numbers.setdefault(link, len(numbers))) for label, one in enumerate(events.labels) for link in one.links
    ]
    pairs = np.array(found, np.int64).reshape(-1, 2)
    low, high = (np.searchsorted(pairs[:, 0], events.label, side) for side in ("left", "right"))
    rows, which = _repeat_ranges(np.arange(len(events)), low, high)
    return rows, pairs[which, 1]


def _repeat_ranges(rows: np.ndarray, low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return each of ``rows`` once for each number from its ``low`` up to its ``high``, and these numbers."""
    count = high - low
    repeated = np.repeat(rows, count)
    return repeated, np.arange(len(repeated)) + np.repeat(low - (np.cumsum(count) - count), count)


def _device_order(events: Events) -> Edges:
    """Return the edges from the last event before each event on each of its devices, and on its host.

    Two events that overlap by more than half of the shorter one ran side by side; then the one before both counts.
    """
    start, end = events["start"].tolist(), events["end"].tolist()
    rows = np.flatnonzero(events.is_("kind", *BUSY, HOST_KIND))
    # A host is one more lane of its island, far behind the numbers of devices.
    low = np.where(events.is_("kind", HOST_KIND)[rows], _HOST, events["device"][rows])
    columns = (rows, events["island"][rows], low, low + np.maximum(events["devices"][rows], 1))
    latest: dict[int, Intervals[int]] = defaultdict(lambda: Intervals(-1))
    """By island: the last event so far on each device; -1 for none."""
    previous: dict[int, int] = {}
    found = []
    for row, island, first, stop in zip(*(column.tolist() for column in columns), strict=True):
        # One edge for each different event before, not for each device: a gang follows few others.
        for before in set(latest[island].replace(first, stop, row)):
            for _ in range(_STREAMS):
                both = min(end[before], end[row]) - start[row]
                # Half of the shorter one, since estimated stamps of events in a row overlap a little.
                if before < 0 or 2 * both <= min(end[before] - start[before], end[row] - start[row]):
                    break
                before = previous[before]
            previous[row] = before
            found.append((before, row))
    pairs = np.array(found, np.int64).reshape(-1, 2)
    return Edges.of(pairs[:, 0], pairs[:, 1], LANE)


def _dispatch(events: Events, rows: np.ndarray, known: Edges) -> tuple[Edges, np.ndarray]:
    """Return the edges from messages and enqueues, and for each event what brought it to its island, -1 for nothing.

    An event was brought by the last message or enqueue of its call, island and host that was over when it began. If
    nothing else explains why it began when it did, or the record says that this was why, it was brought by one that was
    still under way: an enqueue may launch many nodes.

    Args:
        events: all events.
        rows: positions of the events on devices.
        known: data, order and link edges, which may explain a start without dispatch.
    """
    start, end, where = events["start"], events["end"], (events["run"], events["island"], events["host"])
    messages, enqueues = np.flatnonzero(sent(events)), np.flatnonzero(events.is_("kind", "enqueue"))
    brought_by = np.full(len(start), -1)
    brought_by[enqueues] = _last_ended(messages, enqueues, start, end, *where)
    # Messages and enqueues together: whatever of both came last brought it.
    orders = np.union1d(messages, enqueues)
    over = np.where(
        (events.is_("kind", "transfer") & events.is_("quality", "simulated"))[rows],  # no host enqueues these
        _last_ended(messages, rows, start, end, *where),
        _last_ended(orders, rows, start, end, *where),
    )
    brought_by[rows] = over
    # (events,) seconds: when the last known source of each ended.
    ready = np.full(len(start), -np.inf)
    np.maximum.at(ready, known.target, end[known.source])
    unexplained = (ready[rows] < start[rows]) | (events.stored("why")[rows] == MESSAGE)
    # An enqueue that is still under way may have launched it: it launches many nodes one after another.
    late = rows[unexplained & ((over < 0) | (end[over] < start[rows]))]
    begun = last_before(orders, (orders, *(key[orders] for key in where)), (late, *(key[late] for key in where)))
    brought_by[late] = begun
    parts = [(over, rows), (begun, late), (brought_by[enqueues], enqueues)]
    # A host enqueues one range after another, for all calls.
    parts.append((_last_ended(enqueues, enqueues, start, end, *where[1:]), enqueues))
    return Edges.concatenate(*(Edges.of(source, target, MESSAGE) for source, target in parts)), brought_by


def _held_back(events: Events, heads: np.ndarray, rows: np.ndarray, answers: np.ndarray) -> Edges:
    """Return the edges from what held calls back.

    - From a stall of the call, and from compiling its program, to what was sent first for it.
    - From one step of compiling a program to the next.
    - From the value that Python had waited for when it called, to the call's first events on each island, its stalls
      and the compiling of its program.
    - From what ended on an island and so freed capacity, to a message that was held until then. In a simulation, from
      what ended at that very time.

    Args:
        events: all events.
        heads: positions of what was sent first, and of all messages.
        rows: positions of the events on devices.
        answers: see ``edges_of``.
    """
    start, end, call = events["start"], events["end"], events["run"]
    stalls = np.flatnonzero(held_back(events))
    stalled = last_before(stalls, (stalls, call[stalls]), (heads, call[heads]))
    # Numbers instead of names: ``last_before`` sorts and compares its keys.
    names = {name: number for number, name in enumerate(dict.fromkeys(events.by_label("program").tolist()))}
    program = np.array([names[label.program] for label in events.labels], np.int64)[events.label]
    compiling = np.flatnonzero(events.is_("kind", *COMPILING))
    compiled = _last_ended(compiling, heads, start, end, program)
    # The first of each call on each island: only these may have waited until it was made.
    _, first = np.unique(
        np.stack([call[heads], events["island"][heads], events["host"][heads]]), axis=1, return_index=True
    )
    # Only messages are held by the controller until capacity is free.
    freed = np.where(sent(events)[heads], _last_ended(rows, heads, start, end, events["island"]), -1)
    # What was sent as soon as it was called did not wait for anything to be freed.
    freed[~_sent_after_call(start[heads], call[heads], first, answers) & ~(end[freed] > start[stalled])] = -1
    same_time = _ended_at_same_time(events, heads, rows)
    freed = np.where(events.stored("why")[heads] >= 0, -1, np.where(same_time >= 0, same_time, freed))
    stalled = np.where((freed >= 0) | (events.releasers[heads] >= 0), -1, stalled)  # freed capacity is the reason
    called = heads[events.stored("why")[heads] == CALL]
    first = np.unique(np.concatenate([heads[first], called, stalls, compiling]))
    # The last value that Python got before: the call came after it, so whatever made the value is what it waited for.
    answered = np.searchsorted(answers[1], start[first], "right") - 1
    at = np.where(answered >= 0, np.append(answers[1], -np.inf)[answered], -np.inf)
    waited = last_before(rows, (end[rows],), (at,))
    step_before = _last_ended(compiling, compiling, start, end, program)
    parts = ((stalled, heads), (compiled, heads), (step_before, compiling), (waited, first), (freed, heads))
    return Edges.concatenate(*(Edges.of(source, target, MESSAGE) for source, target in parts))


def _ended_at_same_time(events: Events, heads: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return what ended on devices when each simulated message was sent, in its own call if possible; -1 for none.

    A simulated controller reacts to an end in no time, and to nothing else that takes time on devices, so equal times
    are a cause and no coincidence.
    """
    start, end, call = events["start"], events["end"], events["run"]
    # The time is both the key and the order: only what ended at exactly this time fits.
    any_call = last_before(rows, (end[rows], end[rows]), (start[heads], start[heads]))
    own = last_before(rows, (end[rows], end[rows], call[rows]), (start[heads], start[heads], call[heads]))
    reacts = sent(events)[heads] & events.is_("quality", "simulated")[heads]
    return np.where(reacts, np.where(own >= 0, own, any_call), -1)


def _sent_after_call(start: np.ndarray, call: np.ndarray, first: np.ndarray, answers: np.ndarray) -> np.ndarray:
    """Return whether each of these was sent after its call had been made, as far as the record tells.

    That is known if it is not the first of its call on an island, if a later call has begun, or if Python was waiting.

    Args:
        start: when each was sent.
        call: serial of its call.
        first: positions of the first of each call and island.
        answers: see ``edges_of``.
    """
    # The first value that Python got at this time or later: if it waited for it already, the call was over.
    waiting = np.searchsorted(answers[1], start)
    found = np.append(answers[0], np.inf)[waiting] < start
    order = np.argsort(call, kind="stable")
    # A call with a later serial was sent earlier, so this one had been called by then.
    found[order] |= np.minimum.accumulate(start[order][::-1])[::-1] < start[order]
    found[np.setdiff1d(np.arange(len(start)), first)] = True
    return found


def _last_ended(
    sources: np.ndarray, targets: np.ndarray, start: np.ndarray, end: np.ndarray, *keys: np.ndarray
) -> np.ndarray:
    """Return for each of ``targets`` the last of ``sources`` with equal keys that had ended when it began, or -1."""
    asked = (start[targets], *(key[targets] for key in keys))
    return last_before(sources, (end[sources], *(key[sources] for key in keys)), asked)
