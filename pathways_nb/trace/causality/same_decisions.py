"""Whether a new simulation with other durations would decide as the recorded one did.

A record that is evaluated again (see ``happened_before``) keeps its order. A new simulation grants a link to the first
that requests it, and its controller and hosts serve one request after another. Where all that share a resource would
still request it in the recorded order, both agree, and ``what_if`` may call its answer exact.

What cannot be decided from the record counts as a doubt: a wrong "exact" is worse than a needless "estimate".
"""

from __future__ import annotations

import numpy as np

from pathways_nb.timing.timed import Timed
from pathways_nb.timing.waits import LINK
from pathways_nb.trace.causality.dependencies import link_uses
from pathways_nb.trace.causality.happened_before import Dag
from pathways_nb.trace.metrics import BUSY, held_back, sent
from pathways_nb.util.columns import last_before

_SAME = 1e-12
"""Seconds up to which two times count as equal."""
INTERFERENCE = "interference"
"""Part of the basis of a node that took longer because of what ran at the same time."""


def doubt(dag: Dag, then: Timed) -> str:
    """Return why a new simulation might decide otherwise; empty if it would decide the same.

    Args:
        dag: the graph of the recorded run.
        then: its events with other durations.
    """
    events = dag.events
    if not events.is_("quality", "simulated")[dag.on_devices].all():
        return "its times were measured"
    if held_back(events).any():
        return "programs waited for memory or their turn, and another could be next"
    if _compete(dag, dag.timed) or _compete(dag, then):
        return "programs of several clients were under way at once, and the controller chose between them"
    if _waits_for_any(dag):
        return "a caller waited while several programs ended, and the record does not say for which"
    if any(INTERFERENCE in label.basis for label in events.labels):
        return "what nodes cost depended on what ran beside them"
    if not _links_alike(dag, then):
        return "transfers would come to a busy link in another order"
    if not (_served_alike(dag, then) and _launched_alike(dag, then.start)):
        return "messages or launches would meet others on the controller or a host"
    return ""


def _waits_for_any(dag: Dag) -> bool:
    """Return whether several calls ended while a caller waited that went on later: which let it go on is not known."""
    # (events of calls,); a call has ended when its last event on a device has.
    made = np.flatnonzero((dag.events["run"] >= 0) & dag.on_devices)
    calls, number = np.unique(dag.events["run"][made], return_inverse=True)
    end = np.zeros(len(calls))
    np.maximum.at(end, number, (dag.start + dag.durations)[made])
    end.sort()
    # A wait after which nothing began decided nothing.
    since, until = dag.answers[:, dag.answers[1] <= dag.start.max(initial=0.0)]
    return bool((np.searchsorted(end, until, "right") - np.searchsorted(end, since, "left") > 1).any())


def _compete(dag: Dag, timed: Timed) -> bool:
    """Return whether calls of different clients overlap: their gangs are enqueued one by one then, as devices go on."""
    events = dag.events
    client = np.array([label.client for label in events.labels])[events.label]
    rows = np.flatnonzero((events["run"] >= 0) & (dag.on_devices | sent(events) | events.is_("kind", "enqueue")))
    calls, number = np.unique(events["run"][rows], return_inverse=True)
    begin, end, of = np.full(len(calls), np.inf), np.zeros(len(calls)), np.empty(len(calls), client.dtype)
    np.minimum.at(begin, number, timed.start[rows])
    np.maximum.at(end, number, (timed.start + timed.durations)[rows])
    of[number] = client[rows]
    # By begin: a call competes if another client's latest end so far is still to come.
    order = np.argsort(begin)
    last = dict[str, float]()
    for first, until, name in zip(begin[order], end[order], of[order].tolist(), strict=True):
        if any(first < other - _SAME for one, other in last.items() if one != name):
            return True
        last[name] = max(last.get(name, 0.0), float(until))
    return False


def _links_alike(dag: Dag, then: Timed) -> bool:
    """Return whether all transfers that share a link would request it in the recorded order."""
    # (uses of links,): a transfer over three links is there three times.
    rows, link = link_uses(dag.events)
    came, comes = dag.timed.earliest_without(LINK), then.earliest_without(LINK)
    order = np.lexsort((rows, link))
    rows, same = rows[order], np.diff(link[order]) == 0
    return _in_order(np.diff(came[rows])[same], np.diff(comes[rows])[same])


def _served_alike(dag: Dag, then: Timed) -> bool:
    """Return whether the controller's messages, and the launches of each host, would queue as they did."""
    events = dag.events
    messages, latency = sent(events), events["latency"]
    # Each is a server with one queue: the controller for messages, an island's host for its launches.
    enqueues = events.is_("kind", "enqueue")
    for rows in (messages, *(enqueues & (events["island"] == island) for island in np.unique(events["island"]))):
        rows = np.flatnonzero(rows)
        busy = [(timed.end - latency)[rows] for timed in (dag.timed, then)]
        before, after = np.diff(dag.start[rows]), np.diff(then.start[rows])
        # Where one was still being served when the next came, the wait would change with any shift between them.
        queued = [before < (busy[0] - dag.start[rows])[:-1] - _SAME, after < (busy[1] - then.start[rows])[:-1] - _SAME]
        if not _in_order(before, after) or (np.abs(after - before)[queued[0] | queued[1]] > _SAME).any():
            return False
    return True


def _launched_alike(dag: Dag, start: np.ndarray) -> bool:
    """Return whether every node would still begin after its host had enqueued it.

    The record has no such time for each node, only the latest one: the end of the host's enqueue.
    """
    events = dag.events
    enqueues, nodes = np.flatnonzero(events.is_("kind", "enqueue")), np.flatnonzero(events.is_("kind", *BUSY))
    columns = dag.start, events["run"], events["island"]
    enqueue = last_before(enqueues, tuple(c[enqueues] for c in columns), tuple(c[nodes] for c in columns))
    nodes, enqueue = nodes[enqueue >= 0], enqueue[enqueue >= 0]
    # Seconds from the begin of the enqueue: a node is safe after the enqueue's end, or if it moves no closer to its
    # begin.
    since, was = start[nodes] - start[enqueue], dag.start[nodes] - dag.start[enqueue]
    return bool(((since > dag.durations[enqueue] + _SAME) | (since >= was - _SAME)).all())


def _in_order(before: np.ndarray, after: np.ndarray) -> bool:
    """Return whether what came later than another event, or at the same time, would do so again.

    Args:
        before: recorded times between successive events, in seconds.
        after: the new times between them.
    """
    return bool(np.where(before > _SAME, after > _SAME, np.abs(after - before) <= _SAME).all())
