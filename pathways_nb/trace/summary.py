"""The summary of a run: its totals and what they say in one line, for the picture, the console and sweeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pathways_nb.errors import size
from pathways_nb.trace.host_parts import counted_once
from pathways_nb.trace.memory_history import HighWaterMark, peak_of
from pathways_nb.trace.metrics import (
    BUSY,
    COMPILING,
    client_name,
    clients_of,
    covered,
    device_seconds,
    duration,
    held_back,
    makes_span,
    of_budget,
    sent,
)
from pathways_nb.trace.overhead import Overhead, overhead_of
from pathways_nb.trace.record import Events
from pathways_nb.util.words import counted


@dataclass(frozen=True, repr=False)
class Summary:
    """Totals of one run; printed in a line, and as the last expression of a cell one fact a line.

    Args:
        makespan: seconds from the first event on a device or a host, its dispatch or its message, to the last end.
        utilisation: for each island, busy device-seconds over devices times makespan.
        overhead: what the controller cost: dispatch for a node and a call, and the nodes that hide it.
        compile: seconds during which programs were traced, lowered or compiled.
        transfers: number of transfers.
        transfer_bytes: bytes that crossed in all transfers, each copy counted.
        launches: number of nodes launched; one on several hosts counts once.
        interpolated: number of launches whose ends were not watched.
        failed: number of events that ended with an error, and of programs that failed as a whole.
        clients: by client, its part of all busy device-seconds, without clients that had none; ``""`` is work for no
            client.
        waits: by client and reason, seconds during which at least one of its programs waited for that reason.
        peak: when the fullest device held most, if levels of memory were recorded.
        hbm: bytes of each device of that device's island; 0 if unknown.
        messages: seconds during which messages from the controller to islands were on their way, over a network or
            emulated.
        simulated: whether devices were simulated.
        taken: number of abstract arguments that simulated calls took as already in place.
        taken_bytes: total size of these arguments.
    """

    makespan: float
    utilisation: tuple[float, ...]
    overhead: Overhead
    compile: float
    transfers: int
    transfer_bytes: int
    launches: int
    interpolated: int
    failed: int
    clients: Mapping[str, float]
    waits: Mapping[str, Mapping[str, float]]
    peak: HighWaterMark | None = None
    hbm: int = 0
    messages: float = 0.0
    simulated: bool = False
    taken: int = 0
    taken_bytes: int = 0

    @property
    def dispatch(self) -> float:
        """Seconds during which at least one island's dispatcher was launching; 0 where that was not measured."""
        return self.overhead.dispatch or 0.0

    def __repr__(self) -> str:
        return "\n".join(self._facts())

    def __str__(self) -> str:
        return " · ".join(self._facts())

    def _facts(self) -> list[str]:
        shares = ", ".join(f"island {i} {share:.0%}" for i, share in enumerate(self.utilisation))
        words = [
            f"{'simulated ' * self.simulated}makespan {duration(self.makespan)}",
            f"utilisation {shares}",
            str(self.overhead),
            counted(self.launches, "launch", "es"),
        ]
        if self.transfers:
            moved = f" of {size(self.transfer_bytes)} in all" if self.transfer_bytes else ""  # a trace may not tell it
            words.append(f"{counted(self.transfers, 'transfer')}{moved}")
        if self.taken:
            words.append(
                f"taken as already in place: {counted(self.taken, 'abstract argument')}, {size(self.taken_bytes)}"
            )
        if self.peak:
            words.append(f"peak memory {of_budget(self.peak.bytes, self.hbm)} per device (island {self.peak.island})")
        if self.messages:
            words.append(f"messages on their way {duration(self.messages)}")
        if self.compile:
            words.append(f"compiling {duration(self.compile)}")
        if self.interpolated:
            watched = f"{1 - self.interpolated / self.launches:.0%} of launches had their end measured"
            words.append(f"{watched}, those of the rest are interpolated")
        if self.failed:
            words.append(f"{self.failed} failed")
        if len(self.clients) > 1:
            shares = ", ".join(f"{client_name(client)} {share:.0%}" for client, share in self.clients.items())
            words.append(f"{shares} of device time")
        for client, reasons in self.waits.items():
            parts = (f"{duration(seconds)} ({reason})" for reason, seconds in reasons.items())
            who = f"{client_name(client)} " if client or len(self.clients) > 1 else ""
            words.append(f"{who}waited {', '.join(parts)}")
        return words


def summarise(events: Events, islands: Sequence[int], hbm: Sequence[int] = ()) -> Summary:
    """Return the totals of ``events``.

    Args:
        events: of a run.
        islands: number of devices of each island.
        hbm: bytes per device of each island; 0, or no entry, means unknown.
    """
    busy = events.of_kind(*BUSY)
    moves = events.of_kind("transfer")
    launches = busy.select(counted_once(busy))
    messages = sent(events)
    spans = events.select(makes_span(events))
    # Events may be a selection, so the first one need not begin at 0.
    makespan = float(spans["end"].max() - spans["start"].min()) if len(spans) else 0.0
    used = [device_seconds(busy.select(busy.is_("island", i)), count).sum() for i, count in enumerate(islands)]
    shares = (u / (count * makespan) if makespan else 0.0 for u, count in zip(used, islands, strict=True))
    peak = peak_of(events)
    return Summary(
        makespan,
        tuple(float(share) for share in shares),
        overhead_of(events),
        covered(events.of_kind(*COMPILING)),
        int(counted_once(moves).sum()),
        int(moves["bytes"].sum()),
        len(launches),
        int(launches.is_("quality", "interpolated").sum()),
        int(events.is_("status", "failed").sum()),
        _shares(busy, islands),
        _waits(events.select(held_back(events) & events.is_("status", "ok"))),
        peak,
        dict(enumerate(hbm)).get(peak.island, 0) if peak else 0,
        covered(events.select(messages)),
        bool(busy.is_("quality", "simulated").any()),
    )


def _shares(busy: Events, islands: Sequence[int]) -> dict[str, float]:
    """Return each client's part of all busy device-seconds."""
    clients = clients_of(busy)
    # Exactly 1, also where nothing took any time.
    if len(clients) == 1:
        return dict.fromkeys(clients, 1.0)
    used = {}
    for client in clients:
        own = busy.select(busy.is_("client", client))
        used[client] = sum(device_seconds(own.select(own.is_("island", i)), n).sum() for i, n in enumerate(islands))
    total = sum(used.values())
    return {client: float(seconds / total) for client, seconds in used.items() if seconds}


def _waits(stalls: Events) -> dict[str, dict[str, float]]:
    """Return the seconds that each client's programs waited, by client and reason; Python's own pauses are no wait."""
    found: dict[str, dict[str, float]] = {}
    labels = (stalls.labels[at] for at in np.unique(stalls.label))
    for client, reason in dict.fromkeys((label.client, label.name) for label in labels if label.program):
        of_client = stalls.is_("client", client) & stalls.is_("name", reason)
        found.setdefault(client, {})[reason] = covered(stalls.select(of_client))
    return found
