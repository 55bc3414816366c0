"""The schedule of a compiled module: which instruction runs when, on which queue, and what waits for what.

An accelerator runs the instructions of a computation one by one, in the order in which the text has them. Some only
start something: a collective on the network, a copy between memories, a transfer to the host. It goes on while the next
instructions run, until the instruction that ends it, which waits. A loop is a schedule of its own that runs several
times.

Only what takes time is a ``LaunchAction``; parameters, tuples and the like are left out. What an action takes in
seconds is not decided here (``cost.launch``).
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from pathways_nb.cost.collectives.kinds import BY_NAME, BY_OPCODE
from pathways_nb.cost.hlo.exchanges import SLICE_NUMBERS, HloExchange, exchange_between_slices, exchange_of
from pathways_nb.cost.hlo.hlo_text import HloComputation, HloInstruction, HloModule
from pathways_nb.cost.hlo.hlo_work import OpWork, custom_call_target, is_free, is_unknown_kernel, work_of
from pathways_nb.cost.hlo.loop_trips import trips_of
from pathways_nb.cost.hlo.phases import phases_in
from pathways_nb.errors import size, three_digits
from pathways_nb.trace.launch_ops import Phase
from pathways_nb.util.words import counted

Queue = Literal["compute", "network", "copy", "host", "dcn"]
"""What runs an action: the chip's units, its links, its copies between its own memories, its link to the host, its
host's network to other slices."""
Role = Literal["run", "start", "done", "loop"]
_CHANNEL = re.compile(r"channel_id=(\d+)")
_MEETING = re.compile(r'_xla_host_transfer_rendezvous="([^"]+)"')
_HOST_SPACE = 5
"""HLO's number of the host's memory."""
UNKNOWN_TRIPS = "runs an unknown number of times"
"""What a note says of a loop that ends by its data."""


class LaunchAction(NamedTuple):
    """One entry of a schedule.

    Args:
        name: of the instruction.
        queue: what runs it.
        role: ``"run"`` blocks the queue of instructions until it has ended, ``"start"`` does not, ``"done"`` waits for
            the ``"start"`` at position ``of``, ``"loop"`` runs ``body`` as often as ``trips`` says.
        work: on the chip.
        exchange: with other devices.
        source: JAX's name stack and operation; empty if the text does not say.
        line: the innermost line of the user's code; empty if the text does not say.
        phase: part of the training step; empty if the text does not say.
        functions: of the user's, the one that the line is in and those that called it; empty if the text does not say.
        of: position of what a ``"done"`` waits for; else -1.
        body: of a loop.
        trips: of a loop.
    """

    name: str
    queue: Queue
    role: Role
    work: OpWork = OpWork()
    exchange: HloExchange | None = None
    source: str = ""
    line: str = ""
    phase: Phase = ""
    functions: tuple[str, ...] = ()
    of: int = -1
    body: LaunchSchedule | None = None
    trips: int = 1

    @property
    def function(self) -> str:
        """The user's function that the line is in, such as ``"Block.__call__"``; empty if the text does not say."""
        return self.functions[0] if self.functions else ""

    @property
    def words(self) -> str:
        """Its work in words: a collective with bytes and groups, or FLOPs and bytes."""
        if (found := self.exchange) is not None:
            groups = f"{counted(len(found.groups), 'group')} of {found.size}"
            if BY_NAME[found.kind].torus is None:  # a shift
                groups = counted(len(found.groups), "pair")
            return f"{found.kind} of {size(found.bytes)}, {groups}"
        flops = self.work.flops + self.work.attention
        moved = size(self.work.bytes) if self.work.bytes else ""
        return ", ".join(filter(None, (f"{three_digits(flops / 1e9)} GFLOP" if flops else "", moved)))


