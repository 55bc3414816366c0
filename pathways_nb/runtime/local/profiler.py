"""JAX's own profiler for the length of a block: when each launch really began and ended on its devices.

It is expensive (measured: 3 to 9 % of the time on one CPU device, 12 to 21 % on four), so the user asks for it by name.
Only public interfaces read it: on CPU, operations carry the launch's number, its module and its device; GPU and TPU
have a line of modules for each device.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax

from pathways_nb.errors import UsageError
from pathways_nb.runtime.islands import Island
from pathways_nb.trace.exact_stamps import Span

_DEVICE_PLANE = re.compile(r"/device:(?:GPU|TPU):(\d+)")
_MODULES = "XLA Modules"
_ON_HOST = 2
"""The tracer's level of detail that names operations."""


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
        found: dict[tuple[int, str, Any], tuple[float, float]] = {}
        for name, plane in planes.items():
            on_device = _DEVICE_PLANE.match(name)
            for key, event in _modules(plane, int(on_device[1])) if on_device else _operations(plane):
                low, high = found.get(key, (float("inf"), 0.0))
                found[key] = min(low, event.start_ns), max(high, event.start_ns + event.duration_ns)
        for (device, module, launch), (low, high) in found.items():
            yield Span(device, module, launch, offset + low * 1e-9, offset + high * 1e-9)


def ordinals(islands: tuple[Island, ...]) -> list[list[int]]:
    """Return the profiler's number of each device, island by island."""
    return [[_ordinal(device) for device in island.devices] for island in islands]


def _ordinal(device: Any) -> int:
    number = getattr(device, "local_hardware_id", None)
    return int(device.id if device.platform == "cpu" or number is None else number)


def _operations(plane: Any) -> Iterator[tuple[tuple[int, str, Any], Any]]:
    """Yield a key and an event for each operation on CPU devices."""
    for line in plane.lines:
        for event in line.events:
            said = dict(event.stats)
            if "hlo_op" in said and "run_id" in said and "device_ordinal" in said:
                yield (said["device_ordinal"], said["hlo_module"], said["run_id"]), event


def _modules(plane: Any, device: int) -> Iterator[tuple[tuple[int, str, Any], Any]]:
    """Yield a key and an event for each launch on one accelerator that says which launch it is.

    A launch number counted here instead could be wrong.
    """
    for line in plane.lines:
        for event in line.events if line.name == _MODULES else ():
            launch = dict(event.stats).get("run_id")
            if launch is not None:
                yield (device, event.name.split("(")[0], launch), event


def _unix_to(clock: Callable[[], float]) -> float:
    """Return what to add to Unix time to get the time of ``clock``, in seconds: the closest of a few readings."""

    def reading() -> tuple[float, float]:
        before = clock()
        now = time.time_ns()
        after = clock()
        return after - before, (before + after) / 2 - now * 1e-9

    return min(reading() for _ in range(10))[1]
