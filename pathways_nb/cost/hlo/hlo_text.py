"""The text of compiled XLA programs, as far as it tells which collectives run and how often.

The grammar (XLA's ``HloModule::ToString``): a module is a list of computations, ``[ENTRY] %name (…) -> type {`` to
``}``; each line within is ``[ROOT] %name = type opcode(operands), attributes``. A type is ``dtype[dims]{layout}`` or a
tuple of types. Of the attributes, three are read: the computations that an instruction calls, a loop's known trip
count, and groups of devices. A line that does not fit is an error and is not skipped: a collective missed in silence
would make a simulated step too short.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from pathways_nb.cost.hlo.source_tables import SourceTables

_HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\) -> .*\{$")
_ON_OTHER_CORE = "}, execution_thread="
"""Beginning of the last line of a computation that runs on a core of another kind, such as a TPU's sparse core."""
_LINE = re.compile(r"^\s*(ROOT )?%?([\w.\-]+) = (.*)$")
_SHAPE = re.compile(r"\b([a-z]+\d*\w*)\[([\d,<=]*)\](?:\{([^{}]*)\})?")
_SPACE = re.compile(r"S\((\d+)\)")
_NAME = re.compile(r"%([\w.\-]+(?:#\d+)?)")
_ELEMENT = re.compile(r"%([\w.\-]+)#(\d+)")
_INDEX = re.compile(r"\bindex=(\d+)")
_CALLED = re.compile(r"(?:body|to_apply|calls|true_computation|false_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_OP_NAME = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')  # the name of an argument has quotes in it
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')


@dataclass(frozen=True, slots=True)
class HloShape:
    """One array of a type.

    Args:
        dtype: of its elements, as HLO writes it.
        dims: its dimensions.
        space: memory that it is in: 0 for the device's own (HBM); of a TPU 1 for its vector memory, 2 for semaphores,
            5 for the host, 6 for its scalar memory.
    """

    dtype: str
    dims: tuple[int, ...]
    space: int = 0

    @property
    def bits(self) -> int:
        """Bits of one element: 32 for ``f32``, 8 for ``f8e4m3fn`` and ``pred``, 0 for a type that is no number."""
        found = re.search(r"\d+", self.dtype)
        return int(found[0]) if found else 8 * (self.dtype == "pred")

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.dims)

    @property
    def bytes(self) -> float:
        """Bytes of all elements; 0 for a type that is no number, such as a token."""
        return self.size * self.bits / 8


@dataclass(frozen=True, slots=True)
class HloInstruction:
    """One line of a computation."""

    name: str
    shapes: tuple[HloShape, ...]
    opcode: str
    inside: str
    """Text between its parentheses: operands, or the number of a parameter."""
    attributes: str
    is_root: bool

    @property
    def operands(self) -> list[str]:
        """Names of the instructions that it reads."""
        return _NAME.findall(self.inside)

    @property
    def called(self) -> list[str]:
        """Names of the computations that it runs; of a loop the body."""
        branches = _BRANCHES.search(self.attributes)
        return _CALLED.findall(self.attributes) + (re.findall(r"[\w.\-]+", branches[1]) if branches else [])

    @property
    def element(self) -> int | None:
        """Which element of a tuple it takes; None if it takes none."""
        found = _INDEX.search(self.attributes) if self.opcode == "get-tuple-element" else None
        return int(found[1]) if found else None

    @property
    def trips(self) -> int | None:
        """How often it runs what it calls; None if the compiler does not know."""
        known = _TRIPS.search(self.attributes)
        return int(known[1]) if known else None if self.opcode == "while" else 1

    @property
    def op_name(self) -> str:
        """The JAX operation that it stems from, behind JAX's name stack; empty if the text does not say."""
        found = _OP_NAME.search(self.attributes)
        return re.sub(r"\\(.)", r"\1", found[1]) if found else ""

    @property
    def operation(self) -> str:
        """The JAX operation that it stems from; empty if the text does not say."""
        return self.op_name.rpartition("/")[2]


@dataclass(frozen=True)
class HloComputation:
    """Instructions by name, in order."""

    name: str
    instructions: dict[str, HloInstruction] = field(default_factory=dict)

    @cached_property
    def users(self) -> dict[str, list[HloInstruction]]:
        """Instructions that read each instruction."""
        found: dict[str, list[HloInstruction]] = {}
        for instruction in self.instructions.values():
            for operand in dict.fromkeys(instruction.operands):
                found.setdefault(operand, []).append(instruction)
        return found

    @property
    def root(self) -> HloInstruction:
        """The instruction whose value it returns."""
        return next(one for one in self.instructions.values() if one.is_root)

    @cached_property
    def parameters(self) -> dict[int, str]:
        """Name of each parameter, by number."""
        chosen = [i for i in self.instructions.values() if i.opcode == "parameter"]
        return {int(i.inside): i.name for i in chosen}


class RunCount(NamedTuple):
    """How often an instruction runs, and whether that is certain: each branch of a conditional counts as run."""

    times: int
    sure: bool


