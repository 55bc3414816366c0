"""How often a loop of a compiled module runs, where the compiler does not write it down.

XLA's TPU compiler leaves out ``known_trip_count``. A counted loop compares its counter with a limit in the condition,
and adds a step to it in the body; both are constants, and so is where the counter begins. Windowed products count in
steps of two.
"""

from __future__ import annotations

import math
import re

from pathways_nb.cost.hlo.hlo_text import HloComputation, HloInstruction, HloModule

_CONDITION = re.compile(r"condition=%?([\w.\-]+)")
_ALIKE = frozenset({"copy", "bitcast", "convert"})


def trips_of(module: HloModule, computation: HloComputation, loop: HloInstruction) -> int | None:
    """Return how often a loop runs; None if it cannot be told from the text.

    Args:
        module: of the loop.
        computation: that holds the loop.
        loop: an instruction ``while``.
    """
    if loop.trips is not None:
        return loop.trips
    condition = module.computations[_CONDITION.search(loop.attributes)[1]]  # type: ignore[index]  # every loop has one
    root = condition.root
    direction = re.search(r"direction=(\w+)", root.attributes)
    if root.opcode != "compare" or direction is None or direction[1] not in ("LT", "LE"):
        return None
    element, limit = (_source(condition, name) for name in root.operands)
    at = element.element
    if at is None or limit.opcode != "constant":
        return None
    step = _step(module.computations[loop.called[0]], at)
    begin = _source(computation, _element(computation, loop.operands[0], at))
    if step is None or begin.opcode != "constant":
        return None
    last = int(limit.inside) + (direction[1] == "LE")
    return max(0, math.ceil((last - int(begin.inside)) / step))


def _step(body: HloComputation, at: int) -> int | None:
    """Return what a pass adds to an element of the loop's tuple; None if that is no positive constant."""
    added = _source(body, _element(body, body.root.name, at))
    if added.opcode != "add":
        return None
    terms = [_source(body, name) for name in added.operands]
    counters = [one.element for one in terms if one.element is not None]
    constants = [one for one in terms if one.opcode == "constant"]
    if counters != [at] or len(constants) != 1:
        return None
    step = int(constants[0].inside)
    return step if step > 0 else None


def _element(computation: HloComputation, name: str, at: int) -> str:
    """Return the name of the instruction that makes an element of a tuple, or of the tuple if that is not here."""
    made = computation.instructions[name]
    return made.operands[at] if made.opcode == "tuple" else name


def _source(computation: HloComputation, name: str) -> HloInstruction:
    """Return the instruction that makes a value, past copies of it."""
    made = computation.instructions[name]
    while made.opcode in _ALIKE:
        made = computation.instructions[made.operands[0]]
    return made
