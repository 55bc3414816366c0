"""One collective as the cost model prices it, wherever it was found.

``cost/jaxpr/node_work.py`` reads collectives from per-shard code, ``cost/hlo`` from compiled code. Prices are in
``pricing.py``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from pathways_nb.cost.collectives.kinds import BY_NAME

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
        """Bytes of the full logical array, which the closed forms of ``formulas.py`` expect.

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
