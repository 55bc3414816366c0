"""Bytes that each operation moves to and from memory, with elementwise operations fused.

The rule. A fusion is a connected set of elementwise operations with no reduction, matrix product or other operation on
any path between them, together with the reductions that end it. It reads each array from outside once, and writes only
the arrays that an operation outside of it reads. An array that is computed cheaply from one other array (``1 - y``, a
comparison, a conversion, a broadcast) is not stored for the next fusion, which computes it again from that array. Every
other operation reads its inputs and writes its outputs, with three exceptions: a slice or gather reads only the
elements it takes, an update in place writes only the elements it changes, and a transposition next to a matrix product
is part of the product.

Its limits. A compiler may fuse less (it cuts a long fusion) or more (an epilogue with the product before it), keep
small arrays in a cache, compute a cheap array twice instead of storing it, and copy into another layout.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from pathways_nb.cost.jaxpr.operations import ShardedJaxpr, ShardedOperation, ShardedValue
from pathways_nb.cost.jaxpr.primitives import ACCUMULATES, SLICES, TRANSCENDENTAL, UPDATES, VIEWS, op_class_of


@dataclass(frozen=True)
class Traffic:
    """The arrays that a flat list keeps in memory, and the bytes that each operation reads and writes on one device."""

    stored: frozenset[ShardedValue]
    read: dict[ShardedOperation, int]
    written: dict[ShardedOperation, int]


def traffic_of(flat: ShardedJaxpr) -> Traffic:
    """Return the bytes that each operation of a list moves.

    The bytes of a fusion are spread over its members: an array that several members read is counted for the first one.
    Loops, branches, transpositions inside a product and views count nothing themselves.
    """
    # Three passes: which operations are fused, which arrays are therefore in memory, and what each operation moves.
    levels = _FusionDepths(flat)
    stored = _stored(flat, levels)
    read, written = dict.fromkeys(flat.ops, 0), dict.fromkeys(flat.ops, 0)
    seen: set[tuple[int, ShardedValue]] = set()
    in_products = _parts_of_products(flat)
    for op in flat.ops:
        if op.bodies or op in in_products or op.name in VIEWS:
            continue
        # Within one fusion an array is read once, whoever reads it; outside of fusions each operation reads for itself.
        fusion = levels.fusion(op)
        arrays = {value for value in levels.arrays_read(op) if fusion < 0 or (fusion, value) not in seen}
        seen.update((fusion, value) for value in arrays)
        read[op], written[op] = _bytes(op, arrays, stored)
    return Traffic(frozenset(stored), read, written)


def _bytes(op: ShardedOperation, arrays: Iterable[ShardedValue], stored: set[ShardedValue]) -> tuple[int, int]:
    """Return the bytes that an operation reads and writes.

    Args:
        op: the operation.
        arrays: the arrays in memory that it reads and that no earlier member of its fusion has read.
        stored: all arrays that are kept in memory.
    """
    # What stays within a fusion is never written.
    made = sum(value.bytes for value in op.outputs if value.root in stored)
    if op.name in SLICES:
        # As many bytes as come out, plus the indices: not the table, which may be a thousand times as large.
        taken = sum(value.bytes for value in op.outputs)
        return taken + sum(value.bytes for value in op.inputs[1:]), made
    if op.name in UPDATES and len(op.inputs) > UPDATES[op.name]:
        # In place: the rest of the array is not touched. Adding to elements reads them first.
        update = op.inputs[UPDATES[op.name]].bytes
        again = update if op.name in ACCUMULATES else 0
        return again + sum(value.bytes for value in op.inputs[1:]), update
    return sum(_read(op, value) for value in arrays), made


def _read(op: ShardedOperation, value: ShardedValue) -> int:
    """Return the bytes that a device reads of an operand.

    Of a replicated operand in an elementwise operation whose result is partitioned, it reads only the part that
    corresponds to its own part of the result.
    """
    if not op.outputs or op_class_of(op.name) != "elementwise":
        return value.bytes
    out = op.outputs[0]
    alike = value.shape == out.shape
    return min(value.bytes, out.bytes // out.itemsize * value.itemsize) if alike and out.itemsize else value.bytes


@dataclass
class _FusionDepths:
    """The fusion that each operation belongs to.

    An operation's level is the largest number of operations that end a fusion on any path to it. Neighbours of one
    level have no such operation between them and may be fused. Being neighbours is not enough: if a second path between
    them went through a reduction, their fusion would have to run both before and after that reduction.
    """

    flat: ShardedJaxpr
    level: dict[ShardedOperation, int] = field(default_factory=dict)
    of_value: dict[ShardedValue, int] = field(default_factory=dict)
    """The level at which a value can be read: one more than its maker's if the maker ends a fusion."""
    maker: dict[ShardedValue, ShardedOperation] = field(default_factory=dict)
    parent: dict[ShardedOperation, ShardedOperation] = field(default_factory=dict)
    """The forest of a union-find: operations of one tree are one fusion."""
    origin: dict[ShardedValue, ShardedValue | None] = field(default_factory=dict)
    """For an array that is computed cheaply from one other array, that array; ``None`` if only from scalars."""

    def __post_init__(self) -> None:
        for op in self.flat.ops:
            # Inputs of the list are at level 0. The list is in order of dependencies, so operands have their level
            # already.
            self.level[op] = max((self.of_value.get(value, 0) for value in op.inputs), default=0)
            for value in op.outputs:
                self.of_value[value] = self.level[op] + (not self.continues(op))
                self.maker[value] = op
            self.parent[op] = op
            self._join(op)
            self._trace(op)
        self.numbers = {op: number for number, op in enumerate(self.flat.ops)}

    def fused(self, op: ShardedOperation) -> bool:
        """Return whether an operation can be a member of a fusion."""
        return not op.bodies and op_class_of(op.name) in ("elementwise", "reduction")

    def _join(self, op: ShardedOperation) -> None:
        """Join an operation with the fusions of its operands' makers, where no fusion end is between them."""
        for value in op.inputs if self.fused(op) else ():
            maker = self.maker.get(value)
            # Equal levels mean that no path between them has an end of a fusion, so the two can run as one.
            if maker is not None and self.continues(maker) and self.level[maker] == self.level[op]:
                self.parent[self.find(op)] = self.find(maker)

    def _trace(self, op: ShardedOperation) -> None:
        """Note the one array from which the outputs of a cheap operation can be computed again, if there is one."""
        # An ``exp`` takes longer than reading its result, so it is stored and not computed twice.
        if not self.continues(op) or op.name in TRANSCENDENTAL:
            return
        # Scalars and known values are arguments of a kernel, not arrays that it reads.
        arrays = {value.root for value in op.inputs if value.size > 1 and value.known is None}
        sources = {self.origin.get(value, value) for value in arrays} - {None}
        # From two arrays it would take two reads to save one.
        if len(sources) <= 1:
            self.origin.update(dict.fromkeys((value.root for value in op.outputs), next(iter(sources), None)))

    def arrays_read(self, op: ShardedOperation) -> Iterator[ShardedValue]:
        """Yield the arrays in memory that an operation reads, or that its fusion reads for it.

        A fusion does not read from memory what it makes itself, and a cheap array is replaced by its origin.
        """
        fusion = self.fusion(op)
        for root in dict.fromkeys(value.root for value in op.inputs):
            # A view moves nothing: whoever reads the view reads the array.
            if op.name in VIEWS and root is op.outputs[0].root:
                continue
            if fusion < 0:
                yield root
            elif self.made_in(root) != fusion:
                source = self.origin.get(root, root)
                if source is not None:
                    yield source

    def continues(self, op: ShardedOperation) -> bool:
        """Return whether a fusion may continue after an operation; a reduction is a member but ends it."""
        return not op.bodies and op_class_of(op.name) == "elementwise"

    def find(self, op: ShardedOperation) -> ShardedOperation:
        """Return the operation that represents the fusion of ``op`` in the union-find."""
        while (above := self.parent[op]) is not op:
            # Half the way for the next one who asks: a long fusion is a long chain.
            self.parent[op] = further = self.parent[above]
            op = further
        return op

    def fusion(self, op: ShardedOperation) -> int:
        """Return the number of an operation's fusion; -1 if it cannot be fused."""
        return self.numbers[self.find(op)] if self.fused(op) else -1

    def made_in(self, value: ShardedValue) -> int:
        """Return the number of the fusion that makes a value; -1 for inputs and for operations that cannot be fused."""
        maker = self.maker.get(value)
        return -1 if maker is None else self.fusion(maker)


