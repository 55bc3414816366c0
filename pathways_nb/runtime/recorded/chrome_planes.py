"""The events of a trace.json as columns, and in the form of a profile's planes, so that one reader reads both.

XProf writes a profile as such a trace: a plane is a process there, a line a thread, and stats are arguments. What
events have in common is kept once; an event is a row of six numbers.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pathways_nb.runtime.recorded.recorded_tasks import UNKNOWN, TaskColumns
from pathways_nb.trace.label_fields import MOST_SECONDS
from pathways_nb.util.json_text import DamagedError, shortened

KEPT = frozenset(
    {
        *("hlo_op", "hlo_module", "tf_op", "long_name", "source", "program_id", "device_ordinal", "device_id", "name"),
        *("step_num", "memcpy_details", "hlo_category"),
        *("device", "stream", "bytes", "Collective name", "In msg nelems", "Out msg nelems", "dtype", "Group size"),
        *("Process Group Name", "Process Group Description", "Process Group Ranks"),
    }
)
"""Arguments of events that tell what a task is; the rest would fill the memory."""
_NUMBERS = {"correlation": "call", "correlation_id": "call", "run_id": "launch"}
"""Arguments that differ from event to event, and the column that keeps each."""
_LEFT_OUT = frozenset({"python_function", "ac2g", "fwdbwd", "cpu_instant_event", "async_cpu_to_gpu"})
"""Categories of events on the host of which nothing is drawn, and of which there may be millions."""
_KEYS = (int, float, str, type(None))
_MOST_MICROSECONDS = 1e6 * MOST_SECONDS
Thread = tuple[Any, Any]
"""Numbers, or names, of a process and a thread."""


class ChromeLabel(NamedTuple):
    """What events have in common: the thread, the name, the category, and the arguments of ``KEPT``."""

    thread: Thread
    name: str
    category: str
    args: tuple[tuple[str, Any], ...]


class ChromeEvents:
    """Events of a trace as columns; times in seconds since the first one."""

    def __init__(self) -> None:
        self.labels: dict[ChromeLabel, int] = {}
        """The position of each label."""
        self.rows = TaskColumns()
        self.processes: dict[Any, str] = {}
        self.threads: dict[Thread, str] = {}
        self.marks = 0
        """Events that take no time, arrows and counters."""
        self.backwards = 0
        """Events with a duration below 0."""
        self._first: Any = None
        self._open: dict[Thread, list[tuple[int, float, int, int]]] = {}

    def add(self, event: Mapping[str, Any]) -> None:
        """Add one event of the file.

        Raises:
            DamagedError: it has no time.
        """
        phase = event.get("ph")
        if phase == "X" or phase == "B":
            self._begin(event, phase)
        elif phase == "E":
            stack = self._open.get(_thread_of(event))
            if stack:
                label, start, call, launch = stack.pop()
                self.rows.add(label, start, max(self._time(event), start), call, launch)
        elif phase == "M":
            thread = _thread_of(event)
            said = event.get("args")
            name = said.get("name") if isinstance(said, dict) else None
            if event.get("name") == "process_name":
                self.processes[thread[0]] = str(name)
            elif event.get("name") == "thread_name":
                self.threads[thread] = str(name)
        else:
            self.marks += 1

    def _begin(self, event: Mapping[str, Any], phase: str) -> None:
        category = str(event.get("cat") or "")
        if category in _LEFT_OUT:
            self.marks += 1
            return
        args = event.get("args")
        kept: list[tuple[str, Any]] = []
        numbers = {"call": UNKNOWN, "launch": UNKNOWN}
        for key, value in args.items() if isinstance(args, dict) else ():
            if key in KEPT:
                kept.append((key, value if isinstance(value, (str, int, float)) else str(value)))
            elif key in _NUMBERS:
                numbers[_NUMBERS[key]] = _whole(value)
        thread = _thread_of(event)
        label = ChromeLabel(thread, str(event.get("name", "")), category, tuple(kept))
        number, start = self.labels.setdefault(label, len(self.labels)), self._time(event)
        if phase == "B":
            self._open.setdefault(thread, []).append((number, start, numbers["call"], numbers["launch"]))
        else:
            lasts = _number(event.get("dur", 0.0), "duration")
            self.backwards += lasts < 0
            self.rows.add(number, start, start + max(lasts, 0.0) * 1e-6, numbers["call"], numbers["launch"])

    def _time(self, event: Mapping[str, Any]) -> float:
        """Return the time of an event in seconds since the first: microseconds since 1970 have few digits left."""
        time = _number(event.get("ts"), "time")
        if self._first is None:
            self._first = time
        return float(time - self._first) * 1e-6

    @property
    def unended(self) -> int:
        """How many events began and never ended."""
        return sum(map(len, self._open.values()))

    @property
    def planes(self) -> list[ChromePlane]:
        """The processes as planes with lines."""
        # By thread, the rows in the order of the file.
        rows: dict[Thread, array[int]] = {}
        of_label = [label.thread for label in self.labels]
        for row, label in enumerate(self.rows.label):
            rows.setdefault(of_label[label], array("q")).append(row)
        labels, found = list(self.labels), dict[Any, ChromePlane]()
        for thread, mine in rows.items():
            plane = found.setdefault(thread[0], ChromePlane(self.processes.get(thread[0], str(thread[0]))))
            plane.lines.append(ChromeLine(self.threads.get(thread, str(thread[1])), self.rows, labels, mine))
        return list(found.values())


def _whole(value: Any) -> int:
    """Return a number that an argument has as such or as text; XProf writes texts."""
    try:
        number = int(value)
    except (TypeError, ValueError):
        return UNKNOWN
    return number if abs(number) < 2**63 else UNKNOWN


def _number(value: Any, what: str) -> int | float:
    """Return a time in microseconds; some tools write it as text.

    Raises:
        DamagedError: it is none.
    """
    try:
        number = float(value) if isinstance(value, str) else value
    except ValueError:
        number = None
    if not isinstance(number, (int, float)) or isinstance(number, bool) or not abs(number) < _MOST_MICROSECONDS:
        raise DamagedError(f"an event has the {what} {shortened(value)}")
    return number


def _thread_of(event: Mapping[str, Any]) -> Thread:
    process, thread = event.get("pid"), event.get("tid")
    if isinstance(process, _KEYS) and isinstance(thread, _KEYS):
        return process, thread
    return str(process), str(thread)


class ChromeEvent(NamedTuple):
    """One event as a profile has it; times in nanoseconds."""

    name: str
    start_ns: float
    duration_ns: float
    stats: list[tuple[str, Any]]


class ChromeLine:
    """A thread as a line of a plane: events are made when they are asked for.

    Args:
        name: of the thread.
        rows: of all events.
        labels: of all events.
        mine: which rows are those of the thread.
    """

    def __init__(self, name: str, rows: TaskColumns, labels: list[ChromeLabel], mine: Sequence[int]):
        self.name, self._rows, self._labels, self._mine = name, rows, labels, mine

    @property
    def events(self) -> Iterator[ChromeEvent]:
        """The events, in the order of the file."""
        rows = self._rows
        for row in self._mine:
            label, start = self._labels[rows.label[row]], rows.start[row] * 1e9
            stats = list(label.args)
            if rows.call[row] != UNKNOWN:
                stats.append(("correlation_id", rows.call[row]))
            if rows.launch[row] != UNKNOWN:
                stats.append(("run_id", rows.launch[row]))
            yield ChromeEvent(label.name, start, rows.end[row] * 1e9 - start, stats)


class ChromePlane:
    """A process as a plane of a profile.

    Args:
        name: of the process.
    """

    def __init__(self, name: str):
        self.name = name
        self.lines: list[ChromeLine] = []
        self.stats: tuple[tuple[str, Any], ...] = ()


class ChromeProfile(NamedTuple):
    """A trace in the form of a profile."""

    planes: list[ChromePlane]
