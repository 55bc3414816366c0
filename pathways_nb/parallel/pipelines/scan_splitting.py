"""Splits a scan of a backward pass in two: one for the gradient by the input, one for the gradient by the weights.

A stage that scans over its layers has a backward pass of one scan, which carries the gradient by the input from layer
to layer and makes the gradient by the weights of each. As one operation it could not be cut. What the second scan needs
of each iteration of the first is stacked, like any output of a scan.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from pathways_nb.jaxpr.flat import alive, scan_sizes
from pathways_nb.parallel.flat_function import FlatFunction, Runnable, reads
from pathways_nb.parallel.pipelines.cutting import Cutter


def split_scans(flat: FlatFunction, ops: Sequence[Runnable], outputs: Collection[int]) -> list[Runnable]:
    """Return the operations with each scan that makes only partly what ``outputs`` depend on as two scans.

    Args:
        flat: the list that the values belong to.
        ops: operations, in order; calls are inlined.
        outputs: values that the first part is to make.
    """
    wanted, found = set(outputs), list[Runnable]()
    # From the end: which results of a scan are wanted depends on the operations behind it.
    for op in reversed(ops):
        pair = [op]
        if op.name == "scan" and not wanted.isdisjoint(op.outputs) and not wanted.issuperset(op.outputs):
            pair = list(_Scan.of(op).split(flat, wanted))
        # Only the first of a pair makes what is wanted; the second runs in the later part, whose reads do not count.
        if not wanted.isdisjoint(pair[0].outputs):
            wanted.update(pair[0].inputs)
        found += reversed(pair)
    return found[::-1]


@dataclass(frozen=True, eq=False)
class _Scan:
    """A scan: its operation, its body as a list of operations, and the numbers of constants and carried values."""

    op: Runnable
    body: FlatFunction
    ops: tuple[Runnable, ...]
    consts: int
    carried: int

    @classmethod
    def of(cls, op: Runnable) -> _Scan:
        body = FlatFunction.of(op.params["jaxpr"])
        consts, carried = scan_sizes(op.eqn)
        return cls(op, body, tuple(body.inlined(body.ops)), consts, carried)

    def split(self, flat: FlatFunction, wanted: Collection[int]) -> tuple[Runnable, Runnable]:
        """Return the scan that makes the wanted results, and the scan that makes the others."""
        body, results = self.body, self.op.results
        first = self._needed([at for at, value in enumerate(results) if value in wanted])
        second = [at for at in range(len(results)) if at not in first]
        one = alive(self.ops, [body.outputs[at] for at in first])
        rest = [op for op in self.ops if op not in set(one)]
        # What the second scan has in each iteration anyway: constants, slices, and the values that it carries itself.
        # Everything else is stacked by the first.
        later = {body.inputs[self.consts + at] for at in second if at < self.carried}
        there = {*body.inputs[: self.consts], *body.inputs[self.consts + self.carried :], *later}
        cut = Cutter(body, there).cut(one, rest, [body.outputs[at] for at in second])
        walk, length = flat.walk(), self.op.params["length"]
        kept = [body.avals[value] for value in cut.kept]
        # (iterations, …)
        stacks = tuple(walk.new(jax.core.ShapedArray((length, *aval.shape), aval.dtype)) for aval in kept)
        i = self._scan(first, one, outputs_too=cut.kept, made=stacks)
        w = self._scan(second, cut.ops, stacked=cut.kept, read=stacks)
        return i, w

    def _needed(self, wanted: Sequence[int]) -> list[int]:
        """Return the results that must be made for those that are wanted: what they read of the iteration before."""
        found = set(wanted)
        while True:
            used = alive(self.ops, [self.body.outputs[at] for at in found])
            read = {*reads(used), *(self.body.outputs[at] for at in found)}
            carried = self.body.inputs[self.consts : self.consts + self.carried]
            # A carried value that is read must be carried here, and what makes it may read further ones: to a fixed
            # point.
            more = {at for at, value in enumerate(carried) if value in read} - found
            if not more:
                return sorted(found)
            found |= more

    def _scan(
        self, results: Sequence[int], ops: Sequence[Runnable], outputs_too: Sequence[int] = (),
        made: Sequence[int] = (), stacked: Sequence[int] = (), read: Sequence[int] = (),
    ) -> Runnable:  # fmt: skip
        """Return a scan over some operations of the body.

        Args:
            results: positions of the results that it makes.
            ops: operations of the body.
            outputs_too: values of the body that it stacks as well.
            made: the values that those stacks become.
            stacked: values of the body that it reads from stacks.
            read: the values of those stacks.
        """
        body, carried, params = self.body, [at for at in results if at < self.carried], self.op.params
        own = [body.inputs[self.consts + at] for at in carried]
        consts, xs = body.inputs[: self.consts], body.inputs[self.consts + self.carried :]
        step = body.function(ops, [*consts, *own, *xs, *stacked], [*(body.outputs[at] for at in results), *outputs_too])

        def run(*operands: Any) -> list[Any]:
            fixed = operands[: self.consts]
            init = [operands[self.consts + at] for at in carried]
            over = operands[self.consts + self.carried :]

            def iterate(carry: Any, sliced: Any) -> tuple[Any, Any]:
                made = step(*fixed, *carry, *sliced)
                return made[: len(carried)], made[len(carried) :]

            # In the direction of the original, so that both scans meet the stacks between them at the same iterations.
            last, stacks = jax.lax.scan(
                iterate, init, list(over), length=params["length"], reverse=params["reverse"], unroll=params["unroll"]
            )
            return [*last, *stacks]

        outputs = (*(self.op.results[at] for at in results), *made)
        return Runnable("scan", (*self.op.operands, *read), outputs, run=run)
