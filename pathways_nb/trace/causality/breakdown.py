"""Where the time of devices went: busy, or idle and why; each moment counts once, so the parts add up to the whole.

A device is idle because its next event has not begun yet. So the time before an event is divided along the chain of
what that event waited for, as on a critical path (see ``happened_before``): a transfer, its dispatch, work elsewhere,
and so on. The busy part is what remains, and no moment can be counted for two reasons.

``metrics`` has totals without reasons, ``critical_path`` the one chain that makes up the makespan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pathways_nb.timing.chains import Chains
from pathways_nb.trace.causality.happened_before import CAUSES as REASONS
from pathways_nb.trace.causality.happened_before import Dag
from pathways_nb.trace.metrics import BUSY, device_ranges, duration, size
from pathways_nb.trace.record import Events
from pathways_nb.util.text_table import Printed, Table

CAUSES = ("busy", *REASONS[:-1], "warm-up", "drain", "other")
"""What a moment counts for. *Warm-up* is a dependency before the first event of a device, *drain* is all time after the
last; *other* is what nothing in the record explains, and all time of a device on which nothing ever ran."""
_DEPENDENCY, _WARM_UP, _DRAIN, _OTHER = (CAUSES.index(c) for c in ("dependency", "warm-up", "drain", "other"))
_CAUSE_OF = np.array([CAUSES.index(reason) for reason in REASONS])


@dataclass(frozen=True)
class Breakdown:
    """The time of one island, in seconds; ``busy`` means that at least one of its devices was.

    Args:
        island: index of the island.
        seconds: by cause, in the order of ``CAUSES``; their sum is the length of the window.
        bytes: received in transfers that began within the window.
    """

    island: int
    seconds: dict[str, float]
    bytes: int

    def __str__(self) -> str:
        total = sum(self.seconds.values()) or 1.0
        parts = [f"{name} {duration(s)} ({s / total:.0%})" for name, s in self.seconds.items() if s > 0]
        return f"island {self.island}: {', '.join(parts)}; {size(self.bytes)} received"


@dataclass(frozen=True)
class DeviceTime:
    """The time of each of ``devices`` devices of ``island`` from ``first`` on, in seconds by cause (``CAUSES``)."""

    island: int
    first: int
    devices: int
    seconds: dict[str, float]

    @property
    def where(self) -> str:
        """The devices in words."""
        last = f"–{self.first + self.devices - 1}" if self.devices > 1 else ""
        return f"island {self.island}, dev {self.first}{last}"


@dataclass(frozen=True, repr=False)
class Idle(Printed):
    """The time of every device during a run, by cause.

    Args:
        span: makespan of the run, in seconds.
        devices: in the order of islands and devices; devices with the same events are one entry.
        inferred: how many causes are inferred from stamps, in words; empty if all were recorded.
    """

    span: float
    devices: tuple[DeviceTime, ...]
    inferred: str = ""

    @property
    def seconds(self) -> dict[str, float]:
        """Device-seconds by cause over all devices; their sum is the number of devices times ``span``."""
        found: Counter[str] = Counter()
        for part in self.devices:
            found.update({cause: part.devices * seconds for cause, seconds in part.seconds.items()})
        return {cause: found[cause] for cause in CAUSES}

    def of(self, island: int, device: int) -> dict[str, float]:
        """Return the seconds by cause of one device.

        Raises:
            LookupError: there is no such device.
        """
        for part in self.devices:
            if part.island == island and part.first <= device < part.first + part.devices:
                return part.seconds
        last = {part.island: part.first + part.devices - 1 for part in self.devices}
        there = ", ".join(f"0 to {device} on island {island}" for island, device in last.items()) or "none"
        raise LookupError(f"idle: there is no device {device} on island {island}; there are {there}.")

    def _table(self) -> Table:
        total = sum(self.seconds.values()) or 1.0
        seen = [cause for cause in CAUSES if self.seconds[cause] > 0 or cause == "busy"]
        rows = [
            [part.where, *(duration(part.seconds[c]) if part.seconds[c] else "" for c in seen)] for part in self.devices
        ]
        shares = ", ".join(f"{cause} {self.seconds[cause] / total:.0%}" for cause in seen)
        guessed = f" ({self.inferred})" if self.inferred else ""
        return Table(f"time of each device, of {duration(self.span)}: {shares}{guessed}", ("devices", *seen), rows)


def idle(events: Events, islands: Sequence[int]) -> Idle:
    """Return where the time of every device went from the beginning to the end of the makespan, and why it was idle.

    Args:
        events: of the run.
        islands: number of devices of each island.
    """
    dag = Dag.of(events)
    chains, found = _chains(dag), []
    for island, count in enumerate(islands):
        rows = np.flatnonzero(dag.events.is_("kind", *BUSY) & dag.events.is_("island", island))
        # Devices with the same events have the same causes, so thousands cost no more than the few placements on them.
        for low, high, here in device_ranges(dag.events.select(rows), count):
            seconds = _partition(dag, chains, rows[here], *dag.span, False)
            found.append(DeviceTime(island, low, high - low, seconds))
    return Idle(dag.span[1] - dag.span[0], tuple(found), dag.guessed(np.arange(len(dag.events))))


def breakdown(events: Events, islands: Sequence[int], start: float, end: float) -> list[Breakdown]:
    """Return where the time of each island went in a window.

    Args:
        events: of the run.
        islands: number of devices of each island.
        start: start of the window, in seconds of the record.
        end: end of the window, in seconds of the record.

    Returns:
        One breakdown for each island.
    """
    busy = [events.is_("kind", *BUSY) & events.is_("island", island) for island in range(len(islands))]
    # The time before an event is explained by that event, so the first one after the window is needed, too.
    next_ones = [events["start"][of_island & (events["start"] >= end)].min(initial=np.inf) for of_island in busy]
    until = max([end, *(begin for begin in next_ones if begin < np.inf)])  # what islands idle at the end wait for
    dag = Dag.of(events.select((events["end"] > start) & (events["start"] <= until)), since=start)
    chains = _chains(dag)
    began = events.is_("kind", "transfer") & (events["start"] >= start) & (events["start"] < end)
    found = []
    for island, of_island in enumerate(busy):
        rows = np.flatnonzero(dag.events.is_("kind", *BUSY) & dag.events.is_("island", island))
        seconds = _partition(dag, chains, rows, start, end, bool((of_island & (events["end"] <= start)).any()))
        moved = events.select(began & events.is_("island", island))
        found.append(Breakdown(island, seconds, int(moved["bytes"].sum())))
    return found


def _partition(dag: Dag, chains: Chains, rows: np.ndarray, start: float, end: float, before: bool) -> dict[str, float]:
    """Return the seconds by cause of one island or device in a window.

    Args:
        dag: the happened-before graph.
        chains: those of what its events waited for.
        rows: positions of the events that ran on it, in the order of their starts.
        start: start of the window.
        end: end of the window.
        before: whether events that are not in ``rows`` ran on it earlier, so that its first wait is no warm-up.
    """
    found = np.zeros(len(CAUSES))
    if len(rows):
        begins = dag.start[rows]
        # (events,) seconds: events may overlap, so a device is idle only after the latest end so far.
        until = np.maximum.accumulate(begins + dag.durations[rows])
        low = np.clip(np.concatenate([[start], until[:-1]]), start, end)
        high = np.clip(begins, start, end)
        parts = np.zeros((len(rows), len(CAUSES)))
        # (events, causes) seconds, each row the idle time before one event.
        parts[:, _CAUSE_OF] = chains.between(rows, low, high)
        # A pipeline's stage waits for the stages before it: the same wait later on would be a bubble, at first it is
        # warm-up.
        if not before:
            parts[0, [_DEPENDENCY, _WARM_UP]] = 0.0, parts[0, _DEPENDENCY]
        found += parts.sum(0)
        found[_DRAIN] = end - np.clip(until[-1], start, end)
    else:
        found[_DRAIN if before else _OTHER] = end - start
    # Busy is the remainder, so rounding cannot make the sum differ from the window.
    found[0] = max(end - start - found.sum(), 0.0)
    return dict(zip(CAUSES, found.tolist(), strict=True))


def _chains(dag: Dag) -> Chains:
    """Return the chains of what events waited for, with their reasons."""
    return Chains(dag.timed, dag.causes, dag.causes_of_gaps(dag.timed.source), len(REASONS))
