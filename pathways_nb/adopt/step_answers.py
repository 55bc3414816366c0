"""What an adopted step answers, and how that is kept in a file: seconds, collectives, memory, a timeline."""

from __future__ import annotations

import gzip
import io
import json
import math
import zlib
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pathways_nb.adopt.collective_table import Collectives
from pathways_nb.adopt.predicted_seconds import PredictedSeconds
from pathways_nb.adopt.predicted_step import STEP, PredictedStep
from pathways_nb.cost.launch.bands import SecondsBand
from pathways_nb.cost.launch.launch_memory import LaunchMemory
from pathways_nb.errors import OutOfMemoryError, UsageError, size
from pathways_nb.results import opened_runs
from pathways_nb.results.launch_runs import launched_run
from pathways_nb.results.run import Run
from pathways_nb.trace.metrics import duration
from pathways_nb.util.json_text import DamagedError, Field, parse
from pathways_nb.util.words import axes_in_words

_LISTED = 5
"""Buffers that an error lists."""
_BEGIN, _VERSION = b"pathways_nb step\n", 2
"""The first bytes of a file, in front of what is compressed, and the version that is written: 1 had no graph."""
_OF_THE_PROGRAM = ("on", "constraints", "try_line", "try_flagged", "try_buttons")
"""What only a step that can be compiled anew has."""
_MOST_BYTES = 2**28
"""Limit for a file when it is unpacked."""


class StepAnswers:
    """What a step answers on some chips: those of an adopted step, or of a saved one.

    Args:
        name: of the function.
        chip: name of the chip.
        mesh: devices along each axis.
        options: of the compiler.
        versions: of JAX and of the compiler, by name; empty where they are not known.
    """

    def __init__(
        self,
        name: str,
        chip: str,
        mesh: Mapping[str, int],
        options: Mapping[str, Any] | None = None,
        versions: Mapping[str, str] | None = None,
    ):
        self.name = name
        """Name of the function."""
        self.chip_name = chip
        """Name of the chip."""
        self.mesh = dict(mesh)
        """Devices along each axis."""
        self.options = dict(options or {})
        """Options of the compiler."""
        self.versions = dict(versions or {})
        """Versions of JAX and of the compiler; empty of a step that was saved without them."""

    @cached_property
    def _predicted(self) -> PredictedStep:
        raise NotImplementedError

    @property
    def devices(self) -> int:
        """Number of devices."""
        return math.prod(self.mesh.values())

    @property
    def seconds(self) -> PredictedSeconds:
        """Seconds of one step, a number with ``.low`` and ``.high``.

        Raises:
            OutOfMemoryError: the step does not fit; by how much, and the largest buffers with their lines.
        """
        made = self._predicted
        memory = made.launch.memory
        if memory is not None and not memory.fits:
            raise OutOfMemoryError(self._too_large(memory))
        return PredictedSeconds(self.band)

    @property
    def band(self) -> SecondsBand:
        """The seconds with their band, whether the step fits or not."""
        return self._predicted.band

    @property
    def notes(self) -> tuple[str, ...]:
        """What was left out, what could not be known, and what a device is."""
        return self._predicted.launch.notes

    def collectives(self) -> Collectives:
        """Return the collectives, one row for each line of the user's code and kind, the longest exposed first."""
        made = self._predicted
        return replace(made.collectives, texts=made.graph.texts)

    def memory(self) -> LaunchMemory:
        """Return the memory of one device: ``.peak``, ``.fits``, ``.by_category``, ``.buffers`` with their lines.

        Raises:
            UsageError: the compiler said nothing of it.
        """
        found = self._predicted.launch.memory
        if found is None:
            raise UsageError(f"{self.name}: the compiler said nothing of its memory.")
        return found

    @property
    def where(self) -> str:
        """Where it is, such as ``"64 × gpu_h100_sxm, data 16 × model 4"``."""
        return ", ".join(filter(None, (f"{self.devices} × {self.chip_name}", axes_in_words(self.mesh))))

    @property
    def summary(self) -> str:
        """Where it is, how long it takes, what is exposed, and its memory, in one line."""
        memory = self._predicted.launch.memory
        is_possible = memory is None or memory.fits
        parts = [repr(PredictedSeconds(self._predicted.band)) if is_possible else "no seconds"]
        if is_possible and (exposed := self.collectives().exposed):
            parts.append(f"{duration(exposed)} of it exposed communication")
        if memory is not None:
            fits = "fits" if memory.fits else "does not fit"
            said = fits if memory.fits or not memory.available else f"{fits}: it has {size(memory.available)}"
            parts.append(f"{size(memory.peak)} a device ({said})")
        return f"{self.name} on {self.where}: {', '.join(parts)}"

    def timeline(self) -> Run:
        """Return the step as a run of one device, which stands for all: to be drawn, saved and compared."""
        run = launched_run(self._predicted.launch, self.name, self.chip_name, self.devices)
        run.op_graph = self._predicted.graph
        return run

    def show(self, views: str = "graph,ops,memory") -> None:
        """Draw the step.

        Args:
            views: as in ``pw.Run.show``; ``"graph"`` is the graph of its operations, folded by module, with the lines
                that they come from. ``"memory"`` is left out where only some of the blocks were compiled: then the
                curve of all is not known, only their peak.
        """
        names = ["modules" if (name := one.strip()) == "graph" else name for one in views.split(",")]
        memory = self._predicted.launch.memory
        if len(names) > 1 and (memory is None or memory.levels is None):
            names = [name for name in names if name != "memory"]
        self.timeline().show(",".join(names))

    def save(self, path: str | Path) -> None:
        """Write all answers to one file, which ``pw.load`` reads without a compiler."""
        said = {
            "version": _VERSION, "name": self.name, "chip": self.chip_name, "mesh": self.mesh,
            "options": self.options, "versions": self.versions, "step": STEP.write(self._predicted),
        }  # fmt: skip
        Path(path).write_bytes(_BEGIN + gzip.compress(json.dumps(said).encode(), mtime=0))

    def _too_large(self, memory: LaunchMemory) -> str:
        """Return the text of the error on a step that does not fit."""
        listed = "; ".join(map(str, memory.buffers[:_LISTED]))
        return (
            f"{self.name} does not fit on {self.where}: it {memory.shortage}. Its largest buffers: "
            f"{listed or 'not known'}."
        )

    def __repr__(self) -> str:
        return f"<step {self.name}: {self.where}>"


