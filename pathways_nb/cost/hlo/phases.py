"""The part of a training step that each instruction belongs to, from JAX's name stacks and the order of the text."""

from __future__ import annotations

from pathways_nb.cost.hlo.hlo_text import HloInstruction, HloModule
from pathways_nb.trace.launch_ops import Phase, phase_of

_PRODUCTS = ("dot_general", "conv_general_dilated")


def phases_in(module: HloModule) -> dict[str, Phase]:
    """Return the phase of each instruction that runs, by name.

    What was not differentiated says nothing of its phase. In a step that has a backward pass, it is the optimizer if it
    stands behind the first product of that, outside loops in which parts of the model run.

    Args:
        module: scheduled.
    """
    found: dict[str, Phase] = {}
    # Compilers move what needs no products to the front, such as zeros to which gradients are added.
    products = any(_begins(one, products=True) for _, one, _ in module.runs())
    backward = False

    def walk(name: str, outer: bool) -> None:
        nonlocal backward
        for one in module.computations[name].instructions.values():
            if one.opcode in ("while", "call", "conditional"):
                for called in one.called:
                    walk(called, not any(phase_of(inner.op_name) for _, inner, _ in module.runs(called)))
                continue
            phase = phase_of(one.op_name)
            backward |= _begins(one, products)
            # A name stack has slashes; the name of an argument says of no operation when it ran.
            if not phase and outer and backward and "/" in one.op_name:
                phase = "optimizer"
            found.setdefault(one.name, phase)

    walk(module.entry, True)
    return found


def _begins(one: HloInstruction, products: bool) -> bool:
    """Return whether the backward pass has begun with an instruction, which may have to be a product."""
    return phase_of(one.op_name) == "backward" and (not products or one.operation in _PRODUCTS)
