"""The simulated driver: carries out the controller's instructions on islands that live in virtual time.

The same core decides, fed the same events; durations come from the cost model. Time passes only while somebody waits
for something, so nothing here runs beside the user's code: who calls programs and never waits, calls them at one
time, each client one after another by what a call costs its thread. Values are abstract.
"""

from __future__ import annotations

import random
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Hashable
from typing import Any

from pathways_nb.backends.dispatcher import lies_at
from pathways_nb.backends.driver import Driver
from pathways_nb.backends.engine import Engine
from pathways_nb.backends.estimates import Estimates
from pathways_nb.backends.execution import Bell, Entry, Execution
from pathways_nb.backends.faults import InjectedFault
from pathways_nb.backends.lowering import Lowered, Lowering
from pathways_nb.backends.pod import Abstract, Pod
from pathways_nb.backends.virtual import Agenda, Islands, Portion, Task, Timed, VirtualRun
from pathways_nb.backends.watcher import owned, routed
from pathways_nb.controller.machine import Machine
from pathways_nb.controller.messages import Completed, Event, Launch, Submitted, Voided, Woke
from pathways_nb.cost.formulas import FREE, Cost
from pathways_nb.cost.model import Model
from pathways_nb.errors import CancelledError, LostError
from pathways_nb.program.plan import Placement, Plan
from pathways_nb.program.program import Traced
from pathways_nb.program.signature import aval_of
from pathways_nb.trace.record import Label, Record, Row, label_of


class VirtualEngine(Engine):
    """Hands the core its events in virtual time. ``pace`` says what a call costs a client's thread, in seconds."""

    agenda: Agenda
    pace: float = 0.0

    def begin(self, agenda: Agenda, pace: float) -> None:
        """Before anything is handed over."""
        self.agenda, self.pace = agenda, pace
        self._busy_until: dict[str, float] = {}
        """By client: when its thread is through with what it has called."""
        self.thread.start()

    def report(self, event: Event) -> None:
        """Put an event down for the time at which the client's thread gets to it."""
        self._guarded(lambda: self.agenda.at(self._due(event), self._happen, event))

    def store(self, event: Any) -> None:
        """What needs no room is there at once."""
        self.in_turn(lambda: self.obey(event))

    def safely(self, work: Callable[[], Any]) -> Any:
        """All state belongs to the engine's thread here."""
        return self.in_turn(work)

    def ask(self, work: Callable[[], Any]) -> Callable[[], Any]:
        """As ever, once the clients' threads have got there."""

        def then() -> Any:
            self.catch_up()
            return work()

        return super().ask(then)

    def catch_up(self) -> None:
        """Let time pass until the clients' threads are through with what they have called."""
        self.advance(lambda: False, max(self._busy_until.values(), default=0.0))

    def advance(
        self, ready: Callable[[], bool], until: float | None = None, given_up: Callable[[], bool] = lambda: False
    ) -> None:
        """Let time pass until ``ready()``, until a time, or until nothing happens any more. In the engine's thread."""
        agenda = self.agenda
        while not (ready() or given_up()):
            upcoming = agenda.next
            if until is not None and (upcoming is None or upcoming > until):
                agenda.now = max(agenda.now, until)
                return
            if not agenda.step():
                return

    def _happen(self, event: Event) -> None:
        self.obey(event)

    def _due(self, event: Event) -> float:
        now = self.agenda.now
        if not isinstance(event, Submitted):
            return max(now, *self._busy_until.values()) if self._busy_until else now
        due = self._busy_until[event.client] = max(now, self._busy_until.get(event.client, 0.0)) + self.pace
        return due

    def _wake_at(self, time: float) -> None:
        self.agenda.at(time, self._happen, Woke())


