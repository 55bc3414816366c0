"""The planes of a profile: what JAX's profiler writes on CPUs, GPUs and TPUs, read for ``pw.profile`` and ``pw.load``.

A plane has lines, a line has events, an event has a name, times in nanoseconds and stats; ``jax.profiler.ProfileData``
has that form, and so has a trace.json in ``chrome_planes``. On CPU, ops are on the host's plane, and say their launch,
their module and their device. A GPU has a line for each stream, whose kernels carry the number of the call that sent
them; the call lies within its launch on the host (seen with JAX 0.11 on an H200). A TPU has a line of modules and lines
of ops, and counts its launches by itself (seen in traces that XProf made of two TPUs; their ``.xplane.pb`` is read as
XLA's ``xplane.proto`` and ``xplane_schema.cc`` describe it).
"""

from __future__ import annotations

import re
from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from pathways_nb.runtime.recorded.recorded_tasks import MarkedStep

_DEVICE_PLANE = re.compile(r"/device:(GPU|TPU):(\d+)( Compute)?(?: \(.*\))?")
_HOST = ("/host:", "Task Environment")
_MODULES, _STEPS = "XLA Modules", "Steps"
_OPS = ("XLA Ops", "Async XLA Ops")
_STREAM = re.compile(r"Stream #(\d+)")
_DERIVED = frozenset(
    {
        *("XLA TraceMe", "Framework Ops", "Framework Name Scope", "TensorFlow Ops", "TensorFlow Name Scope"),
        *("Source code", "Source Code", "Launch Stats", "Step", "HLO Ops", "Module", "_counters_"),
    }
)
"""Lines that say again, in other words, what the lines of modules, ops and streams say, and counters."""
_GRAPH = "command_buffer"
"""What a kernel calls its op if a CUDA graph of many ops has launched it; then its own name says more."""


class PlaneLaunch(NamedTuple):
    """A launch of a compiled module on one device.

    Args:
        module: its name.
        number: equal on all devices of one launch, as far as that can be told; ``None`` if launches are not told apart.
    """

    module: str
    number: Any


class PlaneTask(NamedTuple):
    """A task on a device, or a whole launch of which the profile has a box of its own.

    Args:
        device: kind and number of the device, such as ``("GPU", 0)``.
        stream: of the device; empty where it has one lane.
        name: of the event; of a whole launch empty.
        op: name of the op in its module; empty if unknown.
        start: in nanoseconds of the profile.
        end: in nanoseconds of the profile.
        launch: that it is part of; ``None`` if it is part of none, or the profile does not tell of which.
        stats: what else the profile says of it.
    """

    device: tuple[str, int]
    stream: str
    name: str
    op: str
    start: float
    end: float
    launch: PlaneLaunch | None
    stats: dict[str, Any]


_Begun = tuple[float, float, PlaneLaunch]
"""Start and end of a launch in nanoseconds of the profile, and the launch."""


class HostCall(NamedTuple):
    """A call of the host that sent work to a device; times in nanoseconds of the profile."""

    name: str
    start: float
    end: float
    number: int


