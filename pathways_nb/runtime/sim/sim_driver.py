"""The simulated driver: carries out the controller's instructions on islands in simulated time.

The core that decides is the same as on real devices and receives the same events (see ``virtual_event_loop``). Its
launches are carried out by ``simulated_islands``, with durations from the cost model (``node_estimates``,
``step_costs``). Values are abstract: a shape, a type and a sharding.

What a client thread waits for is waited for in simulated time: ``ended`` is a ``Turns``, so that a wait stops the
thread and lets time advance. No method may block on a real lock or condition while time must advance.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import jax

from pathways_nb.controller.events_and_instructions import Cancelled, Completed, Launch, Opened, PutRequested, Voided
from pathways_nb.controller.state_machine import StateMachine
from pathways_nb.cost.hardware.topology import Topology
from pathways_nb.cost.model import CostModel
from pathways_nb.plan.plan import Placement, Plan
from pathways_nb.program.program_tracer import Traced
from pathways_nb.program.signature import Deferred, aval_of
from pathways_nb.runtime import abstract_places
from pathways_nb.runtime.driver import QUEUED, Driver
from pathways_nb.runtime.entries import Entry
from pathways_nb.runtime.lowering.compiled_plan import CompiledPlan
from pathways_nb.runtime.lowering.layouts import Targets, Undeclared
from pathways_nb.runtime.lowering.plan_compiler import PlanCompiler
from pathways_nb.runtime.run_state import RunState
from pathways_nb.runtime.sim import chip_compiler
from pathways_nb.runtime.sim.chip_compiler import CompilerChoice
from pathways_nb.runtime.sim.held_up import Say
from pathways_nb.runtime.sim.node_estimates import NodeEstimator
from pathways_nb.runtime.sim.sim_failures import Failures
from pathways_nb.runtime.sim.simulated_islands import OngoingLaunch, VirtualRun
from pathways_nb.runtime.sim.simulated_pod import Abstract, SimulatedPod
from pathways_nb.runtime.sim.simulated_steps import Chance, SimulatedSteps
from pathways_nb.runtime.sim.step_costs import StepCosts, check_host_work
from pathways_nb.runtime.sim.thread_turns import Turns
from pathways_nb.runtime.sim.virtual_event_loop import VirtualEventLoop
from pathways_nb.timing.event_queue import EventQueue
from pathways_nb.timing.waits import MESSAGE
from pathways_nb.trace.record import Record
from pathways_nb.trace.rows import BY, Cause, Row, label_of


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
        self.event_loop: VirtualEventLoop
        self.agenda, self.model = agenda, model
        self._turns = Turns(agenda, lambda: self.event_loop, model.host.notice, say)
        super().__init__(pod, machine, agenda.clock, note, dcn_latency, self._turns, VirtualEventLoop)
        self.estimates, self.costs = NodeEstimator(model, self._topology, choice), StepCosts(model, self._topology)
        self.priced, self.compiled_by = chip_compiler.about(model, choice), chip_compiler.name_of(model, choice)
        self._steps = SimulatedSteps(
            agenda, model.host, len(pod.islands), self.costs, Failures(self.faults, agenda.clock), Chance(noise, seed),
            self.ended.notify_all, self._launch_ended,
        )  # fmt: skip
        self._virtual: dict[int, VirtualRun] = {}
        """By serial number: the runs as the islands know them."""
        self._controller_free = 0.0
        """When the controller has sent all its messages, in seconds."""
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

    def as_kept(self, leaf: Any, name: str) -> Any:
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

    def _launch(self, run: RunState, launch: Launch, cause: Cause) -> None:
        """Send a launch to its island's host.

        The controller sends messages one after another; their latencies overlap.
        """
        now, host = self.agenda.now, self.model.host
        hosts = self.costs.hosts_of(run.compiled_plan, launch)
        self._controller_free = max(self._controller_free, now) + host.message + host.per_host * hosts
        if run.serial not in self._virtual:
            self._virtual[run.serial] = VirtualRun(run.serial, self.costs.timed(run.compiled_plan), run)
        self.agenda.at(self._controller_free + self.dcn_latency, self._arrive, run, launch, now, cause)

    def _arrive(self, run: RunState, launch: Launch, sent: float, cause: Cause) -> None:
        """Enqueue a launch that reaches its island's host, and record the message and the enqueue."""
        name, now = run.compiled_plan.name, self.agenda.now
        label = label_of("stall", f"message to island {launch.island} on its way", name, run.client,
                         island=launch.island, route="DCN", basis=f"host: {self.model.host.base}",
                         latency=self.dcn_latency)  # fmt: skip
        run.record.add(Row(label, sent, now, run.serial, "simulated", cause=cause))
        through = self._steps.islands.arrive(self._virtual[run.serial], launch)
        label = label_of("enqueue", name, name, run.client, island=launch.island)
        run.record.add(Row(label, now, through, run.serial, "simulated", cause=BY[MESSAGE]))

    def _launch_ended(self, ongoing: OngoingLaunch) -> None:
        """Report the completion of a launch, and failed results, to the core."""
        launch = ongoing.launch
        run: RunState = ongoing.run.state
        if run.errors:
            self.event_loop.obey(Voided(run.failed_results()))
        self.event_loop.obey(Completed(launch.run, launch.island, launch.start, launch.stop, ongoing.device_seconds))
        if launch.run not in self.runs:
            del self._virtual[launch.run]

    # ---- devices

    def _topology(self, island: int) -> Topology:
        return self.attachment.islands[island].topology

    def _lost(self, where: Placement) -> None:
        self._steps.failures.lose(where)

    def _restored(self, island: int) -> None:
        self._steps.failures.restore(island)

    def _joined(self, island: int) -> None:
        self._steps.at_work.append(0)

    def _end(self, patience: float) -> None:
        self.agenda.clear()
