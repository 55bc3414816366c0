"""The result type of all simulations of the paper, apart from them so that none has to import another."""

from __future__ import annotations

from typing import NamedTuple


class Found(NamedTuple):
    """The simulated value of one point.

    Args:
        simulated: the value that the simulation gives.
        baseline: the number of the simplest formula; None where there is none.
        says: a remark on both for the table.
    """

    simulated: float
    baseline: float | None = None
    says: str = ""
