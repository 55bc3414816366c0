"""What the controller cost in a run: dispatch for a node, a call, and the shortest node that hides both.

The paper asks for the smallest computation that reaches the throughput of plain JAX (Pathways, Figure 6). A record has
no plain JAX beside it, so the question here is: from what length of a node on do devices always have work? The record
answers it by the time of those that feed devices: each island's dispatcher, each client's thread and, where it is
simulated, the controller that sends messages. ``bench dispatch`` measures the paper's question beside plain JAX.

All is found in the events that every run records. What the makespan would be without dispatch is in
``causality.without_dispatch``, because it needs to know what waited for what.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pathways_nb.timing.waits import CALL, DATA
from pathways_nb.trace.metrics import BUSY, COMPILING, covered, duration, held_back, sent
from pathways_nb.trace.record import Events
from pathways_nb.util.columns import last_before
from pathways_nb.util.intervals import union
from pathways_nb.util.text_table import Printed, Table

_WITHIN = 0.5
"""Part of the devices' time within dispatching from which on a measured length is only a lower bound."""
_UNKNOWN = "not measured"


@dataclass(frozen=True, repr=False)
class Overhead(Printed):
    """What the controller cost in one run, in seconds; None where the record does not tell.

    Args:
        dispatch: seconds during which at least one island's dispatcher was launching.
        node: seconds of dispatch for each node: of all dispatchers, over all launches.
        call: seconds of a client's thread for each call, the median of those that devices or a dispatcher waited for.
            On real devices it contains the Python between two calls, so a call takes at most this.
        hidden_from: estimated length of a node from which on devices always have work: the longest of the time of an
            island's dispatcher, of a client's calls in a row and of simulated messages, over the nodes of the device
            that has most.
        fed_by: which of these it is, ``"dispatch"``, ``"calls"`` or ``"messages"``; empty without ``hidden_from``.
        within: part of the devices' busy time that lies within the dispatching of their own island. Near 1, nodes are
            shorter than their dispatch, or JAX computes them in the thread that launches, as its CPU client does with
            small nodes. Then ``hidden_from`` of a real run is a lower bound.
        measured: whether devices were real.
        makespan: recorded makespan.
        without: makespan if messages and dispatch had taken no time, in the recorded order.
    """

    dispatch: float | None = None
    node: float | None = None
    call: float | None = None
    hidden_from: float | None = None
    fed_by: str = ""
    within: float = 0.0
    measured: bool = True
    makespan: float | None = None
    without: float | None = None

    @property
    def share(self) -> float | None:
        """Part of the makespan that would be saved if dispatch took no time; None where that is unknown."""
        if self.without is None or not self.makespan:
            return None
        return max(1 - self.without / self.makespan, 0.0)

    def __str__(self) -> str:
        if self.dispatch is None:
            return f"dispatch {_UNKNOWN}"
        parts = [f"{duration(self.node)} a node"] if self.node is not None else []
        parts += [f"{self._call()} a call"] if self.call is not None else []
        parts += [f"{self.share:.0%} of the makespan"] if self.share is not None else []
        listed = f" ({', '.join(parts)})" if parts else ""
        hides = f"; nodes of {self._hides()} hide it (estimated)" if self.hidden_from is not None else ""
        if self._is_sequential:
            hides = "; sequential, so no node hides it"
        return f"dispatch {duration(self.dispatch)}{listed}{hides}"

    @property
    def _is_sequential(self) -> bool:
        """Whether nodes were launched, each when its producers had ended."""
        return self.node is not None and self.hidden_from is None

    def _call(self) -> str:
        assert self.call is not None
        return f"{'at most ' * self.measured}{duration(self.call)}"

    def _hides(self) -> str:
        assert self.hidden_from is not None
        length = duration(self.hidden_from)
        return f"more than {length}" if self.measured and self.within > _WITHIN else f"{length} and longer"

    def _table(self) -> Table:
        hides = "no length, as it is sequential" if self._is_sequential else _UNKNOWN
        if self.hidden_from is not None:
            hides = f"{self._hides()}, as {self.fed_by} took (estimated)"
        said = _UNKNOWN if self.share is None else f"{self.share:.0%}, to {duration(self.without or 0.0)} (estimated)"
        rows = [
            ["dispatch for a node", _UNKNOWN if self.node is None else duration(self.node)],
            ["a client's thread for a call", _UNKNOWN if self.call is None else self._call()],
            ["shorter without dispatch", said],
            ["hidden by nodes of", hides],
        ]
        total = _UNKNOWN if self.dispatch is None else duration(self.dispatch)
        return Table(f"dispatch: {total}", ("what the controller cost", ""), rows)


