"""Start and end of every cell of a schedule, idle time by phase, memory, and the critical path.

The schedule is evaluated as the simulator evaluates any fixed order (``timing.fixed_order``); this module has no second
simulator. Idle time is divided as the field does: a device warms up until its first backward pass begins, is in its
steady state until its last forward pass has ended, and cools down until the whole pipeline is done. Idle time that a
transfer causes is counted apart, because a faster network would remove it and another order would not.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from pathways_nb.errors import UsageError, three_digits
from pathways_nb.parallel.schedules.actions import Cell
from pathways_nb.parallel.schedules.closed_forms import ScheduleSize
from pathways_nb.parallel.schedules.tasks import Tasks
from pathways_nb.timing.fixed_order import Evaluated, FixedOrder
from pathways_nb.timing.timed import StartCause, Timed
from pathways_nb.util.words import plural

RELEASES = {"W": (0.0, 1.0), "I": (1.0, 0.0), "half": (0.5, 0.5)}
"""When a microbatch's activations are freed: the share freed after I and the share freed after W; B frees both."""


def activations(held: float) -> str:
    """Return an amount of memory in words, such as ``"2.5 microbatches of activations"``."""
    return f"{three_digits(held)} {plural(held, 'microbatch', 'es')} of activations"


class IdleSplit(NamedTuple):
    """Idle seconds of each device, (devices,) of each phase; the four parts add up to all its idle time."""

    warm_up: np.ndarray
    steady: np.ndarray
    cool_down: np.ndarray
    transfer: np.ndarray

    @property
    def total(self) -> np.ndarray:
        """All idle seconds of each device."""
        return np.sum(self, axis=0)


class PathCell(NamedTuple):
    """One cell of a path through a schedule: when, where, and the transfer time of the result it waited for."""

    cell: Cell
    device: int
    start: float
    end: float
    transfer: float


