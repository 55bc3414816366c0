"""What drivers have in common: logical buffers, runs under way, and the controller's instructions about them.

A driver decides nothing about order, placement or memory. Events go to the controller's pure core (see
``event_loop``), and the driver carries out the instructions that come back. How a launch is carried out, and how time
passes, is each driver's own: ``local`` has threads and real time, ``sim`` a virtual clock.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice, repeat
from typing import Any

import jax

from pathways_nb.controller.events_and_instructions import (
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
    Refuse,
    Released,
    Removed,
    Skip,
    Submitted,
    Waited,
)
from pathways_nb.controller.state_machine import StateMachine
from pathways_nb.errors import LostError, UsageError
from pathways_nb.plan.plan import Placement
from pathways_nb.program.signature import Deferred, snapshot
from pathways_nb.runtime.buffer_table import BufferTable
from pathways_nb.runtime.device_layer import DeviceLayer
from pathways_nb.runtime.entries import Entry, ResultEntries, promised, will_move, will_read
from pathways_nb.runtime.event_loop import Clock, EventLoop
from pathways_nb.runtime.faults import Fault
from pathways_nb.runtime.launch_causes import LaunchCauses
from pathways_nb.runtime.lowering.attachment import Attachment, Island
from pathways_nb.runtime.lowering.compiled_plan import CompiledPlan
from pathways_nb.runtime.lowering.host_steps import HOST
from pathways_nb.runtime.memory_events import MemoryEvents
from pathways_nb.runtime.run_state import RunState
from pathways_nb.trace.record import Record
from pathways_nb.trace.rows import Row, label_of
from pathways_nb.util.waiting import Condition

QUEUED = 64
"""Programs that a client may have queued before its next call waits (client back-pressure)."""
_ROOM = QUEUED // 2
"""Programs that are still queued when such a call goes on: a thread that is woken at each end makes small work dear."""


class Driver(BufferTable, DeviceLayer):
    """Carries out one controller's instructions on its islands.

    Args:
        attachment: the islands.
        machine: the controller's pure core.
        clock: returns seconds; the time base of every recorded event.
        note: receives events that belong to no program in particular.
        dcn_latency: seconds that a launch takes to an island's host.
        ended: condition notified when a result is computed or a run has ended.
        event_loop: class of the event loop that hands events to the core.
    """

    def __init__(
        self,
        attachment: Attachment,
        machine: StateMachine,
        clock: Clock,
        note: Callable[[Row], None],
        dcn_latency: float,
        ended: Condition,
        event_loop: type[EventLoop] = EventLoop,
    ):
        self.attachment: Attachment = attachment
        super().__init__(clock, ended, MemoryEvents(clock, note))
        self.machine, self.dcn_latency = machine, dcn_latency
        self.launched = Condition()
        self.runs: dict[int, RunState] = {}
        self._queued: dict[str, dict[int, RunState]] = {}
        """The same runs by client; a client's are forgotten when it closes."""
        self.closed = False
        self._numbers = itertools.count()
        self._submitting = threading.Lock()
        self.faults: list[Fault] = []
        self._causes = LaunchCauses(self.runs, machine)
        self.event_loop = event_loop(machine, clock, self._carry_out, self.ended.notify_all, self._released)

    # ---- for the client

    def submit(
        self,
        compiled_plan: CompiledPlan,
        arguments: Sequence[int],
        tokens: Iterable[object],
        record: Record,
        client: str,
        moved: tuple[int, ...] | None = None,
    ) -> tuple[RunState, list[Entry]]:
        """Queue a run.

        An interrupt comes before all that others know of the run, or after it.

        Args:
            compiled_plan: what is run.
            arguments: the logical buffers of its arguments, in the plan's order.
            tokens: what holds each of its results, in the plan's order.
            record: where its events go.
            client: who calls it.
            moved: what ``moved`` returns for these arguments, if it is known.

        Returns:
            The run, and the entries of its results.
        """
        plan = compiled_plan.plan
        with self._submitting:
            buffers = tuple(islice(self._buffers, len(plan.results)))
            entries = self.entries_of(arguments)
            if moved is None:
                moved = self.moved(compiled_plan, entries)
            run = RunState(
                next(self._numbers), compiled_plan, entries, {}, record, self.launched, self.ended, client, buffers
            )
            run.moved, run.explain = moved, self.explain
            steps, shardings = compiled_plan.result_steps, compiled_plan.result_shardings
            made = promised(run, buffers, steps, shardings, tokens, self.event_loop.inbox.put)
            run.results = ResultEntries(made, compiled_plan.result_positions)
            self._prepare(run, arguments)
            queued = run.siblings = self._queued.setdefault(client, {})
            tables: tuple[dict[int, Any], ...] = (*repeat(self.entries, len(made)), self.runs, queued)
            changes = map(dict.__setitem__, tables, (*buffers, run.serial, run.serial), (*made, run, run))
            self.event_loop.submit(run.serial, partial(self._begin, run, tuple(arguments)), changes)
        return run, made

    def _begin(self, run: RunState, arguments: tuple[int, ...]) -> Submitted:
        """Do what a call needs before the core hears of it, and need not take its caller's time: in the core's turn."""
        compiled_plan = run.compiled_plan
        run.begin()
        will_move(entry for slot in compiled_plan.sent_results for entry in run.results[slot])
        will_read(map(run.arguments.__getitem__, compiled_plan.bringing), run.unread)
        sizes, footprint = compiled_plan.result_bytes, compiled_plan.footprint
        return Submitted(
            run.serial, run.client, compiled_plan.plan, arguments, tuple(run.buffers), sizes, footprint, run.moved
        )

    def moved(self, compiled_plan: CompiledPlan, entries: Sequence[Entry]) -> tuple[int, ...]:
        """Return the positions, among the arguments that a plan brings, of those that do not lie at their place yet."""
        return tuple(
            position
            for position, argument in enumerate(compiled_plan.brought)
            if compiled_plan.targets[position] is not HOST
            and not self._is_at(entries[argument], compiled_plan, position)
        )

    def cancel(self, runs: Sequence[int]) -> None:
        """Cancel runs: none of their steps is dispatched any more."""
        for serial in runs:
            if (run := self.runs.get(serial)) is not None:
                run.stop()  # at once; the controller learns of it in its own time
        self.launched.notify_all()
        self.event_loop.post(Cancelled(tuple(runs)))

    def open(self, client: str, share: float, priority: float, memory: int) -> None:
        """Tell the core about a client or its new terms, after all posted events.

        A closing of the same name may be among those, and must come first.
        """
        self.event_loop.in_turn(lambda: self.event_loop.obey(Opened(client, share, priority, memory)))

    def close_client(self, client: str) -> Callable[[], None]:
        """Tell the core that a client closes, with its programs and what it alone holds.

        Returns:
            A function that waits until this is done.
        """

        def close() -> None:
            self.event_loop.obey(Closed(client))
            if not self._queued.get(client):
                self._queued.pop(client, None)

        return self.event_loop.ask(close)

    def remove(self, where: Placement) -> None:
        """Remove devices: what would run there from now on fails."""
        self._at_once(lambda: self._lost(where), Removed(where))

    def restore(self, island: int, budget: int) -> None:
        """Return an island's lost devices to it, empty."""
        devices = len(self.attachment.islands[island].devices)
        self._at_once(lambda: self._restored(island), Added(island, devices, budget))

    def _at_once(self, change: Callable[[], None], event: Removed | Added) -> None:
        """Change devices and tell the core, with no event in between."""

        def both() -> None:
            change()
            self.event_loop.obey(event)

        self.event_loop.safely(both)

    def add(self, island: Island, budget: int) -> None:
        """Add an island."""
        self.attachment = replace(self.attachment, islands=(*self.attachment.islands, island))
        self._joined(island.index)
        self.event_loop.tell(Added(island.index, len(island.devices), budget))

    def reached_by(self, client: str) -> float:
        """Return when a client's thread reaches its next action, in seconds of the clock."""
        return self.clock()

    def runs_of(self, client: str) -> list[int]:
        """Return the serial numbers of a client's programs that are queued or under way."""
        return list(self._queued.get(client, ()))

    def wait_for_capacity(self, client: str) -> float:
        """Wait until a client may call: if ``QUEUED`` of its programs are queued, until half of them have ended.

        Returns:
            The seconds waited.
        """
        self.check()
        if len(self._queued.get(client, ())) < QUEUED:
            return 0.0
        began = self.clock()
        self.ended.wait(lambda: len(self._queued.get(client, ())) <= _ROOM or self.broken)
        self.check()
        return self.clock() - began

    def wait_idle(self, timeout: float = -1) -> bool:
        """Wait until nothing is under way.

        Args:
            timeout: seconds to wait at most; negative for no limit.

        Returns:
            Whether nothing is under way.
        """
        return self.ended.wait(lambda: not self.runs or self.broken, timeout)

    def check(self) -> None:
        """Raise the error that stopped the event loop, if any."""
        self.event_loop.check()

    def close(self, patience: float = 60.0) -> None:
        """Cancel what is queued, end all threads and release the devices; results on them are lost.

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
        """Whether nothing more will happen, so that waiting is in vain."""
        return self.event_loop.failure is not None or self.closed

    # ---- for the event loop

    def _carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case Launch(run):
                self._launch(self.runs[run], instruction, self._causes.of(instruction, self.event_loop.event))
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
                self._causes.waited(instruction)
                waited = self.runs[run]
                label = label_of("stall", reason, waited.compiled_plan.name, waited.client)
                waited.record.add(Row(label, since, self.clock(), run, "exact"))
            case Grant(buffer, since):
                self._answer(buffer, since)
            case Refuse(buffer, since, error):
                self.entries.pop(buffer).error = error
                self._answer(buffer, since)
            case Skip(run):
                self.runs[run].stop()
                self.launched.notify_all()
            case Fail(run, error):
                self._note_failed(self.runs[run], error)
                self.runs[run].stop(error)
                self.launched.notify_all()
            case Finish(run):
                ended = self.runs.pop(run)
                self._causes.finished(ended, self.event_loop.event)
                del ended.siblings[run]
                ended.finish()

    def _note_failed(self, run: RunState, error: Exception) -> None:
        """Record a program that fails as a whole, without a failed node, as an event without duration."""
        now, name = self.clock(), run.compiled_plan.name
        label = label_of("stall", f"{name} failed: {type(error).__name__}", name, run.client)
        run.record.add(Row(label, now, now, run.serial, self.quality, "failed"))


def as_kept(leaf: Any, name: str) -> Any:
    """Return a value from outside for real devices: a copy of what its owner may change, or the value itself.

    Raises:
        UsageError: it has a shape but no values.
    """
    if isinstance(leaf, jax.ShapeDtypeStruct):
        raise UsageError(
            f"{name} is a jax.ShapeDtypeStruct, which has a shape but no values, and these are real devices. Pass "
            f'an array, or simulate them: pw.attach("sim", chip="tpu_v5p").'
        )
    return leaf.result() if isinstance(leaf, Deferred) else snapshot(leaf)
