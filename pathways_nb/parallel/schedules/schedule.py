"""A pipeline schedule: the actions of each device in order, with its proof, times, memory and exports.

``Schedule`` is immutable, and equal to another one with the same rows, whatever both are called. All that follows from
the rows (arrays, dependencies, size) is computed on first use and kept, because the explorer asks for it again and
again. ``schedule`` makes one by name from the registry. The notation of actions is defined in ``actions``, the rules of
dependency in ``tasks``, the evaluation in ``timing``.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from pathways_nb.errors import ScheduleError, UsageError
from pathways_nb.parallel.schedules import export
from pathways_nb.parallel.schedules.actions import (
    Action,
    Cell,
    Overlap,
    actions_of,
    parse_cell,
    parse_row,
    parse_rows,
)
from pathways_nb.parallel.schedules.checker import Proof, require_order
from pathways_nb.parallel.schedules.closed_forms import ScheduleSize
from pathways_nb.parallel.schedules.durations import ActionDurations
from pathways_nb.parallel.schedules.picture import SchedulePicture
from pathways_nb.parallel.schedules.registry import ScheduleKind, find_kind, kind_of
from pathways_nb.parallel.schedules.tasks import Dependencies, Tasks
from pathways_nb.parallel.schedules.timing import Timing
from pathways_nb.timing.fixed_order import FixedOrder, OrderEdges
from pathways_nb.util.collecting import uncollected
from pathways_nb.util.displaying import ShowsItself
from pathways_nb.util.words import a_type_of, counted


@dataclass(frozen=True)
class Schedule(ShowsItself):
    """A pipeline schedule: for each device its cells in order. Schedules with the same rows are equal.

    Args:
        rows: cells of each device, in order of execution.
        name: name for display; no part of equality.
        kind: the registered kind that generated it; None for a schedule of the user's own.
        asked: the size passed to the generator; None for a schedule of the user's own.
    """

    rows: tuple[tuple[Cell, ...], ...]
    name: str = field(default="own", compare=False)
    kind: ScheduleKind | None = field(default=None, compare=False, repr=False)
    asked: ScheduleSize | None = field(default=None, compare=False, repr=False)

    @classmethod
    def parse(cls, text: str, name: str = "own") -> Schedule:
        """Return the schedule written in a text: one line for each device, as in ``0F0 0F1 0B0 0B1``.

        Args:
            text: one line for each device; see ``actions`` for the notation.
            name: name for display.

        Raises:
            UsageError: something that is no action; the line and its place are named.
        """
        if not isinstance(text, str):
            raise UsageError(f"Schedule.parse takes text, a line for each device; this is {a_type_of(text)}.")
        return cls(tuple(map(tuple, parse_rows(text))), name)

    @property
    def text(self) -> str:
        """The schedule in the notation that ``Schedule.parse`` reads, one line for each device."""
        return "\n".join(" ".join(map(str, row)) for row in self.rows)

    @cached_property
    def size(self) -> ScheduleSize:
        """Number of devices, microbatches (of all directions), chunks of a device and token slices.

        Raises:
            ScheduleError: as for ``tasks``, or a generator made another size than it was asked for.
        """
        # A schedule of the user's own may have a number of stages that its devices do not divide.
        chunks, slices = max(1, round(self.stages / len(self.rows))), self.tasks.cell.shape[4]
        made = ScheduleSize(len(self.rows), sum(self.tasks.count), chunks, slices)
        # A generator that ignores a size would be compared with the closed forms of another one.
        if self.kind and self.asked:
            self.kind.require(self.asked, made)
        return made

    @cached_property
    def tasks(self) -> Tasks:
        """The schedule as arrays.

        Raises:
            ScheduleError: something is done twice or not at all, or a stage is on several devices.
        """
        return Tasks.of(self.rows)

    @cached_property
    def dependencies(self) -> Dependencies:
        """All dependencies between cells."""
        return self.tasks.dependencies()

    @property
    def stages(self) -> int:
        """Number of stages of the model."""
        return int(self.tasks.cell.shape[2])

    def without_pairs(self) -> Schedule:
        """Return the same order with each overlapped pair as two cells, one after the other.

        The results of a pair are there at its end, as in the published kernels. Two cells hand over the first result
        sooner, so that the makespan is shorter; the closed forms of the schedule's kind are of pairs and are left out.
        """
        rows = tuple(tuple(action for cell in row for action in actions_of(cell)) for row in self.rows)
        return self if rows == self.rows else Schedule(rows, self.name)

    def check(self) -> Proof:
        """Return a proof that the schedule can be carried out, with its times and closed forms.

        Raises:
            ScheduleError: the first dependency that it breaks, or a deadlock: which devices wait for what.
        """
        require_order(self.tasks, self.dependencies)
        return Proof.of(self.name, self.kind, self.timing(), len(self.dependencies.source))

    def timing(self, F: ArrayLike = 1, I: ArrayLike = 1, W: ArrayLike = 1, transfer: ArrayLike = 0) -> Timing:  # noqa: E741
        """Return when each cell starts and ends, where devices idle and how much memory they hold.

        Args:
            F: time of a forward pass: a number for one microbatch through one whole device, which its chunks and token
                slices share; or one for each stage, shape (stages,), or for each stage and slice, shape (stages,
                slices).
            I: time of the gradient by the input, in the same form.
            W: time of the gradient by the weights, in the same form. B takes I + W.
            transfer: time of sending a microbatch's activations from a stage to one on another device, which its token
                slices share; or for each two stages, shape (stages - 1,), or (stages - 1, slices).

        Raises:
            ScheduleError: the schedule cannot be carried out.
            UsageError: times of a wrong shape.
        """
        costs = ActionDurations.of(self.size, self.stages, F, I, W, transfer)
        return self.timing_of(costs.of_parts(self.tasks), costs.of_edges(self.dependencies))

    def timing_of(self, parts: np.ndarray, sent: np.ndarray) -> Timing:
        """Return the timing for durations of each cell and each transfer, such as measured ones.

        Args:
            parts: seconds that F, I and W take of each cell, shape (3, cells).
            sent: for each of ``dependencies``, the seconds from the end of its source to the arrival of the result.

        Raises:
            ScheduleError: the schedule cannot be carried out.
        """
        return Timing.of(self.tasks, self.size, self._order(sent), parts)

    def _order(self, seconds: np.ndarray) -> FixedOrder:
        """Return the schedule as an order that can be evaluated for any durations of cells.

        Only the order for the last transfer times is kept: F, I and W do not change it.
        """
        edges, sent = self.dependencies, seconds.tobytes()
        # The bytes of the transfer times are the key: arrays are not hashable, and equal times have equal bytes.
        if sent not in self._kept:
            cells, waits = self.tasks.cells, OrderEdges(edges.source, edges.target, seconds)
            orders = [np.arange(*span) for span in pairwise(self.tasks.first)]
            self._kept.clear()
            try:
                self._kept[sent] = FixedOrder.of(len(cells), waits, orders, lambda cell: str(cells[cell]))
            except UsageError as circle:
                raise ScheduleError(str(circle)) from None
        return self._kept[sent]

    def makespan(self, F: ArrayLike = 1, I: ArrayLike = 1, W: ArrayLike = 1, transfer: ArrayLike = 0) -> float:  # noqa: E741
        """Return the time at which the last action ends, from the times that ``timing`` takes."""
        return self.timing(F, I, W, transfer).makespan

    @cached_property
    def bubble(self) -> float:
        """Idle time of all devices over all their time, with F = I = W = 1 and no transfer time."""
        return self.timing().bubble

    @cached_property
    def peak(self) -> float:
        """Largest memory of any device, in microbatches of activations of a whole device, freed after W."""
        return float(self.timing().peaks.max())

    @property
    def sent(self) -> float:
        """Number of transfers between devices (activations and gradients), in transfers of a whole microbatch."""
        return float(np.count_nonzero(self.dependencies.stage >= 0)) / self.size.token_slices

    @property
    def copies(self) -> int:
        """Number of devices that hold each stage with its weights: one for each direction."""
        return len(self.tasks.directions)

    def show(self, **times: Any) -> None:
        """Draw the schedule in the notebook: one row for each device.

        Args:
            times: as for ``timing``; ``cap=`` is the memory of a device, in microbatches of activations.
        """
        from pathways_widgets.schedules.schedule_display import show

        show([SchedulePicture.of(self, **times)])

    def savefig(self, path: str | Path, width: str | float = 900, **times: Any) -> None:
        """Write the picture of the schedule to a file.

        Args:
            path: file name that ends in ``.svg`` or ``.png``.
            width: of the picture, as for ``Run.savefig``.
            times: as for ``show``.
        """
        from pathways_widgets.schedules.schedule_display import write

        write([SchedulePicture.of(self, **times)], path, width)

    def _ipython_display_(self) -> None:
        """Draw the schedule, or print what is wrong with one that cannot be carried out."""
        try:
            self.check()
        except ScheduleError as error:
            sys.stdout.write(f"{self!r}\n{error}\n")
        else:
            self.show()

    def to_csv(self, path: str | Path, **times: Any) -> None:
        """Write a table with one line for each action.

        Args:
            path: name of the file.
            times: as for ``timing``.
        """
        with Path(path).open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(export.table(self.timing(**times)))

    @cached_property
    def _kept(self) -> dict[bytes, FixedOrder]:
        """A cache of one entry: the evaluated order, by the bytes of its transfer times."""
        return {}

    def __copy__(self) -> Schedule:
        return self

    def __deepcopy__(self, memo: object) -> Schedule:
        return self  # immutable

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (self.rows, self.name, self.kind and self.kind.name, self.asked)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        actions = counted(sum(map(len, self.rows)), "action")
        return f"<schedule {self.name}: {counted(len(self.rows), 'device')}, {actions}>"


def schedule(
    name: str, devices: int, microbatches: int, chunks: int | None = None, token_slices: int | None = None
) -> Schedule:
    """Return a pipeline schedule made by a registered generator.

    Args:
        name: of a built-in schedule, or of one registered with ``@pw.register_schedule``.
        devices: number of devices, p.
        microbatches: number of microbatches, m.
        chunks: stages of one pipeline on each device, v; None for the schedule's own default.
        token_slices: slices of each sequence, k; None for the schedule's own default.

    Raises:
        UsageError: no such schedule, or a size that it does not have: the rule and the nearest size are named.
    """
    kind = kind_of(name)
    size = kind.size(devices, microbatches, chunks, token_slices)
    with uncollected():  # thousands of new tuples, all of which stay
        rows = _generated(kind, size)
    return Schedule(rows, name, kind, size)


def _generated(kind: ScheduleKind, size: ScheduleSize) -> tuple[tuple[Cell, ...], ...]:
    """Return the rows that a generator makes, parsed and checked for their number.

    A generator may return actions, texts or one text of lines.
    """
    rows = kind.rows(size)
    rows = rows.strip().splitlines() if isinstance(rows, str) else rows
    # A sequence, because the number of rows is compared before they are read.
    if not isinstance(rows, Sequence) or len(rows) != size.devices:
        what = counted(len(rows), "row") if isinstance(rows, Sequence) else f"{a_type_of(rows)}"
        raise UsageError(
            f"schedule {kind.name!r} returned {what}: return a list for each of {counted(size.devices, 'device')}."
        )
    return tuple(_cells(row, f"schedule {kind.name!r}, device {number}") for number, row in enumerate(rows))


def _cells(row: Any, where: str) -> tuple[Cell, ...]:
    """Return the cells of one row, which is text, or an iterable of actions and texts."""
    if isinstance(row, str):
        return tuple(parse_row(row, where))
    if not isinstance(row, Iterable):
        raise UsageError(f"{where}: {row!r} is no list of actions, such as ['0F0', '0B0'].")
    cells = tuple(row)
    if {*map(type, cells)} <= {Action, Overlap}:  # no text: most generators
        return cells
    return tuple(
        cell if isinstance(cell, Action | Overlap) else parse_cell(str(cell), f"{where}, action {place}")
        for place, cell in enumerate(cells, 1)
    )


def _unpickled(rows: tuple[tuple[Cell, ...], ...], name: str, kind: str | None, asked: ScheduleSize | None) -> Schedule:
    """Return a schedule restored from a pickle or a saved run.

    The kind is found again by name, because its closed forms are functions, which cannot be pickled; None if this
    process has no schedule of that name.
    """
    return Schedule(rows, name, find_kind(kind), asked)
