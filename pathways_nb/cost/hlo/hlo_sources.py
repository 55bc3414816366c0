"""The op names of a compiled module: of which kind each is, and from which operation of the program it stems.

XLA keeps JAX's name stack as metadata of instructions, also where it fuses, moves or merges them. An instruction that
it adds on its own account has none.
"""

from __future__ import annotations

from typing import NamedTuple

from pathways_nb.cost.hlo.hlo_collectives import is_collective
from pathways_nb.cost.hlo.hlo_schedule import schedule_of
from pathways_nb.cost.hlo.hlo_text import HloInstruction, HloModule, parse
from pathways_nb.cost.hlo.phases import phases_in
from pathways_nb.trace.launch_ops import OpKind, Phase

_CONTROL = frozenset({"while", "conditional", "call"})
"""Opcodes that run other instructions of the module one by one; a fusion runs as one."""
_MOVES = frozenset({"copy", "bitcast", "parameter"})


class HloOp(NamedTuple):
    """An instruction as a profiler names it.

    Args:
        source: JAX's name stack and operation; empty if the compiler does not say.
        kind: of work.
        runs: names of the instructions that it runs, which a profiler sees as well; empty if it is one piece of work.
        line: the innermost line of the user's code; empty if the compiler does not say.
        phase: part of the training step; empty if the compiler does not say.
        work: FLOPs and bytes, or a collective with its bytes and groups, in words.
    """

    source: str
    kind: OpKind
    runs: tuple[str, ...] = ()
    line: str = ""
    phase: Phase = ""
    work: str = ""


def ops_of(text: str) -> dict[str, HloOp]:
    """Return the instructions of a module by name.

    Args:
        text: of ``compiled.as_text()``.

    Raises:
        ValueError: it is no compiled module.
    """
    module = parse(text)
    phases, line_of = phases_in(module), module.sources.line_of
    work = _work(module)
    return {
        instruction.name: HloOp(
            *(instruction.op_name, _kind(module, instruction), _runs(module, instruction)),
            *(line_of(instruction.attributes), phases.get(instruction.name, ""), work.get(instruction.name, "")),
        )
        for computation in module.computations.values()
        for instruction in computation.instructions.values()
    }


def _work(module: HloModule) -> dict[str, str]:
    """Return what each instruction does, in words; nothing where the text has an operation that is not known."""
    try:
        return {action.name: action.words for action, _ in schedule_of(module, module.devices).runs()}
    except (ValueError, KeyError, IndexError):  # its ops have names and sources all the same
        return {}


def _kind(module: HloModule, instruction: HloInstruction) -> OpKind:
    """Return the kind of work of an instruction; a fusion that only copies is a copy."""
    opcodes = {instruction.opcode}
    # What it does is in the computation that it calls.
    if instruction.opcode == "fusion" or instruction.opcode.startswith("async-"):
        called = (module.computations[name] for name in instruction.called)
        opcodes = {inner.opcode for one in called for inner in one.instructions.values()}
    if any(map(is_collective, opcodes)):
        return "collective"
    plain = {opcode.removesuffix("-start").removesuffix("-done") for opcode in opcodes}
    return "copy" if "copy" in plain and plain <= _MOVES else "compute"


def _runs(module: HloModule, instruction: HloInstruction) -> tuple[str, ...]:
    """Return the names of the instructions that a loop, a branch or a call runs."""
    if instruction.opcode not in _CONTROL:
        return ()
    return tuple(name for called in instruction.called for name in module.computations[called].instructions)
