"""Bytes that each operation moves to and from memory, with elementwise operations fused.

The rule. A fusion is a connected set of elementwise operations with no reduction, product of matrices or other
operation on any path between them, together with the reductions that end it. It reads what it takes from outside once,
and writes only what somebody outside of it needs. What is cheaply computed from one array (``1 - y``, a comparison, a
conversion, a broadcast) is not stored for the next fusion, which computes it again from that array. Every other
operation reads its inputs and writes its outputs; a slice or a look-up reads only what it takes, an update in place
writes only what it changes, and a transposition next to a product of matrices is part of it.

Its limits. A compiler may fuse less (a long fusion is cut), or more (an epilogue with the product before it), keep
small arrays in a cache, compute a cheap array twice rather than store it, and copy into another layout.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from pathways_nb.cost.jaxpr.operations import Flat, Op, Value
from pathways_nb.util.primitives import ACCUMULATES, SLICES, TRANSCENDENTAL, UPDATES, VIEWS, op_class_of


@dataclass(frozen=True)
class Traffic:
    """Which arrays a flat list keeps in memory, and what each of its operations reads and writes, in bytes."""

    stored: frozenset[Value]
    read: dict[Op, int]
    written: dict[Op, int]


def traffic_of(flat: Flat) -> Traffic:
    """The bytes of each operation of a list; of a fusion, those of each of its members."""
    levels = _FusionDepths(flat)
    stored = _stored(flat, levels)
    read, written = dict.fromkeys(flat.ops, 0), dict.fromkeys(flat.ops, 0)
    seen: set[tuple[int, Value]] = set()
    beside = _beside_products(flat)
    for op in flat.ops:
        if op.bodies or op in beside or op.name in VIEWS:
            continue
        fusion = levels.fusion(op)
        arrays = {value for value in levels.taken(op) if fusion < 0 or (fusion, value) not in seen}
        seen.update((fusion, value) for value in arrays)
        read[op], written[op] = _bytes(op, arrays, stored)
    return Traffic(frozenset(stored), read, written)


def _bytes(op: Op, arrays: Iterable[Value], stored: set[Value]) -> tuple[int, int]:
    made = sum(value.bytes for value in op.outputs if value.root in stored)
    if op.name in SLICES:
        taken = sum(value.bytes for value in op.outputs)
        return taken + sum(value.bytes for value in op.inputs[1:]), made
    if op.name in UPDATES and len(op.inputs) > UPDATES[op.name]:
        update = op.inputs[UPDATES[op.name]].bytes
        again = update if op.name in ACCUMULATES else 0
        return again + sum(value.bytes for value in op.inputs[1:]), update
    return sum(_read(op, value) for value in arrays), made


def _read(op: Op, value: Value) -> int:
    """Of a whole array next to split ones of its size, a device reads its own part."""
    if not op.outputs or op_class_of(op.name) != "elementwise":
        return value.bytes
    out = op.outputs[0]
    alike = value.shape == out.shape
    return min(value.bytes, out.bytes // out.itemsize * value.itemsize) if alike and out.itemsize else value.bytes


@dataclass
class _FusionDepths:
    """How many ends of fusions lie before each operation, and which fusion it belongs to."""

    flat: Flat
    level: dict[Op, int] = field(default_factory=dict)
    of_value: dict[Value, int] = field(default_factory=dict)
    maker: dict[Value, Op] = field(default_factory=dict)
    parent: dict[Op, Op] = field(default_factory=dict)
    origin: dict[Value, Value | None] = field(default_factory=dict)
    """Of what is cheaply computed from one array, that array; ``None`` if from numbers alone."""

    def __post_init__(self) -> None:
        for op in self.flat.ops:
            self.level[op] = max((self.of_value.get(value, 0) for value in op.inputs), default=0)
            for value in op.outputs:
                self.of_value[value] = self.level[op] + (not self.continues(op))
                self.maker[value] = op
            self.parent[op] = op
            self._join(op)
            self._trace(op)
        self.numbers = {op: number for number, op in enumerate(self.flat.ops)}

    def fused(self, op: Op) -> bool:
        """Whether it can be a member of a fusion."""
        return not op.bodies and op_class_of(op.name) in ("elementwise", "reduction")

    def _join(self, op: Op) -> None:
        for value in op.inputs if self.fused(op) else ():
            maker = self.maker.get(value)
            if maker is not None and self.continues(maker) and self.level[maker] == self.level[op]:
                self.parent[self.find(op)] = self.find(maker)

    def _trace(self, op: Op) -> None:
        if not self.continues(op) or op.name in TRANSCENDENTAL:
            return
        arrays = {value.root for value in op.inputs if value.size > 1 and value.known is None}
        sources = {self.origin.get(value, value) for value in arrays} - {None}
        if len(sources) <= 1:
            self.origin.update(dict.fromkeys((value.root for value in op.outputs), next(iter(sources), None)))

    def taken(self, op: Op) -> Iterator[Value]:
        """The arrays in memory that it reads, or its fusion for it."""
        fusion = self.fusion(op)
        for root in dict.fromkeys(value.root for value in op.inputs):
            if op.name in VIEWS and root is op.outputs[0].root:
                continue
            if fusion < 0:
                yield root
            elif self.made_in(root) != fusion:
                source = self.origin.get(root, root)
                if source is not None:
                    yield source

    def continues(self, op: Op) -> bool:
        """Whether a fusion may go on behind it."""
        return not op.bodies and op_class_of(op.name) == "elementwise"

    def find(self, op: Op) -> Op:
        """The member that stands for its fusion."""
        while self.parent[op] is not op:
            op = self.parent[op]
        return op

    def fusion(self, op: Op) -> int:
        """The number of its fusion; -1 if it is in none."""
        return self.numbers[self.find(op)] if self.fused(op) else -1

    def made_in(self, value: Value) -> int:
        """The number of the fusion that makes a value."""
        maker = self.maker.get(value)
        return -1 if maker is None else self.fusion(maker)


def _stored(flat: Flat, levels: _FusionDepths) -> set[Value]:
    """Arrays that somebody needs outside of the fusion that makes them."""
    stored = {value.root for value in (*flat.inputs, *flat.outputs)}
    for op in flat.ops:
        if not levels.continues(op):
            stored.update(value.root for value in op.outputs)
        stored.update(levels.taken(op))
    return stored


def _beside_products(flat: Flat) -> set[Op]:
    """Transpositions of what a product of matrices makes or reads."""
    makers = {value: op for op in flat.ops for value in op.outputs}
    readers: dict[Value, list[Op]] = {}
    for op in flat.ops:
        for value in op.inputs:
            readers.setdefault(value, []).append(op)
    found = set()
    for op in flat.ops:
        if op.name == "transpose":
            before = makers.get(op.inputs[0])
            after = readers.get(op.outputs[0], [])
            if (before is not None and op_class_of(before.name) == "matmul") or (
                after and all(op_class_of(reader.name) == "matmul" for reader in after)
            ):
                found.add(op)
    return found
