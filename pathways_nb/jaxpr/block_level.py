"""One level of a jaxpr in which blocks may repeat: its operations, and the nodes into which they fall.

A node is what belongs to one block or to none. Most operations are one node. One that treats its operands one by one,
such as a sum over devices of all gradients at once, is a node for each operand. One that holds a jaxpr in which blocks
repeat is a node for each of those blocks and one for the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pathways_nb.jaxpr.equation_signatures import Signatures
from pathways_nb.jaxpr.flat import FlatJaxpr, Operation, Walk, alive, called

ONE_BY_ONE = frozenset({"psum", "psum_invariant", "psum2", "pmax", "pmin", "optimization_barrier", "pvary"})
"""Primitives whose n-th result depends on their n-th operand only, and which take any number of them."""
HOLDERS = frozenset({"jit", "closed_call", "remat2", "scan", "shard_map"})
"""Primitives that run one jaxpr whose inputs and outputs are their operands and results, position by position."""


@dataclass(frozen=True, eq=False, slots=True)
class BlockNode:
    """What belongs to one block or to none.

    Args:
        op: position of its operation.
        signature: equal for nodes that compute the same from operands of the same types.
        ins: which operands of the operation are its own.
        outs: which results are.
        inputs: the values of ``ins``.
        outputs: the values of ``outs``.
    """

    op: int
    signature: int
    ins: tuple[int, ...]
    outs: tuple[int, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class BlockLevel(FlatJaxpr[Operation[int], int]):
    """A jaxpr as operations on numbered values.

    Args:
        avals: the type of each value.
        literals: the literal that a value is, by value.
        consts: the constant that a value is, by value; None in an open jaxpr.
        jaxpr: that was read.
        signatures: of operations.
    """

    avals: list[Any]
    literals: dict[int, Any]
    consts: dict[int, Any]
    jaxpr: Any
    signatures: Signatures

    @classmethod
    def of(cls, jaxpr: Any, signatures: Signatures, inlines: Callable[[Any], bool]) -> BlockLevel:
        """Return a jaxpr as a level, without dead code.

        Args:
            jaxpr: closed or open.
            signatures: numbers of equations.
            inlines: whether a call is replaced by what it calls.
        """
        walk = _LevelWalk(inlines)
        inner = getattr(jaxpr, "jaxpr", jaxpr)
        inputs = tuple(walk.new(var.aval) for var in inner.invars)
        outputs = tuple(walk.run(jaxpr, inputs))
        return cls(alive(walk.ops, outputs), inputs, outputs, walk.avals, walk.literals, walk.consts, jaxpr, signatures)

    def nodes(self, split: dict[int, Sequence[tuple[Sequence[int], Sequence[int]]]]) -> list[BlockNode]:
        """Return the nodes, in the order of operations.

        Args:
            split: of operations that hold blocks: operands and results of each block; the rest is one node more.
        """
        found = []
        for at, op in enumerate(self.ops):
            signature = self.signatures.of(op.eqn)
            parts: list[tuple[int, Sequence[int], Sequence[int]]]
            if at in split:
                taken_in = {one for ins, _ in split[at] for one in ins}
                taken_out = {one for _, outs in split[at] for one in outs}
                rest = [one for one in range(len(op.inputs)) if one not in taken_in]
                rest_out = [one for one in range(len(op.outputs)) if one not in taken_out]
                # Negative numbers are no equation's, so neither the blocks nor the rest are like any other node.
                parts = [(-1, ins, outs) for ins, outs in split[at]] + [(-2 - at, rest, rest_out)]
            elif op.name in ONE_BY_ONE and len(op.inputs) == len(op.outputs):
                types = [(op.name, str(self.avals[value])) for value in op.inputs]
                alone = self.signatures.without_types(op.eqn)
                parts = [(self.signatures.number((alone, *kind)), (n,), (n,)) for n, kind in enumerate(types)]
            else:
                parts = [(signature, range(len(op.inputs)), range(len(op.outputs)))]
            for number, ins, outs in parts:
                inputs, outputs = (tuple(map(op.inputs.__getitem__, ins)), tuple(map(op.outputs.__getitem__, outs)))
                found.append(BlockNode(at, number, tuple(ins), tuple(outs), inputs, outputs))
        return found


@dataclass
class _LevelWalk(Walk[int]):
    """The walk that numbers values."""

    inlines: Callable[[Any], bool]
    avals: list[Any] = field(default_factory=list)
    literals: dict[int, Any] = field(default_factory=dict)
    consts: dict[int, Any] = field(default_factory=dict)
    ops: list[Operation[int]] = field(default_factory=list)

    def new(self, aval: Any) -> int:
        self.avals.append(aval)
        return len(self.avals) - 1

    def constant(self, aval: Any, value: Any) -> int:
        number = self.new(aval)
        self.consts[number] = value
        return number

    def literal(self, atom: Any) -> int:
        number = self.new(atom.aval)
        self.literals[number] = atom
        return number

    def equation(self, eqn: Any, inputs: list[int]) -> Sequence[int]:
        if self.inlines(eqn):
            return self.inline(eqn, inputs)
        made = [self.new(var.aval) for var in eqn.outvars]
        self.ops.append(Operation(eqn.primitive.name, tuple(inputs), tuple(made), self.whole(eqn)))
        return made


def inlining(jaxpr: Any, signatures: Signatures, every: bool) -> Callable[[Any], bool]:
    """Return which calls of a jaxpr are replaced by what they call: those that lay out nothing and do not repeat.

    Args:
        jaxpr: closed or open.
        signatures: numbers of equations.
        every: whether calls that repeat are replaced, too.
    """
    times: dict[int, int] = {}

    def is_plain(eqn: Any) -> bool:
        params = eqn.params
        if eqn.primitive.name == "closed_call":
            return True
        given = (*params.get("in_shardings", ()), *params.get("out_shardings", ()))
        laid = (*params.get("in_layouts", ()), *params.get("out_layouts", ()), *params.get("compiler_options_kvs", ()))
        return (
            eqn.primitive.name == "jit"
            and all(type(one).__name__ == "UnspecifiedValue" for one in given)
            and all(one is None for one in laid)
            and not any(params["donated_invars"])
        )

    def count(inner: Any) -> None:
        for eqn in getattr(inner, "jaxpr", inner).eqns:
            if is_plain(eqn):
                number = signatures.of(eqn)
                times[number] = times.get(number, 0) + 1
                if times[number] == 1:
                    count(called(eqn))

    if not every:
        count(jaxpr)
    return lambda eqn: is_plain(eqn) and (every or times.get(signatures.of(eqn), 0) == 1)