class PlaneReader:
    """Reads the planes of one profile; ``tasks`` comes first, the attributes are complete when it is through.

    Args:
        profile: with ``planes``.
    """

    def __init__(self, profile: Any):
        self._planes = list(profile.planes)
        self._sent: dict[int, PlaneLaunch] = {}
        self.calls: list[HostCall] = []
        self.steps: list[MarkedStep] = []
        """Steps that the profile marks, in its nanoseconds."""
        self.unread: Counter[str] = Counter()
        """Planes and lines that were not understood, and how many events each has."""

    @property
    def began(self) -> float | None:
        """When the profile began, in nanoseconds of Unix time; ``None`` if it does not say."""
        stats = (dict(plane.stats) for plane in self._planes if plane.name == "Task Environment")
        return next((float(found["profile_start_time"]) for found in stats if "profile_start_time" in found), None)

    def tasks(self) -> Iterator[PlaneTask]:
        """Yield what ran on devices."""
        devices = []
        for plane in self._planes:
            if match := _DEVICE_PLANE.fullmatch(plane.name):
                devices.append((plane, (match[1], int(match[2]))))
            elif plane.name.startswith(_HOST):
                yield from self._host(plane)
            else:
                self._not_understood(plane.name, plane.lines)
        # Of a plane with streams, its other lines are derived from them.
        streams_of = [[line for line in plane.lines if _STREAM.match(line.name)] for plane, _ in devices]
        modules = [
            [] if streams else list(_events(plane, _MODULES))
            for (plane, _), streams in zip(devices, streams_of, strict=True)
        ]
        for (plane, device), streams, begun in zip(devices, streams_of, _launched(modules), strict=True):
            for line in streams:
                yield from self._stream(line, device)
            if not streams:
                yield from self._accelerator(plane, device, begun)
            known = {_MODULES, _STEPS, *_OPS} | _DERIVED | {line.name for line in streams}
            self._not_understood(plane.name, [line for line in plane.lines if line.name not in known])

    def _host(self, plane: Any) -> Iterator[PlaneTask]:
        """Yield the ops on CPU devices, each of which says to which launch it belongs; note the calls to devices."""
        for line in plane.lines:
            begun: list[tuple[float, float, PlaneLaunch]] = []
            calls: list[HostCall] = []
            for event in line.events:
                said = dict(event.stats)
                start, end = event.start_ns, event.start_ns + event.duration_ns
                if "correlation_id" in said and "device_id" in said:
                    calls.append(HostCall(event.name, start, end, int(said["correlation_id"])))
                elif "run_id" in said and "name" in said and "Execute (" in event.name:
                    begun.append((start, end, PlaneLaunch(str(said["name"]), said["run_id"])))
                elif "step_num" in said:
                    self.steps.append(MarkedStep(event.name, int(said["step_num"]), start, end))
                elif "hlo_op" in said and "run_id" in said and "device_ordinal" in said:
                    launch = PlaneLaunch(str(said.get("hlo_module", "")), said["run_id"])
                    device = "CPU", int(said["device_ordinal"])
                    yield PlaneTask(device, "", event.name, str(said["hlo_op"]), start, end, launch, said)
            begun.sort(key=lambda one: one[0])
            for call in calls:
                at = bisect(begun, call.start, key=lambda one: one[0]) - 1
                if at >= 0 and call.start <= begun[at][1]:
                    self._sent[call.number] = begun[at][2]
            self.calls += calls

    def _stream(self, line: Any, device: tuple[str, int]) -> Iterator[PlaneTask]:
        """Yield the kernels and copies on a GPU's stream."""
        number = _STREAM.match(line.name)
        assert number is not None
        for event in line.events:
            said = dict(event.stats)
            launch = self._sent.get(int(said.get("correlation_id", -1)))
            if launch is None and said.get("hlo_module"):
                launch = PlaneLaunch(str(said["hlo_module"]), None)
            op = str(said.get("hlo_op", _GRAPH))
            op = event.name if op.startswith(_GRAPH) else op
            start, end = event.start_ns, event.start_ns + event.duration_ns
            yield PlaneTask(device, f"stream {number[1]}", event.name, op, start, end, launch, said)

    def _accelerator(self, plane: Any, device: tuple[str, int], begun: list[_Begun]) -> Iterator[PlaneTask]:
        """Yield the launches on one accelerator, and the ops, each with the launch during which it began.

        An accelerator runs one module at a time.
        """
        for start, end, launch in begun:
            yield PlaneTask(device, "", "", "", start, end, launch, {})
        for name in _OPS:
            for event in _events(plane, name):
                start = event.start_ns
                at = bisect(begun, start, key=lambda one: one[0]) - 1
                within = begun[at][2] if at >= 0 and start < begun[at][1] else None
                end, op = start + event.duration_ns, _op_name(event.name)
                yield PlaneTask(
                    device, name, op, op, start, end, within, {"long_name": event.name, **dict(event.stats)}
                )
        for number, event in enumerate(_events(plane, _STEPS)):
            said = int(event.name) if event.name.isascii() and event.name.isdigit() else number
            self.steps.append(MarkedStep("step", said, event.start_ns, event.start_ns + event.duration_ns))

    def _not_understood(self, plane: str, lines: Any) -> None:
        """Note lines that have events and are of no known kind."""
        for line in lines:
            if count := sum(1 for _ in line.events):
                self.unread[f"{plane}, line {line.name!r}"] += count


def _launched(devices: Sequence[Sequence[Any]]) -> list[list[_Begun]]:
    """Return the launches on each accelerator in order, numbered so that those of one launch have one number.

    The numbers of the profile are those of a device. All devices of a module run its launches in the same order, so
    where all have equally many, the n-th of one is the n-th of the others; else nobody can tell which are one launch.

    Args:
        devices: the events of modules on each.
    """
    ordered = [sorted(events, key=lambda event: event.start_ns) for events in devices]
    times: defaultdict[str, set[int]] = defaultdict(set)
    for events in ordered:
        for name, count in Counter(event.name for event in events).items():
            times[name].add(count)
    found: list[list[_Begun]] = []
    for device, events in enumerate(ordered):
        seen, mine = Counter[str](), list[_Begun]()
        for event in events:
            at, run = seen[event.name], dict(event.stats).get("run_id")
            seen[event.name] += 1
            number = (event.name, at) if len(times[event.name]) == 1 else (device, run)
            launch = PlaneLaunch(event.name.split("(")[0], None if run is None else number)
            mine.append((event.start_ns, event.start_ns + event.duration_ns, launch))
        found.append(mine)
    return found


def _events(plane: Any, name: str) -> Iterator[Any]:
    """Yield the events of the lines with this name."""
    return (event for line in plane.lines if line.name == name for event in line.events)


def _op_name(text: str) -> str:
    """Return the name of an op, which an accelerator may name by its whole line of HLO text."""
    return text.split(" = ")[0].lstrip("%")
