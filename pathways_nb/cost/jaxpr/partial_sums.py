"""The collectives that a partitioner must add to whole-array code, read from layouts alone: sums of partial results.

Where an axis splits what a product contracts or a reduction folds, each device has a part of every sum, and an
all-reduce over the axis adds them up (GSPMD, section 3.3). It happens where the sum is complete: partial results that
are only added to each other, or arranged otherwise, are added up once, as XLA does. An operand that an operation needs
whole is gathered. The partitioner may choose another way; ``cost.hlo`` reads from compiled code what it did.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

from pathways_nb.cost.collectives.collective import Collective, merged
from pathways_nb.cost.jaxpr.operations import ShardedJaxpr, ShardedOperation, ShardedValue
from pathways_nb.cost.jaxpr.primitives import SLICES, op_class_of

_ADDS = frozenset({"add", "add_any", "sub", "neg", "convert_element_type", "reshape", "squeeze", "transpose"})
"""Operations that may be done on partial results: the sum over devices of what they make is what they make of sums."""


def partial_sums(flat: ShardedJaxpr) -> dict[ShardedOperation, tuple[Collective, ...]]:
    """Return the collectives that complete the results of operations, or that gather what an operation needs whole.

    Args:
        flat: a list with the layouts of its arrays.

    Returns:
        The collectives, by the operation behind which they happen; those of a loop's body by the loop.
    """
    walk = _PartialSums(flat)
    for op in flat.ops:
        walk.add(op)
    for value in flat.outputs:  # what operations need whole is complete
        walk.complete(value)
    return {op: merged(found) for op, found in walk.found.items() if found}


class _PartialSums:
    """A walk over a list, in order."""

    def __init__(self, flat: ShardedJaxpr):
        self._sizes = flat.sizes
        self._reads = Counter(value for op in flat.ops for value in dict.fromkeys(op.inputs))
        self._reads.update(flat.outputs)
        self.found: dict[ShardedOperation, list[Collective]] = {}
        self.partial: dict[ShardedValue, tuple[ShardedOperation, tuple[str, ...]]] = {}
        """By value of which devices have parts of the sum: what made it, and the axes over which they lie."""

    def add(self, op: ShardedOperation) -> None:
        """Take the next operation."""
        if op.bodies:
            self._complete_all(op)
            # Of a cond one branch runs; the last stands for all, as it gives the outputs their layouts.
            inside = [one for found in partial_sums(op.bodies[-1]).values() for one in found]
            self.found[op] = [replace(one, count=one.count * op.times) for one in inside]
            return
        given = [self.partial.get(value, (op, ()))[1] for value in op.inputs]
        if given and given[0] and op.name in _ADDS and len(set(given)) == 1:
            summed = given[0]
            for value in op.inputs:
                if self._reads[value] == 1:  # nothing else needs its sum
                    self.partial.pop(value, None)
        else:
            self._complete_all(op)
            summed = self._summed(op)
        if summed:
            self.partial.update((value, (op, summed)) for value in op.outputs)

    def _complete_all(self, op: ShardedOperation) -> None:
        for value in op.inputs:
            self.complete(value)

    def complete(self, value: ShardedValue) -> None:
        """Add up what devices have of a value, if each has a part of the sum only."""
        op, axes = self.partial.pop(value, (None, ()))
        if op is not None:
            self.found.setdefault(op, []).append(self._collective("all-reduce", value.bytes, axes))

    def _summed(self, op: ShardedOperation) -> tuple[str, ...]:
        """Return the axes over which the results of an operation are partial; what it needs whole is gathered."""
        kept = _axes(*op.outputs)
        lost = [tuple(axis for axis in _axes(value) if axis not in kept) for value in op.inputs]
        if op.name in SLICES or op_class_of(op.name) in ("matmul", "conv", "reduction"):
            # A slice or gather takes from each device what it has of it; of the rest, it has zeros.
            return tuple(dict.fromkeys(axis for axes in lost for axis in axes))
        for value, axes in zip(op.inputs, lost, strict=True):
            if axes:
                whole = value.bytes * math.prod(self._sizes.get(axis, 1) for axis in axes)
                self.found.setdefault(op, []).append(self._collective("all-gather", whole, axes))
        return ()

    def _collective(self, kind: str, bytes: int, axes: tuple[str, ...]) -> Collective:
        return Collective(kind, bytes, axes, math.prod(self._sizes.get(axis, 1) for axis in axes))


def _axes(*values: ShardedValue) -> list[str]:
    """Return the axes that split any of some arrays."""
    return [axis for value in values for entry in value.split for axis in entry]
