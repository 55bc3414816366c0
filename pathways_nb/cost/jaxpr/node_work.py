"""What a node has to do on each device: operations and bytes by class, and collectives, from a walk of its jaxpr.

The walk needs no compiler and no devices. It knows the collectives of per-shard code (``shard_map``); those of
whole-array code are the partitioner's choice, see ``cost/hlo/compiled.py``. Peak memory is in ``liveness.py``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pathways_nb.cost.jaxpr.exchange import Collective, merged, read_op
from pathways_nb.cost.jaxpr.flat import flatten
from pathways_nb.cost.jaxpr.flops import flops_of
from pathways_nb.cost.jaxpr.operations import Flat, Op
from pathways_nb.cost.jaxpr.splits import Split, read_spec
from pathways_nb.cost.jaxpr.traffic import traffic_of
from pathways_nb.util.primitives import TRANSCENDENTAL, OpClass, op_class_of


@dataclass(frozen=True, slots=True)
class Amount:
    """What one class of operations does on one device.

    Args:
        kind: ``matmul``, ``conv``, ``elementwise``, ``transcendental`` (elementwise, too: exp, tanh, sqrt, …),
            ``reduction``, ``movement`` (gather, scatter, transpose, copy, slice), ``sort``, ``random`` or ``other``.
        dtype: of the factors, for ``matmul`` and ``conv``; empty for the others.
        flops: floating-point operations. read, written: bytes from and to memory.
    """

    kind: OpClass
    dtype: str = ""
    flops: float = 0.0
    read: float = 0.0
    written: float = 0.0

    def __mul__(self, times: float) -> Amount:
        return Amount(self.kind, self.dtype, self.flops * times, self.read * times, self.written * times)


@dataclass(frozen=True, slots=True)
class Work:
    """What is to be done on each device, as ``work_of`` finds it. Works add up, and multiply by a number of times."""

    amounts: tuple[Amount, ...] = ()
    """One for each class and dtype, in the order of their names."""
    collectives: tuple[Collective, ...] = ()
    notes: tuple[str, ...] = ()
    """What the walk could not know, each once."""

    @property
    def flops(self) -> float:
        """Floating-point operations of all classes."""
        return sum(amount.flops for amount in self.amounts)

    @property
    def read(self) -> float:
        """Bytes read from memory."""
        return sum(amount.read for amount in self.amounts)

    @property
    def written(self) -> float:
        """Bytes written to memory."""
        return sum(amount.written for amount in self.amounts)

    def of(self, kind: OpClass, dtype: str | None = None) -> Amount:
        """What the operations of one class do, of one dtype or of all together."""
        chosen = [a for a in self.amounts if a.kind == kind and dtype in (None, a.dtype)]
        return _sum(chosen, kind, dtype or "")

    def __add__(self, other: Work) -> Work:
        return _total((self, other))

    def __mul__(self, times: int) -> Work:
        collectives = merged(replace(one, count=one.count * times) for one in self.collectives)
        return Work(tuple(amount * times for amount in self.amounts), collectives, self.notes)


def work_of(
    jaxpr: Any,
    axis_sizes: Mapping[str, int] | None = None,
    in_specs: Sequence[Any] | None = None,
    out_specs: Sequence[Any] | None = None,
) -> Work:
    """What a jaxpr does on each device.

    Per-shard code is counted as it stands, since its shapes are one shard's. Whole-array code is divided: an axis that
    splits any operand of an operation divides its work, where ``in_specs``, the shardings of calls and sharding
    constraints say which dimensions the axes split (``splits.py``). If they split nothing, the axes of the largest
    output divide everything. A loop whose length cannot be told counts once; of branches the one with most operations
    counts; ``notes`` say so.

    Args:
        jaxpr: closed or open, as ``jax.make_jaxpr`` gives it.
        axis_sizes: devices along each mesh axis; those of meshes within the jaxpr are known.
        in_specs, out_specs: for each input and output its ``PartitionSpec``, or ``None`` for a whole array.

    Returns:
        Floating-point operations and bytes on one device, by class, and the collectives in the jaxpr.

    Raises:
        UsageError: a collective goes over an axis whose size is not known.
    """
    flat = flatten(jaxpr, axis_sizes or {}, in_specs, out_specs)
    found = _work(flat)
    if out_specs is None or any(op.ways > 1 or op.name == "shard_map" for op in flat.ops):
        return found
    largest = max(range(len(out_specs)), key=lambda i: flat.outputs[i].size, default=-1)
    spec = read_spec(out_specs[largest], len(flat.outputs[largest].shape)) if largest >= 0 else ()
    ways = math.prod(flat.sizes.get(axis, 1) for axes in spec for axis in axes)
    note = f"only outputs are split: the work is divided by {ways}, as the largest of them"
    return (
        found
        if ways == 1
        else Work(tuple(a * (1 / ways) for a in found.amounts), found.collectives, (*found.notes, note))
    )


def layouts_of(
    jaxpr: Any, axis_sizes: Mapping[str, int] | None = None, in_specs: Sequence[Any] | None = None
) -> tuple[Split, ...]:
    """For each output, the axes that split each of its dimensions, where nobody declares them.

    What one node leaves so, the next takes as its ``in_specs``: residuals of a gradient, for one. Arguments as for
    ``work_of``.
    """
    return tuple(value.split for value in flatten(jaxpr, axis_sizes or {}, in_specs).outputs)


def _sum(amounts: Iterable[Amount], kind: OpClass, dtype: str) -> Amount:
    listed = list(amounts)
    return Amount(kind, dtype, *(sum(getattr(a, n) for a in listed) for n in ("flops", "read", "written")))


def _total(works: Sequence[Work]) -> Work:
    classes: dict[tuple[OpClass, str], list[Amount]] = {}
    for amount in (amount for work in works for amount in work.amounts):
        classes.setdefault((amount.kind, amount.dtype), []).append(amount)
    amounts = tuple(_sum(classes[key], *key) for key in sorted(classes))
    collectives = merged(one for work in works for one in work.collectives)
    return Work(amounts, collectives, tuple(dict.fromkeys(note for work in works for note in work.notes)))


def _work(flat: Flat) -> Work:
    traffic = traffic_of(flat)
    parts = []
    for op in flat.ops:
        if op.bodies:
            parts.append(_within(op))
        elif op_class_of(op.name) == "collective":
            parts.append(Work(collectives=merged([read_op(op, flat.sizes)])))
        else:
            kind: OpClass = "transcendental" if op.name in TRANSCENDENTAL else op_class_of(op.name)
            amount = Amount(kind, _dtype(op), flops_of(op), traffic.read[op], traffic.written[op])
            parts.append(Work((amount,), notes=_notes(op)))
    return _total(parts)


def _within(op: Op) -> Work:
    works = [_work(body) for body in op.bodies]
    if op.name == "cond":
        found = max(works, key=lambda work: (work.flops, work.read + work.written))
    else:
        found = _total(works) * op.times
    return found + Work(notes=(op.note,) if op.note else ())


def _dtype(op: Op) -> str:
    """Of the wider factor."""
    if op_class_of(op.name) not in ("matmul", "conv"):
        return ""
    return max(op.inputs, key=lambda value: value.itemsize).dtype


def _notes(op: Op) -> tuple[str, ...]:
    return (f"{op.name}: its operations are not counted",) if op_class_of(op.name) == "other" else ()
