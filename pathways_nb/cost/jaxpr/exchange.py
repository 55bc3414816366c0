"""Collectives: one exchange between devices as the cost model prices it, and how to read it from an operation.

``cost.hlo`` reads the same type from compiled code, so that the cost model need not know where an exchange was found.
Prices are in ``cost/collectives``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from pathways_nb.cost.collectives.kinds import BY_NAME, BY_PRIMITIVE
from pathways_nb.cost.jaxpr.operations import Op
from pathways_nb.errors import UsageError

Origin = Literal["jaxpr", "compiled", "scaled"]
"""Where a collective was found: see ``Collective.origin``."""


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective that happens ``count`` times.

    Args:
        kind: the name of its kind in ``cost.collectives.kinds``, such as ``"all-reduce"``.
        bytes: bytes on each device, of its operand or result, whichever its kind counts.
        axes: the mesh axes it goes over; empty if the groups follow no axis.
        group: number of devices that exchange with one another.
        count: how often it happens.
        origin: ``"jaxpr"``, ``"compiled"`` code, or ``"scaled"`` from code compiled for a smaller mesh.
    """

    kind: str
    bytes: int
    axes: tuple[str, ...]
    group: int
    count: int = 1
    origin: Origin = "jaxpr"

    @property
    def whole_bytes(self) -> int:
        """Bytes of the full logical array, which the closed forms of ``cost/collectives/formulas.py`` expect.

        For most kinds every device begins or ends with the full array and ``bytes`` is its size. Of the others each
        device holds one of ``group`` parts.
        """
        return self.bytes * self.group if BY_NAME[self.kind].counts_part else self.bytes


def merged(collectives: Iterable[Collective]) -> tuple[Collective, ...]:
    """Return the collectives with equal ones counted together, in order of first appearance.

    Collectives that never happen, or whose group is a single device, are left out: they exchange nothing.
    """
    found: dict[Collective, int] = {}
    for one in collectives:
        if one.count and one.group > 1:
            key = replace(one, count=1)
            found[key] = found.get(key, 0) + one.count
    return tuple(replace(key, count=count) for key, count in found.items())


def read_op(op: Op, sizes: Mapping[str, int]) -> Collective:
    """Return an operation of per-shard code as a collective.

    Args:
        op: an operation whose primitive is a collective.
        sizes: number of devices along each mesh axis.

    Raises:
        UsageError: it goes over an axis whose number of devices is not known.
    """
    kind = BY_PRIMITIVE[op.name]
    named = op.params.get("axes", op.params.get("axis_name", ()))
    axes = tuple(axis for axis in (named if isinstance(named, (tuple, list)) else (named,)) if isinstance(axis, str))
    groups = op.params.get("axis_index_groups")
    # The first operand of a ragged all-to-all is the data; the others are a buffer, offsets and sizes.
    moved = op.outputs if kind.counts_result else op.inputs[:1] if op.name.startswith("ragged") else op.inputs
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
