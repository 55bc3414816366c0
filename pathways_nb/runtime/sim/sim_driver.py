"""The simulated driver: carries out the controller's instructions on islands in simulated time.

The core that decides is the same as on real devices and receives the same events (see ``virtual_event_loop``). Its
launches are carried out by ``simulated_islands``, with durations from the cost model (``node_estimates``,
``step_costs``). Values are abstract: a shape, a type and a sharding.

What a client thread waits for is waited for in simulated time: ``ended`` is a ``Turns``, so that a wait stops the
thread and lets time advance. No method may block on a real lock or condition while time must advance.
"""

from __future__ import annotations

import contextlib
import random
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import jax
import numpy as np

from pathways_nb.controller.events_and_instructions import Cancelled, Completed, Launch, Opened, PutRequested, Voided
from pathways_nb.controller.state_machine import StateMachine
from pathways_nb.cost.hardware.topology import Topology
from pathways_nb.cost.model import CostModel
from pathways_nb.plan.plan import Placement, Plan
from pathways_nb.program.host_function import check_seconds
from pathways_nb.program.program_tracer import Traced
from pathways_nb.program.signature import Deferred, aval_of
from pathways_nb.runtime import abstract_places
from pathways_nb.runtime.driver import QUEUED, Driver
from pathways_nb.runtime.entries import Entry
from pathways_nb.runtime.lowering.compiled_plan import CompiledPlan
from pathways_nb.runtime.lowering.layouts import Targets, Undeclared
from pathways_nb.runtime.lowering.plan_compiler import PlanCompiler
from pathways_nb.runtime.run_state import Execution
from pathways_nb.runtime.sim import chip_compiler
from pathways_nb.runtime.sim.chip_compiler import CompilerChoice
from pathways_nb.runtime.sim.held_up import Say
from pathways_nb.runtime.sim.node_estimates import NodeEstimator
from pathways_nb.runtime.sim.sim_failures import Failures
from pathways_nb.runtime.sim.simulated_islands import Islands, OngoingLaunch, Task, VirtualRun
from pathways_nb.runtime.sim.simulated_pod import Abstract, SimulatedPod
from pathways_nb.runtime.sim.step_costs import StepCosts, beside_others, brought, check_host_work, links_of
from pathways_nb.runtime.sim.thread_turns import Turns
from pathways_nb.runtime.sim.virtual_event_loop import VirtualEventLoop
from pathways_nb.timing.event_queue import EventQueue
from pathways_nb.timing.waits import LANE, MESSAGE
from pathways_nb.trace.record import Record
from pathways_nb.trace.rows import BY, Cause, Row, RowRange, label_of


