"""The tasks of a profile's planes as columns: the same that ``pw.profile`` reads, kept whole."""

from __future__ import annotations

import re
from typing import Any

from pathways_nb.runtime.recorded.recorded_tasks import UNKNOWN, RecordedTasks, TaskLabel
from pathways_nb.runtime.recorded.xplane import PlaneLaunch, PlaneReader, PlaneTask

_CONTROL = re.compile(r"(while|conditional|call)(\.\d+)?$")
"""Operations of XLA that only run others, which are tasks of their own."""
_SIZE = re.compile(r"\b(?:size|num_bytes):(\d+)")
_GROUPS = re.compile(r"\breplica_groups=(\{(?:\{[\d,]*\},?)*\}|\[[\d,]*\]<=\[[\d,]*\](?:T\([\d,]*\))?)")
_OPCODE = re.compile(r" [a-z][\w-]*\(")
_ARRAY = re.compile(r"\b[a-z]\w*\[[\d,]*\]")
"""Of the line of an op in HLO text: the groups of a collective, the end of its type, an array of its type."""
_NO_SOURCE = ("XlaModule:", "")


def plane_tasks(profile: Any, tool: str) -> RecordedTasks:
    """Return the tasks of a profile.

    Args:
        profile: with ``planes``.
        tool: what wrote it, in words.
    """
    reader, made = PlaneReader(profile), RecordedTasks(tool)
    launches: dict[PlaneLaunch, int] = {}
    whole: list[PlaneTask] = []
    with_ops: set[tuple[str, int]] = set()
    for task in reader.tasks():
        if not task.name:
            whole.append(task)
        elif not _CONTROL.match(task.op):
            with_ops.add(task.device)
            _add(made, task, launches)
    for task in whole:
        # Where a profile has launches and no ops, these are all that is known.
        if task.device not in with_ops:
            _add(made, task._replace(name=task.launch.module if task.launch else ""), launches)
    for call in reader.calls:
        made.add_call(call.name, call.start * 1e-9, call.end * 1e-9, call.number)
    made.steps = [step._replace(start=step.start * 1e-9, end=step.end * 1e-9) for step in reader.steps]
    made.unread = reader.unread
    return made


def _add(made: RecordedTasks, task: PlaneTask, launches: dict[PlaneLaunch, int]) -> None:
    """Add a task; its launch is numbered in the order in which launches are met."""
    launch, said = task.launch, task.stats
    number = UNKNOWN
    if launch is not None and launch.number is not None:
        number = launches.setdefault(launch, len(launches))
    # XProf calls it "name" on GPUs and "tf_op" on TPUs.
    source = next((str(said[key]) for key in ("name", "tf_op") if said.get(key, "") not in _NO_SOURCE), "")
    size = _SIZE.search(str(said.get("memcpy_details", "")))
    group, detail = _exchanged(str(said.get("long_name", "")))
    label = TaskLabel(
        task.device, task.stream, task.name, str(said.get("hlo_category", "")), task.op,
        launch.module if launch else "", source.rstrip(":"), str(said.get("source", "")), int(size[1]) if size else 0,
        group, detail,
    )  # fmt: skip
    call = int(said.get("correlation_id", UNKNOWN))
    made.add(label, task.start * 1e-9, task.end * 1e-9, call, number)


def _exchanged(text: str) -> tuple[str, str]:
    """Return the groups of a collective and the arrays that it makes, by its line of HLO text; empty of other ops."""
    groups = _GROUPS.search(text)
    if groups is None:
        return "", ""
    made = _OPCODE.split(text.partition(" = ")[2], 1)[0]
    return f"replica groups {groups[1]}", ", ".join(_ARRAY.findall(made))
