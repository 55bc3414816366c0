"""A run beside the schedule of its pipeline, as ``pw.compare`` returns them.

The run is laid over its schedule in ``parallel.schedules.run_over_schedule``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pathways_nb.parallel.schedules.run_over_schedule import Deviation, RunOverSchedule
from pathways_nb.trace.metrics import duration
from pathways_nb.util.displaying import ShowsItself


@dataclass(frozen=True, eq=False)
class RunScheduleComparison(ShowsItself):
    """One call of a pipeline and its schedule, which is drawn above.

    Args:
        overlay: the plan and what ran.
    """

    overlay: RunOverSchedule

    @property
    def table(self) -> dict[str, np.ndarray]:
        """Columns, a row for each action: planned and run times, order and causes; see ``RunOverSchedule.table``."""
        return self.overlay.table

    @property
    def first_in_other_order(self) -> Deviation | None:
        """The first action, in time, that a device began where its row has another one; None if there is none."""
        return self.overlay.first_in_other_order

    @property
    def first_late(self) -> Deviation | None:
        """The first action, in time, that began later than planned by more than a tenth of the median action."""
        return self.overlay.first_late

    def summary_line(self) -> str:
        """Return both makespans, and the first actions that came in another order and later than planned."""
        laid, (plan, ran) = self.overlay, (one.makespan for one in (self.overlay.planned, self.overlay.ran))
        about = ", ".join(filter(None, [laid.call.origin, laid.number]))
        # Work that takes no time has a plan of no time, and no ratio.
        ratio = f" ({ran / plan:.2f} times as long)" if plan else ""
        known = [f"{laid.schedule.name} as planned {duration(plan)}", f"{laid.name} ({about}) {duration(ran)}{ratio}"]
        return " · ".join([*known, *laid.words()])

    def show(self, cap: float | None = None) -> None:
        """Draw the plan above and the run below, on one axis, in the notebook.

        Args:
            cap: memory of a device, in microbatches of activations; None for no limit.
        """
        from pathways_widgets.schedules.schedule_display import show

        show(self.overlay.pictures(cap))

    def savefig(self, path: str | Path, width: str | float = 900, cap: float | None = None) -> None:
        """Write the plan and the run as one picture.

        Args:
            path: file name that ends in ``.svg`` or ``.png``.
            width: of the picture, as for ``Run.savefig``.
            cap: as for ``show``.
        """
        from pathways_widgets.schedules.schedule_display import write

        write(self.overlay.pictures(cap), path, width)

    def to_csv(self, path: str | Path) -> None:
        """Write the table."""
        self.overlay.to_csv(path)

    def __repr__(self) -> str:
        return f"<comparison: {self.summary_line()}>"
