"""Made records of pipelines: a schedule's actions at given times, as the controller would have recorded them."""

from __future__ import annotations

from collections.abc import Sequence

import pathways_nb as pw
from pathways_nb.parallel.schedules.actions import Action, actions_of
from pathways_nb.parallel.schedules.boxes import boxes_of
from pathways_nb.parallel.schedules.schedule import Schedule
from pathways_nb.parallel.schedules.timing import Timing
from pathways_nb.trace.record import Events, Record
from pathways_nb.trace.rows import Label, Row


def rows_of(timing: Timing, begin: float = 0.0, run: int = 0, quality: str = "estimated") -> list[Row]:
    """Rows of all actions at the times of a timing, each with the transfers of what it makes."""
    actions = [action for cell in timing.tasks.cells for action in actions_of(cell)]
    boxes, cells = boxes_of(timing), [actions_of(cell)[0] for cell in timing.tasks.cells]
    node = {action: number for number, action in enumerate(actions)}
    times = zip(actions, *(boxes[name].tolist() for name in ("device", "start", "end")), strict=True)
    rows = [
        Row(_label("compute", str(one), one, device, node[one]), begin + start, begin + end, run, quality)
        for one, device, start, end in times
    ]
    edges = timing.tasks.dependencies()
    for made, needed, stage in zip(edges.source.tolist(), edges.target.tolist(), edges.stage.tolist(), strict=True):
        if stage >= 0 and timing.released.source[needed] == made and timing.released.seconds[needed]:
            device, end = int(timing.tasks.owner[needed]), begin + float(timing.end[made])
            label = _label("transfer", "moved", cells[needed], device, node[cells[needed]], (node[cells[made]],))
            rows.append(Row(label, end, end + float(timing.released.seconds[needed]), run, quality))
    return rows


def _label(kind: str, name: str, of: Action, device: int, node: int, parents: tuple[int, ...] = ()) -> Label:
    part = -1 if of.token_slice is None else of.token_slice
    return Label(kind, name, "step", node=node, island=device, devices=1, stage=of.stage, microbatch=of.microbatch,
                 token_slice=part, parents=parents, basis="roofline; memory estimated")  # fmt: skip


def run_of(rows: Sequence[Row], islands: int = 2) -> pw.Run:
    """A finished run with these events."""
    return pw.Run("made", (1,) * islands, Record.of(Events.from_rows(rows)), finished=True)


def made_run(schedule: Schedule, **times: float) -> pw.Run:
    """A run that kept its plan."""
    return run_of(rows_of(schedule.timing(**times)), len(schedule.rows))
