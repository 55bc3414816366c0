"""What goes into the controller and what comes out: plain data that could cross a process boundary.

Instructions name *ranges of a lowered plan* per island, and completions come back for ranges: an instruction and an
event per node would cost a fifth of a chain of 128 small computations (measured), a range costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from pathways_nb.program.plan import Plan

# ---- events: in


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
    """A range of a run's steps on an island is done, well or not."""

    run: int
    island: int
    stop: int


@dataclass(frozen=True, slots=True)
class Released:
    """Clients no longer hold these logical buffers."""

    buffers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Cancelled:
    """A client gives up runs: what is not dispatched yet will not be."""

    runs: tuple[int, ...]


Event = Submitted | Stored | Completed | Released | Cancelled

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


Instruction = Launch | Free | Finish | Stop
