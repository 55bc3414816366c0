"""Open a trace that another tool wrote as a run: a profile of any JAX program, or a trace.json of XProf or PyTorch."""

from __future__ import annotations

import gzip
import mmap
import re
import warnings
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pathways_nb.errors import UsageError
from pathways_nb.results.chrome_trace import from_chrome
from pathways_nb.results.run import Run
from pathways_nb.runtime.recorded.chrome_planes import ChromeEvents, ChromeProfile
from pathways_nb.runtime.recorded.module_texts import module_ops
from pathways_nb.runtime.recorded.plane_tasks import plane_tasks
from pathways_nb.runtime.recorded.recorded_run import recorded_run
from pathways_nb.runtime.recorded.recorded_tasks import UNKNOWN, RecordedTasks
from pathways_nb.runtime.recorded.task_kinds import kinds_table
from pathways_nb.runtime.recorded.torch_trace import is_torch, torch_tasks
from pathways_nb.runtime.recorded.trace_json import TraceJson
from pathways_nb.runtime.recorded.xspace_bytes import modules_in
from pathways_nb.runtime.recorded.xspace_pieces import PiecedProfile
from pathways_nb.trace.record import Events, Record
from pathways_nb.util.json_text import DamagedError, said
from pathways_nb.util.progress import Progress
from pathways_nb.util.words import first_ones

_PROFILE = (".xplane.pb", ".xplane.pb.gz")
_JSON = (".json", ".json.gz")
_PERFETTO = (".pftrace", ".perfetto-trace", ".perfetto_trace")
_NAMED = 4
"""Processes of a foreign trace that the error names."""


def trace_at(path: Path) -> Path | None:
    """Return the file of a trace at a path, the newest profile of a folder that JAX wrote; None if there is none.

    Raises:
        UsageError: the folder has profiles of several hosts.
    """
    if path.is_dir():
        profiles = [*path.glob("*.xplane.pb"), *path.glob("plugins/profile/*/*.xplane.pb")]
        newest = max(profiles, key=lambda one: one.stat().st_mtime_ns, default=None)
        if newest is not None and len(hosts := sorted(newest.parent.glob("*.xplane.pb"))) > 1:
            names = first_ones([one.name for one in hosts], _NAMED)
            raise UsageError(f"load({str(path)!r}): profiles of several hosts are there; load one of {names}.")
        return newest
    return path if path.name.endswith((*_PROFILE, *_JSON, *_PERFETTO)) else None


def open_trace(path: Path, kinds: Mapping[str, str] | None = None) -> Run:
    """Return what another tool recorded as a run.

    Args:
        path: of the file.
        kinds: patterns of names, and the kind of tasks whose name fits; they count before the table's own.

    Raises:
        UsageError: the file is damaged, or is no trace of devices; or ``kinds`` has an unknown kind.
        FileNotFoundError: there is no such file.
    """
    kind_of = kinds_table(kinds)
    if path.name.endswith(_PERFETTO):
        raise UsageError(
            f"load({str(path)!r}): this is Perfetto's own format; traceconv json {path.name} trace.json makes a "
            f"trace.json of it, which opens here."
        )
    try:
        with Progress() as progress:

            def tell(share: float) -> None:
                progress.tell(lambda: f"reading {path.name}: {share:.0%}")

            if path.name.endswith(_JSON):
                recorded, modules = _from_json(TraceJson(path, tell)), dict[str, bytes]()
                if recorded is None:
                    return _own(path)
            else:
                recorded, modules = _from_profile(path, tell)
            progress.tell(f"{path.name}: putting {len(recorded.tasks):,} tasks on lanes")
            ran = {label.module for label in recorded.labels}
            known = module_ops({name: proto for name, proto in modules.items() if name in ran})
            found = recorded_run(recorded, kind_of, known)
    except DamagedError as error:
        raise UsageError(f"load({str(path)!r}): this trace cannot be read: {error}.") from None
    name = path.name
    for ending in (*_PROFILE, ".pt.trace.json.gz", ".pt.trace.json", ".trace.json.gz", ".trace.json", *_JSON):
        name = name.removesuffix(ending)
    run = Run(name or path.name, found.islands, Record.of(found.events), finished=True)
    run.ops = found.ops
    devices = [device for island in found.devices for device in island]
    run.about = {"options": {"kind": devices[0].split()[0].lower()}}
    run.about["trace"] = {"tool": recorded.tool, "devices": devices, "rank": recorded.rank}
    if recorded.collectives:
        ordered = sorted(recorded.collectives, key=lambda one: one.start)
        run.about["collectives"] = [tuple(one._replace(start=one.start - found.began)) for one in ordered]
    if recorded.unread:
        run.about["unread"] = dict(recorded.unread)
    return run


