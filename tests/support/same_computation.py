"""Whether two traced programs compute the same, whatever the order and the names in which they are written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pathways_nb.jaxpr.block_level import BlockLevel, inlining
from pathways_nb.jaxpr.equation_signatures import Signatures


def results(jaxpr: Any, signatures: Signatures, arguments: Sequence[int] | None = None) -> list[int]:
    """Return a number of each result; equal numbers of two programs are equal expressions of their arguments.

    Args:
        jaxpr: a closed jaxpr.
        signatures: the same for all programs that are compared.
        arguments: numbers of the arguments, their positions unless given.
    """
    level = BlockLevel.of(jaxpr, signatures, inlining(jaxpr, signatures, every=True))
    names = range(len(level.inputs)) if arguments is None else arguments
    known = {value: signatures.number(("argument", name)) for value, name in zip(level.inputs, names, strict=True)}
    for value, literal in level.literals.items():
        known[value] = signatures.number(("literal", str(literal.aval.dtype), repr(np.asarray(literal.val).item())))
    for value, const in level.consts.items():
        known[value] = signatures.number(("constant", np.asarray(const).tobytes(), str(const.dtype), const.shape))
    for op in level.ops:
        if op.name in ("jit", "scan", "shard_map"):
            inside = next(v for k, v in op.params.items() if k in ("jaxpr", "call_jaxpr"))
            kind = *results(inside, signatures), op.name
        else:
            kind = signatures.of(op.eqn), op.name
        made = signatures.number((*kind, *(known[value] for value in op.inputs)))
        known |= {value: signatures.number(("result", made, n)) for n, value in enumerate(op.outputs)}
    return [known[value] for value in level.outputs]
