"""A row of the table of collectives."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CollectiveLine:
    """The collectives of one kind on one line.

    Args:
        line: such as ``"model.py:12"``; empty where the compiler names none.
        function: of the user's, that the line is in; empty where the compiler names none.
        scope: of the user's modules and named scopes; empty without one.
        kind: in HLO's words, such as ``"all-gather"``.
        axes: of the mesh, over which a group extends; of several collectives all of theirs.
        devices: of a group; of several collectives the most.
        hosts: of a group; of several collectives the most.
        bytes: of one execution, on average: what one device holds after an all-gather, before a reduce-scatter, of an
            all-reduce; what it sends in an all-to-all or a permutation.
        count: executions in a step.
        seconds: in a step.
        exposed: seconds in a step that no computation hides.
        flag: what hurts; empty if nothing was found.
    """

    line: str
    function: str
    scope: str
    kind: str
    axes: tuple[str, ...]
    devices: int
    hosts: int
    bytes: float
    count: float
    seconds: float
    exposed: float
    flag: str = ""
