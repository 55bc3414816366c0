"""The part of a training step that each instruction belongs to, from JAX's name stacks and the order of the text."""

from __future__ import annotations

from pathways_nb.cost.hlo.hlo_text import HloModule
from pathways_nb.trace.launch_ops import Phase, phase_of

_PRODUCTS = ("dot_general", "conv_general_dilated")
_CONTAINERS = ("while", "call", "conditional")
"""Opcodes of instructions that only run other computations."""


def phases_in(module: HloModule) -> dict[str, Phase]:
    """Return the phase of each instruction that runs, by name.

    What was not differentiated says nothing of its phase. In a step that has a backward pass, it is the optimizer if it
    stands behind the begin of that, outside loops in which parts of the model run.

    Args:
        module: scheduled.
    """
    found: dict[str, Phase] = {}
    begin, backward = backward_begin(module), False

    def walk(name: str, outer: bool) -> None:
        nonlocal backward
        for one in module.computations[name].instructions.values():
            if one.opcode in _CONTAINERS:
                for called in one.called:
                    walk(called, not any(phase_of(inner.op_name) for _, inner, _ in module.runs(called)))
                continue
            phase = phase_of(one.op_name)
            backward |= one.name == begin
            # A name stack has slashes; the name of an argument says of no operation when it ran.
            if not phase and outer and backward and "/" in one.op_name:
                phase = "optimizer"
            found.setdefault(one.name, phase)

    walk(module.entry, True)
    return found


def backward_begin(module: HloModule) -> str:
    """Return the name of the instruction with which the backward pass begins; empty if there is none.

    It is the first product, if there is one: compilers move what needs no products to the front, such as zeros to which
    gradients are added.
    """
    first = ""
    for _, one, _ in module.runs():
        if one.opcode not in _CONTAINERS and phase_of(one.op_name) == "backward":
            if one.operation in _PRODUCTS:
                return one.name
            first = first or one.name
    return first
