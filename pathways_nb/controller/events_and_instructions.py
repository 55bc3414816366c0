"""The controller's protocol: events come in, instructions go out.

All of it is plain data that could cross a process boundary. Instructions name *ranges of a lowered plan* for each
island, and completions come back for ranges: an instruction and an event for each node would cost a fifth of a chain of
128 small computations (measured), a range costs nothing.

Drivers create events and carry out instructions; ``state_machine`` handles them. Both name calls and buffers by number:
the controller never holds an array. Nobody changes one, though they are not frozen: each call makes several, and to
make a frozen one takes four times as long.
"""

from __future__ import annotations

from dataclasses import dataclass

from pathways_nb.errors import PathwaysError
from pathways_nb.plan.footprint import NOTHING, Allocation, Footprint
from pathways_nb.plan.plan import Placement, Plan

# ---- events: in


NOTABLE = 1e-3
"""Seconds of waiting from which on a wait is recorded."""


@dataclass(slots=True)
class Opened:
    """A client opened, or its terms changed.

    Args:
        client: its name.
        share: weight under proportional share.
        priority: rank under the priority policy.
        memory: limit in bytes per device; 0 means none.
    """

    client: str
    share: float
    priority: float
    memory: int = 0


@dataclass(slots=True)
class Closed:
    """A client closed: its programs are cancelled, and buffers that only it holds are freed."""

    client: str


@dataclass(slots=True)
class Submitted:
    """A client called a program.

    Args:
        run: number of the call.
        client: name of the client.
        plan: the lowered program.
        arguments: logical buffers, in the plan's order.
        results: logical buffers, in the plan's order.
        result_bytes: size of each whole result.
        footprint: memory needed on each device; its argument positions refer to ``arguments``.
        moved: positions in ``footprint.inputs`` of inputs that are not at their place yet, and take memory on it.
    """

    run: int
    client: str
    plan: Plan
    arguments: tuple[int, ...]
    results: tuple[int, ...]
    result_bytes: tuple[int, ...]
    footprint: Footprint = NOTHING
    moved: tuple[int, ...] = ()


@dataclass(slots=True)
class Stored:
    """A client stored a logical buffer and holds it.

    Args:
        buffer: its number.
        client: the owner.
        bytes: size of the whole value.
        name: what errors and the status call it.
        allocation: its devices, and bytes on each; ``None`` for a value on the host.
    """

    buffer: int
    client: str
    bytes: int
    name: str = ""
    allocation: Allocation | None = None


@dataclass(slots=True)
class PutRequested:
    """A client wants to put a logical buffer onto devices.

    The answer is ``Grant`` as soon as memory is free; from then on the buffer is stored and the client holds it. The
    answer is ``Refuse`` if memory will never be free. Until an answer, ``Released`` withdraws the request.

    Args:
        buffer: its number.
        client: the owner.
        bytes: size of the whole value.
        name: what errors and the status call it.
        allocation: the devices, and bytes on each.
    """

    buffer: int
    client: str
    bytes: int
    name: str
    allocation: Allocation


@dataclass(slots=True)
class Completed:
    """A range of a call's order on an island is done, whether its nodes succeeded or failed.

    Args:
        run: number of the call.
        island: index of the island.
        start: first step of the range.
        stop: step after the last.
        device_seconds: seconds that the range took, times devices; 0 if unknown.
    """

    run: int
    island: int
    start: int
    stop: int
    device_seconds: float = 0.0


@dataclass(slots=True)
class Released:
    """Clients no longer hold these logical buffers, or no longer wait to put them."""

    buffers: tuple[int, ...]


@dataclass(slots=True)
class Voided:
    """These logical buffers will never hold a value: the nodes that produce them failed."""

    buffers: tuple[int, ...]


@dataclass(slots=True)
class Woke:
    """The time that a ``Wake`` instruction named has come."""


@dataclass(slots=True)
class Added:
    """An island was added, or its lost devices came back.

    Args:
        island: its index; the next free one for a new island.
        devices: number of devices.
        budget: bytes of memory per device; 0 means no limit.
    """

    island: int
    devices: int
    budget: int = 0


@dataclass(slots=True)
class Removed:
    """Devices were lost, with every buffer that was only on them."""

    where: Placement


@dataclass(slots=True)
class Occupied:
    """Others than the controller hold memory of an island: arrays of the user's own, other processes, the compiler.

    Args:
        island: its index.
        bytes: held on its fullest device.
        what: the largest of them, in words; empty if not known.
    """

    island: int
    bytes: int
    what: str = ""


@dataclass(slots=True)
class Cancelled:
    """A client cancelled calls: what is not launched yet will be skipped."""

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
    | Occupied
    | Cancelled
)

# ---- instructions: out


@dataclass(slots=True)
class Launch:
    """Launch steps ``start`` to ``stop`` of a call's order on an island, after everything launched on it before."""

    run: int
    island: int
    start: int
    stop: int


@dataclass(slots=True)
class Free:
    """Forget these logical buffers."""

    buffers: tuple[int, ...]


@dataclass(slots=True)
class Lose:
    """The values of these logical buffers are gone, though users hold them; ``reasons`` has one text for each."""

    buffers: tuple[int, ...]
    reasons: tuple[str, ...]


@dataclass(slots=True)
class MemoryHeld:
    """A client now holds ``bytes`` on each of ``count`` devices of an island from device ``first`` on.

    ``parts`` are the bytes by category, which add up to ``bytes``.
    """

    island: int
    first: int
    count: int
    bytes: int
    client: str
    parts: tuple[tuple[str, int], ...]


@dataclass(slots=True)
class Waited:
    """A call that had waited is enqueued.

    Args:
        run: number of the call.
        since: when it began to wait, in seconds of the controller's clock.
        reason: why, in words.
    """

    run: int
    since: float
    reason: str


@dataclass(slots=True)
class Grant:
    """A logical buffer may be put onto devices; it was requested at ``since``, in seconds of the controller's clock."""

    buffer: int
    since: float


@dataclass(slots=True)
class Refuse:
    """A logical buffer that was requested at ``since`` cannot be put onto devices; ``error`` says why."""

    buffer: int
    since: float
    error: PathwaysError


@dataclass(slots=True)
class Wake:
    """Send ``Woke`` at this time, in seconds of the controller's clock."""

    at: float


@dataclass(slots=True)
class Finish:
    """All steps of a call are done."""

    run: int


@dataclass(slots=True)
class Skip:
    """Skip what is not launched yet of a cancelled call; its ranges must complete all the same."""

    run: int


@dataclass(slots=True)
class Fail:
    """Do the same as for ``Skip``, and fail the skipped nodes with ``error``."""

    run: int
    error: PathwaysError


Instruction = Launch | Free | Lose | MemoryHeld | Waited | Grant | Refuse | Wake | Finish | Skip | Fail
