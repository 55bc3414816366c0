"""One exchange between devices, and how a jaxpr's operation becomes one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from pathways_nb.cost.jaxpr.operations import Op
from pathways_nb.errors import UsageError
from pathways_nb.util.primitives import COLLECTIVES, CollectiveKind

Origin = Literal["jaxpr", "compiled", "scaled"]


@dataclass(frozen=True, slots=True)
class Collective:
    """An exchange that happens ``count`` times.

    Args:
        kind: what is exchanged.
        bytes: on each device: of its operand, for an all-gather of its result. So the whole array for all-reduce,
            all-gather and reduce-scatter, and the device's own part for all-to-all, permute and broadcast.
        axes: the mesh axes it goes over, in the mesh's order; empty if the groups follow no axis.
        group: devices that exchange with one another.
        count: how often.
        origin: where it was read: in the jaxpr, in compiled code, or in code compiled for a smaller mesh and scaled.
    """

    kind: CollectiveKind
    bytes: int
    axes: tuple[str, ...]
    group: int
    count: int = 1
    origin: Origin = "jaxpr"

    @property
    def whole_bytes(self) -> int:
        """Bytes of the full logical array, as the closed forms of ``formulas`` take them.

        ``bytes`` is already that of what every device ends or begins with (all-reduce, all-gather, reduce-scatter,
        broadcast); of an all-to-all or permute, each device holds one part of ``group``.
        """
        return self.bytes * self.group if self.kind in ("all-to-all", "permute") else self.bytes


def merged(collectives: Iterable[Collective]) -> tuple[Collective, ...]:
    """Equal ones counted together, in the order of the first of each."""
    found: dict[Collective, int] = {}
    for one in collectives:
        if one.count and one.group > 1:
            key = replace(one, count=1)
            found[key] = found.get(key, 0) + one.count
    return tuple(replace(key, count=count) for key, count in found.items())


def read_op(op: Op, sizes: Mapping[str, int]) -> Collective:
    """The exchange that an operation of per-shard code is.

    Raises:
        UsageError: nobody says how many devices an axis has.
    """
    kind = COLLECTIVES[op.name]
    named = op.params.get("axes", op.params.get("axis_name", ()))
    axes = tuple(axis for axis in (named if isinstance(named, (tuple, list)) else (named,)) if isinstance(axis, str))
    groups = op.params.get("axis_index_groups")
    moved = op.outputs if kind == "all-gather" else op.inputs[:1] if op.name.startswith("ragged") else op.inputs
    group = len(groups[0]) if groups else math.prod(_size(axis, op.name, sizes) for axis in axes)
    return Collective(kind, sum(value.bytes for value in moved), axes, group)


def _size(axis: str, name: str, sizes: Mapping[str, int]) -> int:
    if axis not in sizes:
        known = ", ".join(f"{a!r}: {n}" for a, n in sizes.items()) or "none"
        raise UsageError(
            f"work_of: {name} goes over the axis {axis!r}, whose number of devices is not known (known: {known}). "
            f"Add axis_sizes={{{axis!r}: 8}}, with your number."
        )
    return sizes[axis]