class SimDriver(Driver):
    """The driver of one controller on simulated islands.

    Args:
        pod: its islands.
        machine: the controller's pure core.
        model: the cost model.
        agenda: simulated time.
        note: receives events that belong to no program in particular.
        dcn_latency: seconds that a launch takes to an island's host, in addition to the controller's time for it.
        noise: standard deviation of the logarithm of a random factor on each duration; 0 for none.
        seed: of the generator of these factors.
        say: shows a line about a thread that keeps the others stopped.
        choice: whose compiler nodes are compiled by.
    """

    quality = "simulated"
    attachment: SimulatedPod

    def __init__(
        self,
        pod: SimulatedPod,
        machine: StateMachine,
        model: CostModel,
        agenda: EventQueue,
        note: Callable[[Row], None] = lambda row: None,
        dcn_latency: float = 0.0,
        noise: float = 0.0,
        seed: int = 0,
        say: Say = lambda line: False,
        choice: CompilerChoice = "auto",
    ):
        self.noise, self._random = noise, random.Random(seed)
        self.event_loop: VirtualEventLoop
        self.agenda, self.model = agenda, model
        self._turns = Turns(agenda, lambda: self.event_loop, model.host.notice, say)
        super().__init__(pod, machine, agenda.clock, note, dcn_latency, self._turns, VirtualEventLoop)
        self.estimates, self.costs = NodeEstimator(model, self._topology, choice), StepCosts(model, self._topology)
        self.priced, self.compiled_by = chip_compiler.about(model, choice), chip_compiler.name_of(model, choice)
        self._failures = Failures(self.faults, agenda.clock)
        self._islands = Islands(agenda, self, model.host.launch)
        self._virtual: dict[int, VirtualRun] = {}
        """By serial number: the runs as the islands know them."""
        self._expecting: defaultdict[tuple[int, int], list[Task]] = defaultdict(list)
        """By run and step: tasks of other runs that bring an output of the step to their place."""
        self._controller_free = 0.0
        """When the controller has sent all its messages, in seconds."""
        self._interferes = model.host.interference > 0
        self._at_work = [0] * len(pod.islands)
        """By island: number of nodes that have begun and not ended; kept only where the model has interference."""
        self.event_loop.begin(agenda, self._turns, model.host.call)
        self._turns.enter()  # the thread that attaches is a client: time must not advance before its first call

    # ---- for the client

    def lower(
        self, traced: Traced, plan: Plan, targets: Targets, record: Record, say: Callable[[str], object]
    ) -> CompiledPlan:
        """Return a plan whose steps have costs instead of executables; see ``Driver``."""
        estimates = self.estimates.of_plan()
        try:
            compiled_plan = PlanCompiler(traced, plan, targets, self.attachment.islands, estimates).lower(record, say)
        finally:
            estimates.end()  # after an error or an interrupt, others of its nodes may still be compiled
        check_host_work(compiled_plan)
        compiled_plan = self.costs.based(compiled_plan)
        self.costs.timed(compiled_plan)
        return compiled_plan

    def location(self, value: Any) -> Hashable:
        """Return devices and sharding of an entry, or ``None`` for a value from outside.

        Both are needed, because a sharding on an abstract mesh does not name devices.
        """
        return abstract_places.location(value)

    def sharding_for(self, location: Any, argument: Undeclared) -> Any:
        """Return the argument's own sharding if it is on the place's devices, else the default one."""
        return abstract_places.sharding_for(location, argument)

    def take(self, leaf: Any, name: str) -> Any:
        """Return an argument as an abstract value; its contents are never read.

        An array has to be transferred from the host. A ``jax.ShapeDtypeStruct`` counts as present at every place.
        """
        if isinstance(leaf, Deferred):
            leaf.check_there()
            leaf.wait()
        aval = aval_of(leaf)
        assert aval is not None
        return Abstract(aval.value, anywhere=isinstance(leaf, jax.ShapeDtypeStruct))

    def put(self, value: Any, sharding: Any) -> Any:
        """Return the value with a sharding, after waiting for the simulated seconds of the transfer."""
        seconds = self.model.from_host(value.nbytes, sharding.mesh.size).seconds
        self.ended.wait(lambda: self.broken, timeout=seconds)
        return Abstract(value.aval, sharding)

    def cancel(self, runs: Sequence[int]) -> None:
        """Cancel runs when all client threads have finished the calls that they have made.

        The base class stops the runs at once, which would be too early in simulated time.
        """
        self.event_loop.post(Cancelled(tuple(runs)))

    def wait_for_capacity(self, client: str) -> float:
        """Return the seconds waited as ``Driver`` does, counted from when the client's thread reaches this call."""
        if len(self._queued.get(client, ())) < QUEUED:
            return 0.0
        began = self.reached_by(client)
        self.ended.wait(
            lambda: len(self._queued.get(client, ())) < QUEUED or self.broken, max(began - self.clock(), 0.0)
        )
        super().wait_for_capacity(client)
        return max(self.clock() - began, 0.0)

    def reached_by(self, client: str) -> float:
        """See ``Driver``."""
        return self.event_loop.now(lambda: self.event_loop.gets_there(client))

    def enter(self) -> None:
        """See ``Driver``."""
        self._turns.enter()

    def leave(self) -> None:
        """See ``Driver``."""
        self._turns.leave()

    def calling(self, client: str, name: str = "") -> contextlib.AbstractContextManager[None]:
        """See ``Driver``."""
        return self._turns.calling(client, name)

    def poll(self) -> None:
        """See ``Driver``."""
        self._turns.poll()

    def close(self, patience: float = 60.0) -> None:
        """See ``Driver``."""
        self._turns.dissolve()
        super().close(patience)

    def open(self, client: str, share: float, priority: float, memory: int) -> None:
        """See ``Driver``."""
        self.event_loop.store(Opened(client, share, priority, memory))

    @property
    def sampled(self) -> float:
        """Return 1: the simulation knows the end of every launch."""
        return 1.0

    def _request_put(self, event: PutRequested, changes: Iterable[object]) -> None:
        """Ask when the client's thread reaches the request; if there is memory, it is granted at that time."""
        self.event_loop.store(event, changes)
        self.ended.wait(lambda: self.broken, timeout=max(self.reached_by(event.client) - self.clock(), 0.0))

    def _is_at(self, entry: Entry, compiled_plan: CompiledPlan, position: int) -> bool:
        return abstract_places.is_at(entry, compiled_plan, position)

    # ---- launches

    def _launch(self, run: Execution, launch: Launch, cause: Cause) -> None:
        """Send a launch to its island's host.

        The controller sends messages one after another; their latencies overlap.
        """
        now, host = self.agenda.now, self.model.host
        hosts = self.costs.hosts_of(run.compiled_plan, launch)
        self._controller_free = max(self._controller_free, now) + host.message + host.per_host * hosts
        if run.serial not in self._virtual:
            self._virtual[run.serial] = VirtualRun(run.serial, self.costs.timed(run.compiled_plan), run)
        self.agenda.at(self._controller_free + self.dcn_latency, self._arrive, run, launch, now, cause)

    def _arrive(self, run: Execution, launch: Launch, sent: float, cause: Cause) -> None:
        """Enqueue a launch that reaches its island's host, and record the message and the enqueue."""
        name, now = run.compiled_plan.name, self.agenda.now
        label = label_of("stall", f"message to island {launch.island} on its way", name, run.client,
                         island=launch.island, route="DCN", basis=f"host: {self.model.host.base}",
                         latency=self.dcn_latency)  # fmt: skip
        run.record.add(Row(label, sent, now, run.serial, "simulated", cause=cause))
        through = self._islands.arrive(self._virtual[run.serial], launch)
        label = label_of("enqueue", name, name, run.client, island=launch.island)
        run.record.add(Row(label, now, through, run.serial, "simulated", cause=BY[MESSAGE]))

    # ---- ``IslandsOwner`` of the islands

    def prepared(self, task: Task) -> int:
        """Return 1 if a task brings a result of another run that is not computed yet, else 0."""
        run: Execution = task.ongoing.run.execution
        position = run.compiled_plan.plan.steps[task.index].argument
        if position < 0:
            return 0
        entry = run.arguments[position]
        if entry.run is None or entry.resolved:
            return 0
        self._expecting[entry.run.serial, entry.step].append(task)
        return 1

    def lasts(self, task: Task) -> float:
        """Return the seconds of a step that begins now, and set its label.

        They are 0 for a step that is skipped or fails, and for an argument that is already at its place.
        """
        run: Execution = task.ongoing.run.execution
        task.label = run.compiled_plan.actions[task.index].label
        run.begun = run.begun or self._on_devices(task)
        seconds = task.ongoing.run.timed.seconds[task.index]
        if callable(declared := run.compiled_plan.actions[task.index].seconds):
            seconds = 0.0 if run.stopped or run.errors else check_seconds(task.label.name, declared())
        if run.stopped or run.errors or self._failures.gone or self.faults or not task.queues:
            seconds = self._hindered(run, task, seconds)
        if self._interferes and self._on_devices(task):
            if seconds and self._is_interfered(task.ongoing.launch.island):
                seconds, task.label = seconds + self.model.host.interference, beside_others(task.label)
            self._at_work[task.ongoing.launch.island] += 1
        return seconds * self._random.lognormvariate(0.0, self.noise) if self.noise and seconds else seconds

    def _hindered(self, run: Execution, task: Task, seconds: float) -> float:
        """Return the seconds of a step that may fail or brings an argument; without a label it is not recorded."""
        label, task.label = task.label, None
        if self._failures.stop(run, task.index, label):
            return 0.0
        if run.compiled_plan.plan.steps[task.index].argument >= 0:
            return self._bring(run, task)
        task.label = label
        return seconds

    @staticmethod
    def _on_devices(task: Task) -> bool:
        """Return whether a step is a launch."""
        return bool(task.queues) and task.ongoing.run.timed.plan.steps[task.index].kind == "launch"

    def _is_interfered(self, island: int) -> bool:
        """Return whether all other islands work.

        Where hosts have no cores of their own, a node that begins then is slower (``HostCosts.interference``).
        """
        others = self._at_work[:island] + self._at_work[island + 1 :]
        return bool(others) and all(others)

    def link(self, task: Task) -> tuple[Sequence[Hashable], float]:
        """Return the links and the latency in the task's label."""
        return task.label.links, task.label.latency

    def step_ended(self, task: Task) -> None:
        """Record a step that ends now, and fill the entries of its results."""
        run, index = task.ongoing.run.execution, task.index
        label = task.label
        if self._interferes and self._on_devices(task):
            self._at_work[task.ongoing.launch.island] -= 1
        if label is not None:
            start, end = task.start, self.agenda.now
            if task.queues:
                task.ongoing.device_seconds += (end - start) * label.devices
            status = "draining" if run.stopped else "ok"
            row = Row(run.own(label), start, end, run.serial, "simulated", status, BY[task.why])
            if label is not run.compiled_plan.actions[index].label:
                run.recorded[index] = row.label
            run.record.add(row)
        if index not in run.errors:
            run.done[index] = 1
            if index in run.compiled_plan.awaited:
                self._fill(run, index)
        if self._expecting:
            for waiting in self._expecting.pop((run.serial, index), ()):
                self._islands.supply(waiting)

    def may_pass(self, task: Task) -> bool:
        """Return whether nothing has failed, is random, or interferes with others, and no other run waits."""
        run: Execution = task.ongoing.run.execution
        hindered = run.stopped or run.errors or self._failures.gone or self.faults
        return not (hindered or self.noise or self._interferes or self._expecting)

    def passed(self, task: Task, steps: np.ndarray, times: np.ndarray) -> None:
        """Record launches that pass at once, as ``step_ended`` does each of them."""
        run: Execution = task.ongoing.run.execution
        actions = run.compiled_plan.actions
        labels = [actions[index].label for index in steps.tolist()]
        labels = list(map(run.own, labels)) if run.client else labels
        spent = np.diff(times) * labels[0].devices
        task.ongoing.device_seconds = float(np.add.accumulate(np.append(task.ongoing.device_seconds, spent))[-1])
        np.frombuffer(run.done, np.uint8)[steps] = 1
        run.record.add_range(RowRange(labels, times[:-1], times[1:], run.serial, "simulated", "ok", LANE))

    def launch_ended(self, ongoing: OngoingLaunch) -> None:
        """Report the completion of a launch, and failed results, to the core."""
        launch = ongoing.launch
        run: Execution = ongoing.run.execution
        if run.errors:
            self.event_loop.obey(Voided(run.failed_results()))
        self.event_loop.obey(Completed(launch.run, launch.island, launch.start, launch.stop, ongoing.device_seconds))
        if launch.run not in self.runs:
            del self._virtual[launch.run]

    def _fill(self, run: Execution, index: int) -> None:
        """Give the entries of a step's results abstract arrays, and notify waiting threads."""
        plan = run.compiled_plan.plan
        for slot in plan.steps[index].outputs:
            entries = run.results.get(slot, ())
            for entry in entries:
                entry.array = Abstract(run.compiled_plan.result_avals[slot], run.compiled_plan.shardings[slot])
                entry.shared = len(entries) > 1 or plan.steps[index].argument >= 0
        self.ended.notify_all()

    def _bring(self, run: Execution, task: Task) -> float:
        """Return the seconds of bringing an argument to its place: 0 if it is already there or has no values.

        An argument that other buffers share is copied if the program takes over its memory.
        """
        compiled_plan, step = run.compiled_plan, run.compiled_plan.plan.steps[task.index]
        entry, where = run.arguments[step.argument], compiled_plan.plan.placements[step.place]
        is_there = self._is_at(entry, compiled_plan, compiled_plan.bring_positions[task.index])
        is_copied = is_there and entry.shared and step.argument in compiled_plan.taken_over
        if (is_there and not is_copied) or (isinstance(entry.array, Abstract) and entry.array.anywhere):
            return 0.0
        if where.is_host and entry.placement is None:
            return 0.0  # it is on the host already
        route, source = _route(entry, where)
        size = compiled_plan.crossing(task.index, None if is_copied else entry.located)
        cost = self.costs.transfer(compiled_plan, task.index, route, entry.located, is_copied)
        label = compiled_plan.actions[task.index].label
        task.label = brought(label, route, size, cost.formula, links_of(route, source, where))
        return cost.seconds

    # ---- devices

    def _topology(self, island: int) -> Topology:
        return self.attachment.islands[island].topology

    def _lost(self, where: Placement) -> None:
        self._failures.lose(where)

    def _restored(self, island: int) -> None:
        self._failures.restore(island)

    def _joined(self, island: int) -> None:
        self._at_work.append(0)

    def _end(self, patience: float) -> None:
        self.agenda.clear()


def _route(entry: Entry, where: Placement) -> tuple[str, Placement | None]:
    """Return the route of an argument (``host``, ``ICI`` or ``DCN``) and the devices that it comes from."""
    source = entry.placement
    if source is None:
        return "host", None
    return ("ICI" if source.island == where.island else "DCN"), source