def overhead_of(events: Events) -> Overhead:
    """Return what the controller cost, without the part of the makespan.

    Args:
        events: of a run.
    """
    enqueues, launches = events.of_kind("enqueue"), events.of_kind(*BUSY)
    if not len(enqueues):
        return Overhead()
    lanes = _Lanes(enqueues, launches)
    measured = not launches.is_("quality", "simulated").any()
    call, calling = _calls(events)
    took = {"dispatch": lanes.most, "calls": calling, "messages": 0.0 if measured else _sending(events)}
    fed_by = max(took, key=lambda name: took[name])
    # Sequential dispatch sends a node when its producers have ended: then no length of nodes hides it.
    waits = (enqueues.stored("why") == DATA).any() or (events.stored("why")[sent(events)] == DATA).any()
    hidden_from = took[fed_by] / lanes.nodes if lanes.nodes and not waits else None
    return Overhead(
        covered(enqueues), lanes.node, call, hidden_from, fed_by if hidden_from is not None else "", lanes.within,
        measured,
    )  # fmt: skip


class _Lanes:
    """The dispatching of each island, on each of its hosts that reports its own.

    Args:
        enqueues: events of dispatching; at least one.
        launches: events that keep devices busy.
    """

    def __init__(self, enqueues: Events, launches: Events):
        # By label, not by event: a loop of thousands of steps has the same few.
        labels = enqueues.labels
        numbers: dict[tuple[int, int], int] = {}
        for number in np.unique(enqueues.label).tolist():
            numbers.setdefault((labels[number].island, labels[number].host), len(numbers))
        # Launches whose dispatch nobody recorded have no lane, and count for nothing.
        lane = np.array([numbers.get((label.island, label.host), -1) for label in labels])
        launches = launches.select(lane[launches.label] >= 0)
        of_enqueues, of_launches, count = lane[enqueues.label], lane[launches.label], len(numbers)
        nodes = np.bincount(of_launches, minlength=count)
        seconds = _covered_by_lane(of_enqueues, enqueues["start"], enqueues["end"], count)
        busy = _covered_by_lane(of_launches, launches["start"], launches["end"], count)
        start, end = (np.concatenate([enqueues[name], launches[name]]) for name in ("start", "end"))
        either = _covered_by_lane(np.concatenate([of_enqueues, of_launches]), start, end, count)
        # A dispatcher that launched nothing (transfers alone) feeds no device.
        fed = nodes > 0
        self.nodes = _most_on_a_device(launches, lane)
        """Number of nodes of the device that has most."""
        self.most = float(seconds[fed].max(initial=0.0))
        """Seconds of the dispatcher that took longest."""
        self.node = float(seconds[fed].sum() / nodes.sum()) if fed.any() else None
        """Seconds of dispatch for each node."""
        total = float(busy[fed].sum())
        self.within = float((seconds + busy - either)[fed].sum() / total) if total else 0.0
        """Part of the devices' busy time that lies within the dispatching of their own island."""


