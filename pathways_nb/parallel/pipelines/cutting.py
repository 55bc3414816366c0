"""Cuts a flat list of operations in two, so that the second part runs later from what the first part keeps for it.

Pipelines cut twice: the forward pass from the backward pass, and in the backward pass the gradient by the input (I)
from the gradient by the weights (W), as zero-bubble schedules want (Qi et al. 2024, section 2). Because one backward
pass is cut, in place of differentiating twice, nothing is computed twice.

What crosses a cut occupies memory until the second part has run. Three kinds of values are therefore computed again in
the second part: what depends on weights and constants only, which would be a copy of the weights for each microbatch;
and changes of shape or type of a value that is no larger.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pathways_nb.cost.jaxpr.primitives import NO_ARITHMETIC, RESHAPES
from pathways_nb.jaxpr.flat import alive
from pathways_nb.parallel.flat_function import FlatFunction, Runnable, makers, reads

_CHEAP = (NO_ARITHMETIC | RESHAPES | {"copy", "alias"}) - {"axis_index"}
"""Primitives that only change shape or type."""


class SecondPart(NamedTuple):
    """The second part of a list of operations that was cut.

    Args:
        ops: the operations of the second part, after those that it computes again.
        kept: values of the first part that it reads, which must be kept until it runs.
    """

    ops: tuple[Runnable, ...]
    kept: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Cutter:
    """How a list of operations is cut.

    Args:
        flat: the list that values belong to.
        free: values that are there anyway when the second part runs, such as weights.
    """

    flat: FlatFunction
    free: Collection[int]

    def cut(self, first: Sequence[Runnable], second: Sequence[Runnable], outputs: Sequence[int]) -> SecondPart:
        """Return the second part, which makes ``outputs``.

        Args:
            first: operations of the first part.
            second: operations of the second part, in order.
            outputs: values that the second part is to make, or that are there already.
        """
        maker, used = makers(first), alive(second, outputs)
        made = makers(used)
        # Dictionaries in place of sets: the inputs of an executable need one order.
        again: dict[int, Runnable] = {}
        kept: dict[int, None] = {}
        wanted = [*reads(used), *(value for value in outputs if value not in made)]
        varying = self._varying(first)
        pending = wanted[::-1]
        while pending:
            value = pending.pop()
            op = maker.get(value)
            # Constants are part of each executable, and free values are there when the second part runs.
            if value in self.flat.constants or value in self.free:
                continue
            if op is None or not self._repeats(op, value, varying):
                kept[value] = None
            elif id(op) not in again:
                again[id(op)] = op
                # What is computed again reads other values, each of which is computed again or kept in its turn.
                pending += op.inputs
        # In the order of the first part: each comes after those that make what it reads.
        repeated = [op for op in first if id(op) in again]
        return SecondPart((*repeated, *used), tuple(kept))

    def _repeats(self, op: Runnable, value: int, varying: Collection[int]) -> bool:
        if value not in varying:
            # Of weights and constants only: kept, a transposed or cast weight would be there once for each microbatch
            # that waits. An effect, such as a host callback, has to happen once.
            return not op.has_effects
        sources = [source for source in op.inputs if source in varying]
        # A view of something no larger: its source costs no more to keep, and is often kept for another reader.
        return op.name in _CHEAP and sum(map(self.flat.bytes, sources)) <= self.flat.bytes(value)

    def _varying(self, ops: Sequence[Runnable]) -> set[int]:
        """Return the values that depend on more than what is free."""
        fixed = set(self.free) | set(self.flat.constants)
        found = set(reads(ops)) - fixed
        for op in ops:
            if any(value in found for value in op.inputs):
                # The first part may make a value that is free later, such as the finished store.
                found.update(value for value in op.outputs if value not in fixed)
        return found
