"""Changes of layout that XLA's partitioner does not find a way for: it makes a whole copy on every device, and cuts it.

It warns of them ("involuntary full rematerialization") with the value's type, both layouts and where the value comes
from. The gathers that make the copy often have the line that *reads* the value, so they are found by their operand's
shape.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from pathways_nb.cost.hlo.hlo_text import HloComputation, HloInstruction, HloModule

FLAG = "copied whole to every device: no direct way"
_WARNED = re.compile(
    r"from sharding (\{.*?\}) to (\{.*?\}) (?:efficiently|without doing a full rematerialization of the tensor) "
    r"for HLO operation:? %?[\w.\-]+ = \w+\[([\d,]*)\](.*)"
)


@dataclass(frozen=True)
class WholeCopy:
    """A value that is copied whole to every device so that its layout can change.

    Args:
        line: of the user's that the value comes from; empty where the compiler names none.
        before: its layout, in XLA's words.
        after: the layout that is wanted.
        gathers: names of the instructions that make the copy; none where they are not known.
    """

    line: str
    before: str
    after: str
    gathers: tuple[str, ...]

    @property
    def flag(self) -> str:
        """The flag of its collectives."""
        return f"{FLAG} from the layout of {self.line or 'an unknown line'}"

    @property
    def note(self) -> str:
        """What is said where its collectives are not known."""
        return f"what {self.line or 'an unknown line'} makes is {FLAG} from {self.before} to {self.after}"


def copies_in(module: HloModule, warned: str) -> tuple[WholeCopy, ...]:
    """Return the copies that a compiler warned of.

    Args:
        module: scheduled.
        warned: the compiler's warnings, one a line.
    """
    return tuple(_copies(module, warned)) if warned else ()


def _copies(module: HloModule, warned: str) -> Iterator[WholeCopy]:
    gathers = [(one, part) for computation in module.computations.values() for one, part in _gathered(computation)]
    for before, after, dims, attributes in _WARNED.findall(warned):
        # The type is that of one device's part. A copy is gathered from it, at once or axis by axis.
        part = sorted(int(dim) for dim in dims.split(",") if dim)
        found = [one for one, dims in gathers if sorted(dims) == part]
        lines = {module.sources.line_of(one.attributes) for one in found}
        # Parts of one shape on several lines: which of them is meant is not known.
        names = tuple(one.name for one in found) if len(lines) == 1 else ()
        yield WholeCopy(module.sources.line_of(attributes), before, after, names)


def _gathered(computation: HloComputation) -> Iterator[tuple[HloInstruction, tuple[int, ...]]]:
    """Yield the gathers of a computation, and the dimensions of what each gathers from one device."""
    for one in computation.instructions.values():
        if one.opcode in ("all-gather", "all-gather-start") and len(one.operands) == 1:
            yield from ((one, shape.dims) for shape in computation.instructions[one.operands[0]].shapes[:1])