class Passing(Bell):
    """Waiting for something lets virtual time pass until it is so."""

    def __init__(self, engine_of: Callable[[], VirtualEngine], notice: float):
        super().__init__()
        self._engine_of, self._notice = engine_of, notice

    def ring(self) -> None:
        """Nobody sleeps: who waits makes the time pass."""

    def wait(self, ready: Callable[[], bool], timeout: float = -1) -> bool:
        """Let time pass until ``ready()``, or for ``timeout`` virtual seconds if not negative; whether it is."""
        if ready():
            return True
        engine, stop = self._engine_of(), threading.Event()

        def pass_time() -> None:
            now = engine.agenda.now
            engine.advance(ready, now + timeout if timeout >= 0 else None, stop.is_set)
            if ready():  # the client's thread learns of it a little later
                engine.advance(lambda: False, engine.agenda.now + self._notice)

        try:
            engine.in_turn(pass_time)
        except BaseException:
            stop.set()
            raise
        return ready()


class SimDriver(Driver):
    """The engine of one controller on simulated islands.

    Args:
        pod: its islands. machine: the controller's pure core. model: what everything costs.
        agenda: virtual time. note: told of what happens to no program in particular.
        dcn_latency: seconds that a launch takes to an island's host, beside what its message costs the controller.
        noise, seed: the standard deviation of the logarithm of a factor on each duration, and of which numbers.
    """

    def __init__(
        self,
        pod: Pod,
        machine: Machine,
        model: Model,
        agenda: Agenda,
        note: Callable[[Row], None] = lambda row: None,
        dcn_latency: float = 0.0,
        noise: float = 0.0,
        seed: int = 0,
    ):
        self.noise, self._random = noise, random.Random(seed)
        self.engine: VirtualEngine
        self.agenda, self.model = agenda, model
        ended = Passing(lambda: self.engine, model.host.notice)
        super().__init__(pod, machine, agenda.clock, note, dcn_latency, ended, VirtualEngine)
        self.estimates = Estimates(model, self._topology)
        self._islands = Islands(agenda, self, model.host.launch)
        self._virtual: dict[int, VirtualRun] = {}
        self._timed: weakref.WeakKeyDictionary[Lowered, Timed] = weakref.WeakKeyDictionary()
        self._expecting: defaultdict[tuple[int, int], list[Task]] = defaultdict(list)
        """By run and step: brings of other runs that need what it makes."""
        self._controller_free = 0.0
        self._gone: defaultdict[int, set[int]] = defaultdict(set)
        self._at_work = [0] * len(pod.islands)
        """By island: nodes that have begun and not ended."""
        self.engine.begin(agenda, model.host.call)

    # ---- for the client

    def lower(self, traced: Traced, plan: Plan, record: Record, say: Callable[[str], None]) -> Lowered:
        """A plan with what each of its steps costs."""
        lowered = Lowering(traced, plan, self.attachment.islands, self.estimates).lower(record, say)
        self._timed[lowered] = Timed(plan, [self._seconds(lowered, index) for index in range(len(plan.steps))])
        return lowered

    def take(self, leaf: Any, name: str) -> Any:
        """Shape and type of an argument; its values are not looked at."""
        aval = aval_of(leaf)
        assert aval is not None
        return Abstract(aval)

    def put(self, value: Any, sharding: Any) -> Any:
        """The same, laid out."""
        return Abstract(value.aval, sharding)

    @property
    def sampled(self) -> float:
        """Every end is known."""
        return 1.0

    def _lies_at(self, entry: Entry, lowered: Lowered, position: int) -> bool:
        where = lowered.plan.placements[lowered.plan.steps[lowered.brings[position]].place]
        at_home = _whereabouts(entry) == where
        return at_home and lies_at(entry.sharding, lowered.targets[position], lowered.ranks[position])

    # ---- launches

    def _launch(self, run: Execution, launch: Launch) -> None:
        """One message after another leaves the controller; all of them travel at the same time."""
        now, host = self.agenda.now, self.model.host
        hosts = self._topology(launch.island).hosts
        self._controller_free = max(self._controller_free, now) + host.message + host.per_host * hosts
        if run.serial not in self._virtual:
            self._virtual[run.serial] = VirtualRun(run.serial, self._timed[run.lowered])
        self.agenda.at(self._controller_free + self.dcn_latency, self._arrive, run, launch, self._controller_free)

    def _arrive(self, run: Execution, launch: Launch, sent: float) -> None:
        name, now = run.lowered.name, self.agenda.now
        if self.dcn_latency:
            label = label_of("stall", f"message to island {launch.island} on its way", name, run.client,
                             island=launch.island, route="DCN")  # fmt: skip
            run.record.add(Row(label, sent, now, run.serial, "simulated"))
        through = self._islands.arrive(self._virtual[run.serial], launch)
        label = label_of("enqueue", name, name, run.client, island=launch.island)
        run.record.add(Row(label, now, through, run.serial, "simulated"))

    # ---- what the islands ask and tell

    def prepared(self, task: Task) -> int:
        """An argument may be another run's result that is not there yet."""
        run = self.runs[task.portion.run.serial]
        position = run.lowered.plan.steps[task.index].argument
        if position < 0:
            return 0
        entry = run.arguments[position]
        if entry.run is None or entry.settled:
            return 0
        self._expecting[entry.run.serial, entry.step].append(task)
        return 1

    def lasts(self, task: Task) -> float:
        """Seconds of a step; none of what is skipped, fails, or is there already."""
        seconds = self._lasts(task)
        if task.queues:
            seconds += self._interference(task.portion.launch.island) if seconds else 0.0
            self._at_work[task.portion.launch.island] += 1
        return seconds * self._random.lognormvariate(0.0, self.noise) if self.noise and seconds else seconds

    def _lasts(self, task: Task) -> float:
        run, index = self.runs[task.portion.run.serial], task.index
        if (run.stopped or run.errors) and self._skip(run, index):
            return 0.0
        action = run.lowered.actions[index]
        if action.step.kind == "bring":
            return self._bring(run, task)
        if self._gone or self.faults:
            try:
                self._strike(run, action.label)
            except (InjectedFault, LostError) as cause:
                label = owned(action.label, run.client) if run.client else action.label
                run.record.add(Row(label, self.agenda.now, self.agenda.now, run.serial, "simulated", "failed"))
                run.fail(index, run.node_error(index, cause))
                return 0.0
        task.label = action.label
        return task.portion.run.timed.seconds[index]

    def _interference(self, island: int) -> float:
        """What hosts take of the devices of an island where no other one is idle."""
        others = self._at_work[:island] + self._at_work[island + 1 :]
        return self.model.host.interference if others and all(others) else 0.0

    def link(self, task: Task) -> tuple[Hashable, float]:
        """Hosts into an island, places within one, and each pair of islands have a link of their own."""
        run = self.runs[task.portion.run.serial]
        step = run.lowered.plan.steps[task.index]
        source: Any = task.label.route
        if step.inputs:
            source = run.lowered.plan.slots[step.inputs[0]].place
        return (source, step.place), self._cost(run.lowered, task.index).latency

    def step_ended(self, task: Task) -> None:
        """What it makes is there."""
        run, index = self.runs[task.portion.run.serial], task.index
        label = task.label
        if task.queues:
            self._at_work[task.portion.launch.island] -= 1
        if label is not None:
            start, end = task.start, self.agenda.now
            if task.queues:
                task.portion.device_seconds += (end - start) * label.devices
            status = "draining" if run.stopped else "ok"
            run.record.add(
                Row(owned(label, run.client) if run.client else label, start, end, run.serial, "simulated", status)
            )
        if index not in run.errors:
            run.done[index] = 1
            if index in run.lowered.awaited:
                self._fill(run, index)
        for waiting in self._expecting.pop((run.serial, index), ()):
            self._islands.supply(waiting)

    def launch_ended(self, portion: Portion) -> None:
        """Tell the controller."""
        launch = portion.launch
        run = self.runs[launch.run]
        if run.errors:
            self.engine.obey(Voided(run.failed_results()))
        self.engine.obey(Completed(launch.run, launch.island, launch.start, launch.stop, portion.device_seconds))
        if launch.run not in self.runs:
            del self._virtual[launch.run]

    def _fill(self, run: Execution, index: int) -> None:
        plan = run.lowered.plan
        for slot in plan.steps[index].outputs:
            for entry in run.results.get(slot, ()):
                aval = run.lowered.results[plan.results.index(slot)]
                entry.array = Abstract(aval, run.lowered.shardings[slot])

    def _bring(self, run: Execution, task: Task) -> float:
        """Bring an argument: most often it is there already."""
        lowered, step = run.lowered, run.lowered.plan.steps[task.index]
        entry, action = run.arguments[step.argument], lowered.actions[task.index]
        entry.has_read()
        if entry.error is not None:
            run.fail(task.index, entry.error)
            return 0.0
        where = lowered.plan.placements[step.place]
        if self._lies_at(entry, lowered, lowered.brings.index(task.index)):
            return 0.0
        route, source = _route(entry, where)
        task.label = label = routed(action.label, route)
        topology = self._topology(step.island)
        return self.model.transfer(label.bytes, route, topology, source.count if source else 1, where.count).seconds

    def _skip(self, run: Execution, index: int) -> bool:
        """Whether its run was cancelled, or an input will never come."""
        error = run.error_of(index) if run.errors else None
        if run.stopped and (error is None or isinstance(error, CancelledError)):
            error = run.cancelled_error(index)
        if error is not None:
            step = run.lowered.plan.steps[index]
            if step.argument >= 0:
                run.arguments[step.argument].has_read()
            run.fail(index, error)
        return error is not None

    def _strike(self, run: Execution, label: Label) -> None:
        lost = sorted(self._gone[label.island].intersection(range(label.device, label.device + label.devices)))
        if lost:
            raise LostError(f"device {', '.join(map(str, lost))} of island {label.island} was lost")
        if label.kind != "transfer":
            for fault in self.faults:
                fault.strike(label, run.client)

    # ---- costs

    def _seconds(self, lowered: Lowered, index: int) -> float:
        action = lowered.actions[index]
        if action.step.kind == "launch":
            return float(action.call.seconds)  # a NodeCost, see ``estimates``
        return self._cost(lowered, index).seconds if action.step.kind == "move" else 0.0

    def _cost(self, lowered: Lowered, index: int) -> Cost:
        """Of a move; of what is brought it is known when it is."""
        plan, step = lowered.plan, lowered.plan.steps[index]
        if step.kind != "move":
            return FREE
        source, target = plan.placements[plan.slots[step.inputs[0]].place], plan.placements[step.place]
        bytes = lowered.actions[index].label.bytes
        return self.model.transfer(bytes, step.route, self._topology(step.island), source.count, target.count)

    def _topology(self, island: int) -> Any:
        return self.attachment.islands[island].topology

    # ---- devices

    def _lost(self, where: Placement) -> None:
        self._gone[where.island] |= set(range(where.first, where.first + where.count))

    def _restored(self, island: int) -> None:
        self._gone.pop(island, None)

    def _joined(self, island: Any) -> None:
        self._at_work.append(0)

    def _end(self, patience: float) -> None:
        pass


def _whereabouts(entry: Entry) -> Placement | None:
    """The devices that a value lies on; ``None`` for the host."""
    if entry.run is None:
        return entry.where
    plan = entry.run.lowered.plan
    return plan.placements[plan.steps[entry.step].place]


def _route(entry: Entry, where: Placement) -> tuple[str, Placement | None]:
    """How an argument travels, and from which devices."""
    source = _whereabouts(entry)
    if source is None:
        return "host", None
    return ("ICI" if source.island == where.island else "DCN"), source
