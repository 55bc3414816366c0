"""Tasks that another tool saw on devices, as columns: what ran where, on which stream, from when to when.

A trace may have millions of tasks, so what they have in common is a ``TaskLabel``, and the rest are arrays of numbers.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from pathways_nb.util.words import counted, first_ones

UNKNOWN = -1
"""Number of a call or a launch that the trace does not tell."""


def unread_words(unread: Mapping[str, int]) -> str:
    """Return what of a profile or a trace was not understood, in words; empty if all of it was."""
    named = [f"{name} ({counted(events, 'event')})" for name, events in unread.items()]
    return f"not understood: {first_ones(named, 3)}" if named else ""


class TaskLabel(NamedTuple):
    """What tasks of a trace have in common.

    Args:
        device: kind and number of the device, such as ``("GPU", 0)``.
        stream: of the device, such as ``"stream 7"``; empty where a device has one lane.
        name: of the kernel, the operation or the copy.
        told: the tool's own word for its kind, such as ``"gpu_memcpy"``; empty if it has none.
        op: name of the operation in a compiled module; empty if unknown.
        module: name of the compiled module; empty if unknown.
        source: the operation of the program, with JAX's name stack; empty if unknown.
        line: of the user's code, such as ``"train.py:12"``; empty if unknown.
        bytes: that it moves; 0 if unknown.
        group: the devices that take part in a collective, in words; empty if unknown.
        detail: the type of a collective's elements, and the tool's word for the collective; empty if unknown.
    """

    device: tuple[str, int]
    stream: str
    name: str
    told: str = ""
    op: str = ""
    module: str = ""
    source: str = ""
    line: str = ""
    bytes: int = 0
    group: str = ""
    detail: str = ""


class MarkedStep(NamedTuple):
    """A step that the user's program or the tool marked.

    Args:
        name: such as ``"ProfilerStep"``.
        number: of the step.
        start: in seconds on the clock of the trace.
        end: in seconds on the clock of the trace.
    """

    name: str
    number: int
    start: float
    end: float


class HostCollective(NamedTuple):
    """A collective that a process called, which may still wait for the other ranks where the trace ends.

    Args:
        group: the ranks that take part, in words; empty if unknown.
        detail: the type of its elements, and the tool's word for it.
        bytes: 0 if unknown.
        start: in seconds on the clock of the trace.
    """

    group: str
    detail: str
    bytes: int
    start: float


class TaskColumns:
    """Rows of numbers: for each task or call its label, its start and end in seconds, its call and its launch."""

    def __init__(self) -> None:
        self.label, self.call, self.launch = array("i"), array("q"), array("q")
        self.start, self.end = array("d"), array("d")

    def __len__(self) -> int:
        return len(self.label)

    def add(self, label: int, start: float, end: float, call: int = UNKNOWN, launch: int = UNKNOWN) -> None:
        """Add one row; numbers of calls and launches are whatever the tool counts with."""
        self.label.append(label)
        self.start.append(start)
        self.end.append(end)
        self.call.append(call)
        self.launch.append(launch)

    def column(self, name: str) -> np.ndarray:
        """Return a column as an array."""
        kept = getattr(self, name)
        return np.frombuffer(kept, kept.typecode) if len(kept) else np.zeros(0, kept.typecode)


@dataclass
class RecordedTasks:
    """Everything of a trace that is kept.

    Args:
        tool: what wrote it, in words.
    """

    tool: str
    labels: dict[TaskLabel, int] = field(default_factory=dict)
    """The position of each label."""
    tasks: TaskColumns = field(default_factory=TaskColumns)
    """What ran on devices."""
    calls: TaskColumns = field(default_factory=TaskColumns)
    """The calls of the host that sent tasks to devices; ``label`` is a position in ``call_names``."""
    call_names: dict[str, int] = field(default_factory=dict)
    steps: list[MarkedStep] = field(default_factory=list)
    collectives: list[HostCollective] = field(default_factory=list)
    """Those that the host called, as far as the trace says of which ranks."""
    unread: Counter[str] = field(default_factory=Counter)
    """What was not understood: planes, lines or categories, and how many events each has."""
    modules: dict[str, str] = field(default_factory=dict)
    """The text of compiled modules by name, as far as the trace has it."""
    rank: int = UNKNOWN
    """Of a distributed job."""

    def add(self, label: TaskLabel, start: float, end: float, call: int = UNKNOWN, launch: int = UNKNOWN) -> None:
        """Add a task."""
        self.tasks.add(self.labels.setdefault(label, len(self.labels)), start, end, call, launch)

    def add_call(self, name: str, start: float, end: float, call: int) -> None:
        """Add a call of the host, by the number that its tasks have as well."""
        self.calls.add(self.call_names.setdefault(name, len(self.call_names)), start, end, call)
