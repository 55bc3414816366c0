"""The work of a node on each device, read from its jaxpr: operations and bytes by class, and collectives.

Work is kept by class and dtype because a chip runs each class at a rate of its own: ``cost/model.py`` turns amounts
into seconds. The walk needs no compiler and no devices. It finds the collectives of per-shard code (``shard_map``);
the collectives of whole-array code are the partitioner's choice and are read from compiled code
(``cost/hlo/compiled.py``). Peak memory is in ``liveness.py``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pathways_nb.cost.collectives.collective import Collective, merged
from pathways_nb.cost.collectives.kinds import BY_PRIMITIVE
from pathways_nb.cost.jaxpr.flops import flops_of
from pathways_nb.cost.jaxpr.operations import ShardedJaxpr, ShardedOperation
from pathways_nb.cost.jaxpr.primitives import TRANSCENDENTAL, OpClass, op_class_of
from pathways_nb.cost.jaxpr.sharded_flat import flatten
from pathways_nb.cost.jaxpr.splits import Split, read_spec
from pathways_nb.cost.jaxpr.traffic import Traffic, traffic_of
from pathways_nb.errors import UsageError


@dataclass(frozen=True, slots=True)
class Amount:
    """The work of one class of operations on one device.

    Args:
        kind: ``matmul``, ``conv``, ``elementwise``, ``transcendental`` (elementwise functions such as exp, tanh, sqrt),
            ``reduction``, ``movement`` (gather, scatter, transpose, copy, slice), ``sort``, ``random`` or ``other``.
        dtype: the dtype of the wider factor, for ``matmul`` and ``conv``; empty for the other classes.
        flops: floating-point operations.
        read: bytes read from memory.
        written: bytes written to memory.
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
    """The work of a node on each device. Works can be added, and multiplied by a number of repetitions."""

    amounts: tuple[Amount, ...] = ()
    """One for each class and dtype, sorted by their names."""
    collectives: tuple[Collective, ...] = ()
    """Equal collectives are counted together."""
    notes: tuple[str, ...] = ()
    """What the walk could not know; each note appears once."""

    @property
    def flops(self) -> float:
        """Floating-point operations on one device, of all classes."""
        return sum(amount.flops for amount in self.amounts)

    @property
    def read(self) -> float:
        """Bytes that one device reads from memory."""
        return sum(amount.read for amount in self.amounts)

    @property
    def written(self) -> float:
        """Bytes that one device writes to memory."""
        return sum(amount.written for amount in self.amounts)

    def of(self, kind: OpClass, dtype: str | None = None) -> Amount:
        """Return the amount of one class, of one dtype or, for ``None``, of all dtypes together."""
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
    """Return the work that a jaxpr does on each device.

    Per-shard code is counted without division, because its shapes are those of one shard. Whole-array code is divided:
    an axis that partitions any operand of an operation divides the work of that operation. ``in_specs``, the shardings
    of calls and sharding constraints declare which dimensions the axes partition (``splits.py``). If they partition
    nothing, the axes of the largest output divide all work. A loop of unknown length counts once, and of the branches
    of a ``cond`` the one with the most operations counts; ``notes`` say where this happened.

    Args:
        jaxpr: closed or open, as ``jax.make_jaxpr`` returns it.
        axis_sizes: number of devices along each mesh axis; axes of meshes inside the jaxpr need not be given.
        in_specs: for each input its ``PartitionSpec``, or ``None`` for a replicated array.
        out_specs: likewise for each output; ``None`` for an output whose layout is not declared.

    Returns:
        Floating-point operations and bytes on one device by class, and the collectives that the jaxpr contains.

    Raises:
        UsageError: a collective goes over an axis whose size is not known.
    """
    flat = flatten(jaxpr, axis_sizes or {}, in_specs, out_specs)
    found = _work(flat)
    # The division below is a last resort: where any operation is divided already, it would divide work twice.
    if out_specs is None or any(op.ways > 1 or op.name == "shard_map" for op in flat.ops):
        return found
    # The largest output stands for most of the work, as the partitioner divides what makes it.
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
    """Return the axes that partition each dimension of each output when no output spec is declared.

    The next node takes these layouts as its ``in_specs``: residuals of a gradient, for example, have no declared spec.

    Args:
        jaxpr: closed or open.
        axis_sizes: number of devices along each mesh axis.
        in_specs: for each input its ``PartitionSpec``, or ``None`` for a replicated array.
    """
    return tuple(value.split for value in flatten(jaxpr, axis_sizes or {}, in_specs).outputs)


