"""Peak memory of a jaxpr on one device, from the last use of every array."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pathways_nb.cost.jaxpr.flat import flatten
from pathways_nb.cost.jaxpr.operations import Flat, Op, Value
from pathways_nb.cost.jaxpr.traffic import traffic_of
from pathways_nb.util.primitives import NOT_IN_PLACE


def peak_bytes(
    jaxpr: Any,
    axis_sizes: Mapping[str, int] | None = None,
    in_specs: Sequence[Any] | None = None,
    donated: Collection[int] = (),
    out_specs: Sequence[Any] | None = None,
) -> int:
    """The most bytes that a jaxpr needs at once on each device, run in the order it is written.

    Inputs count from beginning to end, for whoever calls holds them; donated ones until their last use. An array inside
    a fusion takes no memory (``traffic.py``), and a fusion may write over an input that nobody needs any more. A
    compiler's own order, its copies and its scratch are not known here.

    Args:
        jaxpr: closed or open. axis_sizes, in_specs, out_specs: as for ``work_of``.
        donated: positions of inputs whose memory may be taken over.
    """
    flat = flatten(jaxpr, axis_sizes or {}, in_specs, out_specs)
    held = [value for i, value in enumerate(flat.inputs) if i not in donated]
    return sum({value: value.bytes for value in flat.inputs}.values()) + _above(flat, held)


def _above(flat: Flat, held: Sequence[Value]) -> int:
    """The most bytes beyond the inputs, which are there at the beginning."""
    stored = traffic_of(flat).stored
    last = _last_uses(flat, stored)
    kept = set(held) | {value.root for value in flat.outputs}
    ends: dict[int, list[Value]] = {}
    for value, index in last.items():
        ends.setdefault(index, []).append(value)
    alive, peak, now = set(flat.inputs), 0, 0
    for index, op in enumerate(flat.ops):
        made = {value.root for value in op.outputs if value.root in stored} - alive
        over = {value for value in ends.get(index, ()) if value in alive and value not in kept}
        in_place = 0 if op.name in NOT_IN_PLACE else sum(value.bytes for value in over)
        fresh = sum(value.bytes for value in made)
        peak = max(peak, now + max(fresh - in_place, 0) + _temporary(op))
        alive |= made
        now += fresh - sum(value.bytes for value in over)
        alive -= over
    return peak


def _last_uses(flat: Flat, stored: Collection[Value]) -> dict[Value, int]:
    """The last operation that needs each array; what a fusion reads is needed until the fusion writes."""
    last: dict[Value, int] = {}
    for index in reversed(range(len(flat.ops))):
        op = flat.ops[index]
        inside = [last[value.root] for value in op.outputs if value.root not in stored and value.root in last]
        for value in op.inputs:
            last[value.root] = max([last.get(value.root, index), index, *inside])
    return last


def _temporary(op: Op) -> int:
    """What its bodies need beyond their inputs and outputs, of which the inputs' slices are their own."""
    if not op.bodies:
        return 0
    outer = {value.root for value in op.inputs}
    needs = []
    for body in op.bodies:
        slices = sum(value.bytes for value in body.inputs if value.root not in outer)
        carried = sum(value.bytes for value in {value.root for value in body.outputs} - set(body.inputs))
        needs.append(slices * (op.name == "scan") + max(_above(body, list(body.inputs)) - carried, 0))
    return max(needs)