@dataclass(frozen=True)
class LaunchSchedule:
    """Actions in the order in which the device runs them.

    Args:
        actions: of one computation.
        notes: what could not be known, each once.
    """

    actions: tuple[LaunchAction, ...]
    notes: tuple[str, ...] = ()

    def runs(self, times: int = 1) -> Iterator[tuple[LaunchAction, int]]:
        """Yield each action but loops, with how often it runs; those of loops as well."""
        for action in self.actions:
            if action.body is None:
                yield action, times
            else:
                yield from action.body.runs(times * action.trips)

    @property
    def slices(self) -> int | None:
        """Number of slices that it sends between: 1 if it sends nothing, None if the text does not say it."""
        sent = [action for action, _ in self.runs() if action.queue == "dcn"]
        said = [int(action.exchange.groups.max()) // SLICE_NUMBERS for action in sent if action.exchange]
        return max(said) if said else None if sent else 1

    @property
    def flops(self) -> float:
        """FLOPs of products and attention of one device."""
        return math.fsum((one.work.flops + one.work.attention) * times for one, times in self.runs())


def schedule_of(module: HloModule, devices: int, trips: int | None = None) -> LaunchSchedule:
    """Return the schedule of a module's entry.

    Args:
        module: scheduled, as a compiler for accelerators writes it.
        devices: number of devices of the program.
        trips: of loops that end by their data; None if nobody knows, then a note says so and they are counted once.
    """
    return _ScheduleReader(module, devices, trips).read(module.entry)


class _ScheduleReader:
    """Reads schedules of one module.

    Args:
        module: scheduled.
        devices: number of devices of the program.
        trips: of loops that end by their data; None if nobody knows.
    """

    def __init__(self, module: HloModule, devices: int, trips: int | None):
        self.module, self.devices, self.trips = module, devices, trips
        self._read: dict[str, LaunchSchedule] = {}
        self._phases = phases_in(module)

    def read(self, name: str) -> LaunchSchedule:
        """Return the schedule of a computation."""
        if name not in self._read:
            computation = self.module.computations[name]
            actions: list[LaunchAction] = []
            notes: dict[str, None] = {}
            started: dict[str, int] = {}
            for instruction in computation.instructions.values():
                for one in self._actions(computation, instruction, started, notes):
                    if one.role == "start":
                        started[instruction.name] = len(actions)
                        started |= {f"channel {one}": len(actions) for one in self._channels_of(instruction)}
                    actions.append(one)
            self._read[name] = LaunchSchedule(tuple(actions), tuple(notes))
        return self._read[name]

    def _channels_of(self, instruction: HloInstruction) -> list[str]:
        """Return the channels of the collectives that a fusion starts."""
        called = instruction.called if instruction.opcode == "fusion" else []
        inner = [one for name in called for one in self.module.computations[name].instructions.values()]
        return [found[1] for one in inner if (found := _CHANNEL.search(one.attributes))]

    def _actions(
        self, computation: HloComputation, instruction: HloInstruction, started: dict[str, int], notes: dict[str, None]
    ) -> Iterator[LaunchAction]:
        """Yield what an instruction adds to the schedule of its computation.

        Args:
            computation: that holds it.
            instruction: of the module.
            started: positions of the starts so far, by their instruction's name.
            notes: what could not be known; filled in.
        """
        opcode = instruction.opcode
        if is_free(instruction):
            return
        origin = self._origin(computation, instruction)
        line = self.module.sources.line_of(origin.attributes)
        phase = self._phases.get(origin.name, "")
        said = functools.partial(
            LaunchAction, instruction.name, source=origin.op_name, line=line, phase=phase,
            functions=self.module.sources.functions_of(origin.attributes),
        )  # fmt: skip
        if opcode == "while":
            trips = trips_of(self.module, computation, instruction)
            if trips is None and self.trips is None:
                notes[f"the loop {instruction.name}{_at(line)} {UNKNOWN_TRIPS} and is counted once"] = None
            trips = self.trips if trips is None else trips
            body = self.read(instruction.called[0])
            notes.update(dict.fromkeys(body.notes))
            yield said(queue="compute", role="loop", body=body, trips=1 if trips is None else trips)
        elif opcode in ("call", "conditional"):
            if opcode == "conditional":
                notes[f"every branch of {instruction.name} is counted"] = None
            for called in instruction.called:
                yield said(queue="compute", role="loop", body=self.read(called), trips=1)
        elif opcode.endswith("-done"):
            begun = _start(computation, instruction, started)
            if begun is not None:
                yield said(queue="compute", role="done", of=begun)
        elif (found := self._collective(computation, instruction)) is not None:
            where, collective = found
            channel = _CHANNEL.search(collective.attributes)
            part = _part_of_collective(where) if opcode == "fusion" else ""
            if part == "done":
                at = started.get(f"channel {channel and channel[1]}", -1)
                yield said(queue="compute", role="done", of=at)
                return
            if part == "middle":
                # One collective is written in every fusion that goes on with it; it is counted where it starts.
                yield said(queue="compute", role="run", work=work_of(self.module, computation, instruction))
                return
            begins = part == "start" or opcode.endswith("-start")
            exchange = exchange_of(where, collective, self.devices)
            yield said(queue="network", role="start" if begins else "run", exchange=exchange)
        elif opcode.endswith("-start") or opcode in ("send", "recv"):
            between = exchange_between_slices(instruction) if opcode == "send" else None
            yield said(queue=_queue(instruction), role="start", work=_moved(instruction), exchange=between)
        else:
            work = work_of(self.module, computation, instruction)
            if is_unknown_kernel(instruction, work):
                notes[f"the kernel{_at(line)} counts by its bytes alone, as what it computes is not in the text"] = None
            yield said(queue="compute", role="run", work=work)

    def _origin(self, computation: HloComputation, instruction: HloInstruction) -> HloInstruction:
        """Return the instruction that says where one comes from: of collectives that XLA combined, their operand.

        What XLA combined has no name of its own, nor has what it sends to other slices. The largest operand stands for
        all that is exchanged, and what is received comes from where its counterpart is sent.
        """
        origin = instruction
        if instruction.opcode == "send" or self._collective(computation, instruction) is not None:
            while not origin.op_name:
                if origin.opcode == "recv":
                    sent = (one for one in computation.instructions.values() if one.opcode == "send")
                    origin = next((one for one in sent if _meeting(one) == _meeting(origin)), origin)
                made = [one for name in origin.operands if (one := computation.instructions.get(name)) is not None]
                if not made:
                    return instruction
                origin = max(made, key=lambda one: sum(shape.bytes for shape in one.shapes))
        return origin

    def _collective(
        self, computation: HloComputation, instruction: HloInstruction
    ) -> tuple[HloComputation, HloInstruction] | None:
        """Return the collective of an instruction: its own, or that of the computation which it starts or fuses."""
        if instruction.opcode.removesuffix("-start") in BY_OPCODE:
            return computation, instruction
        if instruction.opcode in ("async-start", "fusion"):
            for name in instruction.called:
                for one in self.module.computations[name].instructions.values():
                    if one.opcode.removesuffix("-start") in BY_OPCODE:
                        return self.module.computations[name], one
        return None


def _meeting(transfer: HloInstruction) -> str | None:
    """Return the name under which a transfer between slices is sent and received."""
    found = _MEETING.search(transfer.attributes)
    return found and found[1]


def _part_of_collective(fused: HloComputation) -> str:
    """Return which part of an asynchronous collective a fused computation has: its start, its end, or between."""
    targets = {custom_call_target(one) for one in fused.instructions.values()}
    if "AsyncCollectiveStart" in targets:
        return "start"
    if "AsyncCollectiveDone" in targets:
        return "done"
    return "middle" if fused.name.startswith("async_collective_fusion") else ""


def _start(computation: HloComputation, done: HloInstruction, started: dict[str, int]) -> int | None:
    """Return the position of the start that an instruction ends; None if that takes no time."""
    name = done.operands[0]
    while name not in started:
        made = computation.instructions[name]
        if not made.operands:
            return None
        name = made.operands[0]
    return started[name]


def _at(line: str) -> str:
    return f" at {line}" if line else ""


def _queue(start: HloInstruction) -> Queue:
    """Return what carries out a copy or a transfer that an instruction starts."""
    spaces = {shape.space for shape in start.shapes}
    if start.opcode in ("send", "recv"):
        return "dcn"
    return "host" if _HOST_SPACE in spaces else "copy" if start.opcode == "copy-start" else "compute"


def _moved(start: HloInstruction) -> OpWork:
    """Return the bytes of a copy or a transfer; what is sent is not received again.

    Of a slice of what lies in the host's memory the slice moves, which is the array on the device.
    """
    if start.opcode == "recv":
        return OpWork()
    return OpWork(bytes=max((shape.bytes for shape in start.shapes if shape.space != _HOST_SPACE), default=0.0))
