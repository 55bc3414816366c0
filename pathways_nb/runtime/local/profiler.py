"""JAX's own profiler for the length of a block: when each launch, and each op in it, began and ended on its devices.

It is expensive (measured: 3 to 9 % of the time on one CPU device, 12 to 21 % on four), so the user asks for it by name.
Only public interfaces are used. What the planes of a profile mean is read in ``runtime.recorded.xplane``, also for
profiles of other programs.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax

from pathways_nb.errors import UsageError
from pathways_nb.runtime.lowering.attachment import Island
from pathways_nb.runtime.recorded.xplane import PlaneReader
from pathways_nb.trace.exact_stamps import OpSpan, Span
from pathways_nb.util.json_text import said

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


class Profiler:
    """Captures a profile between ``start`` and ``stop``; one at a time in a process."""

    def __init__(self, clock: Callable[[], float]):
        self.clock = clock
        self.unread: Counter[str] = Counter()
        """Planes and lines that were not understood, and how many events each has."""
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def start(self) -> None:
        """Begin to capture.

        Raises:
            UsageError: a profile is being taken already, or the profiler cannot write to this machine.
        """
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level, options.host_tracer_level = 0, _ON_HOST
        folder = tempfile.TemporaryDirectory()
        try:
            jax.profiler.start_trace(folder.name, profiler_options=options)
        except Exception as error:  # of whatever class a backend's own profiler raises
            folder.cleanup()
            raise UsageError(_cannot_start(error)) from None
        self._folder = folder

    def stop(self) -> list[Span]:
        """Stop capturing.

        Returns:
            The launches that were seen; none if it does not run.

        Raises:
            UsageError: somebody else has stopped it.
        """
        if self._folder is None:
            return []
        with self._folder as folder:
            try:
                self._stop()
            except RuntimeError as error:
                raise UsageError(
                    f"profile: JAX's profiler was stopped inside the block, so there are no exact times "
                    f"({said(error)}). Leave jax.profiler.stop_trace() to pw.profile."
                ) from None
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
        self._folder = None
        jax.profiler.stop_trace()

    def _read(self, profile: Any) -> Iterator[Span]:
        reader, found = PlaneReader(profile), _Found(_Launch)
        for task in reader.tasks():
            # What is part of no launch, or of one that nobody can tell from others, is part of none of the record's.
            if task.launch is None or task.launch.number is None:
                continue
            seen = found[task.device[1], *task.launch]
            # A TPU has a box for each launch; an op may end after it.
            if task.device[0] != "TPU" or not task.name:
                seen.extend(task.start, task.end)
            if task.name:
                seen.ops.append((task.op, task.start, task.end))
        self.unread += reader.unread
        if reader.began is None:  # nobody knows when the times began
            return
        offset = reader.began * 1e-9 + _unix_to(self.clock)

        def at(time: float) -> float:
            return float(offset + time * 1e-9)

        for (device, module, _), seen in found.items():
            ops = tuple(OpSpan(name, at(start), at(end)) for name, start, end in seen.ops)
            yield Span(device, module, at(seen.low), at(seen.high), ops)


def _cannot_start(error: Exception) -> str:
    """Return the text of the error on a profiler that does not start."""
    if "GCS" in str(error) or "gs://" in str(error):
        return (
            f"profile: the profiler of these devices writes to a bucket only ({said(error)}), and pw.profile reads "
            f"files of this machine. Take it with jax.profiler.trace('gs://…'), copy its .xplane.pb here and open it "
            f"with pw.load; pw.record() has estimated times."
        )
    return (
        f"profile: JAX's profiler cannot start ({said(error)}). There is one for the whole process: end the other "
        f"pw.profile block, or call jax.profiler.stop_trace()."
    )


def ordinals(islands: tuple[Island, ...]) -> list[list[int]]:
    """Return the profiler's number of each device, island by island."""
    return [[_ordinal(device) for device in island.devices] for island in islands]


def _ordinal(device: Any) -> int:
    number = getattr(device, "local_hardware_id", None)
    return int(device.id if device.platform == "cpu" or number is None else number)


def _unix_to(clock: Callable[[], float]) -> float:
    """Return what to add to Unix time to get the time of ``clock``, in seconds: the closest of a few readings."""

    def reading() -> tuple[float, float]:
        before = clock()
        now = time.time_ns()
        after = clock()
        return after - before, (before + after) / 2 - now * 1e-9

    return min(reading() for _ in range(10))[1]