@dataclass(frozen=True)
class HloModule:
    """A module.

    Args:
        computations: by name.
        entry: name of the entry.
        sources: where instructions come from.
        title: its first line: its name, whether it is scheduled, which results take over which arguments.
    """

    computations: dict[str, HloComputation]
    entry: str
    sources: SourceTables = field(default_factory=SourceTables)
    title: str = ""

    @property
    def name(self) -> str:
        """Its name, such as ``"jit_step"``."""
        return self.title.partition("HloModule ")[2].partition(",")[0].strip()

    @property
    def devices(self) -> int:
        """Number of devices that it is compiled for."""
        found = {name: int(count) for name, count in re.findall(r"\b(num_partitions|replica_count)=(\d+)", self.title)}
        return found.get("num_partitions", 1) * found.get("replica_count", 1)

    def runs(
        self, name: str = "", times: int = 1, sure: bool = True
    ) -> Iterator[tuple[HloComputation, HloInstruction, RunCount]]:
        """Yield each instruction that runs, from the entry on, and how often; a fusion as one instruction.

        Args:
            name: of the computation to begin with; empty for the entry.
            times: how often that computation runs.
            sure: whether that is certain.
        """
        computation = self.computations[name or self.entry]
        for instruction in computation.instructions.values():
            yield computation, instruction, RunCount(times, sure)
            # A fusion runs as one piece of work, so its computation is not entered; the ``to_apply`` of a reduction
            # neither.
            if instruction.opcode in ("while", "call", "conditional", "async-start"):
                trips = instruction.trips
                # Of a conditional every branch counts as run, which is too much: that is said by ``sure``.
                known = sure and trips is not None and instruction.opcode != "conditional"
                for called in instruction.called:
                    yield from self.runs(called, times * (1 if trips is None else trips), known)


def digest_of(text: str) -> str:
    """Return a short digest of a compiled text, by which what was computed from it names it."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def parse(text: str) -> HloModule:
    """Return a compiled module, parsed from the text of ``compiled.as_text()``.

    Raises:
        ValueError: it has no entry, or a line within a computation is none of the grammar.
    """
    computations: dict[str, HloComputation] = {}
    entry, current, title = "", None, ""
    lines: list[str] = []
    sources = SourceTables()
    for line in text.splitlines():
        if current is None:
            head = _HEAD.match(line)
            if head:
                current = computations[head[2]] = HloComputation(head[2])
                entry = head[2] if head[1] else entry
            elif line.startswith("HloModule "):
                title = line
            else:
                sources.add(line)
        elif line.rstrip() == "}" or line.startswith(_ON_OTHER_CORE):
            _add(current, lines)
            current, lines = None, []
        elif _LINE.match(line):
            _add(current, lines)
            lines = [line]
        elif line.strip():
            lines.append(line)  # metadata of a Pallas kernel has line breaks
    if not entry:
        raise ValueError("This is no compiled XLA module: it has no line that begins with ENTRY.")
    return HloModule(computations, entry, sources, title)


def _add(computation: HloComputation, lines: Sequence[str]) -> None:
    """Add the instruction of some lines to its computation, if there are any."""
    if lines:
        instruction = _instruction(lines[0] if len(lines) == 1 else " ".join(map(str.strip, lines)))
        for name, number in _ELEMENT.findall(instruction.inside):
            # Newer compilers write ``%tuple#2`` for an element of a tuple, which older ones take out by an instruction.
            made, at = computation.instructions.get(name), int(number)
            if made is not None and at < len(made.shapes):
                element = f"{name}#{number}"
                computation.instructions[element] = HloInstruction(
                    element, made.shapes[at : at + 1], "get-tuple-element", f"%{name}", f", index={number}", False
                )
        computation.instructions[instruction.name] = instruction


def _instruction(line: str) -> HloInstruction:
    """Return the instruction of one line.

    Raises:
        ValueError: the line is none of the grammar.
    """
    found = _LINE.match(line)
    if not found:
        raise ValueError(f"No instruction of a compiled XLA module: {line.strip()[:120]!r}.")
    # Long tuples have comments with indices between their types, such as ``/*index=5*/``.
    rest = re.sub(r"/\*.*?\*/", "", found[3])
    # The type of a tuple has blanks within its parentheses, any other type has none.
    end = _closing(rest) if rest.startswith("(") else rest.index(" ")
    kind, rest = rest[:end], rest[end:].strip()
    opcode, _, rest = rest.partition("(")
    # Operands may be tuples or have layouts with parentheses, so the first closing one need not be the end.
    end = _closing("(" + rest) - 2
    # ``<=8`` is a dimension of at most 8.
    shapes = tuple(
        HloShape(
            dtype,
            tuple(int(n.lstrip("<=")) for n in dims.split(",") if n),
            int(space[1]) if (space := _SPACE.search(layout)) else 0,
        )
        for dtype, dims, layout in _SHAPE.findall(kind)
    )
    return HloInstruction(found[2], shapes, opcode, rest[:end], rest[end + 1 :], bool(found[1]))


def _closing(text: str) -> int:
    """Return the position after the parenthesis that closes the one with which ``text`` begins.

    Raises:
        ValueError: it is never closed.
    """
    depth = 0
    for at, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if not depth:
            return at + 1
    raise ValueError(f"A parenthesis is never closed: {text[:120]!r}.")