class SavedStep(StepAnswers):
    """The answers of a step, from a file."""

    def __init__(
        self,
        name: str,
        chip: str,
        mesh: Mapping[str, int],
        made: PredictedStep,
        options: Mapping[str, Any] | None = None,
        versions: Mapping[str, str] | None = None,
    ):
        super().__init__(name, chip, mesh, options, versions)
        self._predicted = made

    def __getattr__(self, name: str) -> Any:
        if name not in _OF_THE_PROGRAM:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
        raise AttributeError(
            f"{name}: {self.name} was loaded from a file, which has a step's answers and not its program. Adopt the "
            f"step: pw.adopt({self.name}, …, chip={self.chip_name!r}, mesh={self.mesh}).{name}(…)."
        )


def read_step(path: Path) -> SavedStep | None:
    """Return the answers in a file; None if it is of another kind.

    Args:
        path: of the file.

    Raises:
        UsageError: it is damaged, or of a newer version.
    """
    with path.open("rb") as file:
        if file.read(len(_BEGIN)) != _BEGIN:
            return None
        packed = file.read()
    try:
        found = Field(parse(_unpacked(packed).decode()))
        if found["version"].whole(1) > _VERSION:
            raise DamagedError("it is of a newer version of pathways_nb")
        mesh = {name: found["mesh"][name].whole(1) for name in found["mesh"].table()}
        # Steps that were saved by an older version say neither.
        options, versions = (found[part].table() if part in found.table() else {} for part in ("options", "versions"))
        said = {name: found["versions"][name].text() for name in versions}
        return SavedStep(found["name"].text(), found["chip"].text(), mesh, STEP.read(found["step"]), options, said)
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise UsageError(f"load({str(path)!r}): this saved step cannot be read: {error}.") from None


def _unpacked(packed: bytes) -> bytes:
    """Return unpacked bytes.

    Raises:
        DamagedError: they are more than any step has.
    """
    with gzip.open(io.BytesIO(packed)) as file:
        found = file.read(_MOST_BYTES + 1)
    if len(found) > _MOST_BYTES:
        raise DamagedError(f"it unpacks to more than {_MOST_BYTES >> 20} MiB")
    return found


opened_runs.read_also(read_step)
