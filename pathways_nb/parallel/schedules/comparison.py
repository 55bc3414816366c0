"""Two schedules side by side: both pictures on one axis, and how much earlier or later each action ends.

Actions are matched by what they do (``KEYS``), not by device or position: two schedules of one model may place a stage
on different devices, which is often the point of the comparison.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pathways_nb.errors import three_digits
from pathways_nb.parallel.schedules.actions import OPERATIONS
from pathways_nb.parallel.schedules.boxes import boxes_of
from pathways_nb.parallel.schedules.picture import SchedulePicture
from pathways_nb.parallel.schedules.schedule import Schedule
from pathways_nb.parallel.schedules.timing import Timing
from pathways_nb.util.csv_columns import write_columns
from pathways_nb.util.displaying import ShowsItself
from pathways_nb.util.words import counted

KEYS = ("stage", "operation", "microbatch", "token_slice", "direction")
TIMES = ("device", "start", "end")


class ScheduleDifference(NamedTuple):
    """The actions that two schedules have in common, and how many they have not.

    Args:
        table: columns ``KEYS``, ``TIMES`` of each (``device_a``, ``device_b``, …), and ``later``, by how much an action
            ends later in the second; of the actions that both have, by their start in the first.
        only_a: number of actions of the first without partner; B matches neither I nor W.
        only_b: the same of the second.
    """

    table: dict[str, np.ndarray]
    only_a: int
    only_b: int


@dataclass(frozen=True, eq=False)
class ScheduleComparison(ShowsItself):
    """Two schedules to compare, the first drawn above the second."""

    a: Schedule
    b: Schedule

    @property
    def table(self) -> dict[str, np.ndarray]:
        """Columns of the actions that both have, with F = I = W = 1; see ``ScheduleDifference``."""
        return self.difference().table

    def difference(self, **times: Any) -> ScheduleDifference:
        """Return the actions matched by stage, operation, microbatch, token slice and direction.

        Args:
            times: as for ``Schedule.timing``.
        """
        a, b = (_known(one.timing(**times)) for one in (self.a, self.b))
        # By their start in the first schedule, so that the table reads in the order of time.
        both = sorted((key for key in a if key in b), key=lambda key: a[key][1])
        # Of each time first the value of a, then that of b.
        pairs = {key: chain.from_iterable(zip(a[key], b[key], strict=True)) for key in both}
        rows = [(*key, *pairs[key], b[key][2] - a[key][2]) for key in both]
        names = (*KEYS, *(f"{name}_{which}" for name in TIMES for which in "ab"), "later")
        columns = zip(*rows, strict=True) if rows else [()] * len(names)
        table = {name: np.array(column) for name, column in zip(names, columns, strict=True)}
        return ScheduleDifference(table, len(a) - len(both), len(b) - len(both))

    def show(self, **times: Any) -> None:
        """Draw both schedules on one axis in the notebook.

        Args:
            times: as for ``Schedule.show``, ``cap`` included.
        """
        from pathways_widgets.schedules.schedule_display import show

        show(self._pictures(**times))

    def savefig(self, path: str | Path, width: str | float = 900, **times: Any) -> None:
        """Write both schedules as one picture.

        Args:
            path: file name that ends in ``.svg`` or ``.png``.
            width: of the picture, as for ``Run.savefig``.
            times: as for ``show``.
        """
        from pathways_widgets.schedules.schedule_display import write

        write(self._pictures(**times), path, width)

    def to_csv(self, path: str | Path, **times: Any) -> None:
        """Write the table of differences.

        Args:
            path: name of the file.
            times: as for ``Schedule.timing``.
        """
        write_columns(path, self.difference(**times).table)

    def summary_line(self) -> str:
        """Return both makespans, bubbles and peaks with F = I = W = 1, and how many actions match."""
        words = [
            f"{name} {one.makespan():g} (bubble {one.bubble:.1%}, peak {three_digits(one.peak)})"
            for name, one in zip(self._names, (self.a, self.b), strict=True)
        ]
        found = self.difference()
        matched = (
            f"{counted(len(found.table['stage']), 'action')} matched, {found.only_a} and {found.only_b} without partner"
        )
        return " · ".join([*words, matched])

    def _pictures(self, cap: float | None = None, **times: Any) -> list[SchedulePicture]:
        both = (SchedulePicture.of(one, cap, **times) for one in (self.a, self.b))
        return [replace(one, name=name) for one, name in zip(both, self._names, strict=True)]

    @property
    def _names(self) -> tuple[str, str]:
        """Both names, marked (a) and (b) where they are the same."""
        same = self.a.name == self.b.name
        return (f"{self.a.name} (a)", f"{self.b.name} (b)") if same else (self.a.name, self.b.name)

    def __repr__(self) -> str:
        return f"<comparison: {self.summary_line()}>"


def _known(timing: Timing) -> dict[tuple[Any, ...], tuple[int, float, float]]:
    """Return device, start and end of each action, by ``KEYS``."""
    boxes, letters = boxes_of(timing), timing.tasks.directions
    columns = {name: boxes[name].tolist() for name in (*KEYS, *TIMES)}
    columns["operation"] = [OPERATIONS[code] for code in columns["operation"]]
    columns["direction"] = [letters[number] for number in columns["direction"]]
    keys, times = (zip(*(columns[name] for name in names), strict=True) for names in (KEYS, TIMES))
    return dict(zip(keys, times, strict=True))