@dataclass(frozen=True, eq=False)
class Timing:
    """A schedule with times; cells are numbered device by device, times are in the unit in which they were given.

    Args:
        tasks: the schedule as arrays.
        size: of the schedule.
        found: when each cell starts and ends.
        released: the cell whose end let each cell start.
        forward: seconds of the forward part of each cell, (cells,): all of it, a part of an overlapped pair, or 0.
    """

    tasks: Tasks
    size: ScheduleSize
    found: Evaluated
    released: StartCause
    forward: np.ndarray

    @classmethod
    def of(cls, tasks: Tasks, size: ScheduleSize, order: FixedOrder, parts: np.ndarray) -> Timing:
        """Return the evaluation of a schedule.

        Args:
            tasks: the schedule as arrays.
            size: of the schedule.
            order: its cells with the dependencies between them.
            parts: seconds that F, I and W take of each cell, shape (3, cells).
        """
        durations = np.sum(parts, axis=0)
        found = order.evaluate(durations)
        return cls(tasks, size, found, Timed(order.waits, found.start, durations).cause, parts[0])

    @property
    def start(self) -> np.ndarray:
        """When each cell starts."""
        return self.found.start

    @property
    def end(self) -> np.ndarray:
        """When each cell ends."""
        return self.found.end

    @property
    def makespan(self) -> float:
        """When the last cell ends."""
        return self.found.makespan

    @cached_property
    def busy(self) -> np.ndarray:
        """Seconds in which each device works."""
        # (devices,): each sum runs from a device's first cell to that of the next one.
        return np.add.reduceat(self.end - self.start, self.tasks.first[:-1])

    @cached_property
    def bubble(self) -> float:
        """Idle time of all devices over all their time: for GPipe (p−1)/(m+p−1)."""
        return float(1 - self.busy.sum() / (self.makespan * len(self.busy))) if self.makespan else 0.0

    @cached_property
    def idle_within_own_span(self) -> np.ndarray:
        """Idle seconds between each device's first and last action, which zero-bubble schedules make zero."""
        first = self.tasks.first
        return self.end[first[1:] - 1] - self.start[first[:-1]] - self.busy

    @cached_property
    def idle(self) -> IdleSplit:
        """Idle seconds of each device, by phase."""
        owner, gap = self.tasks.owner, self.gaps
        # A transfer causes at most its own time of the gap: without it the device would still wait for the producer.
        wire = np.minimum(gap, self.released.seconds)
        phase, rest = self._phases, gap - wire
        count = len(self.tasks.first) - 1
        warm_up, steady, cool_down = (np.bincount(owner, rest * (phase == one), count) for one in range(3))
        # A device that is done waits for the last one.
        cool_down += self.makespan - self.end[self.tasks.first[1:] - 1]
        return IdleSplit(warm_up, steady, cool_down, np.bincount(owner, wire, count))

    def __repr__(self) -> str:
        device = int(np.argmax(self.peaks))
        idle = ", ".join(f"{name.replace('_', '-')} {part.sum():g}" for name, part in self.idle._asdict().items())
        return (
            f"makespan {self.makespan:g}, bubble {self.bubble:.1%}, "
            f"peak {activations(self.peaks[device])} on device {device}\n"
            f"idle time of all devices together: {idle}"
        )

    @cached_property
    def peaks(self) -> np.ndarray:
        """Peak memory of each device, in microbatches of activations of a whole device, freed after W."""
        return self.peaks_if("W")

    def peaks_if(self, release: str) -> np.ndarray:
        """Return the peak memory of each device, in microbatches of activations of a whole device.

        Args:
            release: when activations are freed: after ``"W"``, after ``"I"``, or ``"half"`` of them after each.

        Raises:
            UsageError: another release.
        """
        taken, freed = self._memory(release)
        # A cell frees memory when it ends, so while it runs only earlier cells have freed theirs.
        held = np.cumsum(taken) - (np.cumsum(freed) - freed)
        # The sums run on through all devices: what the devices before still held is taken off.
        before = np.concatenate([[0.0], np.cumsum(taken - freed)])[self.tasks.first[:-1]]
        return np.maximum.reduceat(held, self.tasks.first[:-1]) - before

    def memory(self, device: int, release: str = "W") -> tuple[np.ndarray, np.ndarray]:
        """Return the memory that a device holds over time.

        Args:
            device: from 0.
            release: as for ``peaks_if``.

        Returns:
            Times, and the microbatches of activations held from each of them on.
        """
        taken, freed = self._memory(release)
        own_cells = slice(self.tasks.first[device], self.tasks.first[device + 1])
        # (cells, 2): memory changes at the start and at the end of each cell.
        times = np.stack([self.start[own_cells], self.end[own_cells]], axis=1)
        change = np.stack([taken[own_cells], -freed[own_cells]], axis=1)
        return times.ravel(), np.cumsum(change.ravel())

    @cached_property
    def critical_path(self) -> list[PathCell]:
        """The chain of cells that decides the makespan, first to last; cells and transfers together last as long."""
        cell, path = int(np.argmax(self.end)), list[PathCell]()
        while cell >= 0:
            device, sent = int(self.tasks.owner[cell]), float(self.released.seconds[cell])
            path.append(PathCell(self.tasks.cells[cell], device, float(self.start[cell]), float(self.end[cell]), sent))
            cell = int(self.released.source[cell])
        return path[::-1]

    def why(self, cell: int) -> str:
        """Return what let a cell start, in words."""
        source = int(self.released.source[cell])
        if source < 0:
            return "nothing to wait for"
        # The neighbour in the row let it start, whether or not it needed its result.
        if self.tasks.owner[source] == self.tasks.owner[cell] and source == cell - 1:
            return f"device {self.tasks.owner[cell]} was busy with {self.tasks.cells[source]}"
        sent = f", {self.released.seconds[cell]:g} on the way" if self.released.seconds[cell] else ""
        return f"waited for {self.tasks.cells[source]} on device {self.tasks.owner[source]}{sent}"

    @cached_property
    def gaps(self) -> np.ndarray:
        """Idle seconds of its device before each cell."""
        before = np.concatenate([[0.0], self.end[:-1]])
        # The cell before a device's first one is another device's.
        before[self.tasks.first[:-1]] = 0.0
        return self.start - before

    @cached_property
    def _phases(self) -> np.ndarray:
        """Phase of each cell: 0 warm-up, 1 steady state, 2 cool-down.

        A device warms up to its first cell with a gradient by the input, and cools down after its last forward pass.
        """
        forward, gradient, _ = self.tasks.counts
        back, ahead = gradient > 0, forward > 0
        started, left = self._running(back), self._running(ahead[::-1], backwards=True)[::-1]
        # The gap in front of the first gradient is what warming up costs, so that cell still counts as warm-up.
        first_back = back & (started == 1)
        return np.where((started == 0) | first_back, 0, np.where(left == 0, 2, 1))

    def _running(self, flags: np.ndarray, backwards: bool = False) -> np.ndarray:
        """Return how many of ``flags`` each device has had up to each cell, that cell included.

        Args:
            flags: of each cell.
            backwards: whether ``flags`` runs from the last cell of the last device to the first.
        """
        lengths = np.diff(self.tasks.first)
        lengths = lengths[::-1] if backwards else lengths
        total, starts = np.cumsum(flags), np.cumsum([0, *lengths[:-1]])
        # Counts run on from device to device: each begins with what those before it had.
        before = np.where(starts > 0, total[starts - 1], 0)
        return total - np.repeat(before, lengths)

    def _memory(self, release: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the memory that each cell takes when it starts, and frees when it ends."""
        if release not in RELEASES:
            raise UsageError(f"release={release!r}: activations are freed after 'W', after 'I', or 'half' after each.")
        return self._taken, self._freed[release]

    @cached_property
    def _unit(self) -> float:
        """Microbatches of a whole device that one forward pass keeps."""
        return 1 / (self.size.chunks * self.size.token_slices)

    @cached_property
    def _taken(self) -> np.ndarray:
        """Memory that each cell takes when it starts."""
        return self._unit * self.tasks.counts[0]

    @cached_property
    def _freed(self) -> dict[str, np.ndarray]:
        """Memory that each cell frees when it ends, by the rule of release."""
        _, gradient, weights = self.tasks.counts
        return {name: self._unit * (after_input * gradient + after_weights * weights)
                for name, (after_input, after_weights) in RELEASES.items()}  # fmt: skip
