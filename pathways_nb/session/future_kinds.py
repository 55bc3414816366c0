"""What is equal for many futures: shape and type, layout and devices, and the name in errors.

Futures with equal attributes share one ``FutureKind``, so that a call compares its arguments by identity, and a future
is little more than two references.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pathways_nb.program.signature import Aval

if TYPE_CHECKING:
    from pathways_nb.plan.plan import Placement


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class FutureKind:
    """What is equal for many futures; equal ones of a session are one object.

    Args:
        session: the ``Session``, which imports this module.
        aval: of the value; its array may have padding.
        name: in errors and pictures: of the program that makes it, or how it was put.
        sharding: the ``jax.sharding`` of the array; ``None`` before its call is dispatched.
        place: serial number of the virtual slice where it lies, if on any.
        where: its devices, likewise.
    """

    session: Any
    aval: Aval
    name: str
    sharding: Any = None
    place: int | None = None
    where: Placement | None = None
