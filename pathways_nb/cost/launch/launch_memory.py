"""The memory of a launch as its compiler assigned it: how much, for what, the largest buffers, and a refusal."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from pathways_nb.cost.hlo.buffers import BufferValue, buffers_in, live_ranges_in
from pathways_nb.cost.hlo.hlo_text import HloInstruction, HloModule
from pathways_nb.cost.launch.memory_levels import MemoryLevels, levels_of
from pathways_nb.errors import size
from pathways_nb.plan.memory_categories import ARGUMENTS, RESULTS, TEMPORARIES
from pathways_nb.trace.launch_ops import Ops
from pathways_nb.util.text_table import Printed, Table

LARGEST = 20
"""Buffers that are listed."""
_TOTAL = re.compile(r"^Memory Space: default.*\nTotal bytes: (\d+)", re.MULTILINE)
_NEEDED = re.compile(r"\(([\d.]+)([KMG])\) exceeds available[^(]*\(([\d.]+)([KMG])\)")
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}


@dataclass(frozen=True)
class LargeBuffer:
    """A buffer.

    Args:
        bytes: of it.
        name: of the instruction that makes it.
        op: the operation of the program that it stems from, or the name of the argument; the instruction's name if the
            text does not say.
        shape: such as ``"bf16[4096,2048]"``.
        line: the innermost line of the user's code; empty if the text does not say.
    """

    bytes: int
    name: str
    op: str
    shape: str
    line: str = ""

    def __str__(self) -> str:
        where = f" at {self.line}" if self.line else ""
        return f"{size(self.bytes)} {self.shape}: {self.op}{where}"


@dataclass(frozen=True, repr=False)
class LaunchMemory(Printed):
    """The memory of one device during a launch; bytes.

    Args:
        peak: what the launch needs at most.
        arguments: those that results take over included.
        results: that take over no argument's memory.
        temporaries: inside the launch, constants included.
        buffers: the largest that exist at the peak, the largest first.
        available: of the device, as the compiler says where it refuses, else as the chip has; None if unknown.
        refused: the compiler's own words; empty if it takes the program.
        levels: what is held when; None if the compiler did not say how long values live.
    """

    peak: int
    arguments: int
    results: int
    temporaries: int
    buffers: tuple[LargeBuffer, ...] = ()
    available: int | None = None
    refused: str = ""
    levels: MemoryLevels | None = None

    @property
    def by_category(self) -> dict[str, int]:
        """Bytes by what they are for, at the time when most is held, the most first.

        Without the times, temporaries are all one.
        """
        if self.levels is None:
            found = {ARGUMENTS: self.arguments, RESULTS: self.results, TEMPORARIES: self.temporaries}
        else:
            at = int(np.argmax(sum(self.levels.bytes.values())))
            found = {name: int(held[at]) for name, held in self.levels.bytes.items()}
        return {name: held for name, held in sorted(found.items(), key=lambda one: -one[1]) if held}

    @property
    def fits(self) -> bool:
        """Whether the device has so much memory, and the compiler did not refuse."""
        return not self.refused and (self.available is None or self.peak <= self.available)

    @property
    def shortage(self) -> str:
        """What is missing, such as ``"needs 107 GB, 27 GB more than the 80 GB of a device"``; empty if it fits."""
        if self.available is not None and self.peak > self.available:
            missing = size(self.peak - self.available)
            return f"needs {size(self.peak)}, {missing} more than the {size(self.available)} of a device"
        # A refusal may not say how much there would have to be.
        return f"is refused by the compiler: {self.refused.splitlines()[0].rstrip('.')}" if self.refused else ""

    def _table(self) -> Table:
        has = "" if self.available is None else f" of {size(self.available)}"
        held = ", ".join(f"{name} {size(count)}" for name, count in self.by_category.items())
        title = f"memory of a device: {size(self.peak)}{has} ({'fits' if self.fits else 'does not fit'}); {held}"
        cells = [(one.op.rpartition("/")[2], one.shape, one.line or "–", size(one.bytes)) for one in self.buffers]
        return Table(title, ("largest buffers at the peak", "shape", "line", "bytes"), cells)


def memory_of(
    module: HloModule | None,
    ops: Ops,
    buffers: str,
    memory: str,
    live: str,
    refused: str,
    hbm: int | None,
    backward: str,
) -> LaunchMemory | None:
    """Return the memory of a launch; None if the compiler said nothing of it.

    Args:
        module: of the launch; None if there is no text.
        ops: of the launch.
        buffers: the assignment of buffers.
        memory: the report of largest buffers.
        live: how long values live.
        refused: the compiler's words.
        hbm: bytes of the device.
        backward: the instruction with which the backward pass begins; empty without one.
    """
    found, ranges = buffers_in(buffers), live_ranges_in(live)
    said = _NEEDED.search(refused)
    available = int(float(said[3]) * _UNITS[said[4]]) if said else hbm
    if not found.values:
        reported = _TOTAL.search(memory)
        if not said and not reported:
            return LaunchMemory(0, 0, 0, 0, available=available, refused=refused) if refused else None
        # A refusal counts more than the report, which ends where memory does.
        peak = int(float(said[1]) * _UNITS[said[2]]) if said else int(reported[1])  # type: ignore[index]
        return LaunchMemory(peak, 0, 0, peak, available=available, refused=refused)
    chosen = _largest(found.values, set(ranges.peak))
    names = {value.name for value in chosen}
    every = [one for part in module.computations.values() for one in part.instructions.values()] if module else []
    known = {one.name: one for one in every if one.name in names}
    listed = tuple(_buffer(value, module, known.get(value.name)) for value in chosen)
    peak = int(float(said[1]) * _UNITS[said[2]]) if said else found.total
    sizes = found.bytes
    return LaunchMemory(
        peak,
        sizes["arguments"],
        sizes["results"],
        sizes["temporaries"],
        listed,
        available,
        refused,
        levels_of(ops, found, ranges, backward),
    )


def _largest(values: tuple[BufferValue, ...], at_peak: set[tuple[str, str]]) -> list[BufferValue]:
    """Return the largest values, of those that share their bytes one: of those at the peak, if that is known."""
    there = [value for value in values if not at_peak or (value.name, value.part) in at_peak]
    found: dict[tuple[int, int], BufferValue] = {}
    for value in sorted(there, key=lambda one: -one.bytes):
        found.setdefault((value.allocation, value.offset), value)
    return list(found.values())[:LARGEST]


def _buffer(value: BufferValue, module: HloModule | None, made: HloInstruction | None) -> LargeBuffer:
    """Return a value as it is listed."""
    if module is None or made is None:
        return LargeBuffer(value.bytes, value.name, value.name, value.shape)
    line = module.sources.line_of(made.attributes)
    return LargeBuffer(value.bytes, value.name, made.op_name or value.name, value.shape, line)
