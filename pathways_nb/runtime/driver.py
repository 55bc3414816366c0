"""What drivers have in common: logical buffers and runs under way, and the controller's instructions about them.

A driver decides nothing about order, placement or memory: events go to the controller's pure core (see ``event_loop``),
and what that says is carried out. How a launch is carried out, and how time passes meanwhile, is each driver's own.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any

from pathways_nb.controller.messages import (
    Added,
    Cancelled,
    Closed,
    Fail,
    Finish,
    Free,
    Grant,
    Instruction,
    Launch,
    Lose,
    MemoryHeld,
    Opened,
    PutRequested,
    Refuse,
    Released,
    Removed,
    Stop,
    Stored,
    Submitted,
    Waited,
)
from pathways_nb.controller.state_machine import NOTABLE, StateMachine
from pathways_nb.errors import CancelledError, LostError
from pathways_nb.plan.footprint import Allocation
from pathways_nb.plan.plan import Placement, Plan
from pathways_nb.program.program import Traced
from pathways_nb.runtime.compiled_plan import CompiledPlan
from pathways_nb.runtime.event_loop import Clock, EventLoop
from pathways_nb.runtime.faults import Fault
from pathways_nb.runtime.layouts import Targets, Undeclared
from pathways_nb.runtime.memory_events import MemoryEvents
from pathways_nb.runtime.run_state import Condition, Entry, Execution, will_read
from pathways_nb.trace.record import Record, Row, label_of

QUEUED = 64
"""Programs that a client has queued before its submitting waits: client back-pressure."""


class Driver(ABC):
    """The engine of one controller.

    Args:
        attachment: its islands.
        machine: the controller's pure core.
        clock: seconds; everything recorded is on it.
        note: told of what happens to no program in particular.
        dcn_latency: seconds that a launch takes to an island's host.
        ended: rung when a result is computed or a run over; who waits for that, waits for it.
        engine: hands the core its events.
    """

    def __init__(
        self,
        attachment: Any,
        machine: StateMachine,
        clock: Clock,
        note: Callable[[Row], None],
        dcn_latency: float,
        ended: Condition,
        event_loop: type[EventLoop] = EventLoop,
    ):
        self.attachment, self.machine, self.clock, self.dcn_latency = attachment, machine, clock, dcn_latency
        self.launched, self.ended = Condition(), ended
        self.entries: dict[int, Entry] = {}
        self.runs: dict[int, Execution] = {}
        self._queued: dict[str, dict[int, Execution]] = {}
        """The same, by client."""
        self._requested_puts: dict[int, PutRequested] = {}
        """By buffer: room on devices that the controller was asked for, and has not answered."""
        self._queuing = threading.Lock()
        """Held while ``_queued`` changes: nothing else is done meanwhile."""
        self.closed = False
        self._numbers = itertools.count()
        self._buffers = itertools.count()
        self._submitting = threading.Lock()
        self.faults: list[Fault] = []
        self.memory_events = MemoryEvents(clock, note)
        self.event_loop = event_loop(machine, clock, self._carry_out, self.ended.notify_all)

    quality = "exact"
    """Of stamps that are read off the clock."""

    # ---- what each does in its own way

    @abstractmethod
    def lower(
        self, traced: Traced, plan: Plan, targets: Targets, record: Record, say: Callable[[str], object]
    ) -> CompiledPlan:
        """Make a plan ready to be carried out here.

        Args:
            traced, plan: the program and its plan. targets: the layouts in which arguments are brought.
            record: where compiling is recorded. say: told of progress.
        """

    @abstractmethod
    def location(self, value: Any) -> Hashable:
        """Return where and how a value lies, for ``sharding_for``; ``None`` if on no device. It is an entry or an argument."""

    @abstractmethod
    def sharding_for(self, location: Any, argument: Undeclared) -> Any:
        """Return the sharding in which an argument that lies so is used: its own, if it lies at the place."""

    @abstractmethod
    def take(self, leaf: Any, name: str) -> Any:
        """A value from outside as it is kept here until a program brings it to its place; ``name``: what errors say."""

    @abstractmethod
    def put(self, value: Any, sharding: Any) -> Any:
        """An array on devices."""

    @abstractmethod
    def _launch(self, run: Execution, launch: Launch) -> None:
        """Begin to carry out a range of a run's order."""

    @abstractmethod
    def _is_at(self, entry: Entry, compiled_plan: CompiledPlan, position: int) -> bool:
        """Whether an argument lies where the bring at ``position`` among the plan's brings it."""

    @abstractmethod
    def _lost(self, where: Placement) -> None:
        """From now on nothing can run on these devices."""

    @abstractmethod
    def _restored(self, island: int) -> None:
        """An island's devices are there again."""

    @abstractmethod
    def _joined(self, island: Any) -> None:
        """An island more."""

    @abstractmethod
    def _end(self, patience: float) -> None:
        """End everything that goes on by itself."""

    def enter(self) -> None:  # noqa: B027  (real time passes anyway)
        """This thread is a client's until it leaves: virtual time passes only while it waits."""

    def leave(self) -> None:  # noqa: B027
        """This thread has left a block that it entered."""

    def calling(self, client: str) -> contextlib.AbstractContextManager[None]:
        """While this thread calls something for a client; in virtual time threads take turns."""
        return contextlib.nullcontext()

    def poll(self) -> None:  # noqa: B027
        """This thread asks whether something is done, and may ask again for ever: virtual time may pass."""

    def spend(self, budget: float) -> None:  # noqa: B027  (most have no watchers)
        """Let each watcher keep a core busy for this share of the time; 0: look no oftener than flow control needs."""

    @property
    @abstractmethod
    def sampled(self) -> float:
        """Share of launches whose end was watched; the others' stamps are interpolated."""

    # ---- for the client

    def store(self, value: Any, size: int, client: str, name: str = "") -> int:
        """Put a value that lies on no island into the store; the caller holds it until it releases it."""
        buffer = next(self._buffers)
        self.entries[buffer] = Entry(value, sharding=getattr(value, "sharding", None))
        self.event_loop.store(Stored(buffer, client, size, name))
        return buffer

    def place(self, where: Allocation, size: int, client: str, name: str, make: Callable[[], Any]) -> int:
        """Put a value onto devices, as soon as there is room; the caller holds it until it releases it.

        Args:
            where: devices, and bytes on each. size: of the whole value. make: puts it there.

        Raises:
            OutOfMemoryError: there is too little room, and nothing under way will make any.
            LostError: the client was closed while the value waited for room.
            CancelledError: the controller was.
        """
        buffer = next(self._buffers)
        entry = self.entries[buffer] = Entry()
        try:
            self._wait_for_memory(PutRequested(buffer, client, size, name, where), entry)
            entry.array = array = make()
        except BaseException:
            self.event_loop.ask(lambda: self._abandon(buffer))
            raise
        entry.sharding, entry.where = array.sharding, where.placement
        return buffer

    def _wait_for_memory(self, event: PutRequested, entry: Entry) -> None:
        """Wait until the controller has granted room."""
        self._requested_puts[event.buffer] = event
        self._request_put(event)
        self.ended.wait(lambda: event.buffer not in self._requested_puts or self.broken)
        self.check()
        if self.closed:
            raise CancelledError(f"{event.name} waited for memory when its controller was closed. Attach again.")
        if entry.error is not None:
            raise entry.error

    def _request_put(self, event: PutRequested) -> None:
        """Ask the controller for room: where there is enough, it is granted on return."""
        self.event_loop.tell(event)

    def _abandon(self, buffer: int) -> None:
        """Nobody will ever have this one, whether it was granted or waits for room."""
        self.event_loop.obey(Released((buffer,)))
        self._requested_puts.pop(buffer, None)
        self.entries.pop(buffer, None)

    def release(self, buffer: int) -> None:
        """The caller no longer holds a buffer. Safe in finalizers."""
        self.event_loop.release(buffer)

    def submit(
        self, compiled_plan: CompiledPlan, arguments: Sequence[int], record: Record, client: str
    ) -> tuple[Execution, list[int]]:
        """Queue a run; returns it and the buffers of its results, which the caller holds."""
        plan = compiled_plan.plan
        with self._submitting:
            buffers = [next(self._buffers) for _ in plan.results]
            entries = [self.entry_of(argument) for argument in arguments]
            run = Execution(
                next(self._numbers), compiled_plan, entries, {}, record, self.launched, self.ended, client, buffers
            )
            moved = tuple(
                position
                for position, argument in enumerate(compiled_plan.brought)
                if not self._is_at(entries[argument], compiled_plan, position)
            )
            self._bind_results(run, buffers)
            will_read(run.arguments[argument] for argument in compiled_plan.brought)
            with self._queuing:
                self.runs[run.serial] = self._queued.setdefault(client, {})[run.serial] = run
            sizes = compiled_plan.result_bytes
            self.event_loop.submit(
                Submitted(
                    run.serial, client, plan, tuple(arguments), tuple(buffers), sizes, compiled_plan.footprint, moved
                )
            )
        return run, buffers

    def entry_of(self, buffer: int) -> Entry:
        """A logical buffer as it is held here, or, if another thread has closed its client, that it is no more."""
        why = "This belonged to a client that another thread has closed. Fetch what you need before it does."
        return self.entries.get(buffer) or Entry(error=LostError(why))

    def cancel(self, runs: Sequence[int]) -> None:
        """Give up runs: nothing more of them is dispatched."""
        for serial in runs:
            if (run := self.runs.get(serial)) is not None:
                run.stop()  # at once; the controller learns of it in its own time
        self.launched.notify_all()
        self.event_loop.post(Cancelled(tuple(runs)))

    def open(self, client: str, share: float, priority: float, memory: int) -> None:
        """A client is there, or has changed; see ``Opened``. In turn, or it might come before its own closing."""
        self.event_loop.in_turn(lambda: self.event_loop.obey(Opened(client, share, priority, memory)))

    def close_client(self, client: str) -> Callable[[], None]:
        """A client is gone, with its programs and all that it alone held. To wait for that, call what is returned."""
        return self.event_loop.ask(lambda: self.event_loop.obey(Closed(client)))

    def remove(self, where: Placement) -> None:
        """Devices are lost: what would run there from now on fails."""
        self._at_once(lambda: self._lost(where), Removed(where))

    def restore(self, island: int, budget: int) -> None:
        """Lost devices of an island are there again, empty."""
        devices = len(self.attachment.islands[island].devices)
        self._at_once(lambda: self._restored(island), Added(island, devices, budget))

    def _at_once(self, change: Callable[[], None], event: Removed | Added) -> None:
        """Change devices, and tell the core, with nothing in between."""

        def both() -> None:
            change()
            self.event_loop.obey(event)

        self.event_loop.safely(both)

    def add(self, island: Any, budget: int) -> None:
        """An island more."""
        self.attachment = replace(self.attachment, islands=(*self.attachment.islands, island))
        self._joined(island)
        self.event_loop.tell(Added(island.index, len(island.devices), budget))

    def reached_by(self, client: str) -> float:
        """When a client's thread gets to what it does next, in seconds of the clock."""
        return self.clock()

    def runs_of(self, client: str) -> list[int]:
        """A client's programs that are queued or under way."""
        return list(self._queued.get(client, ()))

    def wait_for_capacity(self, client: str) -> float:
        """Wait until fewer than ``QUEUED`` programs of ``client`` are queued; returns the seconds waited."""
        began = self.clock()
        self.ended.wait(lambda: len(self._queued.get(client, ())) < QUEUED or self.broken)
        self.check()
        return self.clock() - began

    def wait_idle(self, timeout: float = -1) -> bool:
        """Wait until nothing is under way; whether that is so."""
        return self.ended.wait(lambda: not self.runs or self.broken, timeout)

    def check(self) -> None:
        """Raise what broke the engine, if anything did."""
        self.event_loop.check()

    def close(self, patience: float = 60.0) -> None:
        """Cancel what is queued, end all threads, let the devices go. Results held here are lost.

        Args:
            patience: seconds to wait for what is already on the devices.
        """
        if self.closed:
            return
        self.cancel(list(self.runs))
        self.wait_idle(patience)
        self.event_loop.post(Released(tuple(self._requested_puts)))
        self.closed = True
        self.ended.notify_all()
        self.event_loop.stop(patience)
        self._end(patience)
        for entry in self.entries.values():
            entry.array = None
        self.entries.clear()
        self.attachment.release()

    @property
    def broken(self) -> bool:
        """Whether waiting is in vain."""
        return self.event_loop.failure is not None or self.closed

    # ---- for the engine

    def _carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case Launch(run):
                self._launch(self.runs[run], instruction)
            case Free(buffers):
                for buffer in buffers:
                    self.entries.pop(buffer).array = None  # a closed client's user may still hold the future
            case Lose(buffers, reasons):
                for buffer, reason in zip(buffers, reasons, strict=True):
                    self.entries[buffer].lose(LostError(reason))
                self.launched.notify_all()
                self.ended.notify_all()
            case MemoryHeld():
                self.memory_events.change(instruction)
            case Waited(run, since, reason):
                under_way = self.runs[run]
                label = label_of("stall", reason, under_way.compiled_plan.name, under_way.client)
                under_way.record.add(Row(label, since, self.clock(), run, "exact"))
            case Grant(buffer, since):
                self._answer(buffer, since)
            case Refuse(buffer, since, error):
                self.entries.pop(buffer).error = error
                self._answer(buffer, since)
            case Stop(run):
                self.runs[run].stop()
                self.launched.notify_all()
            case Fail(run, error):
                self._note_failed(self.runs[run], error)
                self.runs[run].stop(error)
                self.launched.notify_all()
            case Finish(run):
                with self._queuing:
                    ended = self.runs.pop(run)
                    mine = self._queued[ended.client]
                    del mine[run]
                    if not mine:
                        del self._queued[ended.client]
                ended.finish()

    def _answer(self, buffer: int, since: float) -> None:
        """Whoever asked for room need wait no longer."""
        event = self._requested_puts.pop(buffer)
        if self.clock() - since > NOTABLE:
            label = label_of("stall", f"back-pressure: memory for {event.name}", client=event.client)
            self.memory_events.note(Row(label, since, self.clock(), quality=self.quality))
        self.ended.notify_all()

    def _note_failed(self, run: Execution, error: Exception) -> None:
        """A program that fails as a whole, of which no node did, is an event without a duration."""
        now, name = self.clock(), run.compiled_plan.name
        label = label_of("stall", f"{name} failed: {type(error).__name__}", name, run.client)
        run.record.add(Row(label, now, now, run.serial, self.quality, "failed"))

    def _bind_results(self, run: Execution, buffers: list[int]) -> None:
        compiled_plan = run.compiled_plan
        for buffer, slot, step in zip(buffers, compiled_plan.plan.results, compiled_plan.result_steps, strict=True):
            entry = self.entries[buffer] = Entry(run=run, step=step, sharding=compiled_plan.shardings[slot])
            run.results.setdefault(slot, []).append(entry)