def _stored(flat: ShardedJaxpr, levels: _FusionDepths) -> set[ShardedValue]:
    """Return the arrays in memory.

    These are the inputs and outputs of the list, the outputs of all operations that are not elementwise, and every
    other array that is read outside of the fusion that makes it.
    """
    stored = {value.root for value in (*flat.inputs, *flat.outputs)}
    for op in flat.ops:
        if not levels.continues(op):
            stored.update(value.root for value in op.outputs)
        # Read from memory by someone, so someone must have written it.
        stored.update(levels.arrays_read(op))
    return stored


def _parts_of_products(flat: ShardedJaxpr) -> set[ShardedOperation]:
    """Return the transpositions that are part of a matrix product: of its output, or read by products only.

    A product reads a factor in either order of dimensions, so such a transposition moves no bytes of its own.
    """
    makers = {value: op for op in flat.ops for value in op.outputs}
    readers: dict[ShardedValue, list[ShardedOperation]] = {}
    for op in flat.ops:
        for value in op.inputs:
            readers.setdefault(value, []).append(op)
    found = set()
    for op in flat.ops:
        if op.name == "transpose":
            # Of a weight's gradient, the transposed product; else a factor that only products read.
            before = makers.get(op.inputs[0])
            after = readers.get(op.outputs[0], [])
            if (before is not None and op_class_of(before.name) == "matmul") or (
                after and all(op_class_of(reader.name) == "matmul" for reader in after)
            ):
                found.add(op)
    return found
