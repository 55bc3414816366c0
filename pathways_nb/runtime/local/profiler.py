"""JAX's own profiler for the length of a block: when each launch, and each op in it, began and ended on its devices.

It is expensive (measured: 3 to 9 % of the time on one CPU device, 12 to 21 % on four), so the user asks for it by name.
Only public interfaces read it. On CPU, ops carry the launch's number, its module and its device. A GPU has a line for
each stream, whose kernels carry the number of the call that sent them; the call lies within its launch on the host
(seen with JAX 0.11 on an H200). A TPU has a line of modules and a line of ops for each device; that is written from
XLA's public description of its profiles (``xplane.proto``, ``xplane_schema.cc``) and has not been tried on a device.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
import time
import warnings
from bisect import bisect
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax

from pathways_nb.errors import UsageError
from pathways_nb.runtime.lowering.attachment import Island
from pathways_nb.trace.exact_stamps import OpSpan, Span

_DEVICE_PLANE = re.compile(r"/device:(?:GPU|TPU):(\d+)")
_MODULES = "XLA Modules"
_OPS = ("XLA Ops", "Async XLA Ops")
_STREAM = "Stream #"
_GRAPH = "command_buffer"
"""What a kernel calls its op if a CUDA graph of many ops has launched it; then its own name says more."""
_ON_HOST = 2
"""The tracer's level of detail that names operations."""


@dataclass
class _Launch:
    """One launch on one device as the profile has it, in its own nanoseconds; ops have a name, a start and an end."""

    low: float = float("inf")
    high: float = 0.0
    ops: list[tuple[str, float, float]] = field(default_factory=list)

    def extend(self, start: float, end: float) -> None:
        """Let it last from ``start`` to ``end`` at least."""
        self.low, self.high = min(self.low, start), max(self.high, end)


_Found = defaultdict[tuple[int, str, Any], _Launch]
"""Launches by device, module and number of the launch."""
_Sent = dict[tuple[int, int], tuple[str, Any]]
"""Module and number of the launch in which a call to a GPU was made, by the call's device and number."""


class Profiler:
    """Captures a profile between ``start`` and ``stop``; one at a time in a process."""

    def __init__(self, clock: Callable[[], float]):
        self.clock = clock
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def start(self) -> None:
        """Begin to capture.

        Raises:
            UsageError: a profile is being taken already.
        """
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level, options.host_tracer_level = 0, _ON_HOST
        folder = tempfile.TemporaryDirectory()
        try:
            jax.profiler.start_trace(folder.name, profiler_options=options)
        except RuntimeError as error:
            folder.cleanup()
            raise UsageError(
                f"profile: JAX's profiler cannot start ({error}). There is one for the whole process: end the other "
                f"pw.profile block, or call jax.profiler.stop_trace()."
            ) from None
        self._folder = folder

    def stop(self) -> list[Span]:
        """Stop capturing and return the launches that were seen; none if it does not run."""
        if self._folder is None:
            return []
        with self._folder as folder:
            self._stop()
            files = list(Path(folder).rglob("*.xplane.pb"))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # as an error it would abort the process in jaxlib
                return [span for file in files for span in self._read(jax.profiler.ProfileData.from_file(str(file)))]

    def abandon(self) -> None:
        """Stop capturing if it still runs, so that the process's profiler is free again, and drop what was seen."""
        if self._folder is not None:
            with self._folder, contextlib.suppress(RuntimeError):  # it had been stopped by somebody else
                self._stop()

    def _stop(self) -> None:
        jax.profiler.stop_trace()
        self._folder = None

    def _read(self, profile: Any) -> Iterator[Span]:
        planes = {plane.name: plane for plane in profile.planes}
        if "Task Environment" not in planes:  # without it nobody knows when the times began
            return
        offset = dict(planes["Task Environment"].stats)["profile_start_time"] * 1e-9 + _unix_to(self.clock)
        found, sent = _Found(_Launch), _Sent()
        devices = {name: int(match[1]) for name in planes if (match := _DEVICE_PLANE.match(name))}
        for name in planes.keys() - devices:
            _read_host(planes[name], found, sent)
        for name, device in devices.items():
            _read_device(planes[name], device, found)
            _read_streams(planes[name], device, sent, found)

        def at(time: float) -> float:
            return float(offset + time * 1e-9)

        for (device, module, launch), seen in found.items():
            ops = tuple(OpSpan(name, at(start), at(end)) for name, start, end in seen.ops)
            yield Span(device, module, launch, at(seen.low), at(seen.high), ops)


