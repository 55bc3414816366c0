"""The collectives of a compiled module, as a compiler for accelerators would have made them of the same program.

Two habits of XLA's CPU compiler are undone. It widens 16-bit numbers: an exchange of values that were widened just
before, or are narrowed right after, without the program asking for it, counts in 16 bits. It makes no reduce-scatter:
an all-reduce of which every device takes only its own part counts as one. Without this a simulated TPU would exchange
twice the bytes that it really exchanges.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pathways_nb.cost.collectives.groups import axes_of, groups_of
from pathways_nb.cost.collectives.kinds import BY_OPCODE, CollectiveKind
from pathways_nb.cost.hlo.hlo_text import HloComputation, HloInstruction, HloModule, HloShape

_MOVES_OR_CONVERTS = frozenset({"bitcast", "copy", "reshape", "transpose", "convert", "slice"})


@dataclass(frozen=True, slots=True)
class HloCollective:
    """One collective of a module.

    Args:
        kind: the name of its kind in ``cost.collectives.kinds``.
        parts: bits of one element, and dimensions on one device, of each array that is exchanged.
        axes: the mesh axes that it goes over.
        group: number of devices in a group.
        times: how often it runs.
        sure: whether that is known.
    """

    kind: str
    parts: tuple[tuple[int, tuple[int, ...]], ...]
    axes: tuple[str, ...]
    group: int
    times: int
    sure: bool


def is_collective(opcode: str) -> bool:
    """Return whether an opcode is that of a collective, or of the start or end of an asynchronous one."""
    return opcode.removesuffix("-start").removesuffix("-done") in BY_OPCODE


def hlo_collectives_of(module: HloModule, sizes: Mapping[str, int]) -> list[HloCollective]:
    """Return the collectives of a module, those of a loop's body as often as it runs.

    Args:
        module: compiled for a mesh.
        sizes: of the mesh's axes, in its order.
    """
    found = []
    for computation, instruction, runs in module.runs():
        # The start counts, the ``-done`` behind it is the same exchange.
        kind = BY_OPCODE.get(instruction.opcode.removesuffix("-start"))
        if kind is None:
            continue
        groups = groups_of(instruction.attributes, math.prod(sizes.values()))
        # A permute names pairs, not groups: its group is all devices along its axes.
        pairs = "source_target_pairs=" in instruction.attributes
        axes = axes_of(groups, sizes, pairs=pairs)
        group = math.prod(sizes[axis] for axis in axes) if pairs else groups.shape[1]
        for made, parts in _arrays_by_kind(module, computation, instruction, kind, group).items():
            found.append(HloCollective(made, tuple(parts), axes, group, *runs))
    return found


def _arrays_by_kind(
    module: HloModule, computation: HloComputation, instruction: HloInstruction, kind: CollectiveKind, group: int
) -> dict[str, list[tuple[int, tuple[int, ...]]]]:
    """Return the arrays that one instruction exchanges, by the name of the kind of collective that they count as.

    An all-reduce of several arrays may be a reduce-scatter of some of them.

    Args:
        module: of the instruction.
        computation: of the instruction.
        instruction: a collective.
        kind: by its opcode.
        group: number of devices in a group.
    """
    found: dict[str, list[tuple[int, tuple[int, ...]]]] = {}
    if kind.counts_result:
        # The type of an asynchronous start has its operands first.
        shapes = instruction.shapes[-len(instruction.operands) :]
    else:
        shapes = tuple(shape for name in instruction.operands for shape in computation.instructions[name].shapes)
    for number, (name, shape) in enumerate(zip(instruction.operands, shapes, strict=True)):
        # An instruction of several arrays returns a tuple; readers take elements of it.
        element = number if len(instruction.shapes) > 1 else None
        ends = list(_final_readers(module, computation, instruction.name, element, shape.bits))
        made = kind.name
        # All readers, or the whole sum is needed somewhere and an accelerator would keep the all-reduce.
        if made == "all-reduce" and ends and all(_reads_own_part(end, shape, group) for end, _ in ends):
            made = "reduce-scatter"
        # The widest reader decides: if one reads 32 bits, 32 bits must be exchanged.
        narrowed = max((bits for _, bits in ends), default=shape.bits)
        bits = min(narrowed, _widened_from(module, computation, name, shape.bits))
        found.setdefault(made, []).append((bits, shape.dims))
    return found


def _reads_own_part(end: HloInstruction | None, shape: HloShape, group: int) -> bool:
    """Return whether a reader takes only this device's part of an array."""
    return end is not None and end.opcode == "dynamic-slice" and end.shapes[0].size * group == shape.size


def _final_readers(
    module: HloModule, computation: HloComputation, name: str, element: int | None, bits: int
) -> Iterator[tuple[HloInstruction | None, int]]:
    """Yield the final readers of a value, past those that only move or convert it, and the fewest bits on the way.

    ``None`` stands for the computation's own result.

    Args:
        module: of the computation.
        computation: of the value.
        name: of the instruction that computes the value.
        element: of its tuple; None if the value is no tuple.
        bits: of one element.
    """
    instruction = computation.instructions[name]
    if instruction.is_root:
        yield None, bits
    for user in computation.users.get(name, ()):
        if user.opcode == "get-tuple-element":
            # ``index=1`` must not match ``index=12``: so both have a comma behind them.
            if element is None or f"index={element}," in f"{user.attributes},".replace(" ", ","):
                yield from _final_readers(module, computation, user.name, None, bits)
        elif user.opcode in _MOVES_OR_CONVERTS:
            # A conversion that the program asks for would be there on an accelerator, too.
            by_compiler = user.opcode == "convert" and not _asked_for(user)
            fewest = min(bits, user.shapes[0].bits or bits) if by_compiler else bits
            yield from _final_readers(module, computation, user.name, None, fewest)
        elif user.opcode == "fusion":
            yield from _readers_through_fusion(module, computation, user, name, bits)
        else:
            yield user, bits


def _readers_through_fusion(
    module: HloModule, computation: HloComputation, fusion: HloInstruction, name: str, bits: int
) -> Iterator[tuple[HloInstruction | None, int]]:
    """Yield the final readers of a value within a fusion, and behind it where the fusion only moves the value."""
    inner = module.computations[fusion.called[0]]
    for number, operand in enumerate(fusion.operands):
        if operand == name and number in inner.parameters:
            for end, fewest in _final_readers(module, inner, inner.parameters[number], None, bits):
                # The value leaves the fusion as its result: go on with whoever reads that.
                if end is None:
                    yield from _final_readers(module, computation, fusion.name, None, fewest)
                else:
                    yield end, fewest


def _asked_for(convert: HloInstruction) -> bool:
    """Return whether the program converts at this instruction, not the compiler."""
    return convert.operation == "convert_element_type"


def _widened_from(module: HloModule, computation: HloComputation, name: str, bits: int) -> int:
    """Return the bits that a value had before the compiler widened it, if it was only moved since."""
    while True:
        instruction = computation.instructions[name]
        if instruction.opcode == "fusion":
            computation = module.computations[instruction.called[0]]
            # Backward into the fusion: what it returns is what was exchanged.
            name = computation.root.name
        elif instruction.opcode not in _MOVES_OR_CONVERTS or not instruction.operands:
            return bits
        else:
            name = instruction.operands[0]
            source = computation.instructions[name].shapes[0].bits
            if instruction.opcode == "convert" and 0 < source < bits and not _asked_for(instruction):
                return source
