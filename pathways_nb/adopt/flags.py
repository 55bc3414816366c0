"""Collectives of a compiled step that hurt and need not: what the compiler's text itself shows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pathways_nb.adopt.whole_copies import WholeCopy
from pathways_nb.cost.hlo.hlo_text import HloComputation, HloInstruction, HloModule

INVARIANT = "the same in every pass of its loop"
SCATTER = "each device keeps a part: could be a reduce-scatter"
_SAME = frozenset("bitcast copy convert reshape transpose".split())
"""Opcodes whose value holds what their operand holds."""


def flags_in(module: HloModule, copies: Iterable[WholeCopy] = ()) -> dict[str, str]:
    """Return what is wrong with collectives, by the instruction that starts them.

    Args:
        module: scheduled.
        copies: that the compiler warned of.
    """
    every = (one for part in module.computations.values() for one in part.instructions.values())
    bodies = {one.called[0] for one in every if one.opcode == "while" and one.called}
    found = {name: copy.flag for copy in copies for name in copy.gathers}
    for computation in module.computations.values():
        kept = _unchanged(computation) if computation.name in bodies else frozenset()
        for one in computation.instructions.values():
            opcode = one.opcode.removesuffix("-start")
            if opcode == "all-gather" and kept and all(_is_kept(computation, name, kept) for name in one.operands):
                _add(found, one.name, INVARIANT)
            elif opcode == "all-reduce" and _only_parts(module, computation, one):
                _add(found, one.name, SCATTER)
    return found


def _add(found: dict[str, str], name: str, flag: str) -> None:
    found[name] = "; ".join(filter(None, (found.get(name), flag)))


def _unchanged(body: HloComputation) -> frozenset[int]:
    """Return the elements of a loop's values that each pass returns as it was given them."""
    if body.root.opcode != "tuple":
        return frozenset()
    elements = ((at, body.instructions.get(name)) for at, name in enumerate(body.root.operands))
    return frozenset(at for at, made in elements if made is not None and _element(body, made) == at)


def _element(body: HloComputation, one: HloInstruction) -> int | None:
    """Return which element of its parameter an instruction takes; None if it is something else."""
    takes = one.element is not None and body.instructions[one.operands[0]].opcode == "parameter"
    return one.element if takes else None


def _is_kept(body: HloComputation, name: str, kept: frozenset[int]) -> bool:
    """Return whether a value is one that no pass of its loop changes."""
    one = body.instructions.get(name)
    while one is not None and one.opcode in _SAME:
        one = body.instructions.get(one.operands[0])
    return one is not None and _element(body, one) in kept


def _only_parts(module: HloModule, computation: HloComputation, one: HloInstruction) -> bool:
    """Return whether all that reads a sum takes the part of its own device."""
    users = list(_users(computation, one))
    return bool(users) and all(_takes_part(module, user, name) for user, name in users)


def _users(computation: HloComputation, one: HloInstruction) -> Iterator[tuple[HloInstruction, str]]:
    """Yield what reads a value and the name by which it reads it, behind ends of what was started and copies."""
    for user in computation.users.get(one.name, ()):
        if user.opcode in _SAME or user.opcode in ("all-reduce-done", "get-tuple-element"):
            yield from _users(computation, user)
        else:
            yield user, one.name


def _takes_part(module: HloModule, user: HloInstruction, name: str) -> bool:
    """Return whether an instruction reads only a slice, at a place that is computed, of a value."""
    if user.opcode == "dynamic-slice":
        return user.operands[0] == name
    if user.opcode != "fusion":
        return False
    inside = module.computations[user.called[0]]
    own = inside.parameters[user.operands.index(name)]
    readers = inside.users.get(own, [])
    return bool(readers) and all(one.opcode == "dynamic-slice" and one.operands[0] == own for one in readers)
