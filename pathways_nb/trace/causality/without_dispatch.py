"""What the makespan would be if dispatch took no time: the part of it that the controller cost.

How long devices waited for dispatch does not tell that: behind a late microbatch the next stage waits for data. So the
record is evaluated again with messages and enqueues of no length, as ``what_if`` does for events of any kind. What
remains idle then is the program's own: a pipeline's bubble, transfers.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pathways_nb.timing.waits import CALL
from pathways_nb.trace.causality.happened_before import Dag
from pathways_nb.trace.metrics import held_back, sent
from pathways_nb.trace.overhead import Overhead, overhead_of
from pathways_nb.trace.record import Events

AT_ONCE = 20_000
"""Number of events up to which a summary follows what waited for what; that takes a tenth of a second then."""


def overhead(events: Events) -> Overhead:
    """Return what the controller cost in a run; see ``Run.overhead``.

    Args:
        events: of the run.
    """
    found = overhead_of(events)
    if found.dispatch is None:
        return found
    dag = Dag.of(events)
    makespan = dag.span[1] - dag.span[0]
    # An inferred cause may make the new times later than the recorded ones; dispatch gained nobody anything.
    return replace(found, makespan=makespan, without=min(without_dispatch(events, dag), makespan))


def without_dispatch(events: Events, dag: Dag) -> float:
    """Return the makespan if messages and enqueues had taken no time, in seconds.

    The recorded order is kept, and so are other gaps after what each event waited for. A call does not wait for room in
    its client's queue; what calls take of their client's thread is no dispatch.

    Args:
        events: of a run.
        dag: the graph of those that count.
    """
    if not dag.counts.any():
        return 0.0
    dispatch = dag.events.is_("kind", "enqueue") | sent(dag.events)
    is_call = dag.events.stored("why") == CALL
    timed, called = dag.timed, np.flatnonzero(is_call)
    gap = timed.gap.copy()
    gap[called] = np.maximum(gap[called] - _queued(events, dag, called), 0.0)
    # A thread that woke late is dispatch, too: what was launched, or sent on, later than something let it.
    late = np.where(dag.on_devices, dispatch[timed.source], dispatch & ~is_call)
    gap[late & (timed.source >= 0)] = 0.0
    then = timed.with_durations(np.where(dispatch, 0.0, dag.durations), gap)
    return float(then.end[dag.counts].max() - then.start[dag.counts].min())


def _queued(events: Events, dag: Dag, called: np.ndarray) -> np.ndarray:
    """Return for how many seconds of the gap before each call its client had waited for room in its queue.

    Args:
        events: all of them.
        dag: the graph of those that count.
        called: positions of what was sent first for each call, in the graph.
    """
    found = np.zeros(len(called))
    full = events.select(held_back(events) & (events["run"] < 0))
    full = full.select(np.argsort(full["end"], kind="stable"))
    start, since = dag.start[called], dag.timed.latest[called]
    for client in {label.client for label in full.labels}:
        own = full.select(full.is_("client", client))
        total = np.concatenate([[0.0], np.cumsum(own["end"] - own["start"])])
        until, begin = (total[np.searchsorted(own["end"], times, "right")] for times in (start, since))
        found += np.where(dag.events.is_("client", client)[called], until - begin, 0.0)
    return found
