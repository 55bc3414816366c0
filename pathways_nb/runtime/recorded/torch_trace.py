"""Traces that PyTorch's profiler (Kineto) wrote: kernels and copies by the category of each event.

On a trace without devices, the outermost operations of each thread of the host are the tasks.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import numpy as np

from pathways_nb.errors import is_index
from pathways_nb.runtime.recorded.chrome_planes import ChromeEvents, ChromeLabel, Thread
from pathways_nb.runtime.recorded.recorded_tasks import UNKNOWN, HostCollective, MarkedStep, RecordedTasks, TaskLabel

_TASKS = frozenset({"kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset", "concurrent_kernel"})
_CALLS = frozenset({"cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver", "xpu_runtime", "runtime", "driver"})
_OPERATIONS = frozenset({"cpu_op", "operator"})
_BESIDE = frozenset(
    {
        *("user_annotation", "gpu_user_annotation", "trace", "overhead", "cuda_sync", "cuda_event", "profiler"),
        *("cuda_profiler_range", "privateuse1_runtime", "privateuse1_driver", "cpu_instant_event"),
    }
)
"""Categories that say something of the host, or say again what kernels say."""
_EXCHANGE = re.compile(r"(gloo|mpi|ucc|xccl|nccl):")
"""How a back end calls a collective in the thread that carries it out."""
_CALLED = re.compile(r"record_param_comms$"), re.compile(r"c10d::(?=\w)"), re.compile(r"[nr]ccl:(?=\w)")
"""How PyTorch notes the call of a collective: newer versions with its group, others by its name alone.

The calls count because a kernel that waits for ever is in no trace.
"""
_NO_COLLECTIVES = ("wait", "init", "")
_STEP = re.compile(r"(ProfilerStep)#(\d+)$")
_SIZES = (("float8", 1), ("bfloat16", 2), ("half", 2), ("short", 2), ("double", 8), ("long", 8), ("int64", 8),
          ("float16", 2), ("float64", 8), ("float", 4), ("int", 4), ("complex", 8))  # fmt: skip
"""Bytes of an element by how the name of its type begins; of all others one."""


def is_torch(events: ChromeEvents) -> bool:
    """Return whether events have PyTorch's categories."""
    return any(label.category.lower() in _TASKS | _CALLS | _OPERATIONS for label in events.labels)


def torch_tasks(events: ChromeEvents) -> RecordedTasks:
    """Return the tasks of a trace of PyTorch's profiler."""
    made = RecordedTasks("PyTorch's profiler")
    labels, rows = list(events.labels), events.rows
    categories = [label.category.lower() for label in labels]
    of_labels = [_task_label(label) if label.category.lower() in _TASKS else None for label in labels]
    of_forms = ([_host_collective(label, form) for label in labels] for form in _CALLED)
    called = next((found for found in of_forms if any(found)), [None] * len(labels))
    unread: Counter[int] = Counter()
    columns = zip(rows.label, rows.start, rows.end, rows.call, strict=True)
    for number, start, end, call in columns:
        task, category = of_labels[number], categories[number]
        if task is not None:
            made.add(task, start, end, call)
        elif (one := called[number]) is not None:
            made.collectives.append(one._replace(start=start))
        elif category in _CALLS:
            if call != UNKNOWN:
                made.add_call(labels[number].name, start, end, call)
        elif category == "user_annotation" and (match := _STEP.match(labels[number].name)):
            made.steps.append(MarkedStep(match[1], int(match[2]), start, end))
        elif category not in _BESIDE and category not in _OPERATIONS:
            unread[number] += 1
    for number, count in unread.items():
        made.unread[f"category {labels[number].category!r}"] += count
    if not len(made.tasks):
        named = [bool(_EXCHANGE.match(label.name)) for label in labels]
        wanted = [category in _OPERATIONS or said for category, said in zip(categories, named, strict=True)]
        _add_operations(made, events, wanted)
    return made


def _task_label(label: ChromeLabel) -> TaskLabel:
    args = dict(label.args)
    process, thread = label.thread
    device: Any = args.get("device", process)
    stream = args.get("stream", thread)
    size, group = args.get("bytes", 0), ""
    if "Collective name" in args:
        counts = [args.get(name, 0) for name in ("In msg nelems", "Out msg nelems")]
        element = str(args.get("dtype", "")).lower()
        size = max((count for count in counts if isinstance(count, int)), default=0) * _size_of(element)
    if name := args.get("Process Group Name"):
        ranks = str(args.get("Process Group Ranks", "")).strip()
        group = f"process group {name}" + (f", ranks {ranks}" if ranks and ranks != "[]" else "")
    detail = "; ".join(str(args.get(one, "")) for one in ("dtype", "Collective name")).removesuffix("; ")
    size = size if isinstance(size, int) and 0 <= size < 2**53 else 0
    return TaskLabel(
        ("GPU", device if is_index(device) else 0), f"stream {stream}", label.name,
        label.category.lower(), bytes=size, group=group, detail=detail,
    )  # fmt: skip


def _host_collective(label: ChromeLabel, form: re.Pattern[str]) -> HostCollective | None:
    """Return the collective that events with a label call; ``None`` if they call none, or another form tells it."""
    on_device = label.category.lower() in _TASKS or label.category.lower().startswith("gpu_")
    if on_device or (match := form.match(label.name)) is None:
        return None
    told = label.name[match.end() :] or str(dict(label.args).get("Collective name", ""))
    if told in _NO_COLLECTIVES:
        return None
    said = _task_label(label)
    return HostCollective(said.group, said.detail or f"; {told}", said.bytes, 0.0)


def _size_of(element: str) -> int:
    return next((size for name, size in _SIZES if element.startswith(name)), 1)


def _add_operations(made: RecordedTasks, events: ChromeEvents, wanted: list[bool]) -> None:
    """Add the outermost operations of each thread: what runs inside of another one is part of it."""
    labels = list(events.labels)
    number = events.rows.column("label")
    start, end = events.rows.column("start"), events.rows.column("end")
    chosen = np.flatnonzero(np.array(wanted, bool)[number]) if len(number) else number
    until: dict[Thread, float] = {}
    # By start, of equal starts the longest first: it contains the others.
    for row in chosen[np.lexsort((-end[chosen], start[chosen]))].tolist():
        label = labels[number[row]]
        if start[row] < until.get(label.thread, -np.inf):
            continue
        until[label.thread] = float(end[row])
        lane = events.threads.get(label.thread, f"thread {label.thread[1]}")
        made.add(TaskLabel(("CPU", 0), lane, label.name, label.category), float(start[row]), float(end[row]))