def _from_profile(path: Path, tell: Callable[[float], object]) -> tuple[RecordedTasks, dict[str, bytes]]:
    """Return the tasks of a profile, and its compiled modules.

    Raises:
        DamagedError: it is no profile, or nothing ran on devices.
    """
    with path.open("rb") as file:
        # What is read lies in the file as long as it is not packed.
        data: Any = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if path.stat().st_size else b""
    if data[:2] == b"\x1f\x8b":
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise DamagedError(f"it cannot be unpacked ({said(error)})") from None
    view = memoryview(data)
    modules = modules_in(view)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # as an error it would abort the process in jaxlib
        recorded = _planes(PiecedProfile(view, tell), "a profile of JAX")
    if not len(recorded.tasks):
        raise DamagedError("nothing in it ran on a device")
    return recorded, modules


def _planes(profile: Any, tool: str) -> RecordedTasks:
    """Return the tasks of planes.

    Raises:
        DamagedError: numbers of launches or devices are none.
    """
    try:
        return plane_tasks(profile, tool)
    except (ValueError, TypeError) as error:
        raise DamagedError(said(error)) from None


def _from_json(reader: TraceJson) -> RecordedTasks | None:
    """Return the tasks of a trace.json; None for one that ``Run.to_chrome`` wrote.

    Raises:
        DamagedError: it is no trace, or nothing in it ran on devices.
    """
    events = ChromeEvents()
    for event in reader.events():
        events.add(event)
    own = reader.beside.get("otherData")
    if isinstance(own, dict) and "levels" in own:
        return None
    if is_torch(events):
        recorded = torch_tasks(events)
        distributed = reader.beside.get("distributedInfo")
        rank = str(distributed.get("rank")) if isinstance(distributed, dict) else ""
        recorded.rank = int(rank) if re.fullmatch(r"\d{1,9}", rank) else UNKNOWN
    else:
        recorded = _planes(ChromeProfile(events.planes), "a trace of XProf")
    for what, count in (
        ("events without an end", events.unended),
        ("durations below 0, taken as 0", events.backwards),
    ):
        if count:
            recorded.unread[what] += count
    if not len(recorded.tasks):
        names = first_ones(list(dict.fromkeys(events.processes.values())), _NAMED)
        have = f"its processes are {names}" if names else "it names no processes"
        raise DamagedError(f"nothing in it ran on a device, as XProf and PyTorch name them; {have}")
    return recorded


def _own(path: Path) -> Run:
    """Return the run of a trace that ``Run.to_chrome`` wrote."""
    events = from_chrome(path)
    about = {"trace": {"tool": "Run.to_chrome"}}
    return Run(path.name.partition(".")[0], _islands_of(events), Record.of(events), about=about, finished=True)


def _islands_of(events: Events) -> tuple[int, ...]:
    """Return the least number of devices of each island that has all events."""
    found: dict[int, int] = {}
    for label in events.labels:
        if label.island >= 0:
            found[label.island] = max(found.get(label.island, 1), label.device + label.devices)
    return tuple(found.get(island, 1) for island in range(max(found, default=-1) + 1))
