"""What goes into the controller and what comes out: plain data that could cross a process boundary.

Instructions name *ranges of a lowered plan* per island, and completions come back for ranges: an instruction and an
event per node would cost a fifth of a chain of 128 small computations (measured), a range costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from pathways_nb.errors import PathwaysError
from pathways_nb.program.plan import Plan

# ---- events: in


@dataclass(frozen=True, slots=True)
class Opened:
    """A client is there, or its share or priority has changed."""

    client: str
    share: float
    priority: float


@dataclass(frozen=True, slots=True)
class Submitted:
    """A client calls a program. ``arguments`` and ``results`` are logical buffers, in the plan's order."""

    run: int
    client: str
    plan: Plan
    arguments: tuple[int, ...]
    results: tuple[int, ...]
    result_bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Stored:
    """A client puts a logical buffer of ``bytes`` into the store and holds it."""

    buffer: int
    client: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Completed:
    """Steps ``start`` to ``stop`` of a run's order on an island are done, well or not; they took ``device_seconds``."""

    run: int
    island: int
    start: int
    stop: int
    device_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Released:
    """Clients no longer hold these logical buffers."""

    buffers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Cancelled:
    """A client gives up runs: what is not dispatched yet will not be."""

    runs: tuple[int, ...]


Event = Opened | Submitted | Stored | Completed | Released | Cancelled

# ---- instructions: out


@dataclass(frozen=True, slots=True)
class Launch:
    """Carry out steps ``start`` to ``stop`` of the run's order on ``island``, after all launched there before."""

    run: int
    island: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Free:
    """Forget these logical buffers."""

    buffers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Finish:
    """All of a run's steps are done."""

    run: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Skip what is not launched yet of a run; its ranges complete all the same."""

    run: int


@dataclass(frozen=True, slots=True)
class Fail:
    """As ``Stop``; what is skipped fails with ``error``."""

    run: int
    error: PathwaysError


Instruction = Launch | Free | Finish | Stop | Fail
