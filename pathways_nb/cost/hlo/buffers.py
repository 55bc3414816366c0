"""What a compiler says of a program's memory: its assignment of buffers, and how long each value lives.

XLA dumps both beside the program. An *allocation* is a piece of the device's memory; one large one holds all temporary
values, which share its bytes at different times. A line of a live range counts positions in the sequence of all
instructions, those of loops included, each once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

_ALLOCATION = re.compile(r"^allocation \d+: size (\d+)(.*):$")
_VALUE = re.compile(r"^ value: <\d+ ([^\s{]+)(\{[\d,]*\})?[^@]*@\d+> \(size=(\d+),offset=(\d+)\): (.*)$")
_RANGE = re.compile(r"^    ([^\s{]+)(\{[\d,]*\})?:(\d+)-(\d+)$")
_AT_PEAK = re.compile(r"^    ([^\s{]+)(\{[\d,]*\})?: \d+ bytes ")
_PLACE = re.compile(r"^    (\d+):(\S+)$")
_LAYOUT = re.compile(r"\{[^{}]*\}")

Use = Literal["arguments", "results", "temporaries"]
"""What an allocation is for. A result that takes over an argument's memory is counted as the argument."""


class BufferValue(NamedTuple):
    """A value in the device's own memory.

    Args:
        name: of the instruction that makes it.
        part: of a tuple, such as ``"{0}"``; ``"{}"`` for all.
        use: of its allocation.
        bytes: of it.
        allocation: number of its allocation.
        offset: bytes before it in the allocation.
        shape: such as ``"bf16[4096,2048]"``.
    """

    name: str
    part: str
    use: Use
    bytes: int
    allocation: int
    offset: int
    shape: str


@dataclass(frozen=True)
class Buffers:
    """An assignment of buffers.

    Args:
        bytes: of all allocations in the device's own memory, by what they are for.
        values: in those.
    """

    bytes: dict[Use, int]
    values: tuple[BufferValue, ...]

    @property
    def total(self) -> int:
        """Bytes of all allocations: what the program needs at most."""
        return sum(self.bytes.values())


def buffers_in(text: str) -> Buffers:
    """Return an assignment of buffers; an empty one of an empty text.

    Args:
        text: of ``…-buffer-assignment.txt``.
    """
    sizes: dict[Use, int] = {"arguments": 0, "results": 0, "temporaries": 0}
    values: list[BufferValue] = []
    use: Use | None = None
    number = -1
    for line in text.splitlines():
        if allocation := _ALLOCATION.match(line):
            number += 1
            use = _use(allocation[2])
            if use is not None:
                sizes[use] += int(allocation[1])
        elif use is not None and (value := _VALUE.match(line)):
            size, offset, shape = int(value[3]), int(value[4]), _LAYOUT.sub("", value[5])
            values.append(BufferValue(value[1], value[2] or "{}", use, size, number, offset, shape))
    return Buffers(sizes, tuple(values))


def _use(said: str) -> Use | None:
    """Return what an allocation is for; None if it is not in the device's own memory, which is the one without color.

    Args:
        said: what its line says behind its size.
    """
    if ", color " in said:
        return None
    if ", parameter " in said:
        return "arguments"
    return "results" if "maybe-live-out" in said or "output shape is" in said else "temporaries"


class LiveRange(NamedTuple):
    """How long a value lives, in positions of the sequence of all instructions.

    Args:
        name: of the instruction that makes it.
        part: of a tuple.
        begin: the first position.
        end: the last position.
    """

    name: str
    part: str
    begin: int
    end: int


@dataclass(frozen=True)
class LiveRanges:
    """How long the values of a program live.

    Args:
        sequence: names of all instructions in the order in which they run, those of loops once.
        ranges: of all values.
        peak: names and parts of the values that live where most bytes do.
    """

    sequence: tuple[str, ...]
    ranges: tuple[LiveRange, ...]
    peak: tuple[tuple[str, str], ...]


def live_ranges_in(text: str) -> LiveRanges:
    """Return how long values live; nothing of an empty text.

    Args:
        text: of ``…-live-range.txt``.
    """
    parts = dict(_parts(text))
    sequence = [found[2] for line in parts.get("InstructionSequence", ()) if (found := _PLACE.match(line))]
    ranges = [
        LiveRange(found[1], found[2] or "{}", int(found[3]), int(found[4]))
        for line in parts.get("BufferLiveRange", ())
        if (found := _RANGE.match(line))
    ]
    peak = [(found[1], found[2] or "{}") for line in parts.get("Live ranges", ()) if (found := _AT_PEAK.match(line))]
    return LiveRanges(tuple(sequence), tuple(ranges), tuple(peak))


def _parts(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the title and the lines of each part of a text."""
    title, lines = "", list[str]()
    for line in text.splitlines():
        if line.startswith("  ") and not line.startswith("   "):
            yield title, lines
            title, lines = line.strip().split(":")[0].split(" at ")[0], []
        else:
            lines.append(line)
    yield title, lines
