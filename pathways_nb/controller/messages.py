"""What goes into the controller and what comes out: plain data that could cross a process boundary.

Instructions name *ranges of a lowered plan* per island, and completions come back for ranges: an instruction and an
event per node would cost a fifth of a chain of 128 small computations (measured), a range costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from pathways_nb.errors import PathwaysError
from pathways_nb.plan.footprint import NOTHING, Allocation, Footprint
from pathways_nb.plan.plan import Placement, Plan

# ---- events: in


@dataclass(frozen=True, slots=True)
class Opened:
    """A client is there, or what it was promised has changed; ``memory`` is its limit in bytes per device, 0: none."""

    client: str
    share: float
    priority: float
    memory: int = 0


@dataclass(frozen=True, slots=True)
class Closed:
    """A client is gone: its programs are given up, and what it owns and nobody else holds is freed."""

    client: str


@dataclass(frozen=True, slots=True)
class Submitted:
    """A client calls a program.

    Args:
        arguments, results: logical buffers, in the plan's order.
        result_bytes: of each whole result.
        needs: what it needs on each device; it speaks of positions in ``arguments``.
        moved: positions in ``footprint.inputs`` of those that do not lie at their place yet, and take memory there.
    """

    run: int
    client: str
    plan: Plan
    arguments: tuple[int, ...]
    results: tuple[int, ...]
    result_bytes: tuple[int, ...]
    footprint: Footprint = NOTHING
    moved: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Stored:
    """A client puts a logical buffer of ``bytes`` into the store and holds it; ``allocation`` says where on devices."""

    buffer: int
    client: str
    bytes: int
    name: str = ""
    allocation: Allocation | None = None


@dataclass(frozen=True, slots=True)
class PutRequested:
    """A client asks for room to put a logical buffer onto devices.

    ``Grant`` answers as soon as there is room; then the buffer is stored and the client holds it. ``Refuse`` answers if
    there never will be. Until then ``Released`` withdraws the request.

    Args:
        buffer: its number.
        client: who asks.
        bytes: of the whole value.
        name: what a person knows it by.
        holding: devices, and bytes on each.
    """

    buffer: int
    client: str
    bytes: int
    name: str
    allocation: Allocation


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
    """Clients no longer hold these logical buffers, or no longer wait for room for them."""

    buffers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Voided:
    """These logical buffers will never hold anything: their nodes failed."""

    buffers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Woke:
    """The time that a ``Wake`` named has come."""


@dataclass(frozen=True, slots=True)
class Added:
    """An island has ``devices`` devices of ``budget`` bytes each from now on; it is a new one if its number is."""

    island: int
    devices: int
    budget: int = 0


@dataclass(frozen=True, slots=True)
class Removed:
    """Devices are lost, with all that lay only there."""

    where: Placement


@dataclass(frozen=True, slots=True)
class Cancelled:
    """A client gives up runs: what is not dispatched yet will not be."""

    runs: tuple[int, ...]


Event = (
    Opened
    | Closed
    | Submitted
    | Stored
    | PutRequested
    | Completed
    | Released
    | Voided
    | Woke
    | Added
    | Removed
    | Cancelled
)

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
class Lose:
    """What these logical buffers held is no more, though users hold them; ``reasons`` says why, for each."""

    buffers: tuple[int, ...]
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MemoryHeld:
    """A client now holds ``bytes`` on each of ``count`` devices of an island from ``first`` on."""

    island: int
    first: int
    count: int
    bytes: int
    client: str


@dataclass(frozen=True, slots=True)
class Waited:
    """A run is enqueued that has waited since that time, in seconds of the controller's clock, and why."""

    run: int
    since: float
    reason: str


@dataclass(frozen=True, slots=True)
class Grant:
    """There is room for a logical buffer, which was asked for at ``since``, in seconds of the controller's clock."""

    buffer: int
    since: float


@dataclass(frozen=True, slots=True)
class Refuse:
    """There will be no room for a logical buffer that was asked for at ``since``; ``error`` says why."""

    buffer: int
    since: float
    error: PathwaysError


@dataclass(frozen=True, slots=True)
class Wake:
    """Say ``Woke`` at this time, in seconds of the controller's clock."""

    at: float


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


Instruction = Launch | Free | Lose | MemoryHeld | Waited | Grant | Refuse | Wake | Finish | Stop | Fail
