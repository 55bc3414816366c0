"""A trace.json in the form that PyTorch's profiler documents and writes, made by the tests."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

BASE = 1682725898000000
"""Microseconds since 1970, as in real traces: sums of such times lose digits."""


def kernel(name: str, start: float, lasts: float, stream: int = 7, call: int = 0, **args: Any) -> dict[str, Any]:
    """One kernel on a stream of GPU 0, in microseconds."""
    return task("kernel", name, start, lasts, stream, call, **args)


def task(category: str, name: str, start: float, lasts: float, stream: int, call: int, **args: Any) -> dict[str, Any]:
    """One event on a stream of a device, in microseconds."""
    said = {"device": 0, "context": 1, "stream": stream, **({"correlation": call} if call else {}), **args}
    return {"ph": "X", "cat": category, "name": name, "pid": said["device"], "tid": stream, "ts": BASE + start,
            "dur": lasts, "args": said}  # fmt: skip


def host(category: str, name: str, start: float, lasts: float, call: int = 0, thread: int = 100) -> dict[str, Any]:
    """One event on a thread of the host, in microseconds."""
    said = {"External id": 1, **({"correlation": call} if call else {})}
    return {"ph": "X", "cat": category, "name": name, "pid": 4037, "tid": thread, "ts": BASE + start, "dur": lasts,
            "args": said}  # fmt: skip


def nccl(
    what: str, start: float, lasts: float, elements: int, group: str = "0", ranks: str = "[0, 1]"
) -> dict[str, Any]:
    """A kernel of NCCL, with what newer versions say of it."""
    return kernel(
        f"ncclDevKernel_{what}_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", start, lasts, 20,
        **{"Collective name": what.lower(), "In msg nelems": elements, "Out msg nelems": elements, "dtype": "Float",
           "Process Group Name": group, "Process Group Ranks": ranks, "Group size": 2},
    )  # fmt: skip


def write(path: Path, events: list[dict[str, Any]], **beside: Any) -> Path:
    """Write a trace, compressed if its name says so; names of processes come last, as in real ones."""
    named = {"ph": "M", "name": "process_name", "pid": 4037, "tid": 0, "ts": BASE, "args": {"name": "python3"}}
    marks = {"name": "Record Window End", "ph": "i", "s": "g", "pid": "", "tid": "", "ts": BASE}
    said = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H100"}], **beside}
    text = json.dumps({**said, "traceEvents": [*events, named, marks], "traceName": "/tmp/a.json"})
    path.write_bytes(gzip.compress(text.encode()) if path.name.endswith(".gz") else text.encode())
    return path
