"""A jaxpr as a flat list of operations: calls inlined, dead code dropped, loops and branches as nested lists.

Every value knows its bytes *on one device*: the walk propagates the mesh axes that partition each dimension from the
inputs forward by the rules of ``splits.py``, and afterwards from readers back to arrays that have no layout yet
(``backward_splits.py``). Inside ``shard_map`` shapes are those of one shard, and nothing is divided again. Loops stay
nested because their bodies count many times. A jaxpr is read by its attributes, so nothing in this module needs JAX.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from pathways_nb.cost.jaxpr.backward_splits import propagate_from_readers
from pathways_nb.cost.jaxpr.operations import ShardedJaxpr, ShardedOperation, ShardedValue
from pathways_nb.cost.jaxpr.primitives import CONSTRAINTS, LAY_OUT, VIEWS
from pathways_nb.cost.jaxpr.splits import Split, bytes_on_device, propagate, read_spec, unsplit
from pathways_nb.cost.jaxpr.trip_counts import trips
from pathways_nb.jaxpr.flat import Walk, alive, called, scan_sizes

_MOST_WALKS = 3
"""The most times that the layouts of loop-carried arrays are propagated again before they are taken as final."""


def flatten(
    jaxpr: Any, sizes: Mapping[str, int], specs: Sequence[Any] | None = None, out_specs: Sequence[Any] | None = None
) -> ShardedJaxpr:
    """Return a jaxpr as a flat list of operations.

    Args:
        jaxpr: closed or open, as ``jax.make_jaxpr`` returns it.
        sizes: number of devices along each mesh axis; axes of meshes inside the jaxpr need not be given.
        specs: for each input the axes of each dimension, as in a ``PartitionSpec``; ``None`` for a replicated array.
        out_specs: likewise for each output; ``None`` for the layout that follows from its operation.
    """
    given, wanted = (None if one is None else tuple(one) for one in (specs, out_specs))
    return _flattened(jaxpr, tuple(sizes.items()), given, wanted)


# Layouts, exchanges and work of one node are asked for one after another, and its list takes seconds if it is long.
@lru_cache(maxsize=2)
def _flattened(
    jaxpr: Any, sizes: tuple[tuple[str, int], ...], specs: tuple[Any, ...] | None, out_specs: tuple[Any, ...] | None
) -> ShardedJaxpr:
    """Return a jaxpr as a flat list; jaxprs are told apart by identity."""
    inner, walk = getattr(jaxpr, "jaxpr", jaxpr), _CostWalk(dict(sizes))
    given = specs if specs is not None else (None,) * len(inner.invars)
    pairs = zip(inner.invars, given, strict=True)
    wanted = out_specs if out_specs is not None else (None,) * len(inner.outvars)
    outputs = [
        None if spec is None else read_spec(spec, _rank(var)) for var, spec in zip(inner.outvars, wanted, strict=True)
    ]
    return walk.body(jaxpr, [walk.new(var.aval, read_spec(spec, _rank(var))) for var, spec in pairs], outputs)


def operation_of(eqn: Any, inputs: Sequence[ShardedValue], sizes: Mapping[str, int]) -> ShardedOperation:
    """Return one equation that is no call as an operation on given arrays.

    Args:
        eqn: the equation.
        inputs: an array for each of its operands.
        sizes: number of devices along each mesh axis.
    """
    # A walk of its own: sizes of axes that the equation adds must not leak to the caller's mapping.
    walk = _CostWalk(dict(sizes))
    walk.equation(eqn, list(inputs))
    return walk.ops[-1]


def value_of(aval: Any, split: Split | None = None, sizes: Mapping[str, int] = {}) -> ShardedValue:
    """Return a new array of this shape and dtype; without a layout, no axis partitions it."""
    return _CostWalk(dict(sizes)).new(aval, unsplit(len(_shape(aval))) if split is None else split)


def _shape(aval: Any) -> tuple[int, ...]:
    return tuple(getattr(_arrived(aval), "shape", ()))


def _rank(atom: Any) -> int:
    return len(_shape(atom.aval))


def _arrived(aval: Any) -> Any:
    """Return the aval of the array that a started collective will produce; any other aval as it is."""
    return getattr(aval, "inner_aval", aval)


@dataclass
class _CostWalk(Walk[ShardedValue]):
    """The walk over one jaxpr, which appends its operations to ``ops``; each body has a walk and a list of its own."""

    sizes: dict[str, int]
    """Devices along each mesh axis. All walks share it, because a mesh inside a body gives the sizes of its axes."""
    ops: list[ShardedOperation] = field(default_factory=list)

    def ways(self, axes: Iterable[str]) -> int:
        """Return the number of devices among which these axes divide work; an axis of unknown size divides nothing."""
        return math.prod(self.sizes.get(axis, 1) for axis in axes)

    def new(self, aval: Any, split: Split, known: Any = None, source: ShardedValue | None = None) -> ShardedValue:
        """Return a new array of this shape, dtype and layout."""
        shape, dtype = _shape(aval), getattr(_arrived(aval), "dtype", None)
        # Tokens have no dtype; extended dtypes, such as keys of random numbers, have an itemsize of their own.
        itemsize = getattr(dtype, "itemsize", 0)
        bytes = bytes_on_device(_arrived(aval), split, self.sizes)
        return ShardedValue(shape, str(dtype), itemsize, split, bytes, known, source)

    def body(
        self, jaxpr: Any, inputs: Sequence[ShardedValue], wanted: Sequence[Split | None] | None = None
    ) -> ShardedJaxpr:
        """Return the operations of a jaxpr in a list of its own, without dead code.

        Args:
            jaxpr: closed or open.
            inputs: its input arrays.
            wanted: the declared layout of each output; ``None`` for an output without one.
        """
        inner = _CostWalk(self.sizes)
        outputs = inner.run(jaxpr, inputs)
        flat = ShardedJaxpr(alive(inner.ops, outputs), tuple(inputs), tuple(outputs), self.sizes)
        # Forward first, then backward: what reads an array is known only once the whole list is.
        return propagate_from_readers(flat, wanted or [None] * len(outputs))

    def loop_body(self, jaxpr: Any, inputs: Sequence[ShardedValue], first: int, carried: int) -> ShardedJaxpr:
        """Return the body of a loop, with each carried array in the layout in which an iteration leaves it.

        Args:
            jaxpr: the body.
            inputs: its input arrays.
            first: the position of the first carried array among them.
            carried: the number of carried arrays.
        """
        # Constants come first among the inputs of a body, then the carried arrays; the latter are the first outputs.
        given, body = list(inputs), self.body(jaxpr, inputs)
        # A carried array has one layout in all iterations: one that enters whole and leaves partitioned, such as zeros
        # to which a loop adds, is partitioned from the start. That can partition others, so the body is walked again.
        for _ in range(_MOST_WALKS):
            changed = False
            for at, left in zip(range(first, first + carried), body.outputs, strict=False):
                # Only from whole to partitioned, never back, so that repeated walks cannot alternate.
                if any(left.split) and not any(given[at].split):
                    given[at], changed = self.split(given[at], left.split), True
            if not changed:
                break
            body = self.body(
                jaxpr,
                given,
                [value.split for value in given[first : first + carried]] + [None] * (len(body.outputs) - carried),
            )
        return body

    def split(self, value: ShardedValue, split: Split) -> ShardedValue:
        """Return the array in another layout; it is no view, because a change of layout makes a new allocation."""
        bytes = bytes_on_device(value, split, self.sizes)
        return replace(value, split=split, bytes=bytes, source=None)

    def constant(self, aval: Any, value: Any) -> ShardedValue:
        """Return a closed-over constant, replicated; only scalars keep their value, for the trip counts of loops."""
        rank = len(_shape(aval))
        # The value of an array is not kept: only a scalar can be the bound of a loop.
        return self.new(aval, unsplit(rank), None if rank else value)

    def literal(self, atom: Any) -> ShardedValue:
        """Return a literal, which takes no memory because it is part of the code."""
        return replace(self.new(atom.aval, unsplit(_rank(atom)), atom.val), bytes=0)

    def equation(self, eqn: Any, inputs: list[ShardedValue]) -> Sequence[ShardedValue]:
        """Return the outputs of an equation: inline a call, append any other equation as one operation."""
        # Calls are inlined, since XLA inlines them as well and fuses across them.
        body = called(eqn)
        if body is not None:
            return self.call(eqn.params, body, inputs)
        control = {"scan": self.scan, "while": self.loop, "cond": self.branch, "shard_map": self.shards}
        self.ops.append(control.get(eqn.primitive.name, self.plain)(eqn, inputs))
        return self.ops[-1].outputs

    def call(self, params: Mapping[str, Any], body: Any, inputs: list[ShardedValue]) -> list[ShardedValue]:
        """Inline a call and return its outputs, with inputs and outputs in the layouts that its shardings declare."""
        given = params.get("in_shardings") or [None] * len(inputs)
        outputs = self.run(body, [self.lay_out(*pair) for pair in zip(inputs, given, strict=True)])
        wanted = params.get("out_shardings") or [None] * len(outputs)
        return [self.lay_out(*pair) for pair in zip(outputs, wanted, strict=True)]

    def lay_out(self, value: ShardedValue, sharding: Any) -> ShardedValue:
        """Return the array in the layout that a sharding declares; ``None`` and shardings without a spec declare none.

        Only the memory traffic of the change is counted. The exchange between devices that it takes is not in the
        jaxpr: the partitioner chooses it, and ``cost.hlo`` reads it from compiled code.
        """
        spec, mesh = getattr(sharding, "spec", None), getattr(sharding, "mesh", None)
        # ``setdefault``: sizes that the caller gave win.
        for axis, size in mesh.shape.items() if spec is not None and mesh is not None else ():
            self.sizes.setdefault(axis, size)
        split = value.split if spec is None else read_spec(spec, len(value.shape))
        if split == value.split:
            return value
        made = self.split(value, split)
        self.ops.append(ShardedOperation(LAY_OUT, (value,), (made,)))
        return made

    def plain(self, eqn: Any, inputs: list[ShardedValue]) -> ShardedOperation:
        """Return an equation without bodies as an operation, with its outputs partitioned as its operands imply."""
        name, params = eqn.primitive.name, eqn.params
        operands = [(value.shape, value.split) for value in inputs]
        # All axes of operands and outputs divide the work: one on a contracted dimension partitions no output, and yet
        # each device multiplies only its part.
        axes = {axis for _, split in operands for entry in split for axis in entry}
        outputs = []
        for number, var in enumerate(eqn.outvars):
            known = bool(axes) or name in CONSTRAINTS
            split = propagate(name, params, operands, _shape(var.aval)) if known else unsplit(_rank(var))
            # An output in another layout than its operand is a copy, even of an operation that only makes views.
            view = inputs[number] if name in VIEWS and split == inputs[number].split[: len(split)] else None
            outputs.append(self.new(var.aval, split, source=view))
        axes |= {axis for value in outputs for entry in value.split for axis in entry}
        return ShardedOperation(name, tuple(inputs), tuple(outputs), eqn, self.ways(axes))

    def scan(self, eqn: Any, inputs: list[ShardedValue]) -> ShardedOperation:
        """Return a ``scan`` with its body, which reads and makes scanned arrays without their first dimension."""
        jaxpr, outer = eqn.params["jaxpr"], tuple(inputs)
        # The body sees one slice of each scanned array, (dims without the first), and the same layout for the rest.
        given = [self.body_input(*pair) for pair in zip(inputs, jaxpr.jaxpr.invars, strict=True)]
        body = self.loop_body(jaxpr, given, *scan_sizes(eqn))
        outputs = self.body_outputs(eqn, body)
        return ShardedOperation("scan", outer, outputs, eqn, bodies=(body,), times=eqn.params["length"])

    def loop(self, eqn: Any, inputs: list[ShardedValue]) -> ShardedOperation:
        """Return a ``while`` with its condition and body; if the number of iterations is unknown, it counts once."""
        # Inputs: constants of the condition, constants of the body, carried values. Both jaxprs read the carried
        # values.
        params, first = eqn.params, eqn.params["cond_nconsts"]
        middle = first + params["body_nconsts"]
        test = self.body(params["cond_jaxpr"], [*inputs[:first], *inputs[middle:]])
        consts = params["body_nconsts"]
        body = self.loop_body(params["body_jaxpr"], inputs[first:], consts, len(inputs) - middle)
        # Known only where the bounds are scalars written into the code, or closed over.
        times = trips(params, [value.known for value in inputs])
        note = "" if times is not None else "a while loop of unknown length is counted once"
        outputs = self.body_outputs(eqn, body)
        return ShardedOperation(
            "while", tuple(inputs), outputs, eqn, 1, (test, body), 1 if times is None else times, note
        )

    def branch(self, eqn: Any, inputs: list[ShardedValue]) -> ShardedOperation:
        """Return a ``cond`` with all its branches; its outputs have the layouts of the last one."""
        # The first input is the index of the branch.
        bodies = tuple(self.body(branch, inputs[1:]) for branch in eqn.params["branches"])
        note = f"of the {len(bodies)} branches of a cond the dearest is counted"
        return ShardedOperation(
            "cond", tuple(inputs), self.body_outputs(eqn, bodies[-1]), eqn, bodies=bodies, note=note
        )

    def shards(self, eqn: Any, inputs: list[ShardedValue]) -> ShardedOperation:
        """Return a ``shard_map`` with its body, whose shapes are those of one shard and are not divided again."""
        params, jaxpr = eqn.params, getattr(eqn.params["jaxpr"], "jaxpr", eqn.params["jaxpr"])
        # A mesh inside the code is what the code runs on, so its sizes win; all walks share the mapping.
        self.sizes.update(params["mesh"].shape)
        body = self.body(params["jaxpr"], [self.new(var.aval, unsplit(_rank(var))) for var in jaxpr.invars])
        specs = zip(eqn.outvars, params["out_specs"], strict=True)
        outputs = tuple(self.new(var.aval, read_spec(spec, _rank(var))) for var, spec in specs)
        return ShardedOperation("shard_map", tuple(inputs), outputs, eqn, bodies=(body,))

    def body_input(self, value: ShardedValue, var: Any) -> ShardedValue:
        """Return what the body of a scan receives of an input: one slice of a scanned array, else the array itself."""
        if _rank(var) == len(value.shape):
            return value
        # A scanned dimension is never divided at a slice: each iteration runs on all devices.
        return self.new(var.aval, value.split[1:])

    def body_outputs(self, eqn: Any, body: ShardedJaxpr) -> tuple[ShardedValue, ...]:
        """Return the outputs of a loop or branch in the layouts of its body's outputs; a stacked dimension is whole."""
        return tuple(
            self.new(var.aval, ((),) * (_rank(var) - len(value.shape)) + value.split)
            for var, value in zip(eqn.outvars, body.outputs, strict=True)
        )