def ordinals(islands: tuple[Island, ...]) -> list[list[int]]:
    """Return the profiler's number of each device, island by island."""
    return [[_ordinal(device) for device in island.devices] for island in islands]


def _ordinal(device: Any) -> int:
    number = getattr(device, "local_hardware_id", None)
    return int(device.id if device.platform == "cpu" or number is None else number)


def _read_host(plane: Any, found: _Found, sent: _Sent) -> None:
    """Add the ops on CPU devices, each of which says to which launch it belongs, and the calls that launches made."""
    for line in plane.lines:
        begun: list[tuple[float, float, tuple[str, Any]]] = []
        calls: list[tuple[float, tuple[int, int]]] = []
        for event in line.events:
            said = dict(event.stats)
            if "correlation_id" in said and "device_id" in said:
                calls.append((event.start_ns, (said["device_id"], said["correlation_id"])))
            elif "run_id" in said and "name" in said and "Execute (" in event.name:
                begun.append((event.start_ns, event.start_ns + event.duration_ns, (said["name"], said["run_id"])))
            elif "hlo_op" in said and "run_id" in said and "device_ordinal" in said:
                launch = found[said["device_ordinal"], said["hlo_module"], said["run_id"]]
                start, end = event.start_ns, event.start_ns + event.duration_ns
                launch.extend(start, end)
                launch.ops.append((said["hlo_op"], start, end))
        begun.sort(key=lambda one: one[0])
        for start, call in calls:
            at = bisect(begun, start, key=lambda one: one[0]) - 1
            if at >= 0 and start <= begun[at][1]:
                sent[call] = begun[at][2]


def _read_streams(plane: Any, device: int, sent: _Sent, found: _Found) -> None:
    """Add the kernels and copies on a GPU's streams to the launches that sent them."""
    for line in plane.lines:
        for event in line.events if line.name.startswith(_STREAM) else ():
            said = dict(event.stats)
            launch = sent.get((device, said.get("correlation_id", -1)))
            if launch is not None:
                start, end = event.start_ns, event.start_ns + event.duration_ns
                name = said.get("hlo_op", _GRAPH)
                found[device, *launch].extend(start, end)
                found[device, *launch].ops.append((event.name if name.startswith(_GRAPH) else name, start, end))


def _read_device(plane: Any, device: int, found: _Found) -> None:
    """Add the launches on one accelerator that say which launch they are, and the ops that began during each.

    A launch number counted here instead could be wrong. An accelerator runs one module at a time.
    """
    begun: list[tuple[float, float, _Launch]] = []
    for event in _events(plane, _MODULES):
        number = dict(event.stats).get("run_id")
        if number is not None:
            launch = found[device, event.name.split("(")[0], number]
            start, end = event.start_ns, event.start_ns + event.duration_ns
            launch.extend(start, end)
            begun.append((start, end, launch))
    begun.sort(key=lambda one: one[0])
    for event in _events(plane, *_OPS):
        start = event.start_ns
        at = bisect(begun, start, key=lambda one: one[0]) - 1
        if at >= 0 and start < begun[at][1]:
            begun[at][2].ops.append((_op_name(event.name), start, start + event.duration_ns))


def _events(plane: Any, *lines: str) -> Iterator[Any]:
    """Yield the events of the lines with these names."""
    return (event for line in plane.lines if line.name in lines for event in line.events)


def _op_name(text: str) -> str:
    """Return the name of an op, which an accelerator may name by its whole line of HLO text."""
    return text.split(" = ")[0].lstrip("%")


def _unix_to(clock: Callable[[], float]) -> float:
    """Return what to add to Unix time to get the time of ``clock``, in seconds: the closest of a few readings."""

    def reading() -> tuple[float, float]:
        before = clock()
        now = time.time_ns()
        after = clock()
        return after - before, (before + after) / 2 - now * 1e-9

    return min(reading() for _ in range(10))[1]