def _sum(amounts: Iterable[Amount], kind: OpClass, dtype: str) -> Amount:
    listed = list(amounts)
    return Amount(kind, dtype, *(sum(getattr(a, n) for a in listed) for n in ("flops", "read", "written")))


def _total(works: Sequence[Work]) -> Work:
    """Return the sum of works, with one amount for each class and dtype."""
    classes: dict[tuple[OpClass, str], list[Amount]] = {}
    for amount in (amount for work in works for amount in work.amounts):
        classes.setdefault((amount.kind, amount.dtype), []).append(amount)
    # Sorted by class and dtype, so that equal works compare equal whatever their order.
    amounts = tuple(_sum(classes[key], *key) for key in sorted(classes))
    collectives = merged(one for work in works for one in work.collectives)
    return Work(amounts, collectives, tuple(dict.fromkeys(note for work in works for note in work.notes)))


def works_of(flat: ShardedJaxpr) -> list[Work]:
    """Return the work of each operation of a list; the bytes of a fusion are spread over its members."""
    traffic = traffic_of(flat)
    return [_work_of(op, flat, traffic) for op in flat.ops]


def _work(flat: ShardedJaxpr) -> Work:
    return _total(works_of(flat))


def _work_of(op: ShardedOperation, flat: ShardedJaxpr, traffic: Traffic) -> Work:
    if op.bodies:
        return _work_of_bodies(op)
    if op_class_of(op.name) == "collective":
        return Work(collectives=merged([_collective_of(op, flat.sizes)]))
    kind: OpClass = "transcendental" if op.name in TRANSCENDENTAL else op_class_of(op.name)
    # A product of bf16 and f32 counts at the rate of f32.
    dtype = max(op.inputs, key=lambda value: value.itemsize).dtype if kind in ("matmul", "conv") else ""
    amount = Amount(kind, dtype, flops_of(op), traffic.read[op], traffic.written[op])
    return Work((amount,), notes=(f"{op.name}: its operations are not counted",) if kind == "other" else ())


def _collective_of(op: ShardedOperation, sizes: Mapping[str, int]) -> Collective:
    """Return an operation of per-shard code whose primitive is a collective, as the cost model prices it.

    Raises:
        UsageError: it goes over an axis whose number of devices is not known.
    """
    kind = BY_PRIMITIVE[op.name]
    over = op.params.get("axes", op.params.get("axis_name", ()))
    # ``vmap`` leaves numbers of dimensions among the axes; these exchange nothing between devices.
    axes = tuple(axis for axis in (over if isinstance(over, (tuple, list)) else (over,)) if isinstance(axis, str))
    groups = op.params.get("axis_index_groups")
    # The first operand of a ragged all-to-all is the data; the others are a buffer, offsets and sizes.
    moved = op.outputs if kind.counts_result else op.inputs[:1] if op.name.startswith("ragged") else op.inputs
    # ``axis_index_groups`` divides an axis further; the first group stands for all.
    group = len(groups[0]) if groups else math.prod(_size(axis, op.name, sizes) for axis in axes)
    return Collective(kind.name, sum(value.bytes for value in moved), axes, group)


def _size(axis: str, name: str, sizes: Mapping[str, int]) -> int:
    if axis not in sizes:
        known = ", ".join(f"{a!r}: {n}" for a, n in sizes.items()) or "none"
        raise UsageError(
            f"work_of: {name} goes over the axis {axis!r}, whose number of devices is not known (known: {known}). "
            f"Add axis_sizes={{{axis!r}: 8}}, with your number."
        )
    return sizes[axis]


def _work_of_bodies(op: ShardedOperation) -> Work:
    """Return the work of the bodies that an operation runs: of a ``cond`` one branch, of a loop every iteration."""
    works = [_work(body) for body in op.bodies]
    if op.name == "cond":
        # Only one branch runs; the dearest, so that a simulated step is not too short.
        found = max(works, key=lambda work: (work.flops, work.read + work.written))
    else:
        found = _total(works) * op.times
    return found + Work(notes=(op.note,) if op.note else ())