def _most_on_a_device(launches: Events, lane: np.ndarray) -> int:
    """Return the number of launches on the device that has most of them.

    Args:
        launches: each on a range of devices of its lane.
        lane: of each label.
    """
    times = np.bincount(launches.label, minlength=len(lane))
    used = np.flatnonzero(times)
    first = np.array([launches.labels[number].device for number in used.tolist()], np.int64)
    edges = np.concatenate([first, first + [max(launches.labels[number].devices, 1) for number in used.tolist()]])
    steps = np.concatenate([times[used], -times[used]])
    # Along the devices of each lane: so many launches more where a range begins, and less where it ends.
    order = np.lexsort((steps, edges, np.tile(lane[used], 2)))
    return int(np.cumsum(steps[order]).max(initial=0))


def _covered_by_lane(lane: np.ndarray, start: np.ndarray, end: np.ndarray, count: int) -> np.ndarray:
    """Return for each of ``count`` lanes the seconds during which at least one of its events was under way.

    Args:
        lane: of each event.
        start: of each event, in seconds.
        end: of each event, in seconds.
        count: number of lanes.
    """
    # Each lane is moved behind the one before it, so that one union serves all.
    span = float(end.max(initial=0.0) - start.min(initial=0.0)) + 1.0
    low, high = union(start + lane * span, end + lane * span)
    first = np.searchsorted(low, start.min(initial=0.0) + span * np.arange(count + 1))
    total = np.concatenate([[0.0], np.cumsum(high - low)])
    return np.diff(total[first])


def _sending(events: Events) -> float:
    """Return the seconds during which a simulated controller was sending messages, without their latency."""
    messages = events.select(sent(events))
    low, high = union(messages["start"], np.maximum(messages["end"] - messages["latency"], messages["start"]))
    return float((high - low).sum())


def _calls(events: Events) -> tuple[float | None, float]:
    """Return the seconds of a call, None if no call was waited for, and those of a client's calls in a row.

    A call is waited for where what was sent first for it was sent because of it. Its time then runs from what its
    client did before: the call before, or getting a value.
    """
    # (calls,) positions of what was sent first for each call, in the order of calls.
    heads = np.flatnonzero((events["run"] >= 0) & (sent(events) | events.is_("kind", "enqueue")))
    heads = heads[np.lexsort((events["start"][heads], events["run"][heads]))]
    heads = heads[np.unique(events["run"][heads], return_index=True)[1]]
    names = np.unique([label.client for label in events.labels], return_inverse=True)[1].reshape(-1)
    client = names[events.label[heads]] if len(heads) else heads
    order = np.argsort(client, kind="stable")
    heads, client = heads[order], client[order]
    start, end = events["start"], events["end"]
    same = client[1:] == client[:-1]
    before, after = heads[:-1][same], heads[1:][same]
    # What else may have kept the client's thread: waiting for a value, a full queue, compiling.
    stalls = np.flatnonzero(held_back(events))
    kept = last_before(stalls, (end[stalls], names[events.label[stalls]]), (start[after], client[1:][same]))
    since = np.maximum(start[before], np.where(kept >= 0, end[kept], -np.inf))
    got = _last(events, ("wait", "fetch"), start[after])
    in_a_row = ~(got > start[before])
    is_alone = len(np.unique(client)) < 2  # otherwise nobody knows whose thread got a value
    asked = (events.stored("why")[after] == CALL) & (in_a_row | is_alone)
    asked &= ~(_last(events, COMPILING, start[after]) > since)
    asked &= since <= start[after]  # else another of the client's threads called, and nobody knows which
    took = (start[after] - np.maximum(since, got))[asked]
    if not len(took):
        return None, 0.0
    seconds = float(np.median(took))
    # The client with most calls in a row: its thread feeds devices without waiting for them.
    most = int(np.bincount(client[1:][same][in_a_row]).max()) if in_a_row.any() else 0
    return seconds, seconds * (most + 1) if most else 0.0


def _last(events: Events, kinds: tuple[str, ...], times: np.ndarray) -> np.ndarray:
    """Return when the last event of some kinds before each of ``times`` ended, in seconds; minus infinity for none."""
    ends = np.sort(events.of_kind(*kinds)["end"])
    at = np.searchsorted(ends, times) - 1
    return np.where(at >= 0, np.append(ends, -np.inf)[at], -np.inf)
